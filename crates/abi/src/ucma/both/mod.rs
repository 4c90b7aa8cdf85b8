//! Files that reach the kernel's RDMA devices as well as ours.
//!
//! Every id of such a file is the broker's, whose number the program knows it by. An id that turns
//! out to be a real device's has one of the kernel's behind it: from then on its commands go there,
//! with the kernel's number in place of the broker's. Which it is, its source address decides: the
//! one it is bound to, or the one that the route to its destination has. The kernel is asked for
//! that, by binding an id of it to the address: it refuses what none of its devices has. So RoCE,
//! InfiniBand and iWARP, VLANs and network namespaces are told apart by the one who knows. An id on
//! a wildcard address is bound at both, to the same port, and listens at both.
//!
//! An address that both have is the real device's, as an adapter takes RoCE's packets before the
//! kernel's UDP sees them; unless `POLYPATH_DEVICE` names its interface.
//!
//! Events of both come by the file's [`relay`], for which a thread of ours works ([`thread`]).

mod address;
mod events;
mod kernel;
mod relay;
mod resolve;
mod thread;
mod watch;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use libc::c_int;
use polypath_topology::Selection;

use crate::broker;
use crate::ucma::layout::{
    BIND, BIND_IP, CREATE_ID, DESTROY_ID, HEADER, JOIN_IP_MCAST, JOIN_MCAST, LEAVE_MCAST, LISTEN,
    MIGRATE_ID, RESOLVE_ADDR, RESOLVE_IP, SET_OPTION, command, id_at, put_u32, put_u64, u32_at,
    u64_at,
};
use kernel::KernelCommand;
pub(crate) use kernel::{Device, Ucma};
use relay::Relay;
use watch::Watch;

/// Marks the numbers of the kernel's multicast memberships. Both count from 0.
const MEMBERSHIP: u32 = 1 << 31;

/// What is outside: the broker and the network.
pub(crate) trait World {
    /// Gives a command to one of the broker's files.
    fn broker(&mut self, file: u64, command: &[u8]) -> Result<Vec<u8>, c_int>;

    /// Puts an event into another of the broker's files.
    fn requeue(&mut self, file: u64, event: &[u8]);

    /// The address that packets to a destination leave from.
    fn source(&self, destination: SocketAddr) -> Option<SocketAddr>;

    /// Whether the user named the interfaces that are Polypath's.
    fn names_interfaces(&self) -> bool;
}

/// The world as it is.
pub(crate) struct Outside;

impl World for Outside {
    fn broker(&mut self, file: u64, command: &[u8]) -> Result<Vec<u8>, c_int> {
        broker::ask(false, |client| client.cm_command(file, command)).map_err(|error| error.errno())
    }

    fn requeue(&mut self, file: u64, event: &[u8]) {
        super::forward(file, event);
    }

    fn source(&self, destination: SocketAddr) -> Option<SocketAddr> {
        address::source(destination)
    }

    fn names_interfaces(&self) -> bool {
        let named = |selection: &Selection| !selection.interfaces().is_empty();
        broker::ask(false, |client| Ok(named(client.selection()))).unwrap_or(false)
    }
}

/// The connection manager that serves an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Not known yet.
    Open,
    Polypath,
    Kernel,
    /// Bound to a wildcard address.
    Both,
}

/// An id.
struct Id {
    /// The file it belongs to.
    file: u64,
    uid: u64,
    /// Port space and type of queue pair, as `CREATE_ID` had them.
    kind: [u8; 8],
    /// Options, for the kernel's id that comes later.
    options: Vec<Vec<u8>>,
    side: Side,
    /// Whether the side was settled by a `BIND`. What a `RESOLVE` chose, the next may choose anew.
    bound: bool,
    /// The kernel's number.
    kernel: Option<u32>,
}

/// All such files of the process, and their ids.
pub(crate) struct Both {
    files: BTreeMap<u64, Relay>,
    last: u64,
    /// Ids by the program's number.
    ids: BTreeMap<u32, Id>,
    /// The program's numbers by the kernel's.
    numbers: BTreeMap<u32, u32>,
    /// What the thread waits at, once there is one.
    watch: Option<Watch>,
}

/// What is left to do for a command when no lock is held, as it may take long.
pub(crate) enum Job {
    /// To give a command to the kernel, whose answer is the program's.
    Write(Arc<dyn Device>, KernelCommand),
    /// To end one of the kernel's ids.
    Destroy(Arc<dyn Device>, u32),
}

