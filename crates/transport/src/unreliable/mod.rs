//! Unreliable services: a sender that completes requests when they are sent, and the receiving
//! sides of UC ([`uc`]) and UD ([`ud`]). They have no acknowledgements, no timers, and do not count
//! against windows.

mod uc;
mod ud;

use polypath_wire::ext::{Deth, ImmDt, MpHeader};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, pad_for};

use crate::burst::{Burst, Payload};
use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::What;
use crate::frozen::{Reader, ThawError, Writer};
use crate::host::Host;
use crate::requester::{Failure, Stamp, burst_packets, emit_data, local_fault, psn, unsent};
use crate::sq::{Body, SendQueue, Wqe, gather};
use crate::transmit_state::TransmitState;
use polypath_types::{
    Access, DatagramCopies, PathId, PathTag, PostError, QpEvent, QpState, QpType, SendFlags,
    SendOp, SendWr, UdDestination, WcStatus,
};
pub(crate) use uc::UcReceiver;
pub(crate) use ud::UdReceiver;

/// The most bursts or datagrams per call of `poll`.
const POLL_BURSTS: u32 = 32;
/// The most payload bytes per call of `poll`, except for the last burst.
const POLL_BYTES: u32 = 64 << 10;

/// The sending side of UC and UD.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    sq: SendQueue,
    /// The next sequence number; its low 24 bits are the PSN.
    next: u64,
    /// The number of packets sent of the message under way (UC).
    progress: Option<u32>,
    ready: bool,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self { sq: SendQueue::default(), next: 0, progress: None, ready: false }
    }

    /// Writes the sender.
    pub(crate) fn freeze(&self, out: &mut Writer) {
        out.u64(self.next);
        out.option(self.progress, Writer::u32);
        self.sq.freeze(out);
    }

    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(core: &Core, from: &mut Reader<'_>) -> Result<Self, ThawError> {
        let next = from.u64()?;
        from.ensure(next < 1 << 56, "a sequence number is out of range")?;
        let progress = from.option(Reader::u32)?;
        let sq = SendQueue::thaw(core, progress, from)?;
        from.ensure(sq.sent_len() == 0, "what is sent is complete")?;
        let uc = core.config.qp_type == QpType::Uc;
        from.ensure(uc || progress.is_none(), "a datagram has one packet")?;
        Ok(Self { sq, next, progress, ready: true })
    }

    /// The queue pair went from RTR to RTS: the first packet has the PSN `sq_psn`.
    pub(crate) fn start(&mut self, sq_psn: u32) {
        self.next = u64::from(sq_psn & 0xff_ffff);
    }

    /// The PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> u32 {
        psn(self.next).get()
    }

    pub(crate) fn clear<H: Host>(&mut self, core: &Core, host: &mut H) {
        self.sq.clear(core, host);
        *self = Self { sq: core::mem::take(&mut self.sq), ..Self::new() };
    }

    /// The number of work requests that may be posted before the queue is full.
    pub(crate) fn send_room(&self, core: &Core) -> usize {
        self.sq.room(core)
    }

    pub(crate) fn post(&mut self, core: &Core, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.sq.post(core, wr, 0)?;
        self.ready = true;
        Ok(())
    }

    /// The destinations of datagrams that are posted and not sent yet.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = UdDestination> {
        self.sq.iter().filter_map(|wqe| wqe.ud)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Notes that something may be sent that could not before.
    pub(crate) fn wake(&mut self) {
        self.ready = true;
    }

    /// Completes everything posted with `WrFlushErr`.
    pub(crate) fn flush<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        self.sq.flush(core, host);
        self.progress = None;
        self.ready = false;
    }

    /// SQD: reports that nothing is under way any more.
    pub(crate) fn check_drained<H: Host>(&self, core: &mut Core, host: &mut H) {
        if core.attr.state == QpState::Sqd && core.attr.sq_draining && self.progress.is_none() {
            core.attr.sq_draining = false;
            if core.attr.en_sqd_async_notify {
                host.event(QpEvent::SqDrained);
            }
        }
    }

    /// Sends what can be sent now.
    pub(crate) fn poll<H: Host>(&mut self, core: &mut Core, host: &mut H) -> TransmitState {
        let mut bytes = 0;
        for _ in 0..POLL_BURSTS {
            let stopped = match core.attr.state {
                QpState::Rts => false,
                QpState::Sqd => self.progress.is_none(),
                _ => true,
            };
            let Some(wqe) = self.sq.next().filter(|_| !stopped) else {
                self.ready = false;
                return TransmitState::Idle;
            };
            let route = match wqe.ud {
                Some(ud) => Some(ud.path),
                None => core.peer.and_then(|peer| host.route_without_window(peer)),
            };
            let Some(path) = route else {
                self.ready = false; // Waits until a path is back.
                return TransmitState::Idle;
            };
            let sent = if wqe.is_local() {
                execute_local(core, wqe, host)
            } else if core.config.qp_type == QpType::Ud {
                send_datagram(core, wqe, self.next, path, host)
            } else {
                self.send_burst(core, path, host)
            };
            match sent {
                Ok(Sent { bytes: n, packets, ends }) => {
                    bytes += n;
                    self.next += u64::from(packets);
                    if ends {
                        self.progress = None;
                        self.sq.next_is_sent();
                        self.sq.complete_front(core, WcStatus::Success, Cause::None, host);
                    }
                }
                Err(Failure { status, cause, .. }) => {
                    // Sends fail from now on, receives continue (IBTA 10.3.1.6, SQE).
                    self.sq.complete_front(core, status, cause, host);
                    core.attr.state = QpState::Sqe;
                    core.attr.sq_draining = false;
                    self.flush(core, host);
                    return TransmitState::Idle;
                }
            }
            self.check_drained(core, host);
            if bytes >= POLL_BYTES {
                break;
            }
        }
        TransmitState::More
    }

    /// Sends the next burst of a UC message.
    fn send_burst<H: Host>(
        &mut self,
        core: &mut Core,
        path: PathId,
        host: &mut H,
    ) -> Result<Sent, Failure> {
        let mtu = core.attr.path_mtu;
        let k = self.progress.unwrap_or(0);
        let next = self.next;
        let Some(wqe) = self.sq.next_mut() else { return Ok(Sent::default()) };
        if k == 0 {
            wqe.first = next;
            wqe.packets = wqe.len.div_ceil(mtu).max(1);
        }
        let wqe = &*wqe;
        let n = (wqe.packets - k).min(burst_packets(mtu));
        let stamp = Stamp { tag: None, twin: None, now_us: 0 };
        emit_data(core, wqe, k, n, false, path, stamp, true, host)?;
        let ends = k + n == wqe.packets;
        let bytes = (wqe.len - k * mtu).min(n * mtu);
        self.progress = Some(k + n);
        Ok(Sent { bytes, packets: n, ends })
    }
}

