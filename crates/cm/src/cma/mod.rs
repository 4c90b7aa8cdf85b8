//! The RDMA CM itself: what each command does to an id, and what each event of a connection does.

mod alternate;
mod apm;
pub(crate) mod balance;
mod bind;
mod connect;
pub(crate) mod incoming;
mod lifetime;
pub(crate) mod multicast;
pub(crate) mod neighbour;
mod notices;
mod options;
mod qp_attr;
mod query;
mod resolve;
pub(crate) mod status;

use core::time::Duration;

use crate::abi::command::{
    Bind, Connect, CreateId, JoinMcast, Reject, ResolveAddr, SetOption, WriteCmEvent,
};
use crate::abi::event::{Event, Kind, Param};
use crate::abi::{Code, Frame, Reader};
use crate::env::{Environment, FileId};
use crate::files::Queued;
use crate::{Cm, errno};

impl Cm {
    /// Executes one command that has been parsed.
    pub(crate) fn execute(
        &mut self,
        now: Duration,
        file: FileId,
        frame: &Frame<'_>,
        env: &mut dyn Environment,
    ) -> Result<Vec<u8>, i32> {
        let r = frame.payload;
        let done = |()| Vec::new();
        match frame.code {
            Code::CreateId => {
                room_for(4, frame)?;
                self.create_id(file, &CreateId::parse(r)?)
            }
            Code::DestroyId => {
                room_for(4, frame)?;
                self.destroy_id(now, file, r.u32(8)?, env)
            }
            Code::MigrateId => {
                room_for(4, frame)?;
                self.migrate_id(file, r.u32(8)?, FileId(r.u32(12)?))
            }
            Code::BindIp => self.bind(file, &Bind::parse_ip(r)?, env).map(done),
            Code::Bind => self.bind(file, &Bind::parse(r)?, env).map(done),
            Code::ResolveIp => {
                self.resolve_addr(now, file, &ResolveAddr::parse_ip(r)?, env).map(done)
            }
            Code::ResolveAddr => {
                self.resolve_addr(now, file, &ResolveAddr::parse(r)?, env).map(done)
            }
            Code::ResolveRoute => self.resolve_route(file, r.u32(0)?).map(done),
            Code::QueryRoute => self.query_route(file, r.u32(8)?, frame.out_len),
            Code::Query => self.query(file, r.u32(8)?, r.u32(12)?, frame.out_len),
            Code::Connect => self.connect(now, file, Connect::parse_connect(r)?, env).map(done),
            Code::Accept => self.accept(now, file, Connect::parse_accept(r)?, env).map(done),
            Code::Reject => self.reject(now, file, &Reject::parse(r)?).map(done),
            Code::Listen => self.listen(file, r.u32(0)?, r.u32(4)?, env).map(done),
            Code::Disconnect => self.disconnect(now, file, r.u32(0)?).map(done),
            Code::Notify => self.notify(now, file, r.u32(0)?, r.u32(4)?, env).map(done),
            Code::InitQpAttr => self.init_qp_attr(file, r.u32(8)?, r.u32(12)?, frame.out_len),
            Code::GetEvent => self.get_event(file, frame.out_len),
            Code::SetOption => {
                let option = SetOption::parse(r)?;
                self.set_option(now, file, &option, frame.extra, env).map(done)
            }
            Code::JoinIpMcast => {
                room_for(4, frame)?;
                self.join_multicast(file, &JoinMcast::parse_ip(r)?, env)
            }
            Code::JoinMcast => {
                room_for(4, frame)?;
                self.join_multicast(file, &JoinMcast::parse(r)?, env)
            }
            Code::LeaveMcast => {
                room_for(4, frame)?;
                self.leave_multicast(file, r.u32(8)?, env)
            }
            Code::WriteCmEvent => self.write_event(file, &WriteCmEvent::parse(r)?).map(done),
            Code::ResolveIbService => self.resolve_ib_service(file, r).map(done),
            // No version of the kernel implements it.
            Code::GetOption => Err(errno::ENOSYS),
        }
    }

    /// Queues an event for the application that holds an id.
    pub(crate) fn emit(&mut self, id: u32, event: &Event) {
        let Some(cm_id) = self.ids.get(id) else { return };
        let (file, Some(uid)) = (cm_id.file, cm_id.uid) else { return };
        let bytes = event.encode(uid, id);
        self.enqueue(file, Queued::of(id, bytes));
    }

    /// Queues an event, however many wait: an id would wait for its own for ever if it were dropped. Those
    /// that are made without end, connection requests and what a program writes, are refused before.
    pub(crate) fn enqueue(&mut self, file: FileId, event: Queued) {
        self.ids.touch(event.owner);
        self.files.push(file, event);
    }

    /// Counts an event as reported when the application takes it. That also makes room in the
    /// backlog.
    pub(crate) fn reported(&mut self, event: &Queued) {
        if let Some(id) = self.ids.get_mut(event.owner) {
            id.events_reported += 1;
            if event.child.is_some() {
                id.backlog += 1;
            }
        }
        if let Some(membership) = event.membership {
            self.memberships.event_reported(membership);
        }
    }

    fn get_event(&mut self, file: FileId, out_len: usize) -> Result<Vec<u8>, i32> {
        // Applications with an older librdmacm have no room for the last fields.
        if out_len < crate::abi::event::EVENT_LEN - 12 {
            return Err(errno::ENOSPC);
        }
        let event = self.files.pop_of(file).ok_or(errno::EAGAIN)?;
        self.reported(&event);
        let mut bytes = event.bytes;
        bytes.truncate(out_len);
        Ok(bytes)
    }

    /// Queues an event that an application sends to itself, to wake its threads that wait for one.
    fn write_event(&mut self, file: FileId, command: &WriteCmEvent) -> Result<(), i32> {
        let kind = match command.event {
            k if k == Kind::User as u32 => Kind::User,
            k if k == Kind::Internal as u32 => Kind::Internal,
            _ => return Err(errno::EINVAL),
        };
        let id = self.ids.named(file, command.id)?.id;
        if self.files.event_count(file) >= self.config.max_events_per_file {
            self.ib.counters.events_dropped += 1;
            return Err(errno::ENOMEM);
        }
        let event =
            Event::new(kind).with_status(command.status as i32).with_param(Param::Arg(command.arg));
        self.emit(id, &event);
        Ok(())
    }

    /// Services are resolved by asking the subnet administrator; Ethernet has none.
    fn resolve_ib_service(&mut self, file: FileId, r: Reader<'_>) -> Result<(), i32> {
        self.ids.named(file, r.u32(0)?)?;
        Err(errno::EOPNOTSUPP)
    }
}

fn room_for(len: usize, frame: &Frame<'_>) -> Result<(), i32> {
    if frame.out_len < len { Err(errno::ENOSPC) } else { Ok(()) }
}
