//! The events thread (`polypath-events`). It receives news from the broker: changed links and
//! addresses, requests for status. It also tells the broker what happened on the lanes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use polypath_ipc::message::{Ends, Request, TOLD_MAX};
use polypath_ipc::{Client, EventStream, Hello, IpcError, Push};
use polypath_paths::StreamEnds;
use polypath_topology::Table;
use polypath_verbs::{Error, Result};

use crate::departure::Wait;
use crate::engine_inner::{EngineInner, RECONNECT_FIRST, RECONNECT_LAST, ipc_error, no_broker};
use crate::lane::noted::Noted;
use crate::lane::streams::Wanted;
use crate::media::local::from_broker;
use crate::notify::lock;
use crate::{log, status};

/// The number of attempts to reconnect to a broker that was killed: about half a minute. If there is none,
/// and none has taken its place after so many, nobody will: the keeper was killed, too.
const RECONNECTS: u32 = 66;
const RECONNECTS_WITHOUT_BROKER: u32 = 15;

/// How the connection to the broker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// This process is a child that must not use its parent's connection.
    Forked,
    /// The broker ended.
    AfterGoodbye,
    /// The broker was killed.
    Unexpectedly,
    /// The process leaves this host, and waits for so long to be restored elsewhere.
    Leaving(Duration),
}

/// What became of the attempts to reconnect.
enum Again {
    Connected(EventStream),
    /// The broker is gone for good.
    NoBroker,
    /// The engine closes.
    Closing,
}

impl EngineInner {
    /// Subscribes to the broker's news.
    pub(crate) fn subscribe(&self) -> Result<EventStream> {
        let hello = lock(&self.broker).as_ref().ok_or_else(no_broker)?.hello().clone();
        let (stream, table) =
            Client::begin(&hello, Client::subscribe).map_err(|e| ipc_error(&e))?;
        self.set_table(table);
        Ok(stream)
    }

    /// Starts the thread that receives the news.
    pub(crate) fn start_service(
        self: &Arc<Self>,
        mut stream: EventStream,
    ) -> Result<JoinHandle<()>> {
        let hello = lock(&self.broker).as_ref().ok_or_else(no_broker)?.hello().clone();
        self.can_end(&stream).map_err(|e| ipc_error(&e))?;
        let engine = self.clone();
        crate::thread::start("polypath-events", move || {
            // If this is refused, a fail-over takes a little longer.
            let _ = polypath_ipc::sched::request_short_slices();
            loop {
                let again = match engine.serve(&mut stream) {
                    Lost::Forked => None,
                    Lost::Unexpectedly => match engine.reconnect(&hello) {
                        Again::Connected(stream) => Some(stream),
                        Again::Closing => None,
                        Again::NoBroker => {
                            engine.go_away(stream, &hello, Wait::Broker { start: true })
                        }
                    },
                    Lost::AfterGoodbye => {
                        engine.go_away(stream, &hello, Wait::Broker { start: false })
                    }
                    Lost::Leaving(within) => engine.go_away(stream, &hello, Wait::Restored(within)),
                };
                let Some(again) = again else { break };
                stream = again;
            }
        })
        .map_err(|e| Error::new(e.raw_os_error().unwrap_or(libc::EAGAIN), "cannot start a thread"))
    }

    /// Makes this the stream that ends when the engine closes.
    pub(crate) fn can_end(&self, stream: &EventStream) -> core::result::Result<(), IpcError> {
        let hang_up = stream.hang_up()?;
        let mut service = lock(&self.service);
        if service.closing {
            return Err(IpcError::Closed);
        }
        service.stream = Some(hang_up);
        Ok(())
    }

    /// Ends the events thread, even if it is only starting.
    pub(crate) fn end_service(&self) {
        let mut service = lock(&self.service);
        service.closing = true;
        if let Some(stream) = service.stream.take() {
            stream.hang_up();
        }
        self.closing.notify_all();
    }

