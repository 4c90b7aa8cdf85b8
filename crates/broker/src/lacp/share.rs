//! Interfaces that share an address, as those of a bond of the kernel's do.
//!
//! They get one hardware address, so that a switch may deliver by any of them what is for the shared address.
//! Linux takes it by any, but for two things. An interface without an IPv4 address drops what it would not
//! answer by the same way, unless `rp_filter` is off. And each interface asks for the hardware addresses of
//! neighbours by itself, and knows only the answers that come back to it, while a switch may deliver them by
//! another one. So what one of them hears by ARP (RFC 826) is told to the others.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use polypath_lacp::Mac;

use super::{LacpError, io as doing, take_frames};
use crate::log::log;
use crate::netlink::{LinkMessage, Netlink};
use crate::sys::epoll::{Epoll, Interest};
use crate::sys::packet::{ETH_P_ARP, FrameSocket};

/// The length of an ARP packet for IPv4 over Ethernet with its Ethernet header.
const ARP_LEN: usize = 42;

/// What is undone at the end.
#[derive(Debug)]
enum Undo {
    HardwareAddress { ifindex: u32, before: Mac },
    Setting { file: PathBuf, before: String },
}

/// Interfaces that share an address.
#[derive(Debug)]
pub(super) struct Share {
    /// The hardware address of all.
    mac: Mac,
    interfaces: Vec<(u32, FrameSocket)>,
    /// The addresses of all.
    own: Vec<Ipv4Addr>,
    undo: Vec<Undo>,
}

impl Share {
    /// Lets these interfaces share the addresses of the first. Their sockets are added to `epoll` with tokens
    /// from `token` on.
    ///
    /// # Errors
    /// [`LacpError::NoRight`]; [`LacpError::Busy`]; those of system calls.
    pub(super) fn begin(
        links: &[&LinkMessage],
        netlink: &mut Netlink,
        (epoll, token): (&Epoll, u64),
    ) -> Result<Self, LacpError> {
        let mac = links.first().map(|link| link.mac).unwrap_or_default();
        let mut share = Self { mac, interfaces: vec![], own: vec![], undo: vec![] };
        let set_up = links
            .iter()
            .zip(token..)
            .try_for_each(|(link, token)| share.add(link, netlink, (epoll, token)));
        if let Err(error) = set_up {
            share.end(netlink);
            return Err(error);
        }
        Ok(share)
    }

    fn add(
        &mut self,
        link: &LinkMessage,
        netlink: &mut Netlink,
        (epoll, token): (&Epoll, u64),
    ) -> Result<(), LacpError> {
        let ifindex = link.ifindex;
        let opened = FrameSocket::open(ifindex, ETH_P_ARP);
        let socket = opened.map_err(LacpError::of_frames)?;
        epoll.add(socket.as_fd(), token, Interest::Read).map_err(doing("setting up"))?;
        self.interfaces.push((ifindex, socket));
        if link.mac != self.mac {
            netlink.set_hardware_address(ifindex, self.mac).map_err(|source| {
                match source.raw_os_error() {
                    Some(libc::EPERM) => LacpError::NoRight,
                    Some(libc::EBUSY) => LacpError::Busy(link.name.clone()),
                    _ => LacpError::Io { doing: "setting a hardware address", source },
                }
            })?;
            self.undo.push(Undo::HardwareAddress { ifindex, before: link.mac });
        }
        self.open_filter(&link.name);
        Ok(())
    }

