//! BTH opcodes: the kind of a packet, which determines its headers (IBTA 9.2.1, table 38).
//!
//! The top three bits identify the transport service, the low five the operation. Polypath's multi-path
//! packets use the manufacturer range: `0xC0 |` the operation of the RC opcode that they stand for.
//! XRC's operations are those of RC as well (annex A14).

use core::fmt;

/// A BTH opcode: any byte, whether it is known or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// The transport service that an opcode belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which is not implemented.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Polypath's multi-path packets.
    Mp,
    /// None of these.
    Unknown,
}

/// The operation in the low five bits (the names are those of table 38).
pub(crate) mod op {
    pub(crate) const SEND_FIRST: u8 = 0x00;
    pub(crate) const SEND_MIDDLE: u8 = 0x01;
    pub(crate) const SEND_LAST: u8 = 0x02;
    pub(crate) const SEND_LAST_IMM: u8 = 0x03;
    pub(crate) const SEND_ONLY: u8 = 0x04;
    pub(crate) const SEND_ONLY_IMM: u8 = 0x05;
    pub(crate) const WRITE_FIRST: u8 = 0x06;
    pub(crate) const WRITE_MIDDLE: u8 = 0x07;
    pub(crate) const WRITE_LAST: u8 = 0x08;
    pub(crate) const WRITE_LAST_IMM: u8 = 0x09;
    pub(crate) const WRITE_ONLY: u8 = 0x0a;
    pub(crate) const WRITE_ONLY_IMM: u8 = 0x0b;
    pub(crate) const READ_REQUEST: u8 = 0x0c;
    pub(crate) const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub(crate) const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub(crate) const READ_RESPONSE_LAST: u8 = 0x0f;
    pub(crate) const READ_RESPONSE_ONLY: u8 = 0x10;
    pub(crate) const ACK: u8 = 0x11;
    pub(crate) const ATOMIC_ACK: u8 = 0x12;
    pub(crate) const CMP_SWAP: u8 = 0x13;
    pub(crate) const FETCH_ADD: u8 = 0x14;
    pub(crate) const SEND_LAST_INV: u8 = 0x16;
    pub(crate) const SEND_ONLY_INV: u8 = 0x17;
    pub(crate) const MP_PROBE: u8 = 0x18;
    pub(crate) const MP_PROBE_REPLY: u8 = 0x19;
    pub(crate) const MP_CONTROL: u8 = 0x1a;
    pub(crate) const MP_RELAY: u8 = 0x1b;
    pub(crate) const FLUSH: u8 = 0x1c;
    pub(crate) const ATOMIC_WRITE: u8 = 0x1d;
    pub(crate) const MP_DATAGRAM: u8 = 0x1e;
    pub(crate) const MP_DATAGRAM_IMM: u8 = 0x1f;
}

const UC: u8 = 0x20;
const UD: u8 = 0x60;
const XRC: u8 = 0xa0;
const MP: u8 = 0xc0;

/// A set of operations as a bit mask over the five bits, so that a predicate is one shift.
pub(crate) const fn set(ops: &[u8]) -> u32 {
    let (mut mask, mut i) = (0, 0);
    while i < ops.len() {
        mask |= 1 << ops[i];
        i += 1;
    }
    mask
}

const FIRST: u32 = set(&[op::SEND_FIRST, op::WRITE_FIRST, op::READ_RESPONSE_FIRST]);
const LAST: u32 = set(&[
    op::SEND_LAST,
    op::SEND_LAST_IMM,
    op::SEND_LAST_INV,
    op::WRITE_LAST,
    op::WRITE_LAST_IMM,
    op::READ_RESPONSE_LAST,
]);
const ONLY: u32 = set(&[
    op::SEND_ONLY,
    op::SEND_ONLY_IMM,
    op::SEND_ONLY_INV,
    op::WRITE_ONLY,
    op::WRITE_ONLY_IMM,
    op::READ_REQUEST,
    op::READ_RESPONSE_ONLY,
    op::ACK,
    op::ATOMIC_ACK,
    op::CMP_SWAP,
    op::FETCH_ADD,
    op::FLUSH,
    op::ATOMIC_WRITE,
    op::MP_PROBE,
    op::MP_PROBE_REPLY,
    op::MP_CONTROL,
    op::MP_RELAY,
    op::MP_DATAGRAM,
    op::MP_DATAGRAM_IMM,
]);
const SEND: u32 = set(&[
    op::SEND_FIRST,
    op::SEND_MIDDLE,
    op::SEND_LAST,
    op::SEND_LAST_IMM,
    op::SEND_ONLY,
    op::SEND_ONLY_IMM,
    op::SEND_LAST_INV,
    op::SEND_ONLY_INV,
]);
const WRITE: u32 = set(&[
    op::WRITE_FIRST,
    op::WRITE_MIDDLE,
    op::WRITE_LAST,
    op::WRITE_LAST_IMM,
    op::WRITE_ONLY,
    op::WRITE_ONLY_IMM,
]);
const READ_RESPONSE: u32 = set(&[
    op::READ_RESPONSE_FIRST,
    op::READ_RESPONSE_MIDDLE,
    op::READ_RESPONSE_LAST,
    op::READ_RESPONSE_ONLY,
]);
const ATOMIC: u32 = set(&[op::CMP_SWAP, op::FETCH_ADD]);
const RESPONSE: u32 = READ_RESPONSE | set(&[op::ACK, op::ATOMIC_ACK]);
pub(crate) const REQUEST: u32 =
    SEND | WRITE | ATOMIC | set(&[op::READ_REQUEST, op::FLUSH, op::ATOMIC_WRITE]);
