//! Files that reach the kernel's RDMA devices as well as ours.
//!
//! Every id of such a file is one of the broker's, and the program knows it by the broker's number.
//! If an id turns out to belong to a real device, it also gets one of the kernel's ids. From then
//! on its commands go to the kernel, with the kernel's number instead of the broker's. The id's
//! source address decides: the one that it is bound to, or the one of the route to its destination.
//! To find out, an id of the kernel is bound to the address, because the kernel refuses addresses
//! that none of its devices has. So the kernel, which knows best, tells RoCE, InfiniBand and iWARP,
//! VLANs and network namespaces apart. An id on a wildcard address is bound on both sides to the
//! same port, and listens on both.
//!
//! An address that both sides have belongs to the real device, because an adapter receives RoCE
//! packets before the kernel's UDP sees them. It is ours only if `POLYPATH_DEVICE` names its
//! interface.
//!
//! Events of both sides come through the file's [`relay`], which one of our threads serves
//! ([`thread`]).

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

/// The bit that marks the numbers of the kernel's multicast memberships, because both sides count
/// from 0.
const MEMBERSHIP: u32 = 1 << 31;

/// The outside: the broker and the network.
pub(crate) trait World {
    /// Sends a command to one of the broker's files.
    fn broker(&mut self, file: u64, command: &[u8]) -> Result<Vec<u8>, c_int>;

    /// Adds an event to another of the broker's files.
    fn requeue(&mut self, file: u64, event: &[u8]);

    /// The source address of packets to a destination.
    fn source(&self, destination: SocketAddr) -> Option<SocketAddr>;

    /// Whether the user named the interfaces that belong to Polypath.
    fn names_interfaces(&self) -> bool;
}

/// The real broker and network.
pub(crate) struct Outside;

impl World for Outside {
    fn broker(&mut self, file: u64, command: &[u8]) -> Result<Vec<u8>, c_int> {
        let number = broker::next_command();
        let asked = broker::ask(true, |client| client.cm_command(file, number, command));
        asked.map_err(|error| error.errno())
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
    /// It is not known yet.
    Open,
    Polypath,
    Kernel,
    /// It is bound to a wildcard address.
    Both,
}

/// An id.
struct Id {
    /// The file it belongs to.
    file: u64,
    uid: u64,
    /// Port space and type of queue pair, from `CREATE_ID`.
    kind: [u8; 8],
    /// Options for an id of the kernel that may be created later.
    options: Vec<Vec<u8>>,
    side: Side,
    /// Whether a `BIND` decided the side. A side that a `RESOLVE` decided may change with the next
    /// one.
    bound: bool,
    /// The kernel's number of it.
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
    /// The descriptors that the thread waits for, once there is a thread.
    watch: Option<Watch>,
}

/// The rest of a command that must be done without a lock, because it may take long.
pub(crate) enum Job {
    /// Write a command to the kernel, whose answer is the program's.
    Write(Arc<dyn Device>, KernelCommand),
    /// Destroy one of the kernel's ids.
    Destroy(Arc<dyn Device>, u32),
}

impl Job {
    /// Does the job.
    pub(crate) fn run(self) -> Result<(), c_int> {
        match self {
            Self::Write(device, command) => device.write(&command),
            Self::Destroy(device, id) => kernel::destroy(&*device, id),
        }
    }
}

/// The result of a command.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The response, if we write it.
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
    /// The number of the file, from [`Both::attach`].
    file: u64,
    code: u32,
    /// The bytes that the program wrote.
    bytes: &'a [u8],
    /// The bytes in the broker's form.
    portable: &'a [u8],
    /// For `MIGRATE_ID`: the file that the id leaves.
    from: u64,
}

impl<'a> Asked<'a> {
    /// Creates a command of `file`. `bytes` is what the program wrote, and `portable` is the
    /// broker's form of it. `from` is the file that the id leaves, for `MIGRATE_ID`.
    ///
    /// # Safety
    /// What the command points to is as the kernel's ABI requires, until it was executed and its
    /// remaining job is done.
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

    /// The program's command with another number.
    fn about(&self, id: u32) -> KernelCommand {
        // SAFETY: the number of an id is not a pointer. `Asked::new` was promised that what the
        // command points to is as the kernel requires.
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

    /// Sends a command to the broker's file.
    fn ask(&self, file: u64, command: &[u8], world: &mut dyn World) -> Result<Vec<u8>, c_int> {
        world.broker(self.files.get(&file).ok_or(libc::EBADF)?.number, command)
    }

    /// Executes a command, except for a job that remains.
    ///
    /// # Errors
    /// The errno for the program.
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
            // It is a connection that came to the broker, or nothing that we know.
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

    /// Adds an id. Another id may have had its number, if the broker was killed and started
    /// counting again. The program has lost that id.
    fn insert(&mut self, number: u32, id: Id) -> Option<Job> {
        let lost = self.forget(number);
        if let Some(kernel) = id.kernel {
            self.numbers.insert(kernel, number);
        }
        self.ids.insert(number, id);
        lost
    }

    /// Forgets an id. Returns the job of ending it in the kernel, if there is one.
    fn forget(&mut self, number: u32) -> Option<Job> {
        let id = self.ids.remove(&number)?;
        let kernel = id.kernel?;
        self.numbers.remove(&kernel);
        Some(Job::Destroy(self.device(id.file).ok()?, kernel))
    }

    /// Destroys an id. The kernel's id is destroyed last, so its events until then belong to an
    /// unknown id.
    fn destroy(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        // If the broker was killed meanwhile, it has no ids, and only the kernel's remain.
        let answer = self.ask(asked.file, asked.portable, world).unwrap_or_else(|_| vec![0; 4]);
        Ok(Outcome { answer, job: self.forget(number) })
    }

    /// Destroys an id that the program never saw.
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
        // SAFETY: the command points only to its response, which is ours and has the size that the
        // header states.
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
        // An id that already has one of the kernel may go to the broker with the next `RESOLVE`.
        let answer = if id.side == Side::Kernel { answer.unwrap_or_default() } else { answer? };
        id.options.push(asked.portable.to_vec());
        if let Some(kernel) = id.kernel {
            device.write(&asked.about(kernel))?;
        }
        Ok(answer.into())
    }

    /// Handles a fork, in the child. The files belong to the parent, whose thread serves them. The
    /// child closes the descriptors that it cannot use, so that they end when the parent closes
    /// them.
    pub(crate) fn forget_all(&mut self) {
        *self = Self { last: self.last, ..Self::new() };
    }
}
