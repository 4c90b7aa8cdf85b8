//! What a link that goes down costs a lane with many peers, each reached by two links and known by an
//! address handle as well: `cargo run --release -p polypath-paths --example many_peers [PEERS...]`.
//! The time per peer should not grow with their number.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use polypath_paths::{
    Config, LaneIdentity, LocalAddress, PathManager, PathOptions, PathState, PeerStatus,
};
use polypath_wire::packet::Packet;

const MS: Duration = Duration::from_millis(1);
const LINKS: usize = 2;

fn ip(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, link as u8, (host >> 8) as u8, host as u8])
}

fn addresses(host: usize) -> Vec<LocalAddress> {
    let address = |link| LocalAddress {
        ip: ip(link, host),
        prefix_len: 16,
        ifindex: link as u32 + 2,
        link_up: true,
        usable: true,
        speed_mbps: 0,
    };
    (0..LINKS).map(address).collect()
}

/// Lets everybody talk until nobody has anything to say at this moment.
fn talk(now: Duration, lanes: &mut [PathManager], by_ip: &HashMap<IpAddr, usize>) {
    let mut busy: Vec<usize> = (0..lanes.len()).collect();
    for &lane in &busy {
        lanes[lane].handle_timeout(now);
    }
    while let Some(lane) = busy.pop() {
        while lanes[lane].poll_event().is_some() {}
        while let Some(out) = lanes[lane].poll_transmit(now) {
            let mut bytes = out.packet;
            bytes.extend_from_slice(&[0; 4]);
            let packet = Packet::parse(&bytes).expect("what a manager sends can be parsed");
            let to = by_ip[&out.address.remote];
            lanes[to].handle_control(
                now,
                out.address.local,
                out.address.remote,
                out.address.kind,
                &packet,
            );
            busy.push(to);
        }
    }
}

fn ready(peer: &PeerStatus) -> bool {
    peer.paths.len() == LINKS && peer.paths.iter().all(|p| p.state == PathState::Up)
}

fn measure(peers: usize) {
    let options = PathOptions { multipath: true, ..PathOptions::default() };
    let mut by_ip = HashMap::new();
    let mut lanes: Vec<PathManager> = (0..=peers)
        .map(|host| {
            let lane = LaneIdentity { instance: host as u64 + 1, slot: 1 };
            let mut lane = PathManager::new(Config::default(), lane, [host as u8; 16]);
            lane.set_local(Duration::ZERO, &addresses(host));
            by_ip.extend((0..LINKS).map(|link| (ip(link, host), host)));
            lane
        })
        .collect();
    let mut now = MS;
    for host in 1..=peers {
        let (hub, peer) = (0x01_0000 + host as u32, 0x01_0001);
        lanes[0].attach(now, hub, peer, ip(0, 0), ip(0, host), options).expect("there is room");
        lanes[host].attach(now, peer, hub, ip(0, host), ip(0, 0), options).expect("there is room");
        lanes[0].ud_path(now, ip(0, 0), ip(0, host), options).expect("there is room");
    }
    while !lanes[0].status().peers.iter().all(ready) {
        talk(now, &mut lanes, &by_ip);
        now += MS;
        assert!(now < MS * 10_000, "not all peers were found");
    }
    let mut local = addresses(0);
    local[0].link_up = false;
    let began = Instant::now();
    lanes[0].set_local(now, &local);
    let mut events = 0;
    while lanes[0].poll_event().is_some() {
        events += 1;
    }
    let took = began.elapsed();
    println!("{peers} peers: {took:?}, {events} events, {:?} a peer", took / peers as u32);
}

fn main() {
    let wanted: Vec<usize> =
        std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let wanted = if wanted.is_empty() { vec![125, 250, 500, 1000, 2000] } else { wanted };
    wanted.into_iter().for_each(measure);
}
