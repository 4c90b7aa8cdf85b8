//! A program leaves its host, and goes on where it was restored, or the broker ends and another one comes.
//!
//! A checkpoint of a process (CRIU) takes along its memory, with the queue pairs and all that the engine
//! knows of their peers. It can't take along what belongs to the host: sockets with its addresses, the
//! broker's connections, memory that is shared with others. So the engine gives these back first. When the
//! process runs again, the engine connects to the broker that it finds, and asks for the same slots, so that
//! queue pairs keep their numbers. What peers see is a host that was silent for a time and has new addresses
//! now, which the path manager knows how to tell them.

use std::io::{PipeReader, PipeWriter};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use polypath_ipc::message::Request;
use polypath_ipc::{Client, EventStream, Hello, IpcError};
use polypath_topology::Table;

use crate::companion::Away;
use crate::engine_inner::{EngineInner, accept_streams};
use crate::log;
use crate::notify::lock;

/// The pause between two looks whether the process was restored, and between attempts to connect: the first
/// and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LAST: Duration = Duration::from_secs(1);

/// What tells a process that was restored from one that has never been away.
struct Mark {
    /// A pipe. A restored process has a new one, with another number.
    pipe: Option<(PipeReader, PipeWriter)>,
    seen: Seen,
}

#[derive(PartialEq)]
struct Seen {
    pipe: u64,
    network: u64,
    boot: String,
}

impl Mark {
    fn new() -> Self {
        let pipe = std::io::pipe().ok();
        let seen = Seen::now(pipe.as_ref());
        Self { pipe, seen }
    }

    fn is_restored(&self) -> bool {
        Seen::now(self.pipe.as_ref()) != self.seen
    }
}

impl Seen {
    fn now(pipe: Option<&(PipeReader, PipeWriter)>) -> Self {
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let pipe = pipe.and_then(|(end, _)| rustix::fs::fstat(end).ok());
        Self { pipe: pipe.map_or(0, |found| found.st_ino), network, boot }
    }
}

/// The interfaces as they are for a program that is away: none has a carrier.
fn without_carrier(table: &Table) -> Table {
    let mut table = table.clone();
    table.ports.iter_mut().for_each(|port| port.link_up = false);
    table
}

/// What an engine that is away waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// The process is restored, but not longer than so long. Then for a broker, which is started if need be.
    Restored(Duration),
    /// A broker takes the place of one that has ended, and is started or not.
    Broker { start: bool },
}

impl EngineInner {
    /// Gives back all that the process has of this host, and waits. Returns `None` if the engine closes.
    pub(crate) fn go_away(
        &self,
        stream: EventStream,
        hello: &Hello,
        wait: Wait,
    ) -> Option<EventStream> {
        // If the broker has ended, what it knew has ended, too.
        let companion = matches!(wait, Wait::Restored(_)).then(Away::leave);
        self.depart(match wait {
            Wait::Restored(_) => "the program leaves this host",
            Wait::Broker { .. } => "the broker is gone: queue pairs wait for another one",
        });
        // It ends last, because the broker takes that for the end of all. A child may have the socket, too.
        if let Some(stream) = lock(&self.service).stream.take() {
            stream.hang_up();
        }
        drop(stream);
        let (within, start) = match wait {
            Wait::Restored(within) => (within, true),
            Wait::Broker { start } => (Duration::ZERO, start),
        };
        let stream = self.arrive(hello, within, start);
        if let Some(companion) = companion {
            companion.come_back();
        }
        stream
    }

    /// Gives back all but the stream of news.
    fn depart(&self, why: &str) {
        log::line(why);
        let broker = lock(&self.broker).take();
        self.set_table(without_carrier(&self.table()));
        for lane in self.lanes.iter() {
            if let Err(error) = lane.depart(why) {
                log::warn(&format!("slot {}: leaving this host: {error}", lane.slot));
            }
        }
        drop(broker);
    }

    /// Waits until the process was restored, but not longer than `within`, and then until a broker takes it.
    fn arrive(&self, hello: &Hello, within: Duration, start: bool) -> Option<EventStream> {
        let mark = Mark::new();
        // Time counts only while the process runs.
        let mut left = within.div_duration_f64(PAUSE_FIRST).ceil() as u64;
        let mut pause = PAUSE_FIRST;
        let mut said = String::new();
        loop {
            if left == 0 || mark.is_restored() {
                left = 0;
                match self.connect_here(hello, start) {
                    Ok(stream) => {
                        log::line("connected to the broker of this host");
                        return Some(stream);
                    }
                    Err(error) => {
                        let text = error.to_string();
                        if text != said {
                            log::warn(&format!(
                                "queue pairs wait for a broker that takes them: {text}"
                            ));
                            said = text;
                        }
                        // An attempt may start a process.
                        pause = (pause * 2).min(PAUSE_LAST);
                    }
                }
            }
            left = left.saturating_sub(1);
            if self.pause(pause) {
                return None;
            }
        }
    }

    /// Asks the broker of this host for the slots of all lanes. All or none.
    fn connect_here(&self, hello: &Hello, start: bool) -> Result<EventStream, IpcError> {
        let mut broker = lock(&self.broker);
        let mut client = match start {
            true => Client::connect_or_start(hello)?,
            false => Client::connect(hello)?,
        };
        let mut sockets = Vec::new();
        for lane in self.lanes.iter() {
            sockets.push((lane, client.open_lane_on(lane.slot)?));
        }
        let (stream, table) = Client::connect(hello)?.subscribe()?;
        // The broker may have ended in between, or another one may have taken its place.
        client.call(&Request::Ping)?;
        self.can_end(&stream)?;
        for (lane, opened) in sockets {
            if let Err(error) = lane.arrive(&opened) {
                log::warn(&format!("slot {}: taking its socket: {error}", lane.slot));
            }
            accept_streams(&mut client, lane);
        }
        *broker = Some(client);
        drop(broker);
        self.set_table(table);
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stays_is_not_restored_and_one_with_another_pipe_is() {
        let mut mark = Mark::new();
        assert!(!mark.is_restored());
        let before = mark.pipe.take();
        assert!(before.is_some() && mark.is_restored());
        mark.pipe = std::io::pipe().ok();
        assert!(
            mark.is_restored(),
            "the former pipe is still there, so this one has another number"
        );
        mark.pipe = before;
        assert!(!mark.is_restored());
        mark.seen.boot.push('2');
        assert!(mark.is_restored());
    }
}
