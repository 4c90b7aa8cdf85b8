//! Deliberate faults of the protocol.

use polypath_wire::opcode::Opcode;

use crate::node::Node;

/// A deliberate fault of the protocol, to show that the checker finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sabotage {
    #[default]
    None,
    /// Receivers take packets of any generation.
    GenerationIgnored,
    /// A duplicate request is executed as if it were the next one.
    DuplicatesExecuted,
    /// What a given-up path had is not sent again.
    NoReplay,
    /// Addresses, tables and notices are not sent.
    NothingTold,
}

impl Sabotage {
    /// Whether a host never sends this.
    pub(crate) fn withholds(self, sender: &Node, bytes: &[u8]) -> bool {
        let opcode = Opcode(bytes[0]);
        match self {
            Self::NothingTold => opcode == Opcode::MP_CONTROL,
            Self::NoReplay => {
                !opcode.is_mp_management()
                    && opcode.base().is_request()
                    && sender.has_retransmitted()
            }
            _ => false,
        }
    }
}