impl Job {
    /// Does it.
    pub(crate) fn run(self) -> Result<(), c_int> {
        match self {
            Self::Write(device, command) => device.write(&command),
            Self::Destroy(device, id) => kernel::destroy(&*device, id),
        }
    }
}

/// What became of a command.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The response, as far as we write it.
    pub(crate) answer: Vec<u8>,
    pub(crate) job: Option<Job>,
}

impl From<Vec<u8>> for Outcome {
    fn from(answer: Vec<u8>) -> Self {
        Self { answer, job: None }
    }
}

/// A command of a file.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The file, as [`Both::attach`] numbered it.
    file: u64,
    code: u32,
    /// As the program wrote it.
    bytes: &'a [u8],
    /// As the broker takes it.
    portable: &'a [u8],
    /// Of `MIGRATE_ID`: the file that the id is to leave.
    from: u64,
}

impl<'a> Asked<'a> {
    /// A command of `file`, as the program wrote it (`bytes`) and as the broker takes it (`portable`).
    /// `from`: of `MIGRATE_ID`, the file that the id is to leave.
    ///
    /// # Safety
    /// What the command points to is as the kernel's ABI wants it, until it has been executed and the job
    /// is done that is left of it.
    pub(crate) unsafe fn new(
        file: u64,
        code: u32,
        bytes: &'a [u8],
        portable: &'a [u8],
        from: u64,
    ) -> Self {
        Self { file, code, bytes, portable, from }
    }

    fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER..]
    }

    /// The program's command with another number in it.
    fn about(&self, id: u32) -> KernelCommand {
        // SAFETY: the number of an id is no pointer. What the command points to is as the kernel wants it,
        // by the promise that was made to `Asked::new`.
        unsafe { KernelCommand::new(self.bytes_about(id)) }
    }

    fn bytes_about(&self, id: u32) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        if let Some(at) = id_at(self.code) {
            put_u32(&mut bytes, HEADER + at, id);
        }
        bytes
    }
}

