//! Judges UC and UD. A message that arrives must be one that was sent, whole. It must arrive in order
//! and once, unless the network reorders or repeats packets. A message may be missing, unless the
//! network lost nothing.

use polypath_transport::{Completion, QpType, WcOpcode, WcStatus};

use super::direction::{Direction, imm};
use super::receiver::Receive;
use super::{Verdict, breach, demand};
use crate::case::{OpKind, Wrong};
use crate::io::Io;

/// Bytes that the GRH takes at the start of a UD receive.
const GRH_LEN: u32 = 40;

/// The state of one direction of a UC or UD pair.
#[derive(Debug)]
pub(crate) struct Loose {
    service: QpType,
    /// Whether the network keeps packets in order and sends none twice.
    ordered: bool,
    /// The index of the last message that arrived.
    last: Option<usize>,
    arrived: usize,
}

impl Loose {
    pub(crate) fn new(service: QpType, ordered: bool) -> Self {
        Self { service, ordered, last: None, arrived: 0 }
    }

    /// Notes that the responder stored data of a WRITE.
    pub(crate) fn written(&self, direction: &Direction, addr: u64, data: &[u8]) -> Verdict {
        let fits = (0..direction.next_to_post()).rev().any(|i| {
            let op = &direction.ops[i];
            let start = direction.layout.base + u64::from(op.offset);
            let from = addr.wrapping_sub(start) as usize;
            let sent = direction.data(i);
            op.kind.is_write()
                && op.wrong.is_none()
                && from <= sent.len()
                && sent[from..].starts_with(data)
        });
        demand(fits, "only what was sent is written", || {
            format!("{} bytes at {addr:#x}", data.len())
        })
    }

    /// Notes that a message arrived and completed `receive`.
    pub(crate) fn arrived(
        &mut self,
        direction: &Direction,
        receive: &Receive,
        io: &Io,
        c: &Completion,
    ) -> Verdict {
        let extra = if self.service == QpType::Ud { GRH_LEN } else { 0 };
        let all = receive.read(&io.memory, c.byte_len);
        let Some(data) = all.get(extra as usize..) else {
            return breach("a receive tells the truth", format!("{c:?}"));
        };
        let same = |i: &usize| {
            let op = &direction.ops[*i];
            let wanted = (op.kind != OpKind::Send).then(|| imm(*i));
            let opcode =
                if op.kind.is_write() { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
            op.kind.takes_receive()
                && (c.byte_len, c.imm, c.opcode) == (op.len + extra, wanted, opcode)
                && (op.kind.is_write() || direction.data(*i) == data)
        };
        let Some(i) = (0..direction.next_to_post()).rev().find(same) else {
            return breach("only what was sent arrives", format!("{c:?}"));
        };
        let op = &direction.ops[i];
        let allowed = matches!(op.wrong, None | Some(Wrong::NoReceive));
        demand(allowed, "a wrong request does not arrive", || format!("{i}: {op}"))?;
        let told = (c.status, c.vendor_err, c.solicited, c.grh.is_some());
        let right = (WcStatus::Success, 0, op.solicited, extra > 0);
        demand(
            told == right && (extra == 0 || c.src_qpn == direction.qpn),
            "a receive tells the truth",
            || format!("{i}: {c:?}"),
        )?;
        demand(!self.ordered || self.last < Some(i), "messages arrive once and in order", || {
            format!("{i} after {:?}", self.last)
        })?;
        self.last = Some(i);
        self.arrived += 1;
        Ok(())
    }

    /// Checks that all messages have arrived. To be called only if the network lost nothing and there
    /// always was a receive.
    pub(crate) fn finish(&self, direction: &Direction) -> Verdict {
        let wanted =
            direction.ops.iter().filter(|op| op.kind.takes_receive() && op.wrong.is_none());
        let wanted = wanted.count();
        demand(self.arrived >= wanted, "a message that nothing drops arrives", || {
            format!("{:#x}: {} of {wanted} messages", direction.qpn, self.arrived)
        })
    }
}
