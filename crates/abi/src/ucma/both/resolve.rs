//! Decides which connection manager serves an id, by the address that it is bound to or sends from.

use core::net::SocketAddr;

use libc::c_int;

use super::address::{Address, sockaddr};
use super::kernel::{self, bind_body};
use super::{Asked, Both, Job, Outcome, Side, World};
use crate::log;
use crate::ucma::layout::{
    BIND_IP, CREATE_ID, DESTROY_ID, RESOLVE_IP, command, id_at, put_u32, u32_at,
};

/// `RDMA_PS_TCP` and `IBV_QPT_RC`, for ids that are used only for queries.
pub(super) const TCP_RC: [u8; 8] = [0x06, 0x01, 2, 0, 0, 0, 0, 0];

/// The number of ports chosen by the kernel that are tried with the broker.
const PORTS_TRIED: u32 = 16;

/// Whether an error means that the kernel has no such wildcard address. (`EADDRNOTAVAIL` means that
/// the port is taken on one of the addresses.)
fn has_no_such(errno: c_int) -> bool {
    matches!(errno, libc::ENODEV | libc::EAFNOSUPPORT)
}

/// Whether an error means that a port is taken.
fn is_taken(errno: c_int) -> bool {
    matches!(errno, libc::EADDRINUSE | libc::EADDRNOTAVAIL)
}

impl Both {
    /// The side whose device has an address.
    fn side_of(&self, file: u64, source: SocketAddr, world: &mut dyn World) -> Side {
        if world.names_interfaces() && self.broker_has(file, source, world) {
            return Side::Polypath;
        }
        if self.kernel_has(file, source) { Side::Kernel } else { Side::Polypath }
    }

    fn kernel_has(&self, file: u64, source: SocketAddr) -> bool {
        let Ok(device) = self.device(file) else { return false };
        let Ok(id) = kernel::create(&*device, 0, TCP_RC) else { return false };
        let bound = kernel::bind(&*device, id, sockaddr(source));
        let _ = kernel::destroy(&*device, id);
        bound.is_ok()
    }

    fn broker_has(&self, file: u64, source: SocketAddr, world: &mut dyn World) -> bool {
        let mut body = [0; 24];
        body[16..24].copy_from_slice(&TCP_RC);
        let created = self.ask(file, &command(CREATE_ID, &body, 4), world);
        let Ok(id) = created.and_then(|answer| u32_at(&answer, 0)) else { return false };
        let bind = command(BIND_IP, &bind_body(id, sockaddr(source)), 0);
        let bound = self.ask(file, &bind, world);
        let mut body = [0; 16];
        put_u32(&mut body, 8, id);
        let _ = self.ask(file, &command(DESTROY_ID, &body, 4), world);
        bound.is_ok()
    }

    /// The kernel's id behind an id, which is created if necessary, and whether it was created.
    fn kernel_id(&mut self, number: u32) -> Result<(u32, bool), c_int> {
        let id = self.ids.get(&number).ok_or(libc::ENOENT)?;
        if let Some(kernel) = id.kernel {
            return Ok((kernel, false));
        }
        let device = self.device(id.file)?;
        let made = kernel::create(&*device, id.uid, id.kind)?;
        for option in &id.options {
            if let Err(errno) = kernel::set_option(&*device, made, option) {
                log::line(format_args!("the kernel refuses an option of an id: errno {errno}"));
            }
        }
        if let Some(id) = self.ids.get_mut(&number) {
            id.kernel = Some(made);
        }
        self.numbers.insert(made, number);
        Ok((made, true))
    }

    /// Separates the kernel's id from an id. Returns the job of ending it.
    fn without_kernel(&mut self, number: u32) -> Option<Job> {
        let id = self.ids.get_mut(&number)?;
        let (file, kernel) = (id.file, id.kernel.take()?);
        self.numbers.remove(&kernel);
        Some(Job::Destroy(self.device(file).ok()?, kernel))
    }

    /// Destroys the kernel's id of an id at once.
    fn drop_kernel(&mut self, number: u32) {
        if let Some(job) = self.without_kernel(number) {
            let _ = job.run();
        }
    }

    fn set_side(&mut self, number: u32, side: Side, bound: bool) {
        if let Some(id) = self.ids.get_mut(&number) {
            (id.side, id.bound) = (side, bound);
        }
    }

    /// Sends a command of an id to the kernel, whose answer decides. A kernel's id that was created
    /// for it is destroyed if the command is refused.
    fn try_kernel(&mut self, asked: Asked<'_>, number: u32) -> Result<Outcome, c_int> {
        let (kernel, made) = self.kernel_id(number)?;
        let done = self.device(asked.file)?.write(&asked.about(kernel));
        if done.is_err() && made {
            self.drop_kernel(number);
        }
        done.map(|()| Outcome::default())
    }

