//! The kernel's own device, and the commands that we write to it ourselves.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;

use super::address::IN6;
use crate::guard::errno;
use crate::ucma::PATH;
use crate::ucma::layout::{
    BIND_IP, CREATE_ID, DESTROY_ID, EVENT_LEN, GET_EVENT, HEADER, LEAVE_MCAST, MIGRATE_ID, QUERY,
    SET_OPTION, command, put_u32, put_u64,
};

/// A command that may be written to the kernel, which reads and writes the memory that the command
/// points to.
pub(crate) struct KernelCommand(Vec<u8>);

impl KernelCommand {
    /// Creates a command from these bytes.
    ///
    /// # Safety
    /// The memory that the command points to is as the kernel's ABI requires: a response has the
    /// room that the header states, and a value has its length. This holds until the command is
    /// written or dropped.
    pub(crate) unsafe fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// One open file of the kernel's `/dev/infiniband/rdma_cm`.
pub(crate) trait Device: Send + Sync {
    /// Performs one `write()`.
    fn write(&self, command: &KernelCommand) -> Result<(), c_int>;

    /// The descriptor, which is readable while there are events.
    fn fd(&self) -> c_int;
}

/// The real device.
pub(crate) struct Ucma(OwnedFd);

impl Ucma {
    /// Opens the device with these flags by system call, so that our own replacement is not
    /// involved.
    ///
    /// # Errors
    /// The errno.
    pub(crate) fn open(flags: c_int) -> Result<OwnedFd, c_int> {
        let flags = libc::O_RDWR | flags;
        // SAFETY: the path is a C string, and nobody else has the new descriptor.
        unsafe {
            let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, PATH.as_ptr(), flags, 0);
            match c_int::try_from(fd) {
                Ok(fd @ 0..) => Ok(OwnedFd::from_raw_fd(fd)),
                _ => Err(errno()),
            }
        }
    }

    /// Opens the device for our own use.
    ///
    /// # Errors
    /// The errno.
    pub(crate) fn hidden() -> Result<Self, c_int> {
        Self::open(libc::O_CLOEXEC | libc::O_NONBLOCK).map(Self)
    }
}

impl Device for Ucma {
    fn write(&self, command: &KernelCommand) -> Result<(), c_int> {
        let command = command.bytes();
        loop {
            // SAFETY: what the command points to is as the kernel requires (see `KernelCommand`).
            // This is a system call, so that our own replacement of write() is not involved.
            let wrote = unsafe {
                libc::syscall(libc::SYS_write, self.0.as_raw_fd(), command.as_ptr(), command.len())
            };
            match errno() {
                _ if wrote >= 0 => return Ok(()),
                libc::EINTR => {}
                errno => return Err(errno),
            }
        }
    }

    fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }
}

/// Writes a command whose response of `N` bytes is for us. `at` is the offset of the response's
/// address in the body.
fn ask<const N: usize>(
    device: &dyn Device,
    code: u32,
    body: &mut [u8],
    at: usize,
) -> Result<[u8; N], c_int> {
    let mut response = [0_u8; N];
    put_u64(body, at, response.as_mut_ptr().expose_provenance() as u64);
    let bytes = command(code, body, N);
    // SAFETY: the response has the room that the command's header states.
    device.write(&unsafe { KernelCommand::new(bytes) })?;
    Ok(response)
}

/// Writes a `CREATE_ID`. `kind` is the end of the command: port space and type of queue pair.
pub(super) fn create(device: &dyn Device, uid: u64, kind: [u8; 8]) -> Result<u32, c_int> {
    let mut body = [0; 24];
    put_u64(&mut body, 0, uid);
    body[16..24].copy_from_slice(&kind);
    ask(device, CREATE_ID, &mut body, 8).map(u32::from_ne_bytes)
}

/// `DESTROY_ID`.
pub(super) fn destroy(device: &dyn Device, id: u32) -> Result<(), c_int> {
    let mut body = [0; 16];
    put_u32(&mut body, 8, id);
    ask::<4>(device, DESTROY_ID, &mut body, 0).map(drop)
}

/// `LEAVE_MCAST`.
pub(super) fn leave(device: &dyn Device, membership: u32) -> Result<(), c_int> {
    let mut body = [0; 16];
    put_u32(&mut body, 8, membership);
    ask::<4>(device, LEAVE_MCAST, &mut body, 0).map(drop)
}

/// Writes a `MIGRATE_ID` from the file with this descriptor.
pub(super) fn migrate(device: &dyn Device, id: u32, from: c_int) -> Result<(), c_int> {
    let mut body = [0; 16];
    put_u32(&mut body, 8, id);
    put_u32(&mut body, 12, from.cast_unsigned());
    ask::<4>(device, MIGRATE_ID, &mut body, 0).map(drop)
}

/// Writes a `SET_OPTION` that is in the broker's form, in which the value follows the command.
pub(super) fn set_option(device: &dyn Device, id: u32, portable: &[u8]) -> Result<(), c_int> {
    let (bytes, value) = portable.split_at_checked(HEADER + 24).ok_or(libc::EINVAL)?;
    let mut body = bytes[HEADER..].to_vec();
    put_u64(&mut body, 0, value.as_ptr().expose_provenance() as u64);
    put_u32(&mut body, 8, id);
    let bytes = command(SET_OPTION, &body, 0);
    // SAFETY: the value is as long as the command states, because `portable` is built that way.
    device.write(&unsafe { KernelCommand::new(bytes) })
}

/// `BIND_IP`.
pub(super) fn bind(device: &dyn Device, id: u32, address: [u8; IN6]) -> Result<(), c_int> {
    bind_by(device, BIND_IP, &bind_body(id, address))
}

/// `BIND_IP` or `BIND`.
pub(super) fn bind_by(device: &dyn Device, code: u32, body: &[u8]) -> Result<(), c_int> {
    // SAFETY: the command has no pointers: the address is in it, and there is no response.
    device.write(&unsafe { KernelCommand::new(command(code, body, 0)) })
}

/// The body of a `BIND_IP`.
pub(super) fn bind_body(id: u32, address: [u8; IN6]) -> [u8; 40] {
    let mut body = [0; 40];
    body[8..36].copy_from_slice(&address);
    put_u32(&mut body, 36, id);
    body
}

/// The source address of an id, as bytes (`RDMA_USER_CM_QUERY_ADDR`).
pub(super) fn source(device: &dyn Device, id: u32) -> Result<[u8; 128], c_int> {
    /// `sizeof(struct rdma_ucm_query_addr_resp)`, and the offset of the address in it.
    const LEN: usize = 280;
    const SOURCE: usize = 16;
    let mut body = [0; 16];
    put_u32(&mut body, 8, id);
    let response: [u8; LEN] = ask(device, QUERY, &mut body, 0)?;
    let mut source = [0; 128];
    source.copy_from_slice(&response[SOURCE..SOURCE + 128]);
    Ok(source)
}

/// Takes the next event, if there is one.
pub(super) fn event(device: &dyn Device) -> Result<Option<[u8; EVENT_LEN]>, c_int> {
    match ask(device, GET_EVENT, &mut [0; 8], 0) {
        Ok(event) => Ok(Some(event)),
        Err(libc::EAGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}
