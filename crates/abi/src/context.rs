//! Open devices, and the ties of objects to them.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polypath_verbs::{Context, Result};

use crate::guard::null_argument;
use crate::layout::{ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_srq, verbs_context};
use crate::ours::{Object, is_our_context};

/// The device and inode of the file behind `cmd_fd`.
pub(crate) type Identity = (libc::dev_t, libc::ino_t);

/// One of our open devices, in the form that programs see.
#[repr(C)]
pub(crate) struct CContext {
    /// Newer headers read fields that lie before those that we know, after checking `sz`. This
    /// keeps a program that does not check from reading other memory.
    headroom: [usize; 64],
    verbs: UnsafeCell<verbs_context>,
    opened: Arc<Opened>,
    /// The number of objects that are left, plus one while it is open.
    ties: AtomicUsize,
}

/// The state that a context shares with those that were imported from it.
pub(crate) struct Opened {
    device: *mut ibv_device,
    /// The number of its contexts that are not closed.
    open: AtomicUsize,
    inner: Arc<dyn Context>,
    live: Mutex<HashMap<u64, EventObject>>,
    identity: Identity,
    process: u32,
}

// SAFETY: of its parts, only the pointer to the device is not `Send`, and devices are never freed.
unsafe impl Send for Opened {}
// SAFETY: nothing is written through the pointer to the device, and all other parts are `Sync`.
unsafe impl Sync for Opened {}

// SAFETY: `leak` allocates the whole structure and passes C the address of this field.
unsafe impl Object for CContext {
    type Public = ibv_context;
    const OFFSET: usize = offset_of!(Self, verbs) + offset_of!(verbs_context, context);
}

impl Opened {
    /// Creates the state of a device that was opened and has no context yet.
    pub(crate) fn new(
        device: *mut ibv_device,
        inner: Arc<dyn Context>,
        identity: Identity,
    ) -> Arc<Self> {
        let (open, live) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
        let process = std::process::id();
        Arc::new(Self { device, open, inner, live, identity, process })
    }

    /// The C structure of the device.
    pub(crate) fn device(&self) -> *mut ibv_device {
        self.device
    }

    /// The traits' context.
    pub(crate) fn inner(&self) -> &Arc<dyn Context> {
        &self.inner
    }

    /// The identity of the file behind the `cmd_fd` of its contexts.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Notes that one of its contexts was closed. Returns whether that was the last one.
    pub(crate) fn is_last_closed(&self) -> bool {
        self.open.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The objects that events may refer to.
    pub(crate) fn live(&self) -> Live<'_> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process opened it. A context from before a fork is unusable, because its
    /// threads are not in the child.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// The object that belongs to a token.
#[derive(Clone, Copy)]
pub(crate) enum EventObject {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
}

// SAFETY: any thread may use the objects, and the table holds only objects that are not destroyed.
unsafe impl Send for EventObject {}

/// A locked table of the objects that events may refer to.
pub(crate) type Live<'a> = MutexGuard<'a, HashMap<u64, EventObject>>;

/// A new token. No token is used twice, so an event of an object that is gone finds no object.
pub(crate) fn new_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl CContext {
    /// Creates another context of an open device. `verbs` are its tables of functions.
    pub(crate) fn leak(opened: Arc<Opened>, verbs: verbs_context) -> *mut ibv_context {
        opened.open.fetch_add(1, Ordering::Relaxed);
        let (verbs, ties) = (UnsafeCell::new(verbs), AtomicUsize::new(1));
        Box::leak(Box::new(Self { headroom: [0; 64], verbs, opened, ties })).public()
    }

    /// The state that it shares with contexts that were imported from it.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// The tables of functions.
    #[cfg(test)]
    pub(crate) fn verbs(&self) -> *mut verbs_context {
        self.verbs.get()
    }

    /// The traits' context.
    pub(crate) fn inner(&self) -> &Arc<dyn Context> {
        &self.opened.inner
    }

    /// Whether objects of one context are valid in the other: it is the same, or one was imported
    /// from the other.
    pub(crate) fn shares_objects_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.opened, &other.opened)
    }

    /// The objects that events may refer to. An event is taken, looked up and counted under this
    /// lock, and an object is removed from the table before its destruction waits for
    /// acknowledgements. So no event is delivered that the wait would miss.
    pub(crate) fn live(&self) -> Live<'_> {
        self.opened.live()
    }

    /// Whether its objects are shut down, so that the program can only destroy them.
    pub(crate) fn is_shut(&self) -> bool {
        self.opened.open.load(Ordering::Acquire) == 0
    }

    /// The C structure.
    pub(crate) fn public(&self) -> *mut ibv_context {
        // SAFETY: this is a field of a live allocation, and no reference is made.
        unsafe { &raw mut (*self.verbs.get()).context }
    }
}

/// A context of ours.
///
/// # Safety
/// `context` must be one of ours, not closed.
pub(crate) unsafe fn of<'a>(context: *const ibv_context) -> &'a CContext {
    // SAFETY: our contexts are inside a `CContext`.
    unsafe { &*context.byte_sub(CContext::OFFSET).cast() }
}

/// The context for a function that is called through the tables, by programs that may make
/// mistakes.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn checked<'a>(context: *const ibv_context) -> Result<&'a CContext> {
    // SAFETY: the context of any provider identifies its provider, and `of` is only called with our
    // own.
    unsafe {
        if is_our_context(context) { Ok(of(context)) } else { Err(null_argument("the context")) }
    }
}

/// Whether a context is ours; for objects that are passed as arguments.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn is_usable(context: *const ibv_context) -> bool {
    // SAFETY: it is null, or the context of any provider, which identifies its provider.
    unsafe { is_our_context(context) }
}

/// A tie of an object to its context. Programs should destroy objects before they close their
/// context, but some close it first (garbage collectors have no fixed order) and then destroy the
/// rest. Every call uses the object's context, so the context stays until its last object is gone.
pub(crate) struct Tie(*mut ibv_context);

impl Tie {
    /// Adds a tie to a context, which has one as long as it is borrowed.
    pub(crate) fn new(context: &CContext) -> Self {
        context.ties.fetch_add(1, Ordering::Relaxed);
        Self(context.public())
    }

    /// The context.
    pub(crate) fn context(&self) -> &CContext {
        // SAFETY: a context lives as long as it has ties, and this is one.
        unsafe { of(self.0) }
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        // SAFETY: a context lives as long as it has ties, and this is one.
        unsafe { untie(self.0) };
    }
}

/// Removes a tie. With the last one, the context is freed.
///
/// # Safety
/// `context` is ours, and the tie exists.
pub(crate) unsafe fn untie(context: *mut ibv_context) {
    // SAFETY: the caller promises it. After the last tie nobody refers to the context, and the box
    // is the one that [`CContext::leak`] leaked.
    unsafe {
        let this = of(context);
        if this.ties.fetch_sub(1, Ordering::AcqRel) == 1 {
            let this = Box::from_raw(core::ptr::from_ref(this).cast_mut());
            debug_assert!(this.headroom.iter().all(|&word| word == 0));
        }
    }
}
