//! LACPDUs and Marker PDUs in Ethernet frames (IEEE 802.1AX-2014, clauses 6.4.2 and 6.5.3).

use core::fmt;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The group address of the slow protocols. No bridge forwards it.
pub const SLOW_PROTOCOLS_MULTICAST: Mac = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x02];

/// The Ethernet type of the slow protocols.
pub const SLOW_PROTOCOLS_ETHERTYPE: u16 = 0x8809;

/// Bytes in a frame that this crate builds, without frame check sequence.
pub const FRAME_LEN: usize = HEADER_LEN + PDU_LEN;

const HEADER_LEN: usize = 14;
const PDU_LEN: usize = 110;

const SUBTYPE_LACP: u8 = 1;
const SUBTYPE_MARKER: u8 = 2;
const VERSION: u8 = 1;

const INFO_LEN: u8 = 20;
const ACTOR_AT: usize = HEADER_LEN + 2;
const PARTNER_AT: usize = HEADER_LEN + 22;
const COLLECTOR_AT: usize = HEADER_LEN + 42;
const MARKER_AT: usize = HEADER_LEN + 2;
const MARKER_LEN: u8 = 22;
const MARKER_INFORMATION: u8 = 1;
const MARKER_RESPONSE: u8 = 2;

/// The state of a port as a LACPDU tells it: one bit for each variable of clause 6.4.2.3.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PortState(pub u8);

impl PortState {
    /// Speaks without being spoken to.
    pub const ACTIVITY: Self = Self(0x01);
    /// Wants a LACPDU each second, not every 30.
    pub const TIMEOUT: Self = Self(0x02);
    /// May be aggregated with others.
    pub const AGGREGATION: Self = Self(0x04);
    /// Is attached to the right aggregator.
    pub const SYNCHRONIZATION: Self = Self(0x08);
    /// Accepts traffic.
    pub const COLLECTING: Self = Self(0x10);
    /// Sends traffic.
    pub const DISTRIBUTING: Self = Self(0x20);
    /// What it says about its partner are defaults: it hears none.
    pub const DEFAULTED: Self = Self(0x40);
    /// Has not heard its partner for too long.
    pub const EXPIRED: Self = Self(0x80);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::ACTIVITY, "activity"),
        (Self::TIMEOUT, "timeout"),
        (Self::AGGREGATION, "aggregation"),
        (Self::SYNCHRONIZATION, "synchronization"),
        (Self::COLLECTING, "collecting"),
        (Self::DISTRIBUTING, "distributing"),
        (Self::DEFAULTED, "defaulted"),
        (Self::EXPIRED, "expired"),
    ];

    /// Whether all of these bits are set.
    #[must_use]
    pub fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Sets or clears these bits.
    pub fn set(&mut self, bits: Self, to: bool) {
        self.0 = if to { self.0 | bits.0 } else { self.0 & !bits.0 };
    }

    /// These bits as well.
    #[must_use]
    pub fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }

    /// Only these bits.
    #[must_use]
    pub(crate) fn only(self, bits: Self) -> Self {
        Self(self.0 & bits.0)
    }
}

impl fmt::Display for PortState {
    /// The names of the bits that are set, with commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (_, name) in Self::NAMES.iter().filter(|(bit, _)| self.has(*bit)) {
            write!(f, "{between}{name}")?;
            between = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}({self})", self.0)
    }
}

/// What a LACPDU says about one end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortInfo {
    /// Lower numbers have precedence.
    pub system_priority: u16,
    /// The system's address, which identifies it.
    pub system: Mac,
    /// Ports of one system with different keys are never aggregated.
    pub key: u16,
    /// Lower numbers have precedence.
    pub port_priority: u16,
    /// The port's number, unique within its system.
    pub port: u16,
    /// The port's state.
    pub state: PortState,
}

impl PortInfo {
    /// Whether both name the same port of the same system, which may or may not be aggregated as before:
    /// the comparison of update_Selected in clause 6.4.9.
    pub(crate) fn same_port(&self, other: &Self) -> bool {
        let parts = |info: &Self| {
            let state = info.state.only(PortState::AGGREGATION);
            (info.system_priority, info.system, info.key, info.port_priority, info.port, state)
        };
        parts(self) == parts(other)
    }

    fn parse(frame: &[u8], at: usize) -> Option<Self> {
        Some(Self {
            system_priority: u16_at(frame, at + 2)?,
            system: mac_at(frame, at + 4)?,
            key: u16_at(frame, at + 10)?,
            port_priority: u16_at(frame, at + 12)?,
            port: u16_at(frame, at + 14)?,
            state: PortState(*frame.get(at + 16)?),
        })
    }

