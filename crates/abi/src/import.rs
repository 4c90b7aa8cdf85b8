//! Imports contexts and objects by descriptor and handle (`man 3 ibv_import_device` and related
//! pages).
//!
//! A context's `cmd_fd` is a memory file. A duplicate of the descriptor refers to the same file,
//! and the context is found by the file's identity. In the process that opened the context, the
//! imported context is the same open device with the same objects and events. Other processes can't
//! import it. The kernel's drivers let processes share objects, because the kernel can access the
//! memory of both. But our regions are memory of the process that registered them.

use libc::c_int;

use crate::context::CContext;
use crate::forward::real_fn;
use crate::guard::{self, null_argument};
use crate::layout::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::memory::{forget_mr, show};
use crate::open::wrap;
use crate::ours::Ours;
use crate::pd::{CPd, NO_PARTS, forget_pd, make_pd};
use crate::{dm, identity, log};

/// Implements `ibv_import_device`. It takes ownership of the descriptor.
///
/// # Safety
/// The same as for the real function.
pub(crate) unsafe extern "C-unwind" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    if !guard::run(true, || identity::is_context_file(cmd_fd)) {
        let real = real_fn!(c"ibv_import_device", c"IBVERBS_1.10", fn(c_int) -> *mut ibv_context);
        if let Some(real) = real {
            // SAFETY: the real function takes any descriptor, and checks it.
            return unsafe { real(cmd_fd) };
        }
    }
    guard::pointer("ibv_import_device", || {
        let found = identity::find(cmd_fd)?;
        match found.filter(|opened| opened.is_of_this_process()) {
            Some(opened) => Ok(wrap(opened, cmd_fd)),
            None if identity::is_context_file(cmd_fd) => guard::unsupported(
                "a context of another process can't be imported, because its memory is not accessible",
            ),
            None => guard::unsupported("cmd_fd does not belong to a Polypath device"),
        }
    })
}

/// `ibv_import_pd`.
pub(crate) extern "C-unwind" fn import_pd(context: Ours<CContext>, handle: u32) -> *mut ibv_pd {
    guard::pointer("ibv_import_pd", || {
        context.inner().import_pd(handle)?;
        Ok(make_pd(&context, handle, NO_PARTS, None))
    })
}

/// Implements `ibv_unimport_pd`. The domain stays.
///
/// # Safety
/// `pd` is one of ours, and not used any more.
pub(crate) unsafe extern "C-unwind" fn unimport_pd(pd: *mut ibv_pd) {
    guard::run((), || {
        // SAFETY: the trampoline passes only our domains, and the program does not use this one any
        // more.
        if let Err(error) = unsafe { forget_pd(pd) } {
            log::line(format_args!("ibv_unimport_pd: {error}"));
        }
    });
}

/// `ibv_import_mr`.
pub(crate) extern "C-unwind" fn import_mr(pd: Ours<CPd>, handle: u32) -> *mut ibv_mr {
    guard::pointer("ibv_import_mr", || {
        let inner = pd.context().inner().import_mr(pd.number(), handle)?;
        Ok(show(&pd, core::ptr::null_mut(), inner))
    })
}

/// Implements `ibv_unimport_mr`. The region stays.
///
/// # Safety
/// `mr` is one of ours, and not used any more.
pub(crate) unsafe extern "C-unwind" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the trampoline passes only our regions, and the program does not use this one any
    // more.
    guard::run((), || unsafe { forget_mr(mr) });
}

/// `ibv_import_dm`.
pub(crate) extern "C-unwind" fn import_dm(
    context: Option<Ours<CContext>>,
    handle: u32,
) -> *mut ibv_dm {
    guard::pointer("ibv_import_dm", || {
        let context = context.ok_or_else(|| null_argument("context"))?;
        Ok(dm::make(&context, context.inner().import_dm(handle)?))
    })
}

/// Implements `ibv_unimport_dm`. The memory stays.
///
/// # Safety
/// `dm` is one of ours, and not used any more.
pub(crate) unsafe extern "C-unwind" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the trampoline passes only our device memory, and the program does not use this one
    // any more.
    guard::run((), || unsafe { dm::forget(dm) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::of;
    use crate::double;
    use crate::memory::{dereg_mr, reg_mr};
    use crate::open::close_device;
    use crate::pd::{alloc_pd, dealloc_pd};

    /// A context and another one imported from it.
    fn two() -> (*mut ibv_context, *mut ibv_context) {
        let context = double::open();
        // SAFETY: this is our context, and the descriptor is a duplicate.
        let imported = unsafe { import_device(libc::dup((*context).cmd_fd)) };
        assert!(!imported.is_null());
        (context, imported)
    }

    #[test]
    fn an_imported_context_is_the_same_device_and_outlives_the_first() {
        let (context, imported) = two();
        // SAFETY: contexts of ours, each closed once.
        unsafe {
            assert_ne!(context, imported);
            assert_eq!((*context).device, (*imported).device);
            assert_eq!((*context).async_fd, (*imported).async_fd);
            assert!(of(context).shares_objects_with(of(imported)));
            let fd = (*imported).cmd_fd;
            assert_eq!(close_device(context), 0);
            let third = import_device(libc::dup(fd));
            assert!(!third.is_null(), "as long as one is open, it can be imported");
            let spare = libc::dup(fd);
            assert_eq!((close_device(third), close_device(imported)), (0, 0));
            assert!(import_device(spare).is_null());
            assert_eq!(guard::errno(), libc::EOPNOTSUPP);
            libc::close(spare);
        }
    }

    #[test]
    fn what_is_no_context_of_this_process_is_not_imported() {
        // SAFETY: these are our own descriptors.
        unsafe {
            let (fd, _) = identity::command_fd().unwrap();
            assert!(identity::is_context_file(fd));
            assert!(import_device(fd).is_null(), "as one that another process sent");
            assert_eq!(guard::errno(), libc::EOPNOTSUPP);
            libc::close(fd);
            let other = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            assert!(!identity::is_context_file(other));
            libc::close(other);
        }
    }

    #[test]
    fn imported_objects_name_the_same_and_unimporting_leaves_them() {
        let (context, imported) = two();
        let mut memory = [0_u8; 64];
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let pd = alloc_pd(context);
            let mr = reg_mr(pd, memory.as_mut_ptr().cast(), 64, 1);
            let pd_2 = import_pd(Ours::new(imported), (*pd).handle);
            assert_eq!(((*pd_2).context, (*pd_2).handle), (imported, (*pd).handle));
            let mr_2 = import_mr(Ours::new(pd_2), (*mr).handle);
            assert!((*mr_2).addr.is_null());
            assert_eq!(((*mr_2).lkey, (*mr_2).rkey, (*mr_2).pd), ((*mr).lkey, (*mr).rkey, pd_2));
            unimport_mr(mr_2);
            unimport_pd(pd_2);
            assert!(import_pd(Ours::new(imported), 999).is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            assert_eq!((dereg_mr(mr), dealloc_pd(pd)), (0, 0));
            close_device(imported);
            close_device(context);
        }
    }
}
