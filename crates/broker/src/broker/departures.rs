//! Programs that leave this host, to be restored on another one (`polypath move`).

use std::rc::Rc;

use polypath_ipc::message::{self, Push, Reply};

use super::Broker;
use super::requests::Refusal;
use crate::log::log;

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
        let ids = self.cm.describe();
        let of_process = |id: u64| self.connections.get(&id).is_some_and(|c| c.pid == pid);
        let ids = ids.into_iter().filter(|id| of_process(id.client.0)).count();
        if ids > 0 && !force {
            let text = format!(
                "process {pid} has {ids} rdma_cm ids, which can't move and would be lost: repeat the command \
                 with --force if the program can do without them"
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
            others.into_iter().for_each(|id| self.close(id));
        }
    }
}
