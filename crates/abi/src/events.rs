//! Asynchronous events.

use libc::c_int;
use polypath_verbs::{AsyncEvent, Element};

use crate::channel::next_event;
use crate::context::{CContext, Target, of};
use crate::cq::CCq;
use crate::forward::{is_our_context, real_fn};
use crate::guard;
use crate::layout::{Pointer, ibv_async_event, ibv_context};
use crate::qp::CQp;
use crate::srq::CSrq;

/// What the first argument of an event is, by its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum About {
    Cq,
    Qp,
    Srq,
    Nothing,
    /// Something that only the real library has.
    Foreign,
}

fn about(event_type: u32) -> About {
    match event_type {
        0 => About::Cq,
        1..=7 | 16 => About::Qp,
        14 | 15 => About::Srq,
        8..=13 | 17 | 18 => About::Nothing,
        _ => About::Foreign,
    }
}

/// Finds the object of an event and counts the event. `None`: the object is gone.
fn deliver(context: &CContext) -> Option<ibv_async_event> {
    let live = context.live();
    let AsyncEvent { kind, element } = context.inner().take_async_event()?;
    let port = |number: u8| Some(core::ptr::without_provenance_mut(usize::from(number)));
    // SAFETY: what the live table holds lives as long as the lock is held, and then until the event
    // that is counted here is acknowledged.
    let element: Option<Pointer> = unsafe {
        match element {
            Element::Port(number) => port(number),
            Element::Device => port(1),
            Element::Cq(token) => match live.get(&token) {
                Some(&Target::Cq(cq)) => {
                    (*cq).async_given();
                    Some(cq.cast())
                }
                _ => None,
            },
            Element::Qp(token) => match live.get(&token) {
                Some(&Target::Qp(qp)) => {
                    (*qp).async_given();
                    Some(qp.cast())
                }
                _ => None,
            },
            Element::Srq(token) => match live.get(&token) {
                Some(&Target::Srq(srq)) => {
                    (*srq).async_given();
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
        // SAFETY: the caller's promise; nothing is alive here that would have to be dropped.
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
/// `event` is one that `ibv_get_async_event` gave.
pub(crate) unsafe extern "C-unwind" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's promise: the element is an object if the type says so, and every object
    // begins with its context.
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

#[cfg(test)]
mod tests {
    use polypath_verbs::AsyncKind;

    use super::*;
    use crate::double::{self, Kit};

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
                .find(|(_, target)| matches!(target, Target::Qp(_)))
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
        for kind in [K::DeviceFatal, K::PortErr, K::GidChange, K::ClientReregister] {
            assert_eq!(about(kind as u32), About::Nothing);
        }
        assert_eq!(about(K::WqFatal as u32), About::Foreign);
    }
}
