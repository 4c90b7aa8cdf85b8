//! The requests of clients.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use polypath_cm::{ClientId, FileId};
use polypath_ipc::message::{self, CM_COMMAND_MAX, Push, Reply, Request, Scope, TEXT_MAX, VERSION};
use polypath_ipc::status::{
    BrokerStatus, ClientStatus, CmIdStatus, CmMigrationStatus, ProcessStatus, SlotStatus,
};
use polypath_ipc::{Hello, SLOT_MAX};
use polypath_telemetry::{BrokerCounters, Event};
use polypath_topology::{PathSelector, Selection};

use super::Broker;
use crate::connection::Role;
use crate::log::log;
use crate::slots::Owner;
use crate::sys::process::now;

/// The size of a `struct rdma_ucm_event_resp`, with room for additions.
const CM_EVENT_MAX: usize = 512;

/// The largest number of CM ids in a status.
const CM_IDS_SHOWN_MAX: usize = 4096;

/// The largest number of programs that are named as a reason not to shut down.
const IN_USE_SHOWN: usize = 8;

/// An error for the client.
pub(super) struct Refusal {
    errno: i32,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    pub(super) fn of(doing: &str, error: &io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{doing}: {error}"))
    }
}

/// Whether a request only reads, or tells what root alone can know, so that it may come from root.
fn is_harmless(request: &Request) -> bool {
    matches!(
        request,
        Request::Status { .. }
            | Request::GetTable
            | Request::Ping
            | Request::Watch { .. }
            | Request::Lacp { .. }
    )
}

/// An answer, with the descriptor that comes with it, if any.
pub(super) type Answer = Result<(Reply, Option<OwnedFd>), Refusal>;

pub(super) fn reply(reply: Reply) -> Answer {
    Ok((reply, None))
}

