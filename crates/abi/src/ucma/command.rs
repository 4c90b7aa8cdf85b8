//! The commands that librdmacm writes (`rdma/rdma_user_cm.h`, ABI version 4).
//!
//! A command is passed to the broker unchanged, except for two that point into this process:
//! `SET_OPTION` (its value is appended to the command) and `MIGRATE_ID` (a descriptor is replaced
//! with the broker's file number). The response is copied to the address in the command.

use core::ffi::c_void;
use core::slice;

use libc::c_int;
use polypath_ipc::message::CM_COMMAND_MAX;

use crate::ucma::both::{Asked, Job, Outcome, Outside, World};
use crate::ucma::ids::Ids;
use crate::ucma::layout::{
    ACCEPT, CREATE_ID, DESTROY_ID, EVENT_LEN_MIN, GET_EVENT, HEADER, JOIN_IP_MCAST, JOIN_MCAST,
    LEAVE_MCAST, MIGRATE_ID, SET_OPTION, u32_at, u64_at,
};
use crate::ucma::{File, IDS, file, purge};

/// The longest option value.
const OPTION_MAX: usize = 8 * 1024;

/// What remains to be done after a command.
pub(crate) enum Step {
    /// Nothing: the command is done, and its `write()` returns.
    Done,
    /// Wait for an event of the file with this number, and copy it, up to `room` bytes.
    Wait { response: *mut u8, room: usize, file: u64 },
}

/// A command in the program's memory.
struct Command<'a> {
    code: u32,
    /// The room for the response in bytes.
    out: usize,
    /// The whole command, including its header.
    bytes: &'a [u8],
}

impl<'a> Command<'a> {
    /// Checks the header as the kernel does.
    fn parse(bytes: &'a [u8]) -> Result<Self, c_int> {
        let (Some(code), Some(sizes)) = (bytes.first_chunk::<4>(), bytes.get(4..HEADER)) else {
            return Err(libc::EINVAL);
        };
        let body = usize::from(u16::from_ne_bytes([sizes[0], sizes[1]]));
        let out = usize::from(u16::from_ne_bytes([sizes[2], sizes[3]]));
        if HEADER + body > bytes.len() || HEADER + body > CM_COMMAND_MAX {
            return Err(libc::EINVAL);
        }
        Ok(Self { code: u32::from_ne_bytes(*code), out, bytes: &bytes[..HEADER + body] })
    }

    /// A number at an offset of the body.
    fn u32(&self, at: usize) -> Result<u32, c_int> {
        u32_at(&self.bytes[HEADER..], at)
    }

    /// A number at an offset of the body.
    fn u64(&self, at: usize) -> Result<u64, c_int> {
        u64_at(&self.bytes[HEADER..], at)
    }

    /// The address for the response. All commands with a response begin with it, except for one.
    fn response(&self) -> Result<*mut u8, c_int> {
        let address = self.u64(if self.code == CREATE_ID { 8 } else { 0 })?;
        let address = usize::try_from(address).map_err(|_| libc::EFAULT)?;
        if address == 0 {
            return Err(libc::EFAULT);
        }
        Ok(core::ptr::with_exposed_provenance_mut(address))
    }
}

