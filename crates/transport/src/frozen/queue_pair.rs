//! Both directions, from the magic number to the checksum.

use core::time::Duration;

use super::bytes::{Reader, Writer};
use super::error::{ThawError, VERSION};
use super::words;
use crate::common::Core;
use crate::host::Host;
use crate::migration::Migration;
use crate::qp::{Halves, QueuePair};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::unreliable::{Sender, UcReceiver, UdReceiver};
use polypath_types::{QpConfig, QpType};

const MAGIC: [u8; 4] = *b"PPQP";
/// The size of magic number and version, and that of the checksum, in bytes.
const HEAD: usize = 6;
const TAIL: usize = 4;

impl QueuePair {
    /// Ends the queue pair, without completions and events, and returns it as bytes. The host gets
    /// back what is charged and reserved; nothing that the bytes contain is cancelled.
    #[must_use]
    pub fn freeze<H: Host>(mut self, now: Duration, host: &mut H) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(&MAGIC);
        out.u16(VERSION);
        words::put_config(&mut out, &self.core.config);
        words::put_attr(&mut out, &self.core.attr);
        self.core.freeze(&mut out);
        self.core.migration.freeze(now, &mut out);
        match &mut self.halves {
            Halves::Rc(rc) => {
                rc.0.freeze(now, &mut out, host);
                rc.1.freeze(&mut out, host);
            }
            Halves::Uc(sender, receiver) => {
                sender.freeze(&mut out);
                receiver.freeze(&mut out);
            }
            Halves::Ud(sender, receiver) => {
                sender.freeze(&mut out);
                receiver.rq.freeze(&mut out);
            }
        }
        let crc = crc32fast::hash(&out.0);
        out.u32(crc);
        out.0
    }

    /// The configuration that a frozen queue pair was made with. Only the checksum of the rest is
    /// checked.
    ///
    /// # Errors
    /// See [`ThawError`].
    pub fn frozen_config(bytes: &[u8]) -> Result<QpConfig, ThawError> {
        words::config(&mut Self::open(bytes)?)
    }

    /// Makes a queue pair from the bytes that [`QueuePair::freeze`] returned, with the protection
    /// domain `pd` in place of its own. It continues once it has a peer ([`QueuePair::set_peer`];
    /// UD needs none). The memory that its READs may still answer from is looked up at the host,
    /// which must have registered it.
    ///
    /// # Errors
    /// See [`ThawError`]; the host has got back what was reserved.
    /// See [`ThawError`]; the host has got back what was reserved.
    pub fn thaw<H: Host>(
        bytes: &[u8],
        pd: u32,
        now: Duration,
        host: &mut H,
    ) -> Result<Self, ThawError> {
        let mut from = Self::open(bytes)?;
        let config = words::config(&mut from)?;
        from.rename_pd(config.pd, pd);
        let mut core = Core::new(QpConfig { pd, ..config });
        words::attr(&mut from, core.config.qp_type, &mut core.attr)?;
        core.thaw(&mut from)?;
        core.migration = Migration::thaw(core.attr.path_mig_state, now, &mut from)?;
        let halves = match core.config.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                let requester = Requester::thaw(&core, now, &mut from)?;
                let responder = Responder::thaw(&core, &mut from, host)?;
                Halves::Rc(Box::new((requester, responder)))
            }
            QpType::Uc => {
                let sender = Sender::thaw(&core, &mut from)?;
                Halves::Uc(sender, UcReceiver::thaw(&core, &mut from)?)
            }
            QpType::Ud => {
                let sender = Sender::thaw(&core, &mut from)?;
                Halves::Ud(sender, UdReceiver::thaw(&core, &mut from)?)
            }
        };
        let mut qp = Self { core, halves };
        let whole = from.ensure(from.is_at_end(), "something follows the end");
        match whole.and_then(|()| qp.check().map_err(ThawError::Contradiction)) {
            Ok(()) => Ok(qp),
            Err(error) => {
                if let Halves::Rc(rc) = &mut qp.halves {
                    rc.1.clear(host);
                }
                Err(error)
            }
        }
    }

    /// The bytes between magic number and checksum, if both are right.
    fn open(bytes: &[u8]) -> Result<Reader<'_>, ThawError> {
        let magic = &bytes[..bytes.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(ThawError::NotFrozen);
        }
        let Some((body, crc)) = bytes.split_last_chunk::<TAIL>() else {
            return Err(ThawError::Truncated);
        };
        if body.len() < HEAD {
            return Err(ThawError::Truncated);
        }
        let version = u16::from_be_bytes([body[4], body[5]]);
        if version != VERSION {
            return Err(ThawError::Version(version));
        }
        if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
            return Err(ThawError::Checksum);
        }
        Ok(Reader::new(&body[HEAD..]))
    }
}

impl Core {
    fn freeze(&self, out: &mut Writer) {
        out.flag(self.multipath);
        out.u32(self.in_flight_max);
        out.flag(self.reads_blocks);
        out.flag(self.joins_reads);
        out.u32(self.peer_pd);
        out.flag(self.is_established());
    }

    fn thaw(&mut self, from: &mut Reader<'_>) -> Result<(), ThawError> {
        self.multipath = from.flag()?;
        self.in_flight_max = from.u32()?;
        self.reads_blocks = from.flag()?;
        self.joins_reads = from.flag()?;
        self.peer_pd = from.pd()?;
        let established = from.flag()?;
        self.set_established(established);
        let rc = self.config.qp_type == QpType::Rc;
        from.ensure(rc || !self.multipath, "only RC sends multi-path packets")?;
        from.ensure(self.has_valid_reach(), "too many or too few packets in flight")
    }
}
