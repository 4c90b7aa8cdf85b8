//! A pseudo terminal, which makes programs write line by line, not only when their buffer is full.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, OutputModes, tcgetattr, tcsetattr};

/// Makes a terminal, and returns our end and the program's end. Echo and line-end conversion are off.
///
/// Both ends are closed in programs that other threads start meanwhile: one that kept the program's end
/// would keep the output open after the program has ended.
pub(crate) fn open() -> io::Result<(File, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    let mut settings = tcgetattr(&theirs)?;
    settings.output_modes -= OutputModes::OPOST;
    settings.local_modes -= LocalModes::ECHO | LocalModes::ISIG;
    tcsetattr(&theirs, OptionalActions::Now, &settings)?;
    Ok((ours.into(), theirs))
}
