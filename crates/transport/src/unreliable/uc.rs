//! The receiving side of UC: if a packet of a message is missing, the whole message is dropped
//! (IBTA 9.8.2).

use polypath_wire::ext::Reth;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;
use polypath_wire::psn::Psn;

use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::{BadUcWrite, What};
use crate::frozen::{Reader, ThawError, Writer, words};
use crate::host::Host;
use crate::responder::execute::check_packet;
use crate::rq::{CompletedRecv, ReceiveQueue};
use crate::state::MAX_MESSAGE;
use polypath_types::{Access, WcOpcode, WcStatus};

/// The message that is arriving.
#[derive(Clone, Copy, Debug)]
struct Inbound {
    /// The RETH of a WRITE.
    reth: Option<Reth>,
    received: u32,
}

/// The receiving side of UC.
#[derive(Clone, Debug, Default)]
pub(crate) struct UcReceiver {
    pub(crate) rq: ReceiveQueue,
    epsn: Psn,
    message: Option<Inbound>,
}

impl UcReceiver {
    /// Writes the receiver.
    pub(crate) fn freeze(&self, out: &mut Writer) {
        self.rq.freeze(out);
        out.u32(self.epsn.get());
        out.option(self.message, |out, message| {
            out.option(message.reth, |out, reth| words::put_reth(out, &reth));
            out.u32(message.received);
        });
    }

    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(core: &Core, from: &mut Reader<'_>) -> Result<Self, ThawError> {
        let rq = ReceiveQueue::thaw(core, from)?;
        let epsn = Psn::new(from.u32()?);
        let message = from.option(|from| {
            let reth = from.option(words::reth)?;
            let received = from.u32()?;
            let most = reth.map_or(MAX_MESSAGE, |reth| u64::from(reth.len));
            from.ensure(
                u64::from(received) <= most,
                "more has arrived of a message than there is",
            )?;
            Ok(Inbound { reth, received })
        })?;
        Ok(Self { rq, epsn, message })
    }

    /// The queue pair went from INIT to RTR: the first packet has the PSN `rq_psn`.
    pub(crate) fn start(&mut self, rq_psn: u32) {
        self.epsn = Psn::new(rq_psn);
    }

    /// The expected PSN.
    pub(crate) fn epsn(&self) -> Psn {
        self.epsn
    }

    /// Takes a packet. If its message is dropped, the receive work request stays in hand for the
    /// next message.
    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        core.note_request(host);
        let h = &packet.headers;
        // The opcodes of UC are those of RC with other service bits.
        let opcode = Opcode(h.bth.opcode.0 & 0x1f);
        if h.bth.psn != self.epsn {
            core.counters.out_of_order += 1;
            self.message = None;
        }
        self.epsn = h.bth.psn.next();
        if opcode.starts_message() {
            self.message = None; // The rest of the previous one was lost.
        }
        let under_way = self.message.map(|m| m.reth.is_none());
        let len = packet.payload.len();
        if check_packet(opcode, under_way, len, core.attr.path_mtu).is_err() {
            core.counters.dropped_malformed += 1;
            self.message = None;
            return;
        }
        let done = if opcode.is_send() {
            self.send(core, packet, opcode, host)
        } else {
            self.write(core, packet, opcode, host)
        };
        if done.is_none() {
            self.message = None;
        }
    }

    fn send<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        opcode: Opcode,
        host: &mut H,
    ) -> Option<()> {
        let received = self.message.map_or(0, |m| m.received);
        if !self.rq.begin(core, host) {
            core.counters.dropped_no_receive += 1;
            return None;
        }
        if let Err(error) = self.rq.store(core, received, packet.payload, host) {
            self.rq.not_stored(core, error, What::UcSendNotStored, host);
            return None;
        }
        let received = received.checked_add(packet.payload.len() as u32)?;
        self.message = Some(Inbound { reth: None, received });
        if opcode.ends_message() {
            self.message = None;
            self.complete(core, packet, WcOpcode::Recv, received, host);
        }
        Some(())
    }

    fn write<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        opcode: Opcode,
        host: &mut H,
    ) -> Option<()> {
        let (reth, received) = match self.message {
            Some(Inbound { reth: Some(reth), received }) => (reth, received),
            _ => {
                let reth = packet.headers.reth?;
                if !core.attr.access.contains(Access::REMOTE_WRITE)
                    || u64::from(reth.len) > MAX_MESSAGE
                {
                    return self.refuse(core, host, BadUcWrite::NotAllowed);
                }
                let access = core.remote(core.config.pd, &reth, Access::REMOTE_WRITE);
                if reth.len > 0
                    && let Err(fault) = host.resolve_remote(&access)
                {
                    core.explain(host, None, What::UcWriteFault { fault });
                    return self.refuse(core, host, BadUcWrite::Memory);
                }
                (reth, 0)
            }
        };
        let end = received.checked_add(packet.payload.len() as u32)?;
        if end > reth.len || (opcode.ends_message() && end != reth.len) {
            return self.refuse(core, host, BadUcWrite::Length);
        }
        if packet.headers.imm.is_some() && !self.rq.begin(core, host) {
            core.counters.dropped_no_receive += 1;
            return None;
        }
        if !packet.payload.is_empty() {
            let (va, len) = (reth.va.wrapping_add(u64::from(received)), end - received);
            let part = Reth { va, len, ..reth };
            let access = core.remote(core.config.pd, &part, Access::REMOTE_WRITE);
            let segment = host.resolve_remote(&access).ok()?;
            host.store(segment, packet.payload).ok()?;
        }
        self.message = Some(Inbound { reth: Some(reth), received: end });
        if opcode.ends_message() {
            self.message = None;
            if packet.headers.imm.is_some() {
                self.complete(core, packet, WcOpcode::RecvRdmaWithImm, reth.len, host);
            }
        }
        Some(())
    }

    fn refuse<H: Host>(&self, core: &mut Core, host: &mut H, why: BadUcWrite) -> Option<()> {
        core.counters.dropped_malformed += 1;
        core.explain(host, None, What::UcWriteDropped { why });
        None
    }

    fn complete<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        host: &mut H,
    ) {
        let what = CompletedRecv {
            opcode,
            byte_len,
            imm: packet.headers.imm.map(|imm| imm.0),
            invalidated_rkey: None,
            src_qpn: core.attr.dest_qpn,
            grh: None,
            solicited: packet.headers.bth.solicited,
        };
        self.rq.complete(core, WcStatus::Success, Cause::None, &what, host);
    }

    /// Completes everything posted with `WrFlushErr`.
    pub(crate) fn flush<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        self.message = None;
        self.rq.flush(core, host);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
