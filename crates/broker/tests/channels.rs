//! Memory that lanes share: who gets it, and how much of it.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::{client, in_namespace, next, readable};
use polypath_ipc::message::CHANNEL_BYTES;
use polypath_ipc::{Client, EventStream, IpcError, Push, socket};

fn errno(result: Result<OwnedFd, IpcError>) -> i32 {
    result.unwrap_err().errno()
}

/// The channel that another process's request brings: our slot, the other one, and our end.
fn pushed(events: &mut EventStream) -> (u8, u8, OwnedFd) {
    loop {
        if let Push::Channel { slot, to } = next(events) {
            return (slot, to, events.take_fd().expect("an end comes with it"));
        }
    }
}

/// Which end it is, and the memory.
fn memory(end: &OwnedFd) -> (u8, OwnedFd) {
    let mut which = [9; 2];
    let got = socket::receive(end.as_fd(), &mut which).unwrap();
    assert_eq!(got.len, 1);
    (which[0], got.fd.expect("the memory comes with it"))
}

fn lane(client: &mut Client) -> u8 {
    client.open_lane().unwrap().slot
}

#[test]
fn both_lanes_get_an_end_and_the_same_memory() {
    in_namespace("both_lanes_get_an_end_and_the_same_memory", || {
        let (mut events, _) = client("roce:lo").subscribe().unwrap();
        let (mut one, mut other) = (client("roce:lo"), client("roce:lo"));
        let (a, b) = (lane(&mut one), lane(&mut other));
        let first = one.open_channel(a, b).unwrap();
        let (slot, to, second) = pushed(&mut events);
        assert_eq!((slot, to), (b, a));
        let ends = [memory(&first), memory(&second)];
        assert_eq!(ends.each_ref().map(|(which, _)| *which), [0, 1]);
        let stats = ends.each_ref().map(|(_, memory)| rustix::fs::fstat(memory).unwrap());
        assert_eq!(stats[0].st_ino, stats[1].st_ino);
        assert_eq!(u64::try_from(stats[0].st_size), Ok(CHANNEL_BYTES));
        // The broker has kept nothing: who closes an end tells the other one.
        assert!(!readable(&first, std::time::Duration::ZERO));
        drop(second);
        assert!(readable(&first, common::PATIENCE));
    });
}

#[test]
fn a_channel_needs_two_lanes_that_have_none_and_limits_hold() {
    in_namespace("a_channel_needs_two_lanes_that_have_none_and_limits_hold", || {
        let (mut one, mut other) = (client("roce:lo"), client("roce:lo"));
        let (a, b) = (lane(&mut one), lane(&mut other));
        assert_eq!(errno(one.open_channel(a, b)), libc::ENOENT, "nobody can be told");
        let (_events, _) = client("roce:lo").subscribe().unwrap();
        assert_eq!(errno(one.open_channel(b, a)), libc::EBADF, "not its own lane");
        assert_eq!(errno(one.open_channel(a, a)), libc::ENOENT);
        let free = (1..=254).find(|slot| ![a, b].contains(slot)).unwrap();
        assert_eq!(errno(one.open_channel(a, free)), libc::ENOENT);
        one.open_channel(a, b).unwrap();
        assert_eq!(errno(one.open_channel(a, b)), libc::EEXIST);
        assert_eq!(errno(other.open_channel(b, a)), libc::EEXIST, "whoever asks");
        // With the lane goes the channel.
        other.close_lane(b).unwrap();
        let mut last = 0;
        let opened = (0..100).take_while(|_| {
            let other = lane(&mut other);
            last = one.open_channel(a, other).map_or_else(|error| error.errno(), |_| 0);
            last == 0
        });
        assert_eq!((opened.count(), last), (64, libc::EDQUOT));
    });
}