    /// Handles `BIND_IP` and `BIND` of an id whose side is not known yet.
    pub(super) fn bind(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        let Some(address) = asked.body().get(8..).and_then(Address::parse) else {
            return self.ask(asked.file, asked.portable, world).map(Outcome::from);
        };
        if address.is_any() {
            return self.bind_both(asked.file, number, asked.code, asked.body(), address, world);
        }
        let side = match address {
            Address::Ip(_) if address.is_loopback() => Side::Polypath,
            Address::Ip(source) => self.side_of(asked.file, source, world),
            // The command itself asks the kernel: see below.
            Address::Ib { .. } => Side::Kernel,
        };
        if side == Side::Kernel {
            match self.try_kernel(asked, number) {
                Err(_) if matches!(address, Address::Ib { .. }) => {}
                result => {
                    if result.is_ok() {
                        self.set_side(number, Side::Kernel, true);
                    }
                    return result;
                }
            }
        }
        let answer = self.ask(asked.file, asked.portable, world)?;
        self.set_side(number, Side::Polypath, true);
        Ok(answer.into())
    }

    /// Binds an id to a wildcard address on both sides, with the same port. `body` is that of a
    /// command that binds.
    fn bind_both(
        &mut self,
        file: u64,
        number: u32,
        code: u32,
        body: &[u8],
        address: Address,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        let device = self.device(file)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let mut body = body.to_vec();
            let at = id_at(code).ok_or(libc::EINVAL)?;
            let (kernel, _) = self.kernel_id(number)?;
            put_u32(&mut body, at, kernel);
            let bound = kernel::bind_by(&*device, code, &body);
            if let Err(errno) = bound {
                self.drop_kernel(number);
                if !has_no_such(errno) {
                    return Err(errno);
                }
            } else if address.port() == 0 {
                let source = kernel::source(&*device, kernel);
                let at = address.port_at();
                match source.as_ref().map(|source| &source[at..at + 2]) {
                    Ok(port) => body[8 + at..8 + at + 2].copy_from_slice(port),
                    Err(&errno) => {
                        self.drop_kernel(number);
                        return Err(errno);
                    }
                }
            }
            put_u32(&mut body, at, number);
            match self.ask(file, &command(code, &body, 0), world) {
                Ok(answer) => {
                    let side = if bound.is_ok() { Side::Both } else { Side::Polypath };
                    self.set_side(number, side, false);
                    return Ok(answer.into());
                }
                Err(errno) => {
                    self.drop_kernel(number);
                    let chosen = bound.is_ok() && address.port() == 0;
                    if !is_taken(errno) || !chosen || tries == PORTS_TRIED {
                        return Err(errno);
                    }
                }
            }
        }
    }

    /// Handles `RESOLVE_IP` and `RESOLVE_ADDR` of an id whose side no bound address decides.
    pub(super) fn resolve(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        let (source, destination) = if asked.code == RESOLVE_IP { (0, 28) } else { (16, 144) };
        let address = |at: usize| asked.body().get(at..).and_then(Address::parse);
        let source = address(source).filter(|source| !source.is_any());
        let destination = address(destination);
        let native = matches!(source.or(destination), Some(Address::Ib { .. }));
        let side = match source.or(destination) {
            Some(address) if address.is_loopback() => Side::Polypath,
            Some(Address::Ip(address)) => {
                let from = if source.is_some() { Some(address) } else { world.source(address) };
                from.map_or(Side::Polypath, |from| self.side_of(asked.file, from, world))
            }
            // If the kernel has no InfiniBand device, it says so at once.
            Some(Address::Ib { .. }) => Side::Kernel,
            None => Side::Polypath,
        };
        if side == Side::Kernel {
            match self.try_kernel(asked, number) {
                Err(_) if native => {}
                result => {
                    if result.is_ok() {
                        self.set_side(number, Side::Kernel, false);
                    }
                    return result;
                }
            }
        }
        let answer = self.ask(asked.file, asked.portable, world)?;
        self.set_side(number, Side::Polypath, false);
        Ok(Outcome { answer, job: self.without_kernel(number) })
    }

    /// Handles `LISTEN` on a wildcard address, or without an address, which means the same.
    pub(super) fn listen(
        &mut self,
        asked: Asked<'_>,
        number: u32,
        world: &mut dyn World,
    ) -> Result<Outcome, c_int> {
        if self.ids.get(&number).is_some_and(|id| id.side == Side::Open) {
            let any = SocketAddr::from(([0, 0, 0, 0], 0));
            let body = bind_body(number, sockaddr(any));
            self.bind_both(asked.file, number, BIND_IP, &body, Address::Ip(any), world)?;
        }
        let answer = self.ask(asked.file, asked.portable, world)?;
        if let Some(kernel) = self.ids.get(&number).and_then(|id| id.kernel) {
            self.device(asked.file)?.write(&asked.about(kernel))?;
        }
        Ok(answer.into())
    }
}
