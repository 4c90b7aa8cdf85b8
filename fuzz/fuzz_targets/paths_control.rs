//! Two path managers that talk over a network in the hands of the fuzzer: it delays, drops, doubles and
//! changes packets, sends some of its own, and takes addresses and links away.
#![no_main]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polypath_paths::{
    Config, ControlOut, Handled, LaneIdentity, LocalAddress, PathKind, PathManager, PathOptions,
};
use polypath_wire::{Opcode, Packet};

const QPN: [u32; 2] = [0x0100_11, 0x0200_22];
/// Packets under way; more are lost.
const NETWORK_MAX: usize = 64;

fn ip(link: u8, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link, host as u8 + 1])
}

fn locals(host: usize, up: u8) -> Vec<LocalAddress> {
    (0..2)
        .map(|link| LocalAddress {
            ip: ip(link, host),
            prefix_len: 24,
            ifindex: u32::from(link) + 2,
            link_up: up & (1 << link) != 0,
            usable: up & (4 << link) != 0,
            speed_mbps: 1000,
        })
        .collect()
}

struct Net {
    now: Duration,
    hosts: [PathManager; 2],
    flying: VecDeque<(usize, ControlOut)>,
}

impl Net {
    fn new() -> Self {
        let hosts = [0, 1].map(|host| {
            let lane = LaneIdentity { instance: host as u64 + 7, slot: host as u8 + 1 };
            let mut paths = PathManager::new(Config::default(), lane, [host as u8; 16]);
            paths.set_local(Duration::ZERO, &locals(host, 0xff));
            let options = PathOptions { multipath: true, ..PathOptions::default() };
            paths
                .attach(
                    Duration::ZERO,
                    QPN[host],
                    QPN[1 - host],
                    ip(0, host),
                    ip(0, 1 - host),
                    options,
                )
                .expect("an empty table has room");
            paths
        });
        let mut net = Self { now: Duration::ZERO, hosts, flying: VecDeque::new() };
        net.collect();
        net
    }

    fn collect(&mut self) {
        for (from, host) in self.hosts.iter_mut().enumerate() {
            while let Some(out) = host.poll_transmit(self.now) {
                if self.flying.len() < NETWORK_MAX {
                    self.flying.push_back((1 - from, out));
                }
            }
            while host.poll_event().is_some() {}
        }
    }

    fn deliver(&mut self, to: usize, src: IpAddr, dst: IpAddr, packet: &[u8]) -> Option<Handled> {
        let mut with_icrc = packet.to_vec();
        with_icrc.extend([0; 4]);
        let parsed = Packet::parse(&with_icrc).ok()?;
        PathManager::is_control(&parsed)
            .then(|| self.hosts[to].handle_control(self.now, src, dst, PathKind::Udp, &parsed))
    }

    fn tick(&mut self, by: Duration) {
        self.now += by;
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
    }
}

/// Whether a change of this byte of the packet is covered by an authentication code.
fn protected(packet: &[u8], at: usize) -> bool {
    match Opcode(packet[0]) {
        // BTH and DETH have no code, and a HELLO (kind 1) has none at all.
        Opcode::UD_SEND_ONLY => packet.get(25) != Some(&1) && at >= 20,
        _ => at >= 12,
    }
}

fuzz_target!(|data: &[u8]| {
    let mut net = Net::new();
    let mut input = data.iter().copied();
    let mut steps = 0;
    while let Some(op) = input.next() {
        steps += 1;
        if steps > 512 {
            break;
        }
        match op % 8 {
            0 => {
                let ms = input.next().unwrap_or(1);
                net.tick(Duration::from_millis(u64::from(ms)));
            }
            // Several in a row, so that a handshake takes few bytes of input.
            1 | 2 => {
                for _ in 0..=op >> 4 {
                    let Some((to, out)) = net.flying.pop_front() else { break };
                    net.deliver(to, out.address.local, out.address.remote, &out.packet);
                    net.collect();
                }
            }
            3 => {
                net.flying.pop_front();
            }
            4 => {
                if let Some((to, out)) = net.flying.front().cloned() {
                    net.deliver(to, out.address.local, out.address.remote, &out.packet);
                }
            }
            5 => {
                let (Some(at), Some(bits)) = (input.next(), input.next()) else { break };
                let Some((to, mut out)) = net.flying.pop_front() else { continue };
                let at = usize::from(at) % out.packet.len();
                let covered = protected(&out.packet, at) && bits != 0;
                out.packet[at] ^= bits;
                let covered = covered && protected(&out.packet, at);
                let handled = net.deliver(to, out.address.local, out.address.remote, &out.packet);
                assert!(!covered || handled != Some(Handled::Accepted), "byte {at}: {out:?}");
            }
            6 => {
                let host = usize::from(op >> 3 & 1);
                let up = input.next().unwrap_or(0);
                let now = net.now;
                net.hosts[host].set_local(now, &locals(host, up));
            }
            _ => {
                let (Some(opcode), Some(len)) = (input.next(), input.next()) else { break };
                let mut packet = vec![0; 12];
                packet[0] = opcode;
                packet.extend(input.by_ref().take(usize::from(len)));
                packet.resize(packet.len().next_multiple_of(4), 0);
                net.deliver(usize::from(op >> 3 & 1), ip(0, 0), ip(0, 1), &packet);
            }
        }
        net.collect();
    }
    for host in &net.hosts {
        let _ = host.status();
        let _ = host.next_deadline();
    }
});