const MP_MANAGEMENT: u32 = set(&[op::MP_PROBE, op::MP_PROBE_REPLY, op::MP_CONTROL, op::MP_RELAY]);
const MP_DATAGRAM: u32 = set(&[op::MP_DATAGRAM, op::MP_DATAGRAM_IMM]);
const RC_KNOWN: u32 = REQUEST | RESPONSE;
const UC_KNOWN: u32 = (SEND | WRITE) & !set(&[op::SEND_LAST_INV, op::SEND_ONLY_INV]);
const UD_KNOWN: u32 = set(&[op::SEND_ONLY, op::SEND_ONLY_IMM]);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }
    };
}

opcodes! {
    /// First packet of an RC SEND of several.
    RC_SEND_FIRST = op::SEND_FIRST;
    /// Neither first nor last packet of an RC SEND.
    RC_SEND_MIDDLE = op::SEND_MIDDLE;
    /// Last packet of an RC SEND.
    RC_SEND_LAST = op::SEND_LAST;
    /// Last packet of an RC SEND, with immediate data.
    RC_SEND_LAST_IMM = op::SEND_LAST_IMM;
    /// The one packet of an RC SEND.
    RC_SEND_ONLY = op::SEND_ONLY;
    /// The one packet of an RC SEND, with immediate data.
    RC_SEND_ONLY_IMM = op::SEND_ONLY_IMM;
    /// First packet of an RC RDMA WRITE of several.
    RC_WRITE_FIRST = op::WRITE_FIRST;
    /// Neither first nor last packet of an RC RDMA WRITE.
    RC_WRITE_MIDDLE = op::WRITE_MIDDLE;
    /// Last packet of an RC RDMA WRITE.
    RC_WRITE_LAST = op::WRITE_LAST;
    /// Last packet of an RC RDMA WRITE, with immediate data.
    RC_WRITE_LAST_IMM = op::WRITE_LAST_IMM;
    /// The one packet of an RC RDMA WRITE.
    RC_WRITE_ONLY = op::WRITE_ONLY;
    /// The one packet of an RC RDMA WRITE, with immediate data.
    RC_WRITE_ONLY_IMM = op::WRITE_ONLY_IMM;
    /// RC RDMA READ request.
    RC_READ_REQUEST = op::READ_REQUEST;
    /// First packet of a READ response of several.
    RC_READ_RESPONSE_FIRST = op::READ_RESPONSE_FIRST;
    /// Neither first nor last packet of a READ response.
    RC_READ_RESPONSE_MIDDLE = op::READ_RESPONSE_MIDDLE;
    /// Last packet of a READ response.
    RC_READ_RESPONSE_LAST = op::READ_RESPONSE_LAST;
    /// The one packet of a READ response.
    RC_READ_RESPONSE_ONLY = op::READ_RESPONSE_ONLY;
    /// RC acknowledgement, positive or negative.
    RC_ACK = op::ACK;
    /// Answer to an RC atomic.
    RC_ATOMIC_ACK = op::ATOMIC_ACK;
    /// RC compare and swap.
    RC_CMP_SWAP = op::CMP_SWAP;
    /// RC fetch and add.
    RC_FETCH_ADD = op::FETCH_ADD;
    /// RC FLUSH (annex A19).
    RC_FLUSH = op::FLUSH;
    /// RC ATOMIC WRITE (annex A19).
    RC_ATOMIC_WRITE = op::ATOMIC_WRITE;
    /// Last packet of an RC SEND, invalidating a remote key.
    RC_SEND_LAST_INV = op::SEND_LAST_INV;
    /// The one packet of an RC SEND, invalidating a remote key.
    RC_SEND_ONLY_INV = op::SEND_ONLY_INV;

    /// First packet of a UC SEND of several.
    UC_SEND_FIRST = UC | op::SEND_FIRST;
    /// Neither first nor last packet of a UC SEND.
    UC_SEND_MIDDLE = UC | op::SEND_MIDDLE;
    /// Last packet of a UC SEND.
    UC_SEND_LAST = UC | op::SEND_LAST;
    /// Last packet of a UC SEND, with immediate data.
    UC_SEND_LAST_IMM = UC | op::SEND_LAST_IMM;
    /// The one packet of a UC SEND.
    UC_SEND_ONLY = UC | op::SEND_ONLY;
    /// The one packet of a UC SEND, with immediate data.
    UC_SEND_ONLY_IMM = UC | op::SEND_ONLY_IMM;
    /// First packet of a UC RDMA WRITE of several.
    UC_WRITE_FIRST = UC | op::WRITE_FIRST;
    /// Neither first nor last packet of a UC RDMA WRITE.
    UC_WRITE_MIDDLE = UC | op::WRITE_MIDDLE;
    /// Last packet of a UC RDMA WRITE.
    UC_WRITE_LAST = UC | op::WRITE_LAST;
    /// Last packet of a UC RDMA WRITE, with immediate data.
    UC_WRITE_LAST_IMM = UC | op::WRITE_LAST_IMM;
    /// The one packet of a UC RDMA WRITE.
    UC_WRITE_ONLY = UC | op::WRITE_ONLY;
    /// The one packet of a UC RDMA WRITE, with immediate data.
    UC_WRITE_ONLY_IMM = UC | op::WRITE_ONLY_IMM;

    /// UD SEND.
    UD_SEND_ONLY = UD | op::SEND_ONLY;
    /// UD SEND with immediate data.
    UD_SEND_ONLY_IMM = UD | op::SEND_ONLY_IMM;

    /// Congestion notification packet of RoCEv2 (Annex A17.9.3).
    CNP = 0x81;

    /// Polypath: asks whether a path is alive, and measures its round-trip time.
    MP_PROBE = MP | op::MP_PROBE;
    /// Polypath: answer to [`Opcode::MP_PROBE`].
    MP_PROBE_REPLY = MP | op::MP_PROBE_REPLY;
    /// Polypath: change of a path set.
    MP_CONTROL = MP | op::MP_CONTROL;
    /// Polypath: a packet that goes through a third host ([`relay`](crate::relay)).
    MP_RELAY = MP | op::MP_RELAY;
    /// Polypath: a UD SEND that is sent by two paths.
    MP_DATAGRAM = MP | op::MP_DATAGRAM;
    /// Polypath: a UD SEND with immediate data that is sent by two paths.
    MP_DATAGRAM_IMM = MP | op::MP_DATAGRAM_IMM;
    /// Polypath: acknowledgement with a selective part.
    MP_ACK = MP | op::ACK;
}