/// What one step has sent.
#[derive(Default)]
struct Sent {
    bytes: u32,
    packets: u32,
    ends: bool,
}

/// Sends a UD message.
fn send_datagram<H: Host>(
    core: &mut Core,
    wqe: &Wqe,
    seq: u64,
    path: PathId,
    host: &mut H,
) -> Result<Sent, Failure> {
    let Some(ud) = wqe.ud else {
        return Err(Failure::local(WcStatus::LocQpOpErr));
    };
    if ud.path == PathId::NONE {
        core.explain(host, None, What::AddressHandleOfOtherPd { wr_id: wqe.wr_id });
        return Err(Failure::local(WcStatus::LocQpOpErr));
    }
    if wqe.len > core.attr.path_mtu {
        // It is not sent, but this is no error either (C10-93.1.1).
        core.counters.dropped_too_long += 1;
        let what = What::DatagramTooLong { bytes: wqe.len, mtu: core.attr.path_mtu };
        core.explain(host, Some(path), what);
        return Ok(Sent { bytes: 0, packets: 0, ends: true });
    }
    let imm = match wqe.op {
        SendOp::SendImm(imm) => Some(ImmDt(imm)),
        _ => None,
    };
    let twice = if ud.twin == PathId::NONE { None } else { host.number_datagram([path, ud.twin]) };
    let opcode = match (imm, twice) {
        (None, None) => Opcode::UD_SEND_ONLY,
        (Some(_), None) => Opcode::UD_SEND_ONLY_IMM,
        (None, Some(_)) => Opcode::MP_DATAGRAM,
        (Some(_), Some(_)) => Opcode::MP_DATAGRAM_IMM,
    };
    let mut headers = Headers::new(core.bth(opcode, psn(seq)));
    headers.bth.opcode = opcode;
    headers.bth.dest_qpn = ud.qpn & 0xff_ffff;
    headers.bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
    headers.bth.pad = pad_for(wqe.len as usize);
    // A work request can't set a controlled Q_Key (IBTA 10.2.5).
    let qkey = if ud.qkey >> 31 != 0 { core.attr.qkey } else { ud.qkey };
    headers.deth = Some(Deth { qkey, src_qpn: core.config.qpn });
    headers.imm = imm;
    headers.mp = twice.map(|twice| copy_header(&twice, 0));
    let gathered;
    let payload = match &wqe.body {
        Body::Inline(data) => Payload::Bytes(data),
        Body::Sges(sges) => {
            gathered = gather(core.config.pd, sges, 0, wqe.len, Access::empty(), host)
                .map_err(|fault| local_fault(core, wqe, fault, host))?;
            Payload::Memory { segments: &gathered.segments, skip: gathered.skip, len: wqe.len }
        }
    };
    let burst = Burst::single(path, &headers, core.attr.path_mtu, payload);
    core.transmit(&burst, host).map_err(|unread| unsent(core, wqe, unread, host))?;
    if let Some(twice) = twice {
        headers.mp = Some(copy_header(&twice, 1));
        let copy = Burst::single(ud.twin, &headers, core.attr.path_mtu, payload);
        core.transmit(&copy, host).map_err(|unread| unsent(core, wqe, unread, host))?;
    }
    Ok(Sent { bytes: wqe.len, packets: 1, ends: true })
}

/// The multi-path header of one of the two copies of a datagram.
fn copy_header(twice: &DatagramCopies, copy: usize) -> MpHeader {
    let flags = MpHeader::TWICE | if copy == 0 { 0 } else { MpHeader::COPY };
    let PathTag { id, generation } = twice.tags[copy];
    let DatagramCopies { association: offset, number: msg, .. } = *twice;
    MpHeader { flags, path_id: id, generation, msg, offset, ..MpHeader::default() }
}

fn execute_local<H: Host>(core: &Core, wqe: &Wqe, host: &mut H) -> Result<Sent, Failure> {
    let key = |rkey| core.key(core.config.pd, rkey);
    let (done, status) = match wqe.op {
        SendOp::LocalInv { rkey } => (host.invalidate(key(rkey)), WcStatus::LocQpOpErr),
        SendOp::BindMw { mw, rkey } => (host.bind_mw(mw, key(rkey)), WcStatus::MwBindErr),
        _ => (Ok(()), WcStatus::Success),
    };
    match done {
        Ok(()) => Ok(Sent { ends: true, ..Sent::default() }),
        Err(fault) => {
            core.explain(host, None, What::BindOrInvalidate { fault });
            Err(Failure::local(status))
        }
    }
}
