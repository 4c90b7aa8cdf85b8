//! Events: `struct rdma_ucm_event_resp`.

use super::Writer;
use super::command::{ConnParam, Ece};
use super::qp_attr::{AH_ATTR_LEN, AhAttr};

/// Size of the structure.
pub(crate) const EVENT_LEN: usize = 336;

const PARAM: usize = 20;
const ECE: usize = 328;

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    AddrChange = 14,
    TimewaitExit = 15,
    User = 18,
    Internal = 19,
    // librdmacm has other events with the numbers that these had once (16, 17 and 18). It passes
    // numbers that it does not know to the application.
    AltRouteResolved = 0x0041_5010,
    AltRouteError = 0x0041_5011,
    AltPathLoaded = 0x0041_5012,
}

/// The id that an event is about; `None` for those that name a new connection or a multicast membership.
pub(crate) fn id_of(bytes: &[u8]) -> Option<u32> {
    let word = |at: usize| bytes.get(at..at + 4)?.first_chunk().copied().map(u32::from_ne_bytes);
    let others = [Kind::ConnectRequest as u32, Kind::MulticastJoin as u32];
    word(8).filter(|_| word(12).is_some_and(|kind| !others.contains(&kind)))
}

/// `struct rdma_ucm_ud_param`.
#[derive(Clone, Debug, Default)]
pub(crate) struct UdParam {
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    pub(crate) ah_attr: Option<AhAttr>,
    pub(crate) private_data: Vec<u8>,
}

/// The part of an event beyond its kind and status.
#[derive(Clone, Debug, Default)]
pub(crate) enum Param {
    #[default]
    None,
    Conn(ConnParam),
    Ud(UdParam),
    Arg(u64),
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// 0, a negative errno, or the reason of a REJ.
    pub(crate) status: i32,
    pub(crate) param: Param,
    pub(crate) ece: Ece,
}

impl Event {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, status: 0, param: Param::None, ece: Ece::default() }
    }

    pub(crate) fn with_status(self, status: i32) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn with_param(self, param: Param) -> Self {
        Self { param, ..self }
    }

    /// The structure for the application. `uid` and `id` name the id or the membership that the
    /// event is about.
    pub(crate) fn encode(&self, uid: u64, id: u32) -> Vec<u8> {
        let mut w = Writer::new(EVENT_LEN);
        w.put_u64(0, uid);
        w.put_u32(8, id);
        w.put_u32(12, self.kind as u32);
        w.put_u32(16, self.status as u32);
        match &self.param {
            Param::None => {}
            Param::Conn(p) => {
                w.put_u32(PARAM, p.qp_num);
                w.put_u32(PARAM + 4, p.qkey);
                w.put(PARAM + 8, &p.private_data);
                w.put_u8(PARAM + 264, p.private_data.len() as u8);
                w.put_u8(PARAM + 265, p.srq.into());
                w.put_u8(PARAM + 266, p.responder_resources);
                w.put_u8(PARAM + 267, p.initiator_depth);
                w.put_u8(PARAM + 268, p.flow_control.into());
                w.put_u8(PARAM + 269, p.retry_count);
                w.put_u8(PARAM + 270, p.rnr_retry_count);
                w.put_u8(PARAM + 271, p.valid.into());
            }
            Param::Ud(p) => {
                let private = PARAM + 8 + AH_ATTR_LEN;
                w.put_u32(PARAM, p.qp_num);
                w.put_u32(PARAM + 4, p.qkey);
                if let Some(ah) = &p.ah_attr {
                    ah.write(&mut w, PARAM + 8);
                }
                w.put(private, &p.private_data);
                w.put_u8(private + 256, p.private_data.len() as u8);
            }
            Param::Arg(arg) => w.put(PARAM, &arg.to_ne_bytes()),
        }
        w.put_u32(ECE, self.ece.vendor_id);
        w.put_u32(ECE + 4, self.ece.attr_mod);
        w.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_union_ends_where_the_header_file_says() {
        // offsetof(reserved) with a ud param of 4 + 4 + 32 + 256 + 8 bytes.
        assert_eq!(PARAM + 4 + 4 + AH_ATTR_LEN + 256 + 8, 324);
        let ud = UdParam { private_data: vec![9; 180], ..UdParam::default() };
        let bytes = Event::new(Kind::ConnectRequest).with_param(Param::Ud(ud)).encode(7, 8);
        assert_eq!(bytes.len(), EVENT_LEN);
        assert_eq!(bytes[PARAM + 8 + AH_ATTR_LEN + 256], 180);
    }

    #[test]
    fn an_errno_is_a_negative_status() {
        let bytes = Event::new(Kind::Unreachable).with_status(-110).encode(0, 0);
        assert_eq!(bytes[16..20], (-110i32).to_ne_bytes());
    }
}
