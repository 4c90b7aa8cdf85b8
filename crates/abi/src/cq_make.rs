//! Creates completion queues, plain and extended.

use core::cell::UnsafeCell;
use core::mem::zeroed;
use core::ptr::null;
use core::sync::atomic::AtomicU32;

use libc::c_int;
use polypath_verbs::{CqRequest, Error, Result};

use crate::channel::channel_of;
use crate::context::{EventObject, Tie, checked, is_usable, new_token, of};
use crate::cq::{CCq, Polling};
use crate::cq_ex;
use crate::guard::{self, null_argument};
use crate::layout::{
    Pointer, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
};
use crate::lock::RawLock;

/// The parameters of a completion queue, in addition to the traits' request.
struct Recipe {
    cqe: u32,
    cq_context: Pointer,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    ignore_overrun: bool,
    single_threaded: bool,
}

/// Creates a completion queue.
///
/// # Safety
/// `context` is one of ours; `recipe.channel` is null or of any provider.
unsafe fn make(context: *mut ibv_context, recipe: &Recipe) -> Result<*mut CCq> {
    // SAFETY: the caller promises it. Zeroes are valid for the structure and the mutex in it.
    unsafe {
        if recipe.cqe == 0 {
            return Err(Error::invalid("a completion queue has at least one entry"));
        }
        if recipe.comp_vector >= (*context).num_comp_vectors.cast_unsigned() {
            return Err(Error::invalid("no such completion vector: use 0"));
        }
        if !recipe.channel.is_null() && !is_usable((*recipe.channel).context) {
            return Err(Error::invalid("the completion channel belongs to another device"));
        }
        // Its events would be looked up among the completion queues of the channel's context.
        if !recipe.channel.is_null()
            && !of((*recipe.channel).context).shares_objects_with(of(context))
        {
            return Err(Error::invalid("the completion channel belongs to another open context"));
        }
        let channel = (!recipe.channel.is_null()).then(|| channel_of(recipe.channel));
        let token = new_token();
        let owner = of(context);
        let inner = owner.inner().create_cq(&CqRequest {
            cqe: recipe.cqe,
            channel: channel.map(|channel| channel.inner().clone()),
            token,
            ignore_overrun: recipe.ignore_overrun,
        })?;
        let mut public: ibv_cq_ex = zeroed();
        public.base.context = context;
        public.base.channel = recipe.channel;
        public.base.cq_context = recipe.cq_context;
        public.base.handle = token as u32;
        public.base.cqe = c_int::try_from(inner.capacity()).unwrap_or(c_int::MAX);
        cq_ex::fill(&mut public);
        if let Some(channel) = channel {
            channel.used(1);
        }
        let cq = Box::into_raw(Box::new(CCq {
            public: UnsafeCell::new(public),
            spare: [0; 16],
            inner,
            token,
            channel: channel.map_or(null(), core::ptr::from_ref),
            comp_given: AtomicU32::new(0),
            async_given: AtomicU32::new(0),
            polling: Polling {
                lock: RawLock::new(),
                single_threaded: recipe.single_threaded,
                current: UnsafeCell::new(None),
            },
            tie: Tie::new(owner),
        }));
        owner.live().insert(token, EventObject::Cq(cq.cast()));
        Ok(cq)
    }
}

/// `ibv_create_cq`.
///
/// # Safety
/// `context` is one of ours; `channel` is null or a channel.
pub(crate) unsafe extern "C-unwind" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: Pointer,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    guard::pointer("ibv_create_cq", || {
        let recipe = Recipe {
            cqe: u32::try_from(cqe).unwrap_or(0),
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).unwrap_or(u32::MAX),
            ignore_overrun: false,
            single_threaded: false,
        };
        // SAFETY: the trampoline passes only our contexts, and a channel or null.
        unsafe { Ok(make(context, &recipe)?.cast()) }
    })
}

/// The flags of `enum ibv_create_cq_wc_flags` that are supported: all fields of an `ibv_wc`, and
/// both times.
const SUPPORTED: u64 = 0x7f | 1 << 7 | 1 << 11;

/// `ibv_create_cq_ex`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const MASK_FLAGS: u32 = 1;
    const MASK_PD: u32 = 2;
    const SINGLE_THREADED: u32 = 1;
    const IGNORE_OVERRUN: u32 = 2;
    guard::pointer("ibv_create_cq_ex", || {
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires, and
        // null or readable attributes with a channel or null.
        unsafe {
            checked(context)?;
            let attr = attr.as_ref().ok_or_else(|| null_argument("cq_attr"))?;
            if attr.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 {
                return Err(Error::invalid("ibv_cq_init_attr_ex has an unknown comp_mask"));
            }
            if attr.wc_flags & !SUPPORTED != 0 {
                return guard::unsupported("wc_flags ask for what RoCE completions do not have");
            }
            let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
            if flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0 {
                return guard::unsupported("unknown flags of a completion queue");
            }
            let recipe = Recipe {
                cqe: attr.cqe,
                cq_context: attr.cq_context,
                channel: attr.channel,
                comp_vector: attr.comp_vector,
                ignore_overrun: flags & IGNORE_OVERRUN != 0,
                single_threaded: flags & SINGLE_THREADED != 0,
            };
            Ok(make(context, &recipe)?.cast())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::destroy_cq;
    use crate::double;
    use crate::open::close_device;

    #[test]
    fn completions_without_what_was_asked_for_are_refused() {
        let context = double::open();
        let mut attr = ibv_cq_init_attr_ex {
            cqe: 1,
            cq_context: core::ptr::null_mut(),
            channel: core::ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 1 << 8,
            comp_mask: 0,
            flags: 0,
            parent_domain: core::ptr::null_mut(),
        };
        // SAFETY: objects of ours, each freed once.
        unsafe {
            assert!(create_cq_ex(context, &attr).is_null());
            assert_eq!(guard::errno(), libc::EOPNOTSUPP);
            attr.wc_flags = 0x7f;
            attr.comp_vector = 9;
            assert!(create_cq_ex(context, &attr).is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            attr.comp_vector = 0;
            let cq = create_cq_ex(context, &attr);
            assert_eq!(destroy_cq(cq.cast()), 0);
            close_device(context);
        }
    }
}
