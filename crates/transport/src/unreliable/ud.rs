//! The receiving side of UD (IBTA 9.8.3): each packet is a message, with the sender's GRH before
//! it.

use polypath_wire::packet::Packet;

use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::What;
use crate::frozen::{Reader, ThawError};
use crate::host::Host;
use crate::rq::{CompletedRecv, ReceiveQueue};
use polypath_types::{NetworkHeader, WcOpcode, WcStatus};

/// The number of bytes that the GRH takes in the receive buffer.
const GRH_LEN: u32 = 40;

/// The receiving side of UD.
#[derive(Clone, Debug, Default)]
pub(crate) struct UdReceiver {
    pub(crate) rq: ReceiveQueue,
}

impl UdReceiver {
    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(core: &Core, from: &mut Reader<'_>) -> Result<Self, ThawError> {
        ReceiveQueue::thaw(core, from).map(|rq| Self { rq })
    }

    /// Takes a packet. If it does not fit the receive work request, it is dropped, and the work
    /// request stays for the next one. If the work request's memory is not valid, that fails.
    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        grh: Option<&[u8; 40]>,
        host: &mut H,
    ) {
        let Some(deth) = packet.headers.deth else {
            core.counters.dropped_malformed += 1;
            return;
        };
        if deth.qkey != core.attr.qkey {
            core.counters.dropped_qkey += 1;
            let (src_qpn, qkey, own) = (deth.src_qpn, deth.qkey, core.attr.qkey);
            core.explain(host, None, What::DatagramQkey { src_qpn, qkey, own });
            return;
        }
        core.note_request(host);
        if !self.rq.begin(core, host) {
            core.counters.dropped_no_receive += 1;
            return;
        }
        // Without a GRH, its place in the buffer stays unchanged.
        let stored = match grh {
            Some(grh) => self.rq.store(core, 0, grh, host),
            None => Ok(()),
        }
        .and_then(|()| self.rq.store(core, GRH_LEN, packet.payload, host));
        if let Err(error) = stored {
            let bytes = packet.payload.len() as u32;
            self.rq.not_stored(core, error, What::DatagramNotStored { bytes }, host);
            return;
        }
        let what = CompletedRecv {
            opcode: WcOpcode::Recv,
            byte_len: GRH_LEN + packet.payload.len() as u32,
            imm: packet.headers.imm.map(|imm| imm.0),
            invalidated_rkey: None,
            src_qpn: deth.src_qpn,
            grh: grh.map(NetworkHeader::of),
            solicited: packet.headers.bth.solicited,
        };
        self.rq.complete(core, WcStatus::Success, Cause::None, &what, host);
    }
}