impl Opcode {
    /// The mask with the bit of the operation, to test against the sets above.
    #[inline]
    const fn bit(self) -> u32 {
        1 << (self.0 & 0x1f)
    }

    /// Whether the operation is in `set`. Only services that use RC's operations have any.
    #[inline]
    pub(crate) const fn within(self, set: u32) -> bool {
        self.bit() & set != 0 && matches!(self.0 & 0xe0, 0x00 | UC | UD | XRC | MP)
    }

    /// The transport service. It is `Unknown` for an undefined operation of a known service, too.
    #[inline]
    pub const fn service(self) -> Service {
        let (service, known) = match self.0 >> 5 {
            0 => (Service::Rc, RC_KNOWN),
            1 => (Service::Uc, UC_KNOWN),
            2 => (Service::Rd, RC_KNOWN),
            3 => (Service::Ud, UD_KNOWN),
            4 => (Service::Cnp, 1 << 1),
            5 => (Service::Xrc, RC_KNOWN),
            6 if self.bit() & MP_DATAGRAM != 0 => (Service::Ud, MP_DATAGRAM),
            6 => (Service::Mp, RC_KNOWN | MP_MANAGEMENT),
            _ => (Service::Unknown, 0),
        };
        if self.bit() & known != 0 { service } else { Service::Unknown }
    }

    /// Whether this is a datagram that is sent by two paths. It has a multi-path header, and its transport
    /// service is UD.
    #[inline]
    pub const fn is_mp_datagram(self) -> bool {
        self.0 & 0xe0 == MP && self.bit() & MP_DATAGRAM != 0
    }

