//! The responder as bytes: what is expected, what is arriving, which answers are still to be sent,
//! and which requests may be repeated.

use std::collections::VecDeque;

use polypath_wire::ext::{NakCode, Reth};
use polypath_wire::psn::Psn;

use super::answer::{AckKind, Due, JOBS_MAX, Job, ReadJob, Reply};
use super::execute::{Inbound, InboundKind};
use super::reorder::Reorder;
use super::resources::Resources;
use super::{Responder, SEQ_BASE};
use crate::REACH;
use crate::common::Core;
use crate::frozen::words::{put_reth, reth};
use crate::frozen::{Reader, ThawError, Writer};
use crate::host::Host;
use crate::rq::ReceiveQueue;
use crate::state::MAX_MESSAGE;
use polypath_types::PathId;

type Result<T> = core::result::Result<T, ThawError>;

/// No sequence number gets this large.
const SEQ_MAX: u64 = 1 << 56;

fn put_reply(out: &mut Writer, reply: &Reply) {
    out.u32(reply.path.0);
    out.flag(reply.multipath);
    out.u32(reply.timestamp);
}

fn reply(from: &mut Reader<'_>) -> Result<Reply> {
    let (path, multipath, timestamp) = (PathId(from.u32()?), from.flag()?, from.u32()?);
    // It is answered once. Who asked by two paths asks again for what it misses.
    Ok(Reply { path, multipath, timestamp, twice: false })
}

fn nak(from: &mut Reader<'_>) -> Result<NakCode> {
    Ok(match from.u8()? {
        1 => NakCode::InvalidRequest,
        2 => NakCode::RemoteAccess,
        3 => NakCode::RemoteOperational,
        _ => return Err(from.wrong("no request is refused like that")),
    })
}

fn put_due(out: &mut Writer, due: Due) {
    match due.kind {
        AckKind::Ack => out.u8(0),
        AckKind::SequenceError => out.u8(1),
        AckKind::NotReady { timer } => out.raw(&[2, timer]),
        AckKind::Fatal { code, psn } => {
            out.raw(&[3, code.code()]);
            out.u32(psn.get());
        }
    }
    put_reply(out, &due.reply);
    out.u32(due.coalesced);
}

fn due(from: &mut Reader<'_>) -> Result<Due> {
    let kind = match from.u8()? {
        0 => AckKind::Ack,
        1 => AckKind::SequenceError,
        2 => {
            let timer = from.u8()?;
            from.ensure(timer <= 31, "an RNR timer is 0 to 31")?;
            AckKind::NotReady { timer }
        }
        3 => AckKind::Fatal { code: nak(from)?, psn: Psn::new(from.u32()?) },
        _ => return Err(from.wrong("there is no such acknowledgement")),
    };
    let reply = reply(from)?;
    let coalesced = from.at_most(1 << 16, "an acknowledgement for too many")?;
    Ok(Due { kind, reply, coalesced, also: None })
}

fn put_job(out: &mut Writer, job: &Job) {
    match job {
        Job::Read(job) => {
            out.u8(0);
            out.u32(job.psn.get());
            put_reth(out, &Reth { va: job.va, rkey: job.rkey, len: job.left });
            out.u32(job.pd);
            out.flag(job.fresh);
            out.flag(job.again);
            out.flag(job.continues);
            out.u32(job.msn);
            put_reply(out, &job.reply);
        }
        Job::Atomic { psn, value, again, msn, reply } => {
            out.u8(1);
            out.u32(psn.get());
            out.u64(*value);
            out.flag(*again);
            out.u32(*msn);
            put_reply(out, reply);
        }
    }
}

fn job(from: &mut Reader<'_>) -> Result<Job> {
    match from.u8()? {
        0 => {
            let psn = Psn::new(from.u32()?);
            let Reth { va, rkey, len } = reth(from)?;
            Ok(Job::Read(ReadJob {
                psn,
                va,
                rkey,
                left: len,
                pd: from.pd()?,
                fresh: from.flag()?,
                again: from.flag()?,
                continues: from.flag()?,
                msn: from.u32()?,
                reply: reply(from)?,
            }))
        }
        1 => Ok(Job::Atomic {
            psn: Psn::new(from.u32()?),
            value: from.u64()?,
            again: from.flag()?,
            msn: from.u32()?,
            reply: reply(from)?,
        }),
        _ => Err(from.wrong("there is no such answer")),
    }
}

fn put_inbound(out: &mut Writer, message: Inbound) {
    let to = match message.kind {
        InboundKind::Send => None,
        InboundKind::Write(reth) => Some(reth),
    };
    out.option(to, |out, to| put_reth(out, &to));
    out.u32(message.received);
}

fn inbound(from: &mut Reader<'_>) -> Result<Inbound> {
    let to = from.option(reth)?;
    let received = from.u32()?;
    let most = to.map_or(MAX_MESSAGE, |to| u64::from(to.len));
    from.ensure(u64::from(received) <= most, "more has arrived of a message than there is")?;
    Ok(Inbound { kind: to.map_or(InboundKind::Send, InboundKind::Write), received })
}

impl Responder {
    /// Writes the responder; the host gets back what is reserved.
    pub(crate) fn freeze<H: Host>(&mut self, out: &mut Writer, host: &mut H) {
        self.rq.freeze(out);
        out.u64(self.next);
        out.u32(self.msn);
        out.option(self.message, put_inbound);
        for flag in [self.complained, self.waiting, self.ending] {
            out.flag(flag);
        }
        out.option(self.due, put_due);
        out.count(self.jobs.len());
        for job in &self.jobs {
            put_job(out, job);
        }
        self.resources.freeze(out);
        self.reorder.freeze(out);
        self.reorder.clear(host);
    }

    /// # Errors
    /// See [`ThawError`]. Then nothing is reserved at the host.
    pub(crate) fn thaw<H: Host>(core: &Core, from: &mut Reader<'_>, host: &mut H) -> Result<Self> {
        let rq = ReceiveQueue::thaw(core, from)?;
        let next = from.u64()?;
        from.ensure((SEQ_BASE..SEQ_MAX).contains(&next), "a sequence number is out of range")?;
        let msn = from.at_most(0xff_ffff, "an MSN has 24 bits")?;
        let message = from.option(inbound)?;
        let (complained, waiting, ending) = (from.flag()?, from.flag()?, from.flag()?);
        let due = from.option(due)?;
        let jobs = from.count(2 * JOBS_MAX, "too many answers are owed")?;
        let jobs = (0..jobs).map(|_| job(from)).collect::<Result<VecDeque<Job>>>()?;
        let resources = Resources::thaw(core, from, host)?;
        let reorder = Reorder::thaw(core.psns(REACH) as usize, from, host)?;
        Ok(Self {
            rq,
            next,
            msn,
            message,
            complained,
            due,
            jobs,
            resources,
            reorder,
            waiting,
            ending,
            held: false,
            repeated: None,
        })
    }
}