/// Executes a command up to waiting for an event. `None` if the descriptor is not one of ours.
///
/// # Safety
/// `buffer` has `len` bytes, and what the command in it points to is as the kernel's ABI requires.
pub(crate) unsafe fn run(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
) -> Option<Result<Step, c_int>> {
    let this = file(fd)?;
    if buffer.is_null() {
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: the caller promises that `buffer`, which is not null, has `len` bytes, and that what
    // the command in it points to is as the kernel's ABI requires.
    unsafe {
        let bytes = slice::from_raw_parts(buffer.cast(), len);
        Some(Command::parse(bytes).and_then(|command| execute(fd, this, &command)))
    }
}

/// Executes a command.
///
/// # Safety
/// What the command points to is as the kernel's ABI requires.
unsafe fn execute(fd: c_int, file: File, command: &Command<'_>) -> Result<Step, c_int> {
    if command.code == GET_EVENT {
        // The kernel checks this before it takes an event, which stays for the next command.
        if command.out < EVENT_LEN_MIN {
            return Err(libc::ENOSPC);
        }
        let response = command.response()?;
        return Ok(Step::Wait { response, room: command.out, file: file.number });
    }
    // SAFETY: what the command points to can be read as the kernel's ABI requires.
    let bytes = unsafe { portable(command)? };
    // Commands that create or end objects of events hold the lock meanwhile. So no event of these
    // objects is judged before they are known, or after they are gone.
    let mut ids = IDS.lock();
    let Outcome { mut answer, job } = match file.both {
        None => Outside.broker(file.number, &bytes)?.into(),
        Some(both) => {
            let from = if command.code == MIGRATE_ID { leaving(command)?.both } else { None };
            let from = from.unwrap_or(0);
            // SAFETY: what the command points to belongs to the program, and is as the kernel's ABI
            // requires until its `write()` returns. The remaining job is done below, before that.
            let asked = unsafe { Asked::new(both, command.code, command.bytes, &bytes, from) };
            ids.both.execute(asked, &mut Outside)?
        }
    };
    if let Some(job @ Job::Write(..)) = job {
        // Only the kernel handles this. It may take as long as a peer needs to answer.
        drop(ids);
        job.run()?;
        if command.code == ACCEPT {
            accepted(&mut IDS.lock(), command)?;
        }
        return Ok(Step::Done);
    }
    let first = |answer: &[u8]| u32_at(answer, 0).map_err(|_| libc::EPROTO);
    let reported = match command.code {
        CREATE_ID => {
            ids.created(first(&answer)?, command.u64(0)?);
            None
        }
        ACCEPT => {
            accepted(&mut ids, command)?;
            None
        }
        JOIN_IP_MCAST => {
            ids.joined(first(&answer)?, command.u64(8)?, command.u32(16 + 28)?);
            None
        }
        JOIN_MCAST => {
            ids.joined(first(&answer)?, command.u64(8)?, command.u32(16)?);
            None
        }
        DESTROY_ID => Some(ids.destroyed(command.u32(8)?)),
        LEAVE_MCAST => Some(ids.left(command.u32(8)?)),
        MIGRATE_ID => {
            ids.moved(command.u32(8)?, file.number);
            Some(ids.reported(command.u32(8)?))
        }
        _ => None,
    };
    drop(ids);
    if let Some(job) = job {
        // The program no longer has this id, so it should also end in the kernel.
        let _ = job.run();
    }
    if let (Some(reported), Some(place)) = (reported, answer.first_chunk_mut::<4>()) {
        *place = reported.to_ne_bytes();
    }
    if !answer.is_empty() && command.out > 0 {
        let length = answer.len().min(command.out);
        // SAFETY: the caller promises that there is room for `out` bytes.
        unsafe { core::ptr::copy_nonoverlapping(answer.as_ptr(), command.response()?, length) };
    }
    if command.code == MIGRATE_ID {
        // This handles events that were already under way to the old descriptor.
        purge(command.u32(12)?.cast_signed());
    }
    if matches!(command.code, DESTROY_ID | LEAVE_MCAST) {
        purge(fd);
    }
    Ok(Step::Done)
}

/// Notes the name that `ACCEPT` gave an id.
fn accepted(ids: &mut Ids, command: &Command<'_>) -> Result<(), c_int> {
    // The id follows the name and the parameters of 272 bytes.
    let (uid, id) = (command.u64(0)?, command.u32(8 + 272)?);
    if uid != 0 {
        ids.named(id, uid);
    }
    Ok(())
}

/// The file that an id leaves by `MIGRATE_ID`.
fn leaving(command: &Command<'_>) -> Result<File, c_int> {
    let from = c_int::try_from(command.u32(12)?).map_err(|_| libc::EBADF)?;
    file(from).ok_or(libc::EBADF)
}

/// The command without pointers into this process.
///
/// # Safety
/// As [`execute`].
unsafe fn portable(command: &Command<'_>) -> Result<Vec<u8>, c_int> {
    let mut bytes = command.bytes.to_vec();
    match command.code {
        SET_OPTION => {
            let length = usize::try_from(command.u32(20)?).map_err(|_| libc::EINVAL)?;
            let address = usize::try_from(command.u64(0)?).map_err(|_| libc::EFAULT)?;
            if length > OPTION_MAX {
                return Err(libc::EINVAL);
            }
            if address == 0 && length > 0 {
                return Err(libc::EFAULT);
            }
            if length > 0 {
                let value = core::ptr::with_exposed_provenance(address);
                // SAFETY: the caller promises that the option's value has `length` bytes there.
                bytes.extend_from_slice(unsafe { slice::from_raw_parts(value, length) });
            }
        }
        MIGRATE_ID => {
            let from = leaving(command)?;
            let number = u32::try_from(from.number).map_err(|_| libc::EBADF)?;
            bytes[HEADER + 12..HEADER + 16].copy_from_slice(&number.to_ne_bytes());
        }
        _ => {}
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(code: u32, body: &[u8], out: u16) -> Vec<u8> {
        let mut bytes = code.to_ne_bytes().to_vec();
        bytes.extend((body.len() as u16).to_ne_bytes());
        bytes.extend(out.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_body_longer_than_what_was_written_is_refused() {
        let mut bytes = command(1, &[0; 16], 4);
        assert!(Command::parse(&bytes).is_ok());
        bytes.pop();
        assert_eq!(Command::parse(&bytes).err(), Some(libc::EINVAL));
        assert_eq!(Command::parse(&bytes[..7]).err(), Some(libc::EINVAL));
    }

    #[test]
    fn create_id_has_its_response_after_the_name() {
        let mut body = [0_u8; 24];
        body[0] = 1;
        body[8] = 2;
        let bytes = command(CREATE_ID, &body, 4);
        assert_eq!(Command::parse(&bytes).unwrap().response().unwrap().addr(), 2);
        let bytes = command(DESTROY_ID, &body, 4);
        assert_eq!(Command::parse(&bytes).unwrap().response().unwrap().addr(), 1);
    }

    #[test]
    fn an_event_is_not_put_into_a_response_that_is_too_small() {
        let file = File { number: 1, both: None, inode: (0, 0) };
        let run = |room| {
            let bytes = command(GET_EVENT, &8_u64.to_ne_bytes(), room);
            // SAFETY: the response is only written when an event has come.
            unsafe { execute(-1, file, &Command::parse(&bytes).unwrap()) }
        };
        assert_eq!(run(323).err(), Some(libc::ENOSPC));
        // Programs built before ECE, on 32 bits, have 324 bytes.
        assert!(matches!(run(324), Ok(Step::Wait { room: 324, .. })));
    }

    #[test]
    fn an_options_value_comes_behind_the_command() {
        let value = [1_u8, 2, 3];
        let mut body = [0_u8; 24];
        body[0..8].copy_from_slice(&(value.as_ptr().expose_provenance() as u64).to_ne_bytes());
        body[20] = 3;
        let bytes = command(SET_OPTION, &body, 0);
        let parsed = Command::parse(&bytes).unwrap();
        // SAFETY: the command points to three bytes.
        let sent = unsafe { portable(&parsed) }.unwrap();
        assert_eq!(sent[HEADER + 24..], value);
        body[0..8].fill(0);
        let bytes = command(SET_OPTION, &body, 0);
        // SAFETY: a null pointer is rejected.
        let refused = unsafe { portable(&Command::parse(&bytes).unwrap()) };
        assert_eq!(refused.err(), Some(libc::EFAULT));
    }

    #[test]
    fn migration_from_a_descriptor_that_is_not_ours_is_refused() {
        let mut body = [0_u8; 16];
        body[12..16].copy_from_slice(&0_u32.to_ne_bytes());
        let bytes = command(MIGRATE_ID, &body, 4);
        // SAFETY: the command has no pointers.
        let refused = unsafe { portable(&Command::parse(&bytes).unwrap()) };
        assert_eq!(refused.err(), Some(libc::EBADF));
    }
}