    /// Whether this is one of Polypath's multi-path packets of a connection: data, probe or control.
    #[inline]
    pub const fn is_mp(self) -> bool {
        matches!(self.service(), Service::Mp)
    }

    /// Whether this is a probe, its reply or a control packet: addressed to a lane, not to a queue
    /// pair, and without an MP header.
    #[inline]
    pub const fn is_mp_management(self) -> bool {
        self.is_mp() && self.bit() & MP_MANAGEMENT != 0
    }

    /// The XRC opcode of an RC opcode. Any other opcode is returned as it is.
    #[inline]
    pub const fn to_xrc(self) -> Self {
        if matches!(self.service(), Service::Rc) { Self(self.0 | XRC) } else { self }
    }

    /// The multi-path opcode of an RC opcode. Any other opcode is returned as it is.
    #[inline]
    pub const fn to_mp(self) -> Self {
        if matches!(self.service(), Service::Rc) { Self(self.0 | MP) } else { self }
    }

    /// Whether it is the first of several packets of a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.within(FIRST)
    }

    /// Whether it is the last of several packets of a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.within(LAST)
    }

    /// Whether it is the only packet of a message. READ requests, atomics, FLUSHes and acknowledgements
    /// are.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.within(ONLY)
    }

    /// Whether it is the first or only packet of a message.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.within(FIRST | ONLY)
    }

    /// Whether it is the last or only packet of a message.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.within(LAST | ONLY)
    }

    /// Whether it travels from requester to responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.within(REQUEST)
    }

    /// Whether it travels from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.within(RESPONSE)
    }

    /// Whether it is part of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        self.within(SEND)
    }

    /// Whether it is part of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        self.within(WRITE)
    }

    /// Whether it is an RDMA READ request.
    #[inline]
    pub const fn is_read_request(self) -> bool {
        self.within(set(&[op::READ_REQUEST]))
    }

    /// Whether it is part of an RDMA READ response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        self.within(READ_RESPONSE)
    }

    /// Whether it is an atomic request.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.within(ATOMIC)
    }

    /// Whether it is a FLUSH.
    #[inline]
    pub const fn is_flush(self) -> bool {
        self.within(set(&[op::FLUSH]))
    }

    /// Whether it is an ATOMIC WRITE, which has 8 bytes of payload.
    #[inline]
    pub const fn is_atomic_write(self) -> bool {
        self.within(set(&[op::ATOMIC_WRITE]))
    }

    /// Whether it consumes a receive work request: the last packet of a SEND, or of a WRITE with
    /// immediate data.
    #[inline]
    pub const fn consumes_receive(self) -> bool {
        self.within(SEND & (LAST | ONLY)) || self.is_write() && self.has_imm()
    }
}