    /// Lets an interface take packets for the address of another one.
    fn open_filter(&mut self, name: &str) {
        let file = |name: &str| PathBuf::from(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
        let read =
            |name: &str| fs::read_to_string(file(name)).unwrap_or_default().trim().to_owned();
        let before = read(name);
        if before != "0" {
            match fs::write(file(name), "0") {
                Ok(()) => self.undo.push(Undo::Setting { file: file(name), before }),
                Err(error) => log!("setting rp_filter of {name}: {error}"),
            }
        }
        if read("all") != "0" {
            log!(
                "net.ipv4.conf.all.rp_filter is not 0, so {name} takes nothing for an address that it has \
                 not got: set it to 0, or give {name} the address, too"
            );
        }
    }

    /// Learns the addresses of the host.
    pub(super) fn set_own(&mut self, own: Vec<Ipv4Addr>) {
        self.own = own;
    }

    /// Takes the frames that wait at the interface of this number, and tells the others of their senders.
    ///
    /// # Errors
    /// Those of receiving.
    pub(super) fn receive(&self, at: usize, netlink: &mut Netlink) -> Result<(), LacpError> {
        let Some((ifindex, socket)) = self.interfaces.get(at) else { return Ok(()) };
        let mut buffer = [0; ARP_LEN];
        take_frames(socket, &mut buffer, |frame| self.tell(*ifindex, frame, netlink))
    }

    fn tell(&self, came_by: u32, frame: &[u8], netlink: &mut Netlink) {
        let Some(Heard { ip, mac, asked }) = heard(frame) else { return };
        if mac == self.mac || self.own.contains(&ip) {
            return;
        }
        // Others' talk changes what is known, and adds nothing to it.
        let to_us = self.own.contains(&asked);
        for (ifindex, _) in self.interfaces.iter().filter(|(ifindex, _)| *ifindex != came_by) {
            // An interface may be down, or gone.
            const EXPECTED: [i32; 3] = [libc::ENOENT, libc::ENETDOWN, libc::ENODEV];
            match netlink.set_neighbour(*ifindex, (ip, mac), to_us) {
                Err(error) if error.raw_os_error().is_some_and(|it| EXPECTED.contains(&it)) => {}
                Err(error) => log!("telling interface {ifindex} of {ip}: {error}"),
                Ok(()) => {}
            }
        }
    }

    /// Gives the interfaces back what they had.
    pub(super) fn end(&mut self, netlink: &mut Netlink) {
        for undo in self.undo.drain(..).rev() {
            let undone = match undo {
                Undo::HardwareAddress { ifindex, before } => {
                    netlink.set_hardware_address(ifindex, before)
                }
                Undo::Setting { file, before } => fs::write(file, before),
            };
            // The interface may be gone.
            if let Err(error) = undone
                && !matches!(error.kind(), io::ErrorKind::NotFound)
                && error.raw_os_error() != Some(libc::ENODEV)
            {
                log!("undoing what the shared address needed: {error}");
            }
        }
    }
}

/// What an ARP packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    /// The sender.
    ip: Ipv4Addr,
    mac: Mac,
    /// The address that it asks for, or whose question it answers.
    asked: Ipv4Addr,
}

/// Reads an ARP packet for IPv4 over Ethernet from its Ethernet header on; `None` if it is none, or if it has
/// no sender that could be a neighbour.
fn heard(frame: &[u8]) -> Option<Heard> {
    // Ethernet and IPv4, with addresses of 6 and 4 bytes.
    const KINDS: [u8; 8] = [8, 6, 0, 1, 8, 0, 6, 4];
    if frame.get(12..20)? != KINDS {
        return None;
    }
    let ip = |at: usize| Some(Ipv4Addr::from(*frame.get(at..)?.first_chunk()?));
    let mac: Mac = *frame.get(22..)?.first_chunk()?;
    let (sender, asked) = (ip(28)?, ip(38)?);
    let no_host = sender.is_unspecified() || sender.is_multicast() || sender.is_broadcast();
    let no_station = mac == [0; 6] || mac[0] & 1 == 1;
    (!no_host && !no_station).then_some(Heard { ip: sender, mac, asked })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of 10.0.0.1, with 02::1, to 10.0.0.2.
    fn answer() -> [u8; ARP_LEN] {
        let mut frame = [0; ARP_LEN];
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        frame[22..32].copy_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        frame[32..42].copy_from_slice(&[2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
        frame
    }

    #[test]
    fn the_sender_of_an_arp_packet_is_heard() {
        let (ip, asked) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_eq!(heard(&answer()), Some(Heard { ip, mac: [2, 0, 0, 0, 0, 1], asked }));
    }

    #[test]
    fn what_is_no_neighbour_is_not_heard() {
        let changed = |at: usize, bytes: &[u8]| {
            let mut frame = answer();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            heard(&frame)
        };
        assert_eq!(changed(28, &[0; 4]), None, "a probe for a duplicate (RFC 5227)");
        assert_eq!(changed(28, &[224, 0, 0, 1]), None);
        assert_eq!(changed(22, &[0; 6]), None);
        assert_eq!(changed(22, &[0xff; 6]), None);
        assert_eq!(changed(13, &[0]), None, "another Ethernet type");
        assert_eq!(changed(18, &[8]), None, "addresses of other lengths");
        for len in 0..ARP_LEN {
            assert_eq!(heard(&answer()[..len]), None);
        }
    }
}
