//! XRC domains.

use core::mem::zeroed;
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{Error, Result, XrcDomain, XrcdRequest};

use crate::context::{Tie, checked, is_usable};
use crate::guard::{self, null_argument};
use crate::layout::{ibv_context, ibv_xrcd, ibv_xrcd_init_attr};

/// A handle to an XRC domain.
#[repr(C)]
pub(crate) struct CXrcd {
    public: ibv_xrcd,
    inner: Arc<dyn XrcDomain>,
    _tie: Tie,
}

impl CXrcd {
    /// The traits' domain.
    pub(crate) fn inner(&self) -> &Arc<dyn XrcDomain> {
        &self.inner
    }
}

/// Checks an XRC domain that is passed as an argument.
///
/// # Safety
/// `xrcd` is null or of any provider.
pub(crate) unsafe fn argument<'a>(xrcd: *const ibv_xrcd) -> Result<&'a CXrcd> {
    // SAFETY: the caller promises it. Ours begin with the public structure.
    unsafe {
        if xrcd.is_null() {
            return Err(null_argument("the XRC domain"));
        }
        if !is_usable((*xrcd).context) {
            return Err(Error::invalid("the XRC domain belongs to another device"));
        }
        Ok(&*xrcd.cast())
    }
}

/// The file behind a descriptor: its device and inode number. -1 means no file.
fn file(fd: c_int) -> Result<Option<(u64, u64)>> {
    if fd == -1 {
        return Ok(None);
    }
    // SAFETY: zeroes are valid for the structure, which fstat fills in.
    unsafe {
        let mut stat: libc::stat = zeroed();
        if libc::fstat(fd, &mut stat) != 0 {
            return Err(Error::new(guard::errno(), "the XRC domain's fd is not an open file"));
        }
        Ok(Some((stat.st_dev, stat.st_ino)))
    }
}

/// `ibv_open_xrcd`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn open_xrcd(
    context: *mut ibv_context,
    attr: *const ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const FD: u32 = 1;
    const OFLAGS: u32 = 2;
    guard::pointer("ibv_open_xrcd", || {
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires, and
        // null or readable attributes. The box that C gets lives until `close_xrcd`.
        unsafe {
            let owner = checked(context)?;
            let attr = attr.as_ref().ok_or_else(|| null_argument("xrcd_init_attr"))?;
            if attr.comp_mask & !(FD | OFLAGS) != 0 {
                return guard::unsupported("ibv_xrcd_init_attr has an unknown comp_mask");
            }
            if attr.comp_mask != FD | OFLAGS {
                return Err(Error::invalid("an XRC domain needs fd and oflags"));
            }
            let inner = owner.inner().open_xrcd(&XrcdRequest {
                file: file(attr.fd)?,
                // Linux uses no other flags.
                create: attr.oflags & libc::O_CREAT != 0,
                exclusive: attr.oflags & libc::O_EXCL != 0,
            })?;
            let _tie = Tie::new(owner);
            let xrcd = Box::into_raw(Box::new(CXrcd { public: ibv_xrcd { context }, inner, _tie }));
            Ok(&raw mut (*xrcd).public)
        }
    })
}

/// `ibv_close_xrcd`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    guard::errno_of("ibv_close_xrcd", || {
        // SAFETY: the caller promises it. The box is the one that `open_xrcd` leaked.
        unsafe {
            argument(xrcd)?.inner.close()?;
            drop(Box::from_raw(xrcd.cast::<CXrcd>()));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use core::ptr::null;

    use super::*;
    use crate::double;
    use crate::open::close_device;

    #[test]
    fn fd_and_oflags_are_both_needed_and_nothing_else_is_known() {
        let context = double::open();
        let open = |comp_mask, fd| {
            let attr = ibv_xrcd_init_attr { comp_mask, fd, oflags: libc::O_CREAT };
            // SAFETY: a context of ours; the double has no XRC, so nothing is made.
            let xrcd = unsafe { open_xrcd(context, &attr) };
            assert!(xrcd.is_null());
            guard::errno()
        };
        assert_eq!([open(1, -1), open(2, -1)], [libc::EINVAL; 2]);
        assert_eq!(open(7, -1), libc::EOPNOTSUPP);
        assert_eq!(open(3, 1 << 20), libc::EBADF);
        assert_eq!(open(3, -1), libc::EOPNOTSUPP, "a device without XRC");
        // SAFETY: a context of ours, closed once; null is refused.
        unsafe {
            assert!(open_xrcd(context, null()).is_null());
            assert_eq!(close_xrcd(core::ptr::null_mut()), libc::EINVAL);
            assert_eq!(close_device(context), 0);
        }
    }
}