    fn put(&self, frame: &mut [u8; FRAME_LEN], at: usize, kind: u8) {
        frame[at] = kind;
        frame[at + 1] = INFO_LEN;
        frame[at + 2..at + 4].copy_from_slice(&self.system_priority.to_be_bytes());
        frame[at + 4..at + 10].copy_from_slice(&self.system);
        frame[at + 10..at + 12].copy_from_slice(&self.key.to_be_bytes());
        frame[at + 12..at + 14].copy_from_slice(&self.port_priority.to_be_bytes());
        frame[at + 14..at + 16].copy_from_slice(&self.port.to_be_bytes());
        frame[at + 16] = self.state.0;
    }
}

/// A LACPDU: what its sender knows of both ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lacpdu {
    /// The sender.
    pub actor: PortInfo,
    /// What the sender believes of the receiver.
    pub partner: PortInfo,
}

/// A Marker PDU: a question that comes back after all traffic before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marker {
    /// Whether it is the answer.
    pub response: bool,
    /// The asking port.
    pub port: u16,
    /// The asking system.
    pub system: Mac,
    /// The question's number.
    pub transaction: u32,
}

/// A frame of a slow protocol that concerns aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlowFrame {
    /// LACP.
    Lacpdu(Lacpdu),
    /// The marker protocol.
    Marker(Marker),
}

/// The reason why a frame is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// It is shorter than its kind.
    Short,
    /// It is no slow protocol, or not sent to its group address.
    NotSlow,
    /// A slow protocol that is neither LACP nor the marker protocol, such as OAM or ESMC.
    Subtype(u8),
    /// A length or type in the frame is not what its kind demands.
    Malformed,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "shorter than a LACPDU or Marker PDU"),
            Self::NotSlow => write!(f, "not a frame of the slow protocols"),
            Self::Subtype(subtype) => write!(f, "slow protocol {subtype}, neither LACP nor marker"),
            Self::Malformed => write!(f, "a length or type inside is wrong"),
        }
    }
}

impl core::error::Error for ParseError {}

impl SlowFrame {
    /// Reads a frame that begins with its Ethernet header.
    ///
    /// Any version is read as version 1, and what follows the fields of version 1 is ignored, as clause
    /// 6.4.2.4 demands: later versions only add to it.
    ///
    /// # Errors
    /// [`ParseError`]; the frame should be dropped.
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let kind = u16_at(frame, 12).ok_or(ParseError::Short)?;
        if kind != SLOW_PROTOCOLS_ETHERTYPE || !frame.starts_with(&SLOW_PROTOCOLS_MULTICAST) {
            return Err(ParseError::NotSlow);
        }
        match *frame.get(HEADER_LEN).ok_or(ParseError::Short)? {
            SUBTYPE_LACP => Lacpdu::parse(frame).map(Self::Lacpdu),
            SUBTYPE_MARKER => Marker::parse(frame).map(Self::Marker),
            other => Err(ParseError::Subtype(other)),
        }
    }
}

impl Lacpdu {
    fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        if frame.len() < FRAME_LEN {
            return Err(ParseError::Short);
        }
        // Types and reserved bytes are not to be looked at (6.4.2.4); lengths may be.
        if frame[ACTOR_AT + 1] != INFO_LEN || frame[PARTNER_AT + 1] != INFO_LEN {
            return Err(ParseError::Malformed);
        }
        let actor = PortInfo::parse(frame, ACTOR_AT).ok_or(ParseError::Short)?;
        let partner = PortInfo::parse(frame, PARTNER_AT).ok_or(ParseError::Short)?;
        Ok(Self { actor, partner })
    }

    /// The frame, from a port with the address `from`.
    #[must_use]
    pub fn to_frame(&self, from: Mac) -> [u8; FRAME_LEN] {
        let mut frame = frame(from, SUBTYPE_LACP);
        self.actor.put(&mut frame, ACTOR_AT, 1);
        self.partner.put(&mut frame, PARTNER_AT, 2);
        // The collector's greatest delay is 0: nothing is held back on receipt.
        frame[COLLECTOR_AT] = 3;
        frame[COLLECTOR_AT + 1] = 16;
        frame
    }
}