    /// Waits for a time. Returns true at once if the engine closes.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let service = lock(&self.service);
        let waited = self.closing.wait_timeout_while(service, time, |service| !service.closing);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.closing
    }

    /// Follows the broker's messages until the connection ends.
    fn serve(&self, stream: &mut EventStream) -> Lost {
        // Earlier events may not have been sent to the broker yet.
        let mut to_tell = true;
        loop {
            match stream.wait_event_or(self.messenger.waker().as_fd(), to_tell) {
                Ok(None) => match self.tell(stream) {
                    Ok(all) => {
                        to_tell = !all;
                        self.open_channels();
                        self.open_streams();
                    }
                    Err(_) => return Lost::Unexpectedly,
                },
                Ok(Some(Push::Channel { slot, to })) => {
                    if let Some(end) = stream.take_fd() {
                        self.add_channel(slot, to, end);
                    }
                }
                Ok(Some(Push::Stream { slot, ends, opening })) => {
                    if let Some(socket) = stream.take_fd() {
                        self.add_stream(slot, ends, opening.as_deref(), socket);
                    }
                }
                Ok(Some(Push::Path(order))) => self.obey(&order),
                Ok(Some(Push::Table(table))) => self.set_table(*table),
                Ok(Some(Push::StatusRequest { id, scope })) => {
                    if stream.report(id, status::report(self, scope)).is_err() {
                        return Lost::Unexpectedly;
                    }
                }
                // Only watchers subscribe to these.
                Ok(Some(Push::Events { .. })) => {}
                Ok(Some(Push::Depart { within_ms })) => {
                    return Lost::Leaving(Duration::from_millis(within_ms.into()));
                }
                Ok(Some(Push::Goodbye)) => return Lost::AfterGoodbye,
                Err(IpcError::Forked) => return Lost::Forked,
                Err(_) => return Lost::Unexpectedly,
            }
        }
    }

    /// Tells the broker what happened on the lanes. Returns false if it has no room for everything.
    fn tell(&self, stream: &mut EventStream) -> core::result::Result<bool, IpcError> {
        self.messenger.begin();
        let mut all = true;
        for lane in self.lanes.iter() {
            loop {
                let (events, lost) = lane.take_untold(TOLD_MAX);
                if events.is_empty() && lost == 0 {
                    break;
                }
                let told: Vec<_> = events.iter().cloned().map(Noted::occurrence).collect();
                if !stream.tell(lost, &told)? {
                    lane.put_back_untold(events, lost);
                    return Ok(false);
                }
            }
            let news = lane.take_path_news(TOLD_MAX);
            if !news.is_empty() && !stream.tell_paths(&news)? {
                lane.put_back_path_news(&news);
                return Ok(false);
            }
            all &= news.len() < TOLD_MAX;
        }
        Ok(all)
    }

    /// Asks for the channels that lanes want.
    fn open_channels(&self) {
        for lane in self.lanes.iter() {
            for to in lane.take_wanted_channels() {
                // The lock is not held while a lane is entered, because a lane is opened with it.
                let asked = lock(&self.broker).as_mut().map(|b| b.open_channel(lane.slot, to));
                match asked {
                    Some(Ok(end)) => self.add_channel(lane.slot, to, end),
                    // Paths over UDP are used all the same.
                    Some(Err(error)) => log::line(&format!("no shared memory with {to}: {error}")),
                    None => {}
                }
            }
        }
    }

    /// Asks for the TCP streams that lanes want. Those that are made come as news.
    fn open_streams(&self) {
        for lane in self.lanes.iter() {
            let Some(port) = lane.tcp_port() else { continue };
            for Wanted { ends, opening } in lane.take_wanted_streams() {
                let to = Ends { local: ends.local, remote: ends.remote, slot: ends.slot };
                let asked = lock(&self.broker)
                    .as_mut()
                    .map(|broker| broker.open_stream(lane.slot, to, port, opening));
                if let Some(Err(error)) = asked {
                    let StreamEnds { remote, slot, .. } = ends;
                    log::line(&format!("no TCP stream to {remote}, slot {slot}: {error}"));
                }
            }
        }
    }

    /// Gives a lane a TCP stream. Another engine of this process may have the lane.
    fn add_stream(&self, slot: u8, ends: Ends, opening: Option<&[u8]>, socket: OwnedFd) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.slot == slot) else { return };
        let ends = StreamEnds { local: ends.local, remote: ends.remote, slot: ends.slot };
        if let Err(error) = lane.add_stream(ends, opening, socket) {
            let StreamEnds { remote, slot, .. } = ends;
            log::line(&format!("a TCP stream with {remote}, slot {slot}, is not used: {error}"));
        }
    }

    /// Gives a lane the end of a channel. Another engine of this process may have the lane.
    fn add_channel(&self, slot: u8, to: u8, end: OwnedFd) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.slot == slot) else { return };
        let added = from_broker(to, end).and_then(|channel| lane.add_channel(to, channel));
        if let Err(error) = added {
            log::line(&format!("shared memory with the lane in slot {to} is not used: {error}"));
        }
    }

    /// Connects to the new broker after the old one was killed. Another process takes its place
    /// within milliseconds, and lets each process keep its lanes' slots. Packets arrive all the
    /// while.
    fn reconnect(&self, hello: &Hello) -> Again {
        let mut pause = RECONNECT_FIRST;
        if self.pause(Duration::ZERO) {
            return Again::Closing;
        }
        let mut without_broker = 0;
        for _ in 0..RECONNECTS {
            let again = self.connect_again(hello).and_then(|(stream, table)| {
                self.can_end(&stream)?;
                Ok((stream, table))
            });
            match again {
                Ok((stream, table)) => {
                    log::line("the broker was gone and is back");
                    self.set_table(table);
                    return Again::Connected(stream);
                }
                Err(error) => {
                    log::line(&format!("connecting to the broker again: {error}"));
                    without_broker = match error {
                        IpcError::NoBroker => without_broker + 1,
                        // This one has not taken the place of the one that was killed.
                        IpcError::Refused { errno: libc::EBADF, .. } => RECONNECTS_WITHOUT_BROKER,
                        _ => 0,
                    };
                }
            }
            if without_broker >= RECONNECTS_WITHOUT_BROKER {
                break;
            }
            if self.pause(pause) {
                return Again::Closing;
            }
            pause = (pause * 2).min(RECONNECT_LAST);
        }
        Again::NoBroker
    }

    fn connect_again(&self, hello: &Hello) -> core::result::Result<(EventStream, Table), IpcError> {
        if let Some(broker) = lock(&self.broker).as_mut()
            // Another thread may have reconnected already.
            && broker.call(&Request::Ping).is_err()
        {
            self.renew(broker)?;
        }
        Client::connect(hello)?.subscribe()
    }
}
