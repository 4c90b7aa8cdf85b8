//! A kernel and a broker for tests. Each has its own addresses, ids and events.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use libc::c_int;

use super::address::Address;
use super::{Device, KernelCommand, World};
use crate::ucma::layout::*;

/// An id, with the properties that the kernel and the broker have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeId {
    pub(super) uid: u64,
    /// The file that it belongs to: the broker's number, or the kernel's descriptor.
    pub(super) file: u64,
    pub(super) source: Option<SocketAddr>,
    pub(super) listens: bool,
    /// The codes of the commands that it received.
    pub(super) given: Vec<u32>,
    /// The names of its options.
    pub(super) options: Vec<u32>,
}

/// The behaviour that the kernel and the broker have in common.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) addresses: Vec<&'static str>,
    pub(super) ids: BTreeMap<u32, FakeId>,
    next: u32,
    next_port: u16,
    /// The ports that others have.
    pub(super) taken: Vec<u16>,
    /// The error for such a port, if it is not `EADDRINUSE`.
    pub(super) refusal: Option<c_int>,
}

fn address(body: &[u8], at: usize) -> SocketAddr {
    match body.get(at..).and_then(Address::parse) {
        Some(Address::Ip(address)) => address,
        other => panic!("no address: {other:?}"),
    }
}

impl Side {
    fn new(addresses: &[&'static str], first: u32, first_port: u16) -> Self {
        Self {
            addresses: addresses.to_vec(),
            next: first,
            next_port: first_port,
            ..Self::default()
        }
    }

    fn id(&mut self, number: u32, file: u64) -> Result<&mut FakeId, c_int> {
        let id = self.ids.get_mut(&number).ok_or(libc::ENOENT)?;
        if id.file == file { Ok(id) } else { Err(libc::EINVAL) }
    }

    pub(super) fn create(&mut self, file: u64, uid: u64) -> u32 {
        while self.ids.contains_key(&self.next) {
            self.next += 1;
        }
        self.ids.insert(self.next, FakeId { uid, file, ..FakeId::default() });
        self.next
    }

    fn bind(&mut self, number: u32, file: u64, mut to: SocketAddr) -> Result<(), c_int> {
        let ip = to.ip();
        let known = |a: &&str| a.parse::<std::net::IpAddr>().unwrap() == ip;
        if !ip.is_unspecified() && !self.addresses.iter().any(known) {
            return Err(libc::ENODEV);
        }
        if self.taken.contains(&to.port()) {
            return Err(self.refusal.unwrap_or(libc::EADDRINUSE));
        }
        if to.port() == 0 {
            to.set_port(self.next_port);
            self.next_port += 1;
        }
        let id = self.id(number, file)?;
        if id.source.replace(to).is_some() {
            return Err(libc::EINVAL);
        }
        Ok(())
    }

    /// Executes a command of a file that both treat alike. Returns the response.
    fn execute(&mut self, file: u64, bytes: &[u8]) -> Result<Vec<u8>, c_int> {
        let (code, body) = (u32_at(bytes, 0)?, &bytes[HEADER..]);
        if let Some(number) = id_at(code).map(|at| u32_at(body, at)).transpose()?
            && code != MIGRATE_ID
        {
            self.id(number, file)?.given.push(code);
        }
        let number = |at| u32_at(body, at);
        match code {
            CREATE_ID => Ok(self.create(file, u64_at(body, 0)?).to_ne_bytes().to_vec()),
            DESTROY_ID => {
                self.ids.remove(&number(8)?);
                // The program must not see this value.
                Ok(77_u32.to_ne_bytes().to_vec())
            }
            BIND_IP => self.bind(number(36)?, file, address(body, 8)).map(|()| Vec::new()),
            LISTEN => {
                self.id(number(0)?, file)?.listens = true;
                Ok(Vec::new())
            }
            ACCEPT => {
                let uid = u64_at(body, 0)?;
                self.id(number(280)?, file)?.uid = uid;
                Ok(Vec::new())
            }
            QUERY => {
                let source = self.id(number(8)?, file)?.source.ok_or(libc::EINVAL)?;
                let mut response = vec![0; 280];
                response[16..44].copy_from_slice(&super::address::sockaddr(source));
                response[18..20].copy_from_slice(&source.port().to_be_bytes());
                Ok(response)
            }
            SET_OPTION => {
                let name = number(16)?;
                self.id(number(8)?, file)?.options.push(name);
                Ok(Vec::new())
            }
            RESOLVE_IP | CONNECT | DISCONNECT => Ok(Vec::new()),
            JOIN_IP_MCAST | LEAVE_MCAST => Ok(3_u32.to_ne_bytes().to_vec()),
            MIGRATE_ID => {
                let id = self.ids.get_mut(&number(8)?).ok_or(libc::ENOENT)?;
                if id.file != u64::from(number(12)?) {
                    return Err(libc::EINVAL);
                }
                id.file = file;
                Ok(77_u32.to_ne_bytes().to_vec())
            }
            other => panic!("command {other}"),
        }
    }
}

/// The kernel, of which every file is another open file.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) side: Side,
    events: BTreeMap<u64, VecDeque<Vec<u8>>>,
}

