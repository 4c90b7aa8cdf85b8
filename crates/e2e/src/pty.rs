//! A pseudo terminal, which makes programs write line by line, not only when their buffer is full.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Makes a terminal, and returns our end and the program's end. Echo and line-end conversion are off.
pub(crate) fn open() -> io::Result<(File, OwnedFd)> {
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: both descriptor pointers are valid; name, settings and size may be null.
    let result =
        unsafe { libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openpty gave us both descriptors, owned by nobody else.
    let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    set_raw(&theirs)?;
    set_close_on_exec(&ours)?;
    set_close_on_exec(&theirs)?;
    Ok((ours, theirs))
}

fn set_raw(terminal: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let fd = terminal.as_raw_fd();
    // SAFETY: a zeroed termios is a valid value to be overwritten; the descriptor is open.
    unsafe {
        let mut settings: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(fd, &raw mut settings) != 0 {
            return Err(io::Error::last_os_error());
        }
        settings.c_oflag &= !libc::OPOST;
        settings.c_lflag &= !(libc::ECHO | libc::ISIG);
        if libc::tcsetattr(fd, libc::TCSANOW, &raw const settings) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn set_close_on_exec(file: &impl std::os::fd::AsRawFd) -> io::Result<()> {
    // SAFETY: fcntl with F_SETFD takes an integer.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
