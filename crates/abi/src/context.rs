//! Open devices, and what ties objects to them.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polypath_verbs::{Context, Result};

use crate::guard::null_argument;
use crate::layout::{ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_srq, verbs_context};
use crate::ours::{Object, is_our_context};

/// The device and inode of the file that `cmd_fd` is.
pub(crate) type Identity = (libc::dev_t, libc::ino_t);

/// An open device of ours, as a program sees it.
#[repr(C)]
pub(crate) struct CContext {
    /// Newer headers read fields before those that we know, after they have looked at `sz`; this
    /// keeps a program that does not look from reading what is not ours.
    headroom: [usize; 64],
    verbs: UnsafeCell<verbs_context>,
    opened: Arc<Opened>,
    /// Objects that are left, and one if it is not closed.
    ties: AtomicUsize,
}

/// What a context and those that were imported from it have in common.
pub(crate) struct Opened {
    device: *mut ibv_device,
    /// Contexts of it that are not closed.
    open: AtomicUsize,
    inner: Arc<dyn Context>,
    live: Mutex<HashMap<u64, EventObject>>,
    identity: Identity,
    process: u32,
}

// SAFETY: of its parts only the pointer to the device is not `Send`, and devices are never freed.
unsafe impl Send for Opened {}
// SAFETY: nothing is written through the pointer to the device, and all else in it is `Sync`.
unsafe impl Sync for Opened {}

// SAFETY: `leak` makes the whole and gives C the address of this field.
unsafe impl Object for CContext {
    type Public = ibv_context;
    const OFFSET: usize = offset_of!(Self, verbs) + offset_of!(verbs_context, context);
}

impl Opened {
    /// A device that was opened, with no context yet.
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

    /// The file that the `cmd_fd` of its contexts is.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// A context of it was closed: whether that was the last one.
    pub(crate) fn is_last_closed(&self) -> bool {
        self.open.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The objects that events may name.
    pub(crate) fn live(&self) -> Live<'_> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not a context that was opened before a fork, since its threads are not in the child.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// What a token of the traits stands for.
#[derive(Clone, Copy)]
pub(crate) enum EventObject {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
}

// SAFETY: the objects may be used by any thread; the table only holds those that are not destroyed.
unsafe impl Send for EventObject {}

/// A guarded table of the objects that events may name.
pub(crate) type Live<'a> = MutexGuard<'a, HashMap<u64, EventObject>>;

/// A new token. They are never used twice, so that an event of an object that is gone finds nothing.
pub(crate) fn new_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl CContext {
    /// Another context of an open device; the tables of its functions are `verbs`.
    pub(crate) fn leak(opened: Arc<Opened>, verbs: verbs_context) -> *mut ibv_context {
        opened.open.fetch_add(1, Ordering::Relaxed);
        let (verbs, ties) = (UnsafeCell::new(verbs), AtomicUsize::new(1));
        Box::leak(Box::new(Self { headroom: [0; 64], verbs, opened, ties })).public()
    }

    /// What it has in common with those that were imported from it.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// The tables.
    #[cfg(test)]
    pub(crate) fn verbs(&self) -> *mut verbs_context {
        self.verbs.get()
    }

    /// The traits' context.
    pub(crate) fn inner(&self) -> &Arc<dyn Context> {
        &self.opened.inner
    }

    /// Whether the objects of one are those of the other: the same context, or one imported from it.
    pub(crate) fn shares_objects_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.opened, &other.opened)
    }

    /// The objects that events may name. An event is taken, looked up and counted under this lock,
    /// and an object leaves the table before its destruction waits for acknowledgements: so no
    /// event is given out that the wait would not see.
    pub(crate) fn live(&self) -> Live<'_> {
        self.opened.live()
    }

    /// Whether its objects are gone, but for what the program has of them.
    pub(crate) fn is_shut(&self) -> bool {
        self.opened.open.load(Ordering::Acquire) == 0
    }

    /// The C structure.
    pub(crate) fn public(&self) -> *mut ibv_context {
        // SAFETY: a field of a live allocation; no reference is made.
        unsafe { &raw mut (*self.verbs.get()).context }
    }
}

/// A context of ours.
///
/// # Safety
/// `context` must be one of ours, not closed.
pub(crate) unsafe fn of<'a>(context: *const ibv_context) -> &'a CContext {
    // SAFETY: contexts of ours lie inside of a `CContext`.
    unsafe { &*context.byte_sub(CContext::OFFSET).cast() }
}

/// A context for a function that is called through the tables, by programs that may err.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn checked<'a>(context: *const ibv_context) -> Result<&'a CContext> {
    // SAFETY: any provider's context says whose it is, and `of` is only called with one of ours.
    unsafe {
        if is_our_context(context) { Ok(of(context)) } else { Err(null_argument("the context")) }
    }
}

/// Whether a context is one of ours: for objects that are arguments of something else.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn is_usable(context: *const ibv_context) -> bool {
    // SAFETY: null, or any provider's context, which says whose it is.
    unsafe { is_our_context(context) }
}

/// What ties an object to its context. Programs should destroy objects before they close their
/// context, yet some close it first, and then destroy what is left (collectors of garbage have no
/// order): every call looks into the object's context, so it stays until its last object is gone.
pub(crate) struct Tie(*mut ibv_context);

impl Tie {
    /// Another tie to a context, which has one as long as it is lent.
    pub(crate) fn new(context: &CContext) -> Self {
        context.ties.fetch_add(1, Ordering::Relaxed);
        Self(context.public())
    }

    /// The context.
    pub(crate) fn context(&self) -> &CContext {
        // SAFETY: a context is there as long as it has ties, and this is one.
        unsafe { of(self.0) }
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        // SAFETY: a context is there as long as it has ties, and this is one.
        unsafe { untie(self.0) };
    }
}

/// Takes a tie away; with the last one, the context.
///
/// # Safety
/// `context` is one of ours, and the tie was there.
pub(crate) unsafe fn untie(context: *mut ibv_context) {
    // SAFETY: the caller's promise; after the last tie nobody knows the context, and the box is the
    // one that [`CContext::leak`] leaked.
    unsafe {
        let this = of(context);
        if this.ties.fetch_sub(1, Ordering::AcqRel) == 1 {
            let this = Box::from_raw(core::ptr::from_ref(this).cast_mut());
            debug_assert!(this.headroom.iter().all(|&word| word == 0));
        }
    }
}
