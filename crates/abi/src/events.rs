//! Delivers the events of completion channels, and asynchronous events.

use libc::c_int;
use polypath_verbs::{AsyncEvent, Element};

use crate::channel::{channel_of, next_completion_event, next_event};
use crate::context::{CContext, EventObject, of};
use crate::cq::{CCq, cq_of};
use crate::forward::real_fn;
use crate::guard;
use crate::layout::{Pointer, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq};
use crate::ours::is_our_context;
use crate::qp::{CQp, qp_of};
use crate::srq::{CSrq, srq_of};

/// The kind of object that an event refers to, which follows from its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum About {
    Cq,
    Qp,
    Srq,
    Nothing,
    /// An object that only the real library has.
    Foreign,
}

fn about(event_type: u32) -> About {
    match event_type {
        0 => About::Cq,
        1..=7 | 16 => About::Qp,
        14 | 15 => About::Srq,
        8..=13 | 17 | 18 | 20 => About::Nothing,
        _ => About::Foreign,
    }
}

/// Finds the object of an event and counts the event. `None` if the object is gone.
fn deliver(context: &CContext) -> Option<ibv_async_event> {
    let live = context.live();
    let AsyncEvent { kind, element } = context.inner().take_async_event()?;
    let port = |number: u8| Some(core::ptr::without_provenance_mut(usize::from(number)));
    // SAFETY: the objects in the live table live as long as the lock is held, and then until the
    // event that is counted here is acknowledged.
    let element: Option<Pointer> = unsafe {
        match element {
            Element::Port(number) => port(number),
            Element::Device => port(1),
            Element::Cq(token) => match live.get(&token) {
                Some(&EventObject::Cq(cq)) => {
                    cq_of(cq).async_given();
                    Some(cq.cast())
                }
                _ => None,
            },
            Element::Qp(token) => match live.get(&token) {
                Some(&EventObject::Qp(qp)) => {
                    qp_of(qp).async_given();
                    Some(qp.cast())
                }
                _ => None,
            },
            Element::Srq(token) => match live.get(&token) {
                Some(&EventObject::Srq(srq)) => {
                    srq_of(srq).async_given();
                    Some(srq.cast())
                }
                _ => None,
            },
        }
    };
    element.map(|element| ibv_async_event { element, event_type: kind as u32 })
}

/// `ibv_get_async_event`.
///
/// # Safety
/// `context` is one of ours; `event` is writable.
pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        // SAFETY: the caller promises it. Nothing here needs to be dropped.
        unsafe {
            if !next_event((*context).async_fd) {
                return -1;
            }
            if let Some(found) = guard::run(None, || deliver(of(context))) {
                event.write(found);
                return 0;
            }
        }
    }
}

/// `ibv_ack_async_event`, for events of any provider.
///
/// # Safety
/// `event` came from `ibv_get_async_event`.
pub(crate) unsafe extern "C-unwind" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller promises that the element is an object if the type says so, and every
    // object begins with its context.
    unsafe {
        let about = about((*event).event_type);
        let element = (*event).element;
        match about {
            About::Nothing => return,
            About::Cq | About::Qp | About::Srq if is_our_context(*element.cast()) => {
                let counter = match about {
                    About::Cq => CCq::async_counter(element.cast()),
                    About::Qp => CQp::async_counter(element.cast()),
                    _ => CSrq::async_counter(element.cast()),
                };
                counter.acknowledge(1);
                return;
            }
            _ => {}
        }
        let real = real_fn!(c"ibv_ack_async_event", c"IBVERBS_1.1", fn(*mut ibv_async_event));
        if let Some(real) = real {
            real(event);
        }
    }
}

/// Takes an event after it was read from the descriptor. `None` if its completion queue is gone, so
/// wait for the next one.
///
/// # Safety
/// `channel` is one of ours.
unsafe fn take(channel: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    // SAFETY: the caller promises it. The objects in the live table live as long as the lock is
    // held, and then until the event that is counted here is acknowledged.
    unsafe {
        let live = of((*channel).context).live();
        let token = channel_of(channel).inner().take()?;
        let Some(&EventObject::Cq(cq)) = live.get(&token) else { return None };
        cq_of(cq).completion_given();
        Some(cq)
    }
}

