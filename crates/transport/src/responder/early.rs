//! Data that is put into memory before its turn, where the region says that order does not matter
//! (`IBV_ACCESS_RELAXED_ORDERING`, see `ibv_reg_mr(3)`).
//!
//! Only the data of the WRITE that is arriving is: everything before that WRITE has been executed, so that no
//! READ, atomic or refused request comes in between. What waits for its turn is the header alone, which takes
//! little memory, and the payload is not copied twice. Completions, acknowledgements and the next requests
//! keep their order.

use polypath_wire::ext::Reth;
use polypath_wire::packet::Headers;

use super::Responder;
use super::data::Placed;
use super::execute::{Inbound, InboundKind};
use crate::common::Core;
use crate::host::Host;
use polypath_types::Access;

impl Responder {
    /// Puts the payload of a packet that is `ahead` sequence numbers early into memory, if it may be there
    /// before its turn.
    pub(super) fn place<H: Host>(
        &mut self,
        core: &Core,
        ahead: u32,
        headers: &Headers,
        payload: &[u8],
        host: &mut H,
    ) -> Option<Placed> {
        let Inbound { kind: InboundKind::Write(reth), received } = self.message? else {
            return None;
        };
        let placed = within(&reth, received, ahead, headers, payload, core.attr.path_mtu)?;
        if !core.attr.access.contains(Access::REMOTE_WRITE) {
            return None;
        }
        let part = Reth { va: reth.va.wrapping_add(u64::from(placed.at)), len: placed.len, ..reth };
        let rights = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let segment = host.resolve_remote(&core.remote(core.peer_pd, &part, rights)).ok()?;
        if !self.resources.admit(core, &self.jobs, segment, host) {
            return None;
        }
        // If the memory is gone, the request is refused at its turn.
        host.store(segment, payload).ok()?;
        Some(placed)
    }
}

/// Which bytes of the WRITE that is arriving a packet carries that is `ahead` early. `None` if it belongs to
/// another message, has to be refused, or its execution does more than to store them.
fn within(
    reth: &Reth,
    received: u32,
    ahead: u32,
    headers: &Headers,
    payload: &[u8],
    mtu: u32,
) -> Option<Placed> {
    let opcode = headers.bth.opcode.base();
    if !opcode.is_write() || opcode.starts_message() || headers.imm.is_some() {
        return None;
    }
    // Each packet before it carries as much as the MTU, unless another message begins in between. Its offset
    // is smaller then.
    let (at, len) = (u64::from(received) + u64::from(ahead) * u64::from(mtu), payload.len() as u64);
    if headers.mp.map(|mp| u64::from(mp.offset)) != Some(at) {
        return None;
    }
    let (end, whole) = (at + len, u64::from(reth.len));
    let fits = if opcode.ends_message() {
        (1..=u64::from(mtu)).contains(&len) && end == whole
    } else {
        len == u64::from(mtu) && end < whole
    };
    // Both are less than the length of the message.
    fits.then_some(Placed { at: at as u32, len: len as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_wire::bth::Bth;
    use polypath_wire::ext::{ImmDt, MpHeader};
    use polypath_wire::opcode::Opcode;

    const MTU: u32 = 1024;
    const RETH: Reth = Reth { va: 0x1000, rkey: 7, len: 4 * MTU + 100 };

    fn headers(opcode: Opcode, offset: u32) -> Headers {
        let mut headers = Headers::new(Bth::new(opcode.to_mp()));
        headers.mp = Some(MpHeader { offset, ..MpHeader::default() });
        headers
    }

    fn place(headers: &Headers, ahead: u32, len: usize) -> Option<Placed> {
        // The first packet was executed, so the expected one begins at MTU.
        within(&RETH, MTU, ahead, headers, &vec![0; len], MTU)
    }

    #[test]
    fn packets_of_the_message_have_their_place_in_it() {
        let middle = headers(Opcode::RC_WRITE_MIDDLE, 3 * MTU);
        assert_eq!(place(&middle, 2, 1024), Some(Placed { at: 3 * MTU, len: MTU }));
        let last = headers(Opcode::RC_WRITE_LAST, 4 * MTU);
        assert_eq!(place(&last, 3, 100), Some(Placed { at: 4 * MTU, len: 100 }));
    }

    #[test]
    fn whatever_else_it_may_be_waits_for_its_turn() {
        let middle = headers(Opcode::RC_WRITE_MIDDLE, 3 * MTU);
        assert_eq!(place(&middle, 1, 1024), None, "of a later message");
        assert_eq!(place(&middle, 2, 1000), None, "too short");
        let end = headers(Opcode::RC_WRITE_MIDDLE, 4 * MTU);
        assert_eq!(place(&end, 3, 1024), None, "beyond the message");
        let last = headers(Opcode::RC_WRITE_LAST, 4 * MTU);
        for len in [0, 99, 101, 1025] {
            assert_eq!(place(&last, 3, len), None, "the message ends elsewhere: {len}");
        }
        let mut with_imm = headers(Opcode::RC_WRITE_LAST_IMM, 4 * MTU);
        with_imm.imm = Some(ImmDt([0; 4]));
        assert_eq!(place(&with_imm, 3, 100), None, "it takes a receive");
        for opcode in [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_ONLY, Opcode::RC_SEND_MIDDLE] {
            assert_eq!(place(&headers(opcode, 3 * MTU), 2, 1024), None);
        }
        let plain = Headers::new(Bth::new(Opcode::RC_WRITE_MIDDLE));
        assert_eq!(place(&plain, 2, 1024), None, "it does not say where it belongs");
    }
}