impl Broker {
    /// Executes a client's request and answers it.
    pub(super) fn request(&mut self, id: u64, request: Request) {
        let Some(connection) = self.connections.get(&id) else { return };
        let answer = match (connection.role, request) {
            (Role::New, Request::Hello(hello)) => self.hello(id, &hello),
            (Role::New, _) => return self.reject_nonsense(id, "a request before the hello"),
            (Role::Events, Request::StatusReport { id: number, more, status }) => {
                return self.take_report(id, number, more, *status);
            }
            (Role::Events, Request::Events { lost, events }) => {
                return self.take_events(id, lost, events);
            }
            (Role::Events, Request::Paths { news }) => return self.take_path_news(id, &news),
            (Role::Watching, _) => {
                return self.reject_nonsense(id, "a request on a watching connection");
            }
            (Role::Events, _) => return self.reject_nonsense(id, "a request on an event stream"),
            (Role::Leaving, _) => return,
            (Role::Control, Request::Status { scope }) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.watches = true;
                }
                return self.begin_status(id, scope);
            }
            (Role::Control, request) if connection.guest && !is_harmless(&request) => {
                let text = "root may look at another user's broker, not use or change it: run the \
                            command as that user";
                Err(Refusal::new(libc::EPERM, text))
            }
            (Role::Control, Request::PingHost(ping)) => {
                self.count_client(id);
                if !self.pings.has_room() {
                    return self.refuse(id, libc::EBUSY, "too many ping at once".into());
                }
                if let Some(answer) = self.ping(id, &ping) {
                    self.answer(id, &Reply::Ping(answer), None);
                }
                return;
            }
            (Role::Control, Request::Move { pid, within_ms, force }) => {
                self.count_client(id);
                match self.take_off(id, pid, within_ms, force) {
                    Ok(()) => return,
                    Err(refusal) => Err(refusal),
                }
            }
            (Role::Control, request) => {
                if !is_harmless(&request) {
                    self.count_client(id);
                }
                self.control_request(id, request)
            }
        };
        match answer {
            Ok((reply, fd)) => self.answer(id, &reply, fd),
            Err(Refusal { errno, text }) => self.refuse(id, errno, text),
        }
    }

    /// Counts a client once, when it first asks for more than to read something. Observers are not
    /// counted.
    fn count_client(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !std::mem::replace(&mut connection.counted, true) {
            self.counters.clients_accepted += 1;
        }
    }

    fn control_request(&mut self, id: u64, request: Request) -> Answer {
        match request {
            Request::OpenLane { slot } => self.open_lane(id, slot),
            Request::OpenChannel { slot, to } => self.open_channel(id, slot, to),
            Request::AcceptStreams { slot, port } => self.accept_streams(id, slot, port),
            Request::OpenStream { slot, ends, port, opening } => {
                self.open_stream(id, slot, ends, port, &opening)
            }
            Request::CloseLane { slot } => self.close_lane(id, slot),
            Request::Resume { slots } => {
                if self.resume(id, &slots) {
                    return reply(Reply::Done);
                }
                Err(Refusal::new(libc::EBADF, format!("slots {slots:?} are not all yours")))
            }
            Request::GetTable => reply(Reply::Table(Box::new(self.host.table().clone()))),
            Request::OpenCm { apm, tcp } => {
                self.host.set_apm(ClientId(id), apm);
                self.allow_mads_by_tcp(id, tcp);
                let opened = self.open_file(id);
                let (file, socket) = opened.map_err(|e| Refusal::of("opening a CM file", &e))?;
                // The broker may be killed as soon as it has answered.
                self.inform_keeper();
                Ok((Reply::Cm { file: file.0.into() }, Some(socket)))
            }
            Request::CmCommand { file, number, bytes } => self.cm_command(id, file, number, &bytes),
            Request::CmRequeue { file, event } => {
                let file = self.file_of(id, file)?;
                if event.len() > CM_EVENT_MAX {
                    return Err(Refusal::new(libc::EINVAL, "a CM event that is too long"));
                }
                self.cm.put_back_event(file, event);
                reply(Reply::Done)
            }
            Request::CloseCm { file } => {
                let file = self.file_of(id, file)?;
                self.close_file(file);
                reply(Reply::Done)
            }
            Request::CmTake { file } => self.take_cm_file(id, file),
            Request::CmTakeMore => self.take_more(id),
            Request::CmPutPart { bytes } => self.put_part(id, bytes),
            Request::CmPut { file, bytes, apm, tcp } => {
                self.host.set_apm(ClientId(id), apm);
                self.allow_mads_by_tcp(id, tcp);
                self.put_cm_file(id, file, bytes)
            }
            Request::CmResume { file, apm, tcp } => {
                self.host.set_apm(ClientId(id), apm);
                self.allow_mads_by_tcp(id, tcp);
                self.resume_cm_file(id, file)
            }
            Request::Subscribe => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.role = Role::Events;
                }
                self.happened_to(id, |program| Event::ProcessCame { program });
                reply(Reply::Table(Box::new(self.host.table().clone())))
            }
            Request::Path { selector, up } => self.set_path(&selector, up),
            Request::Lacp { ports } => self.set_lacp(id, ports),
            Request::ReloadConfig => self.reload_config(),
            Request::SetRule { scope, settings } => {
                let answer = self.set_rule(scope, settings.as_ref());
                // The broker may be killed as soon as it has answered.
                self.inform_keeper();
                answer
            }
            Request::Shutdown { force } => self.shut_down(id, force),
            Request::Ping => reply(Reply::Done),
            Request::Hello(_) => {
                Err(Refusal::new(libc::EPROTO, "this connection has already said hello"))
            }
            Request::Watch { past } => {
                self.begin_watch(id, past);
                reply(Reply::Done)
            }
            Request::StatusReport { .. } | Request::Events { .. } | Request::Paths { .. } => {
                Err(Refusal::new(libc::EPROTO, "reports belong on an event stream"))
            }
            // `begin_status` sends its several answers.
            Request::Status { .. } => reply(Reply::Done),
            // `ping` and `note_departure` answer these.
            Request::PingHost(_) | Request::Move { .. } => reply(Reply::Done),
        }
    }

    pub(super) fn answer(&mut self, id: u64, reply: &Reply, fd: Option<OwnedFd>) {
        match message::encode(reply) {
            Ok(bytes) => self.send(id, bytes.into(), fd),
            Err(error) => self.refuse(id, libc::EMSGSIZE, error.to_string()),
        }
    }

    /// Answers with an error.
    pub(super) fn refuse(&mut self, id: u64, errno: i32, text: String) {
        self.counters.requests_refused += 1;
        if let Ok(bytes) = message::encode(&Reply::Error { errno, text }) {
            self.send(id, bytes.into(), None);
        }
    }

    fn hello(&mut self, id: u64, hello: &Hello) -> Answer {
        let pid = std::process::id();
        if hello.version != VERSION {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.role = Role::Leaving;
            }
            return reply(Reply::Hello { version: VERSION, pid, selection: String::new() });
        }
        let invalid = |text: String| Refusal::new(libc::EINVAL, text);
        if hello.program.len() > TEXT_MAX || hello.selection.len() > TEXT_MAX {
            return Err(invalid(format!("a name of more than {TEXT_MAX} bytes")));
        }
        let wanted = Selection::parse(&hello.selection).map_err(|e| invalid(e.to_string()))?;
        let selection = self.resolve(id, &hello.selection, &wanted);
        if let Err(error) = selection.check(self.host.table()) {
            // A named interface may appear later, but if there is none at all, the name is probably
            // a mistake.
            let none = polypath_topology::devices(self.host.table(), &selection).is_empty();
            if none {
                return Err(Refusal::new(libc::ENODEV, error.to_string()));
            }
            log!("{}: {error}", hello.program);
        }
        if !self.host.has_room(&selection) {
            let text = "too many different device selections in one network namespace";
            return Err(Refusal::new(libc::ENOSPC, text));
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Control;
            connection.program.clone_from(&hello.program);
            connection.requested.clone_from(&hello.selection);
            connection.selection = selection.clone();
        }
        let text = selection.to_string();
        if self.host.add_client(ClientId(id), selection) {
            self.push_table();
        }
        reply(Reply::Hello { version: VERSION, pid, selection: text })
    }

    /// The meaning of a selection for a process. It is the same on all its connections, even if
    /// interfaces appeared in between.
    fn resolve(&self, id: u64, text: &str, wanted: &Selection) -> Selection {
        let pid = self.connections.get(&id).map(|connection| connection.pid);
        let mut others = self.connections.values().filter(|other| {
            matches!(other.role, Role::Control | Role::Events) && Some(other.pid) == pid
        });
        let known = others.find(|other| other.requested == text);
        known.map_or_else(|| wanted.resolve(self.host.table()), |other| other.selection.clone())
    }

    fn open_lane(&mut self, id: u64, wanted: Option<u8>) -> Answer {
        let refuse = |error: io::Error| Refusal::of("opening a lane", &error);
        let pid = self.connections.get(&id).map_or(0, |connection| connection.pid);
        let owner = Owner { connection: id, pid };
        let opened = match wanted {
            Some(slot) if !(1..=SLOT_MAX).contains(&slot) => {
                let text = format!("there is no slot {slot}: they are 1 to {SLOT_MAX}");
                return Err(Refusal::new(libc::EINVAL, text));
            }
            Some(slot) => match self.slots.owner(slot) {
                Some(Owner { pid, .. }) => {
                    let text = format!("process {pid} has slot {slot}");
                    return Err(Refusal::new(libc::EADDRINUSE, text));
                }
                None => self.slots.open_on(slot, owner).map(|()| wanted),
            },
            None => self.slots.open(owner),
        };
        let Some(slot) = opened.map_err(refuse)? else {
            let text = format!("all {SLOT_MAX} slots of this network namespace are taken");
            return Err(Refusal::new(libc::ENOSPC, text));
        };
        let socket = self.slots.socket(slot).map(|socket| socket.try_clone_to_owned());
        match socket {
            Some(Ok(socket)) => {
                // Do this before the program uses the slot, because the broker may be killed at any
                // time.
                self.inform_keeper();
                let receive_buffer = self.slots.receive_buffer();
                Ok((Reply::Lane { slot, receive_buffer }, Some(socket)))
            }
            failed => {
                self.slots.close(slot);
                let error = failed.and_then(Result::err);
                Err(refuse(error.unwrap_or_else(|| io::ErrorKind::NotFound.into())))
            }
        }
    }

    fn close_lane(&mut self, id: u64, slot: u8) -> Answer {
        let owner = self.slots.owner(slot).filter(|owner| owner.connection == id);
        owner.ok_or_else(|| Refusal::new(libc::EBADF, format!("slot {slot} is not yours")))?;
        self.slots.close(slot);
        self.inform_keeper();
        reply(Reply::Done)
    }

    pub(super) fn file_of(&self, id: u64, file: u64) -> Result<FileId, Refusal> {
        u32::try_from(file)
            .ok()
            .map(FileId)
            .filter(|file| self.files.get(*file).is_some_and(|open| open.connection == id))
            .ok_or_else(|| Refusal::new(libc::EBADF, format!("CM file {file} is not yours")))
    }

    fn cm_command(&mut self, id: u64, file: u64, number: u64, bytes: &[u8]) -> Answer {
        let file = self.file_of(id, file)?;
        if bytes.len() > CM_COMMAND_MAX {
            return Err(Refusal::new(libc::EINVAL, "a CM command that is too long"));
        }
        let pid = self.pid_of(id);
        let left = self.left_answers.remove(&pid).filter(|left| left.number == number);
        let done = match left {
            Some(left) => left.answer,
            None => self.cm.command(now(), file, bytes, &mut self.host),
        };
        // The broker may be killed at any time. Its successor sends no message of a command that is done.
        self.send_mads();
        self.write_down();
        self.write_answer(pid, number, &done);
        match done {
            Ok(bytes) => reply(Reply::CmResponse { bytes }),
            Err(errno) => Err(Refusal::of(
                "the connection manager refuses the command",
                &io::Error::from_raw_os_error(errno),
            )),
        }
    }

    fn set_path(&mut self, selector: &PathSelector, up: bool) -> Answer {
        let set = self.host.set_path(selector, up);
        set.map_err(|text| Refusal::new(libc::ENOSPC, text))?;
        log!("paths {selector}: {} by hand", if up { "up" } else { "down" });
        let selector = selector.to_string();
        self.happened(match up {
            true => Event::PathsTakenUp { selector },
            false => Event::PathsTakenDown { selector },
        });
        self.push_table();
        reply(Reply::Done)
    }

    fn shut_down(&mut self, id: u64, force: bool) -> Answer {
        let others = self.connections.iter().filter(|(other, c)| **other != id && c.is_user());
        // A process may have several connections.
        let users: BTreeMap<u32, &str> = others.map(|(_, c)| (c.pid, c.program.as_str())).collect();
        if !users.is_empty() && !force {
            let shown = users.iter().take(IN_USE_SHOWN);
            let mut text: Vec<String> =
                shown.map(|(pid, program)| format!("{program} (pid {pid})")).collect();
            if users.len() > IN_USE_SHOWN {
                text.push(format!("{} others", users.len() - IN_USE_SHOWN));
            }
            let text = format!("the broker is in use by {}", text.join(", "));
            return Err(Refusal::new(libc::EBUSY, text));
        }
        log!("told to end");
        self.ending = true;
        reply(Reply::Done)
    }

    // Status

    fn begin_status(&mut self, id: u64, scope: Scope) {
        for part in self.status(id, scope).into_parts() {
            self.answer(id, &Reply::Status(Box::new(part)), None);
        }
        let streams = self.event_streams();
        let pids: BTreeMap<u64, u32> = streams
            .into_iter()
            .filter_map(|stream| Some((stream, self.connections.get(&stream)?.pid)))
            .collect();
        let streams: Vec<u64> = pids.keys().copied().collect();
        let Some(number) = self.gatherings.begin(now(), id, pids) else {
            return self.refuse(id, libc::EBUSY, "too many ask for the status at once".into());
        };
        let Ok(bytes) = message::encode(&Push::StatusRequest { id: number, scope }) else { return };
        let bytes: Rc<[u8]> = bytes.into();
        for stream in streams {
            self.send(stream, Rc::clone(&bytes), None);
        }
    }

    fn take_report(&mut self, stream: u64, number: u64, more: bool, mut status: ProcessStatus) {
        let Some(asker) = self.gatherings.heard(now(), number, stream) else { return };
        status.pid = self.connections.get(&stream).map_or(0, |connection| connection.pid);
        self.answer(asker, &Reply::ProcessStatus(Box::new(status)), None);
        if !more {
            self.gatherings.answered(number, stream);
        }
    }

    /// Answers the clients whose status is complete, or out of time.
    pub(super) fn finish_gatherings(&mut self, now: Duration) {
        for finished in self.gatherings.finished(now) {
            let reply = Reply::StatusEnd { silent: finished.silent };
            self.answer(finished.asker, &reply, None);
        }
    }

    /// The status for `asker`, without the asker's own connection.
    fn status(&self, asker: u64, scope: Scope) -> BrokerStatus {
        let status = BrokerStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: (now() - self.started).as_millis() as u64,
            table: self.host.table().clone(),
            config: self.config.clone(),
            counters: self.all_counters(),
            cm_counters: *self.cm.counters(),
            ..BrokerStatus::default()
        };
        if scope == Scope::Traffic {
            return status;
        }
        let others = self.connections.iter().filter(|(id, _)| **id != asker);
        let clients = others.map(|(_, connection)| ClientStatus {
            pid: connection.pid,
            program: connection.program.clone(),
            selection: connection.selection.to_string(),
            events: connection.role == Role::Events,
        });
        let slots = self.slots.status().map(|(slot, owner, overflows)| SlotStatus {
            slot,
            pid: owner.pid,
            overflows: overflows.into(),
        });
        BrokerStatus {
            clients: clients.collect(),
            slots: slots.collect(),
            cm_ids: self.cm_ids(),
            lacp: self.lacp_ports().into_values().cloned().collect(),
            ..status
        }
    }

    fn cm_ids(&self) -> Vec<CmIdStatus> {
        let ids = self.cm.describe().into_iter().take(CM_IDS_SHOWN_MAX);
        let address = |a: Option<std::net::SocketAddr>| a.map(|a| a.to_string());
        ids.map(|id| CmIdStatus {
            pid: self.connections.get(&id.client.0).map_or(0, |connection| connection.pid),
            id: id.id,
            state: match id.connection {
                Some(connection) => format!("{} {}, {connection}", id.port_space, id.state),
                None => format!("{} {}", id.port_space, id.state),
            },
            local: address(id.local).unwrap_or_default(),
            remote: address(id.remote).unwrap_or_default(),
            qpn: id.qp_num,
            migration: id.migration.map(|migration| {
                let polypath_cm::MigrationStatus { alternate, migrations, last_apr, last_spr } =
                    migration;
                let alternate = alternate.map(|(local, remote)| format!("{local}>{remote}"));
                let alternate = alternate.unwrap_or_default();
                CmMigrationStatus { alternate, count: migrations, last_apr, last_spr }
            }),
        })
        .collect()
    }

    fn all_counters(&self) -> BrokerCounters {
        let mut own = self.counters;
        own.packets_dropped_slot_unowned = self.slots.sunk().into();
        own.qp1_overflows = self.slots.own().drops().unwrap_or(0).into();
        own
    }
}
