//! Programs that leave this host, to be restored on another one (`polypath move`).

use std::os::fd::AsFd;
use std::rc::Rc;

use polypath_cm::{CantMove, ClientId, FileId, MovedFile};
use polypath_ipc::message::{self, CM_PART_MAX, Push, Reply};

use super::Broker;
use super::requests::{Answer, Refusal, reply};
use crate::log::log;
use crate::sys::process::now;

/// The longest description of a CM file, bytes: of an id up to 1,100, and up to 1,024 multicast groups of
/// some.
const MOVED_MAX: usize = 64 << 20;

/// The processes that leave.
#[derive(Debug, Default)]
pub(super) struct Departures(Vec<Departure>);

#[derive(Debug)]
struct Departure {
    /// The connection that asked for it.
    asker: u64,
    pid: u32,
    /// The streams of its engines, as far as they have not ended.
    streams: Vec<u64>,
    /// What else it had when it was asked. An engine may be back already while another one leaves.
    others: Vec<u64>,
}

impl Departures {
    /// Whether a connection is of a process that leaves.
    pub(super) fn has(&self, id: u64) -> bool {
        self.0
            .iter()
            .any(|departure| departure.streams.contains(&id) || departure.others.contains(&id))
    }
}

/// Why a CM file can't be taken over.
pub(super) fn refusal_of(why: CantMove) -> Refusal {
    let (errno, text) = match why {
        CantMove::Number => {
            (libc::EADDRINUSE, "another program here has the number of an rdma_cm id".into())
        }
        CantMove::Port(port) => {
            (libc::EADDRINUSE, format!("another program here has rdma_cm port {port}"))
        }
        CantMove::Invalid => (libc::EINVAL, "a CM file that does not fit together".into()),
    };
    Refusal::new(errno, text)
}

impl Broker {
    /// Asks a process to leave this host. The asker gets its answer when it has left.
    pub(super) fn take_off(
        &mut self,
        asker: u64,
        pid: u32,
        within_ms: u32,
        force: bool,
    ) -> Result<(), Refusal> {
        // Processes of other pid namespaces all have the number 0, and can't be told apart.
        let streams = if pid == 0 { Vec::new() } else { self.streams_of(pid) };
        if streams.is_empty() {
            let text = format!("process {pid} uses no device here: see `polypath status`");
            return Err(Refusal::new(libc::ESRCH, text));
        }
        let of_process = self.connections.iter().filter(|(_, c)| c.pid == pid);
        let ids: usize = of_process.map(|(id, _)| self.cm.immobile_ids(ClientId(*id))).sum();
        if ids > 0 && !force {
            let text = format!(
                "process {pid} has {ids} rdma_cm ids that can't move now: their connections are being made \
                 or ended, or may migrate to alternate paths. Try again, or repeat the command with --force \
                 if the program can do without them"
            );
            return Err(Refusal::new(libc::EBUSY, text));
        }
        let push = message::encode(&Push::Depart { within_ms });
        let push: Rc<[u8]> = push.map_err(|e| Refusal::new(libc::EMSGSIZE, e.to_string()))?.into();
        log!("process {pid} is asked to leave this host");
        let its = self.connections.iter().filter(|(id, c)| c.pid == pid && !streams.contains(id));
        let others = its.map(|(id, _)| *id).collect();
        self.departures.0.push(Departure { asker, pid, streams: streams.clone(), others });
        streams.into_iter().for_each(|stream| self.send(stream, Rc::clone(&push), None));
        Ok(())
    }

    /// Gives a process its CM file, because it leaves this host.
    pub(super) fn take_cm_file(&mut self, id: u64, file: u64) -> Answer {
        let file = self.file_of(id, file)?;
        let busy = || Refusal::new(libc::EBUSY, "something of its rdma_cm ids is under way");
        let moved = self.cm.take_file(file, &mut self.host).ok_or_else(busy)?;
        let bytes = message::encode_long(&moved)
            .map_err(|error| Refusal::new(libc::EIO, format!("taking a CM file away: {error}")))?;
        let socket = self.files.remove(file).ok_or_else(busy)?.into_socket();
        let _ = self.epoll.remove(socket.as_fd());
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.taking = bytes.chunks(CM_PART_MAX).map(<[u8]>::to_vec).collect();
        }
        Ok((self.next_part(id)?, Some(socket)))
    }

    /// Gives a process the next part of a CM file.
    pub(super) fn take_more(&mut self, id: u64) -> Answer {
        reply(self.next_part(id)?)
    }

    fn next_part(&mut self, id: u64) -> Result<Reply, Refusal> {
        let parts = self.connections.get_mut(&id).map(|connection| &mut connection.taking);
        let part = parts.and_then(|parts| Some((parts.pop_front()?, !parts.is_empty())));
        let (bytes, more) =
            part.ok_or_else(|| Refusal::new(libc::ENODATA, "no CM file is taken away"))?;
        Ok(Reply::CmTaken { bytes, more })
    }

    /// Takes a part of a CM file, which is not the last one.
    pub(super) fn put_part(&mut self, id: u64, bytes: Vec<u8>) -> Answer {
        let Some(connection) = self.connections.get_mut(&id) else { return reply(Reply::Done) };
        if connection.putting.len() + bytes.len() > MOVED_MAX {
            connection.putting = Vec::new();
            return Err(Refusal::new(libc::EMSGSIZE, "a CM file that is too long"));
        }
        connection.putting.extend(bytes);
        reply(Reply::Done)
    }

    /// Takes over the CM file of a process that has come from another host. `last`: the last part of it.
    pub(super) fn put_cm_file(&mut self, id: u64, file: u64, last: Vec<u8>) -> Answer {
        let invalid = |what: &str| Refusal::new(libc::EINVAL, format!("a CM file {what}"));
        let pid = self.pid_of(id);
        let connection = self.connections.get_mut(&id).ok_or_else(|| invalid("of nobody"))?;
        let mut bytes = std::mem::take(&mut connection.putting);
        bytes.extend(last);
        let socket = connection.brought.take().ok_or_else(|| invalid("without its socket"))?;
        let number = u32::try_from(file).map_err(|_| invalid("with an impossible number"))?;
        let moved: MovedFile =
            message::decode_long(&bytes).map_err(|_| invalid("of another version"))?;
        let file = FileId(number);
        let put = self.files.put(file, (id, pid), socket).and_then(|()| self.begin_file(file, id));
        put.map_err(|e| Refusal::of("taking over a CM file", &e))?;
        let Err(why) = self.cm.put_file(now(), file, moved, &mut self.host) else {
            return reply(Reply::Done);
        };
        self.close_file(file);
        Err(refusal_of(why))
    }

    /// Takes note of the end of a connection. When the last engine of a process that leaves has gone, what
    /// else the process had here is closed, and the asker gets its answer.
    pub(super) fn note_departure(&mut self, id: u64) {
        let departures = &mut self.departures.0;
        departures
            .iter_mut()
            .for_each(|departure| departure.streams.retain(|stream| *stream != id));
        let gone = departures.extract_if(.., |departure| departure.streams.is_empty());
        for Departure { asker, pid, others, .. } in gone.collect::<Vec<_>>() {
            log!("process {pid} has left this host");
            // One that does not wait any more gets none. Messages that were sent to a connection stay
            // readable when it is closed.
            self.answer(asker, &Reply::Done, None);
            others.into_iter().for_each(|id| self.close_of(id, true));
        }
    }
}