const NAMES: [&str; 32] = [
    "SendFirst",
    "SendMiddle",
    "SendLast",
    "SendLastImm",
    "SendOnly",
    "SendOnlyImm",
    "WriteFirst",
    "WriteMiddle",
    "WriteLast",
    "WriteLastImm",
    "WriteOnly",
    "WriteOnlyImm",
    "ReadReq",
    "ReadRespFirst",
    "ReadRespMiddle",
    "ReadRespLast",
    "ReadRespOnly",
    "Ack",
    "AtomicAck",
    "CmpSwap",
    "FetchAdd",
    "",
    "SendLastInv",
    "SendOnlyInv",
    "Probe",
    "ProbeReply",
    "Control",
    "",
    "Flush",
    "AtomicWrite",
    "Datagram",
    "DatagramImm",
];

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service = match self.service() {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Rd => "RD",
            Service::Ud if self.is_mp_datagram() => "MP",
            Service::Ud => "UD",
            Service::Xrc => "XRC",
            Service::Mp => "MP",
            Service::Cnp => return f.write_str("CNP"),
            Service::Unknown => return write!(f, "Opcode({:#04x})", self.0),
        };
        write!(f, "{service}.{}", NAMES[usize::from(self.0 & 0x1f)])
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDDLE: u32 = set(&[op::SEND_MIDDLE, op::WRITE_MIDDLE, op::READ_RESPONSE_MIDDLE]);

    fn all() -> impl Iterator<Item = Opcode> {
        (0..=255).map(Opcode)
    }

    #[test]
    fn every_known_operation_has_exactly_one_place_in_its_message() {
        for o in all() {
            let known = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc, Service::Mp];
            if known.contains(&o.service()) {
                let places = [o.is_first(), o.within(MIDDLE), o.is_last(), o.is_only()];
                assert_eq!(places.iter().filter(|p| **p).count(), 1, "{o}");
                assert_eq!(o.starts_message(), o.is_first() || o.is_only());
                assert_eq!(o.ends_message(), o.is_last() || o.is_only());
            }
        }
    }

    #[test]
    fn multi_path_opcodes_mirror_the_reliable_connection_ones() {
        for o in all().filter(|o| o.service() == Service::Rc) {
            let mp = o.to_mp();
            assert!(mp.is_mp() && mp.has_mp_header());
            assert_eq!(mp.base(), o);
            assert_eq!(mp.is_request(), o.is_request());
            assert_eq!(mp.is_response(), o.is_response());
            assert_eq!(mp.has_aeth(), o.has_aeth());
            assert_eq!(mp.has_reth(), o.is_write() || o.has_reth());
            assert_eq!(mp.has_feth(), o.is_flush());
        }
        assert!(!Opcode::RC_WRITE_MIDDLE.has_reth());
        assert!(Opcode::RC_WRITE_MIDDLE.to_mp().has_reth());
    }

    #[test]
    fn xrc_opcodes_are_those_of_rc_and_their_requests_name_a_receive_queue() {
        for o in all().filter(|o| o.service() == Service::Rc) {
            let xrc = o.to_xrc();
            assert_eq!((xrc.service(), xrc.0), (Service::Xrc, o.0 | 0xa0));
            assert_eq!(xrc.base(), o);
            assert_eq!(xrc.to_mp(), xrc);
            assert_eq!(xrc.is_request(), o.is_request());
            assert_eq!(xrc.has_xrceth(), o.is_request(), "{o}");
            assert!(!o.has_xrceth() && !xrc.has_mp_header());
            assert_eq!(xrc.has_reth(), o.has_reth());
            assert_eq!(xrc.has_aeth(), o.has_aeth());
        }
    }

    #[test]
    fn management_opcodes_are_no_data() {
        for o in [Opcode::MP_PROBE, Opcode::MP_PROBE_REPLY, Opcode::MP_CONTROL, Opcode::MP_RELAY] {
            assert!(o.is_mp() && o.is_mp_management() && !o.has_mp_header());
            assert!(!o.is_request() && !o.is_response());
            assert_eq!(o.base(), o);
        }
        assert_eq!(Opcode::MP_PROBE.0, 0xd8);
        assert_eq!(Opcode::MP_PROBE_REPLY.0, 0xd9);
        assert_eq!(Opcode::MP_CONTROL.0, 0xda);
        assert_eq!(Opcode::MP_RELAY.0, 0xdb);
    }

    #[test]
    fn datagrams_by_two_paths_are_datagrams_with_a_multi_path_header() {
        for o in [Opcode::MP_DATAGRAM, Opcode::MP_DATAGRAM_IMM] {
            assert!(o.is_mp_datagram() && o.has_mp_header() && o.has_deth());
            assert!(!o.is_mp() && !o.is_mp_management() && !o.has_reth());
            assert!(!o.is_request() && !o.is_response());
            assert_eq!((o.base(), o.service()), (o, Service::Ud));
        }
        assert!(Opcode::MP_DATAGRAM_IMM.has_imm() && !Opcode::MP_DATAGRAM.has_imm());
        assert_eq!([Opcode::MP_DATAGRAM.0, Opcode::MP_DATAGRAM_IMM.0], [0xde, 0xdf]);
        assert!(!Opcode(0x1e).is_mp_datagram() && !Opcode::UD_SEND_ONLY.is_mp_datagram());
    }

    #[test]
    fn names_read_like_a_trace() {
        assert_eq!(Opcode::RC_WRITE_FIRST.to_string(), "RC.WriteFirst");
        assert_eq!(Opcode::UD_SEND_ONLY_IMM.to_string(), "UD.SendOnlyImm");
        assert_eq!(Opcode::MP_ACK.to_string(), "MP.Ack");
        assert_eq!(Opcode::CNP.to_string(), "CNP");
        assert_eq!(Opcode(0xff).to_string(), "Opcode(0xff)");
        assert_eq!(Opcode(0x15).to_string(), "Opcode(0x15)");
        assert_eq!(Opcode(0x1c).to_string(), "RC.Flush");
        assert_eq!(Opcode(0xdd).to_string(), "MP.AtomicWrite");
        assert_eq!(Opcode(0xde).to_string(), "MP.Datagram");
    }

    #[test]
    fn undefined_operations_belong_to_no_service() {
        for v in
            [0x15, 0x18, 0x2c, 0x36, 0x60, 0x66, 0x80, 0x82, 0xd5, 0x1e, 0x7f, 0x3c, 0x7d, 0xe0]
        {
            assert_eq!(Opcode(v).service(), Service::Unknown, "{v:#x}");
        }
    }
}