impl Marker {
    fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let tlv = frame.get(MARKER_AT..MARKER_AT + 16).ok_or(ParseError::Short)?;
        let response = match tlv[0] {
            MARKER_INFORMATION => false,
            MARKER_RESPONSE => true,
            _ => return Err(ParseError::Malformed),
        };
        if tlv[1] != MARKER_LEN {
            return Err(ParseError::Malformed);
        }
        let short = ParseError::Short;
        Ok(Self {
            response,
            port: u16_at(tlv, 2).ok_or(short)?,
            system: mac_at(tlv, 4).ok_or(short)?,
            transaction: u32::from_be_bytes([tlv[10], tlv[11], tlv[12], tlv[13]]),
        })
    }

    /// The frame, from a port with the address `from`.
    #[must_use]
    pub fn to_frame(&self, from: Mac) -> [u8; FRAME_LEN] {
        let mut frame = frame(from, SUBTYPE_MARKER);
        frame[MARKER_AT] = if self.response { MARKER_RESPONSE } else { MARKER_INFORMATION };
        frame[MARKER_AT + 1] = MARKER_LEN;
        frame[MARKER_AT + 2..MARKER_AT + 4].copy_from_slice(&self.port.to_be_bytes());
        frame[MARKER_AT + 4..MARKER_AT + 10].copy_from_slice(&self.system);
        frame[MARKER_AT + 10..MARKER_AT + 14].copy_from_slice(&self.transaction.to_be_bytes());
        frame
    }
}

fn frame(from: Mac, subtype: u8) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&SLOW_PROTOCOLS_MULTICAST);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&SLOW_PROTOCOLS_ETHERTYPE.to_be_bytes());
    frame[HEADER_LEN] = subtype;
    frame[HEADER_LEN + 1] = VERSION;
    frame
}

fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
}

fn mac_at(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..at + 6)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Mac = [2, 0, 0, 0, 0, 9];

    fn pdu() -> Lacpdu {
        let end = |n: u8| PortInfo {
            system_priority: 0xfff0 | u16::from(n),
            system: [2, 0, 0, 0, 0, n],
            key: 0x0f00 | u16::from(n),
            port_priority: 0x00f0 | u16::from(n),
            port: u16::from(n),
            state: PortState(0x3d + n),
        };
        Lacpdu { actor: end(1), partner: end(2) }
    }

    #[test]
    fn fields_lie_where_the_standard_says() {
        let frame = pdu().to_frame(FROM);
        assert_eq!(frame[..16], [1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 9, 0x88, 0x09, 1, 1]);
        let actor = [1, 20, 0xff, 0xf1, 2, 0, 0, 0, 0, 1, 0x0f, 1, 0, 0xf1, 0, 1, 0x3e, 0, 0, 0];
        assert_eq!(frame[16..36], actor);
        assert_eq!(frame[36..38], [2, 20]);
        assert_eq!(frame[56..60], [3, 16, 0, 0]);
        assert_eq!(frame[72..74], [0, 0], "terminator");
        assert_eq!(SlowFrame::parse(&frame), Ok(SlowFrame::Lacpdu(pdu())));
    }

    #[test]
    fn later_versions_and_what_they_add_are_read_as_version_1() {
        let mut frame = pdu().to_frame(FROM).to_vec();
        frame[15] = 2;
        // Port algorithm TLV of version 2, where version 1 has its terminator; then more than 110 bytes.
        frame[72..78].copy_from_slice(&[4, 6, 0, 0x80, 0xc2, 1]);
        frame.extend([0xff; 40]);
        // A type is not looked at.
        frame[16] = 77;
        assert_eq!(SlowFrame::parse(&frame), Ok(SlowFrame::Lacpdu(pdu())));
    }

    #[test]
    fn a_marker_is_read_as_it_was_built() {
        for response in [false, true] {
            let marker = Marker { response, port: 7, system: FROM, transaction: 0x0102_0304 };
            let frame = marker.to_frame(FROM);
            assert_eq!(frame[26..30], [1, 2, 3, 4]);
            assert_eq!(SlowFrame::parse(&frame), Ok(SlowFrame::Marker(marker)));
        }
    }

    #[test]
    fn what_is_no_such_frame_is_refused() {
        let whole = pdu().to_frame(FROM);
        for len in 0..FRAME_LEN {
            assert!(SlowFrame::parse(&whole[..len]).is_err(), "{len} bytes");
        }
        let with = |at: usize, value: u8| {
            let mut frame = whole;
            frame[at] = value;
            SlowFrame::parse(&frame)
        };
        assert_eq!(with(0, 0), Err(ParseError::NotSlow));
        assert_eq!(with(13, 0), Err(ParseError::NotSlow));
        assert_eq!(with(14, 10), Err(ParseError::Subtype(10)));
        assert_eq!(with(17, 19), Err(ParseError::Malformed));
        assert_eq!(with(37, 0), Err(ParseError::Malformed));
    }

    #[test]
    fn state_bits_have_names() {
        assert_eq!(
            PortState(0x3d).to_string(),
            "activity,aggregation,synchronization,collecting,distributing"
        );
        assert_eq!(PortState(0).to_string(), "");
    }
}
