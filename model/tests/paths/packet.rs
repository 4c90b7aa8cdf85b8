//! Packets between the two hosts.

use core::fmt;
use std::sync::Arc;

use polypath_wire::opcode::Opcode;

use crate::host::{Datagram, address};

/// A packet on its way. Probes and their answers are not seen here: they travel in no time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Flying {
    pub(crate) to: usize,
    pub(crate) link: usize,
    pub(crate) bytes: Arc<[u8]>,
    /// Held back: it may arrive at any time. Others arrive in the order of sending, by link and direction.
    pub(crate) late: bool,
    /// Its sender has given the path up since.
    pub(crate) given_up: bool,
    /// Nobody may accept it any more.
    pub(crate) fenced: bool,
}

impl fmt::Debug for Flying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = if self.fenced { " fenced" } else { "" };
        let kind = if self.bytes[0] == 0xda { self.bytes[24] } else { 0 };
        let late = if self.late { " late" } else { "" };
        write!(f, "{:02x}.{kind}{fence}{late} to {} by {}", self.bytes[0], self.to, self.link)
    }
}

impl Flying {
    pub(crate) fn opcode(&self) -> Opcode {
        Opcode(self.bytes[0])
    }

    /// With a multi-path header: of a path, and of a generation of it.
    pub(crate) fn is_multipath_data(&self) -> bool {
        let opcode = self.opcode();
        self.bytes[0] >= 0xc0 && !opcode.is_mp_management()
    }

    pub(crate) fn is_probe(&self) -> bool {
        matches!(self.opcode(), Opcode::MP_PROBE | Opcode::MP_PROBE_REPLY)
    }

    pub(crate) fn datagram(&self) -> Datagram {
        Datagram {
            src: address(self.link, 1 - self.to),
            dst: address(self.link, self.to),
            bytes: self.bytes.to_vec(),
        }
    }
}