impl Both {
    pub(crate) const fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            last: 0,
            ids: BTreeMap::new(),
            numbers: BTreeMap::new(),
            watch: None,
        }
    }

    fn device(&self, file: u64) -> Result<Arc<dyn Device>, c_int> {
        self.files.get(&file).map(|relay| Arc::clone(&relay.device)).ok_or(libc::EBADF)
    }

    /// Gives a command to the broker's file.
    fn ask(&self, file: u64, command: &[u8], world: &mut dyn World) -> Result<Vec<u8>, c_int> {
        world.broker(self.files.get(&file).ok_or(libc::EBADF)?.number, command)
    }

    /// Executes a command, but for the job that is left.
    ///
    /// # Errors
    /// The errno that the program shall see.
    pub(crate) fn execute(
        &mut self,
        asked: Asked<'_>,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        if asked.code == CREATE_ID {
            return self.create(asked, world);
        }
        if asked.code == LEAVE_MCAST && u32_at(asked.body(), 8)? & MEMBERSHIP != 0 {
            return self.leave(asked);
        }
        let number = id_at(asked.code).map(|at| u32_at(asked.body(), at)).transpose()?;
        let known = number.and_then(|number| Some((number, self.ids.get(&number)?)));
        let Some((number, id)) = known else {
            // A connection that came to the broker, or nothing that we know.
            return self.ask(asked.file, asked.portable, world).map(Outcome::from);
        };
        let (side, kernel) = (id.side, id.kernel);
        if id.file != if asked.code == MIGRATE_ID { asked.from } else { asked.file } {
            return Err(libc::EINVAL);
        }
        match (asked.code, kernel) {
            (BIND_IP | BIND, _) if side == Side::Open => self.bind(asked, number, world),
            (RESOLVE_IP | RESOLVE_ADDR, _) if !id.bound => self.resolve(asked, number, world),
            (LISTEN, _) if matches!(side, Side::Open | Side::Both) => {
                self.listen(asked, number, world)
            }
            (SET_OPTION, _) if !id.bound && side != Side::Polypath => {
                self.set_option(asked, number, world)
            }
            (DESTROY_ID, Some(_)) => self.destroy(asked, number, world),
            (MIGRATE_ID, _) => self.migrate(asked, number, world),
            (JOIN_IP_MCAST | JOIN_MCAST, Some(kernel)) if side == Side::Kernel => {
                self.join(asked, kernel)
            }
            (_, Some(kernel)) if side == Side::Kernel => {
                let job = Job::Write(self.device(asked.file)?, asked.about(kernel));
                Ok(Outcome { answer: Vec::new(), job: Some(job) })
            }
            (code, _) => {
                let answer = self.ask(asked.file, asked.portable, world)?;
                if code == DESTROY_ID {
                    self.forget(number);
                }
                Ok(answer.into())
            }
        }
    }

    fn create(&mut self, asked: Asked<'_>, world: &mut dyn World) -> Result<Outcome, c_int> {
        let answer = self.ask(asked.file, asked.portable, world)?;
        let mut kind = [0; 8];
        if let Some(rest) = asked.body().get(16..24) {
            kind.copy_from_slice(rest);
        }
        let id = Id {
            file: asked.file,
            uid: u64_at(asked.body(), 0)?,
            kind,
            options: Vec::new(),
            side: Side::Open,
            bound: false,
            kernel: None,
        };
        let job = self.insert(u32_at(&answer, 0)?, id);
        Ok(Outcome { answer, job })
    }

    /// Takes an id in. The number may have been that of another, if the broker was killed since and
    /// begins to count anew: the program has lost that one.
    fn insert(&mut self, number: u32, id: Id) -> Option<Job> {
        let lost = self.forget(number);
        if let Some(kernel) = id.kernel {
            self.numbers.insert(kernel, number);
        }
        self.ids.insert(number, id);
        lost
    }

    /// Forgets an id; gives what is left of it to be ended in the kernel.
    fn forget(&mut self, number: u32) -> Option<Job> {
        let id = self.ids.remove(&number)?;
        let kernel = id.kernel?;
        self.numbers.remove(&kernel);
        Some(Job::Destroy(self.device(id.file).ok()?, kernel))
    }

    /// The kernel's id goes last: events of it that come until then are of nobody we know.
    fn destroy(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        // A broker that was killed since leaves no ids, so that only the kernel's remain.
        let answer = self.ask(asked.file, asked.portable, world).unwrap_or_else(|_| vec![0; 4]);
        Ok(Outcome { answer, job: self.forget(number) })
    }

    /// Ends an id that the program never saw.
    pub(crate) fn abandon(&mut self, file: u64, number: u32, world: &mut dyn World) {
        let mut body = [0; 16];
        put_u32(&mut body, 8, number);
        let _ = self.ask(file, &command(DESTROY_ID, &body, 4), world);
        if let Some(job) = self.forget(number) {
            let _ = job.run();
        }
    }

    fn migrate(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        let (from, to) = (self.device(asked.from), self.device(asked.file)?);
        let id = self.ids.get_mut(&number).ok_or(libc::ENOENT)?;
        if let Some(kernel) = id.kernel {
            kernel::migrate(&*to, kernel, from?.fd())?;
        }
        id.file = asked.file;
        self.ask(asked.file, asked.portable, world).map(Outcome::from)
    }

    fn join(&mut self, asked: Asked<'_>, kernel: u32) -> Result<Outcome, c_int> {
        let mut membership = [0_u8; 4];
        let mut bytes = asked.bytes_about(kernel);
        put_u64(&mut bytes, HEADER, membership.as_mut_ptr().expose_provenance() as u64);
        bytes[6..8].copy_from_slice(&4_u16.to_ne_bytes());
        // SAFETY: the command points to its response alone, which is ours, of the size that the header says.
        self.device(asked.file)?.write(&unsafe { KernelCommand::new(bytes) })?;
        let number = u32::from_ne_bytes(membership) | MEMBERSHIP;
        Ok(number.to_ne_bytes().to_vec().into())
    }

    fn leave(&mut self, asked: Asked<'_>) -> Result<Outcome, c_int> {
        let number = u32_at(asked.body(), 8)? & !MEMBERSHIP;
        kernel::leave(&*self.device(asked.file)?, number)?;
        Ok(vec![0; 4].into())
    }

    fn set_option(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        let answer = self.ask(asked.file, asked.portable, world);
        let device = self.device(asked.file)?;
        let id = self.ids.get_mut(&number).ok_or(libc::ENOENT)?;
        // An id that the kernel has already may be the broker's after the next `RESOLVE`.
        let answer = if id.side == Side::Kernel { answer.unwrap_or_default() } else { answer? };
        id.options.push(asked.portable.to_vec());
        if let Some(kernel) = id.kernel {
            device.write(&asked.about(kernel))?;
        }
        Ok(answer.into())
    }

    /// In a child: the files are the parent's, whose thread serves them. Closes what it has no use
    /// for, so that the parent's closing is the end of them.
    pub(crate) fn forget_all(&mut self) {
        *self = Self { last: self.last, ..Self::new() };
    }
}
