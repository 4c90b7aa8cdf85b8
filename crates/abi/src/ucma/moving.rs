//! The open files while the program leaves its host, to be restored on another one.
//!
//! The broker gives back its end of each event socket, so that both ends belong to the process, with what the
//! connection manager knows of the file's ids. The broker that the program finds when it is back gets both.
//! The program's descriptors stay what they are, so threads that wait for events go on waiting. A thread that
//! gives a command meanwhile waits for the broker.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::c_int;
use polypath_engine::companion::Return;
use polypath_ipc::{Client, IpcError};

use crate::broker::Link;
use crate::lock::Held;
use crate::ucma::{FILES, File, inode, open_files, own, who};
use crate::{broker, guard, log};

/// How often files are asked for again because something of one is under way, and the pause before.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the program is away, or is just coming back. Its sockets have other inodes then.
static AWAY: AtomicBool = AtomicBool::new(false);

pub(super) fn is_away() -> bool {
    AWAY.load(Ordering::Acquire)
}

/// A file that has left its broker.
struct Taken {
    fd: c_int,
    file: File,
    moved: (Vec<u8>, OwnedFd),
}

/// Takes part in departures from now on.
pub(super) fn take_part() {
    polypath_engine::companion::accompany(leave);
}

fn leave() -> Return {
    let mut left = ATTEMPTS;
    let (mut client, taken) = loop {
        // Whoever wants to ask the broker waits until the program is back.
        let mut client = broker::CLIENT.lock();
        let take = || client.as_mut().map_or(Some(Vec::new()), |open| take_all(open, left == 0));
        if let Some(taken) = guard::run(Some(Vec::new()), take) {
            break (client, taken);
        }
        // The program may have to do something about it, such as accept a connection.
        drop(client);
        left -= 1;
        std::thread::sleep(PAUSE);
    };
    AWAY.store(true, Ordering::Release);
    *client = None;
    Box::new(move || {
        guard::run((), move || come_back(client, taken));
        AWAY.store(false, Ordering::Release);
    })
}

/// Takes all files from the broker. `None` if something of one is under way; then nothing is taken, unless
/// this is the last attempt.
fn take_all(client: &mut Client, last: bool) -> Option<Vec<Taken>> {
    let mut taken = Vec::new();
    for (fd, file) in open_files() {
        if file.both.is_some() {
            log::warn(format_args!(
                "ids of a file that also reaches the kernel's devices are lost"
            ));
            continue;
        }
        match client.cm_take(file.number) {
            Ok(moved) => taken.push(Taken { fd, file, moved }),
            Err(IpcError::Refused { errno: libc::EBUSY, .. }) if !last => {
                put_all(client, taken);
                return None;
            }
            Err(error) => log::warn(format_args!("rdma_cm ids are lost: {error}")),
        }
    }
    Some(taken)
}

/// Gives files to a broker.
fn put_all(client: &mut Client, taken: Vec<Taken>) {
    let (apm, tcp) = (who::apm().unwrap_or_default(), polypath_engine::tcp_port());
    for Taken { file, moved, .. } in taken {
        if let Err(error) = client.cm_put(file.number, moved, apm, tcp) {
            log::warn(format_args!("rdma_cm ids are lost: {error}"));
        }
    }
}

fn come_back(mut client: Held<'static, Option<Link>>, taken: Vec<Taken>) {
    // Restored sockets have other inodes.
    if let Some(files) = FILES.lock().as_mut() {
        for Taken { fd, file, .. } in &taken {
            if let (Some(open), Some(inode)) = (files.get_mut(fd), inode(*fd))
                && open.number == file.number
            {
                open.inode = inode;
                own(*fd, *open);
            }
        }
    }
    if taken.is_empty() {
        return;
    }
    let open = match broker::connect() {
        Ok(open) => client.insert(Link::new(open)),
        Err(error) => {
            log::warn(format_args!("rdma_cm ids are lost: {error}"));
            return;
        }
    };
    put_all(open, taken);
    open.watch();
}