/// `ibv_get_cq_event`.
///
/// # Safety
/// `channel` is one of ours; `cq` and `cq_context` are writable.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut Pointer,
) -> c_int {
    loop {
        // SAFETY: the caller promises it. Nothing here needs to be dropped.
        unsafe {
            if !next_completion_event(channel) {
                return -1;
            }
            if let Some(found) = guard::run(None, || take(channel)) {
                *cq = found;
                *cq_context = (*found).cq_context;
                return 0;
            }
        }
    }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` is one of ours.
pub(crate) unsafe extern "C-unwind" fn ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: the trampoline passes only our queues, and a queue with events to acknowledge lives.
    unsafe { CCq::completion_counter(cq).acknowledge(count) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use polypath_verbs::AsyncKind;

    use super::*;
    use crate::channel::{create_comp_channel, destroy_comp_channel};
    use crate::cq::destroy_cq;
    use crate::cq_make::create_cq;
    use crate::double::{self, Kit};
    use crate::open::close_device;

    #[test]
    fn events_name_their_object_and_are_acknowledged_before_it_goes() {
        let kit = Kit::new(1);
        let mut event = ibv_async_event { element: core::ptr::null_mut(), event_type: 99 };
        // SAFETY: objects of ours.
        unsafe {
            let inner = of(kit.context).inner();
            let token = *of(kit.context)
                .live()
                .iter()
                .find(|(_, target)| matches!(target, EventObject::Qp(_)))
                .unwrap()
                .0;
            let kind = AsyncKind::QpLastWqeReached;
            double::raise(inner, AsyncEvent { kind, element: Element::Qp(token) });
            double::raise(
                inner,
                AsyncEvent { kind: AsyncKind::PortErr, element: Element::Port(1) },
            );
            assert_eq!(get_async_event(kit.context, &mut event), 0);
            assert_eq!((event.element, event.event_type), (kit.qp.cast(), 16));
            ack_async_event(&mut event);
            assert_eq!((*kit.qp).events_completed, 1);
            assert_eq!(get_async_event(kit.context, &mut event), 0);
            assert_eq!((event.element.addr(), event.event_type), (1, 10));
            ack_async_event(&mut event);
        }
    }

    #[test]
    fn every_event_type_has_its_kind_of_object() {
        use polypath_verbs::AsyncKind as K;
        for kind in [K::QpFatal, K::PathMigErr, K::QpLastWqeReached, K::SqDrained] {
            assert_eq!(about(kind as u32), About::Qp);
        }
        assert_eq!(about(K::CqErr as u32), About::Cq);
        assert_eq!(about(K::SrqLimitReached as u32), About::Srq);
        for kind in
            [K::DeviceFatal, K::PortErr, K::GidChange, K::ClientReregister, K::DeviceSpeedChange]
        {
            assert_eq!(about(kind as u32), About::Nothing);
        }
        assert_eq!(about(K::WqFatal as u32), About::Foreign);
    }

    #[test]
    fn destroying_a_queue_waits_for_its_events_to_be_acknowledged() {
        let context = double::open();
        let mut name = 7_u8;
        let cq_context: Pointer = (&raw mut name).cast();
        // SAFETY: these are our objects, each freed once. The thread uses only the queue that
        // lives.
        unsafe {
            let channel = create_comp_channel(context);
            let cq = create_cq(context, 4, cq_context, channel, 0);
            assert_eq!((*channel).refcnt, 1);
            assert_eq!(destroy_comp_channel(channel), libc::EBUSY);
            double::complete(cq_of(cq).inner(), 1);
            let (mut from, mut given) = (core::ptr::null_mut(), core::ptr::null_mut());
            assert_eq!(get_cq_event(channel, &mut from, &mut given), 0);
            assert_eq!((from, given), (cq, cq_context));

            let acknowledged = AtomicBool::new(false);
            let address = cq.expose_provenance();
            std::thread::scope(|scope| {
                let acknowledged = &acknowledged;
                let waiting = scope.spawn(move || {
                    let cq: *mut ibv_cq = core::ptr::with_exposed_provenance_mut(address);
                    // SAFETY: this is the queue from above, which is destroyed once.
                    assert_eq!(destroy_cq(cq), 0);
                    assert!(acknowledged.load(Ordering::SeqCst), "it did not wait");
                });
                acknowledged.store(true, Ordering::SeqCst);
                ack_cq_events(cq, 1);
                waiting.join().unwrap();
            });
            assert_eq!(destroy_comp_channel(channel), 0);
            close_device(context);
        }
    }

    #[test]
    fn an_event_of_a_queue_that_is_gone_is_nobodys() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let channel = create_comp_channel(context);
            let cq = create_cq(context, 4, core::ptr::null_mut(), channel, 0);
            double::complete(cq_of(cq).inner(), 1);
            assert_eq!(destroy_cq(cq), 0);
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            let (mut from, mut given) = (core::ptr::null_mut(), core::ptr::null_mut());
            assert_eq!(get_cq_event(channel, &mut from, &mut given), -1);
            assert_eq!(guard::errno(), libc::EAGAIN);
            assert_eq!(destroy_comp_channel(channel), 0);
            close_device(context);
        }
    }
}