/// An open file of the kernel.
pub(super) struct FakeDevice {
    kernel: Arc<Mutex<Kernel>>,
    /// The end that is readable while there are events, as the device is.
    bell: OwnedFd,
    ring: OwnedFd,
}

impl FakeDevice {
    pub(super) fn open(kernel: &Arc<Mutex<Kernel>>) -> Arc<Self> {
        let (bell, ring) = polypath_ipc::socket::pair().unwrap();
        Arc::new(Self { kernel: Arc::clone(kernel), bell, ring })
    }

    pub(super) fn number(&self) -> u64 {
        self.bell.as_raw_fd() as u64
    }

    pub(super) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    /// The end that hangs up when the kernel's file is closed.
    pub(super) fn ring(&self) -> OwnedFd {
        self.ring.try_clone().unwrap()
    }

    /// Adds an event for the program.
    pub(super) fn raise(&self, event: Vec<u8>) {
        self.kernel().events.entry(self.number()).or_default().push_back(event);
        assert_eq!(rustix::io::write(&self.ring, &[0]), Ok(1));
    }
}

impl Device for FakeDevice {
    fn write(&self, command: &KernelCommand) -> Result<(), c_int> {
        let bytes = command.bytes();
        let code = u32_at(bytes, 0)?;
        let out = usize::from(u16::from_ne_bytes([bytes[6], bytes[7]]));
        let file = self.number();
        let response = if code == GET_EVENT {
            let event = self.kernel().events.get_mut(&file).and_then(VecDeque::pop_front);
            let event = event.ok_or(libc::EAGAIN)?;
            assert_eq!(rustix::io::read(&self.bell, &mut [0; 1]), Ok(1));
            event
        } else {
            self.kernel().side.execute(file, bytes)?
        };
        if out > 0 && !response.is_empty() {
            let at = HEADER + if code == CREATE_ID { 8 } else { 0 };
            let to = core::ptr::with_exposed_provenance_mut(u64_at(bytes, at)? as usize);
            let length = out.min(response.len());
            // SAFETY: the command's response has room for `out` bytes.
            unsafe { core::ptr::copy_nonoverlapping(response.as_ptr(), to, length) };
        }
        Ok(())
    }

    fn fd(&self) -> c_int {
        self.bell.as_raw_fd()
    }
}

pub(super) fn kernel(addresses: &[&'static str]) -> Arc<Mutex<Kernel>> {
    // The kernel uses the smallest number, so the numbers of both collide.
    let side = Side::new(addresses, 0, 40_000);
    Arc::new(Mutex::new(Kernel { side, events: BTreeMap::new() }))
}

/// The broker and the network.
pub(super) struct FakeWorld {
    pub(super) side: Side,
    /// The source address of every route.
    pub(super) route: Option<&'static str>,
    pub(super) named: bool,
    pub(super) gone: bool,
    pub(super) requeued: Vec<(u64, Vec<u8>)>,
}

impl FakeWorld {
    pub(super) fn new(addresses: &[&'static str]) -> Self {
        Self {
            side: Side::new(addresses, 0, 50_000),
            route: None,
            named: false,
            gone: false,
            requeued: Vec::new(),
        }
    }
}

impl World for FakeWorld {
    fn broker(&mut self, file: u64, command: &[u8]) -> Result<Vec<u8>, c_int> {
        if self.gone {
            return Err(libc::ENODEV);
        }
        self.side.execute(file, command)
    }

    fn requeue(&mut self, file: u64, event: &[u8]) {
        self.requeued.push((file, event.to_vec()));
    }

    fn source(&self, _destination: SocketAddr) -> Option<SocketAddr> {
        self.route.map(|route| SocketAddr::new(route.parse().unwrap(), 0))
    }

    fn names_interfaces(&self) -> bool {
        self.named
    }
}
