//! How plain queue pairs share the ports of a bond of the kernel's.

use std::collections::BTreeMap;
use std::time::Duration;

use polypath_paths::*;

use crate::net::*;

const SECOND: Duration = Duration::from_secs(1);
/// The indexes of the bond's ports begin with this one.
const FIRST: u32 = 100;
/// The index of the bond, and of a VLAN above it.
const BOND: u32 = 2;
const VLAN: u32 = 7;

/// One host with a bond, and plain peers that never answer a handshake.
struct Host {
    now: Duration,
    paths: PathManager,
    events: Vec<PathEvent>,
    peers: BTreeMap<u32, PeerId>,
}

impl Host {
    fn new(slot: u8, usable: &[bool]) -> Self {
        let lane = LaneIdentity { instance: 7, slot };
        let paths = PathManager::new(Config::default(), lane, [3; 16]);
        let mut host = Self { now: MS, paths, events: vec![], peers: BTreeMap::new() };
        host.tell(usable);
        let local = LocalAddress {
            ip: ip(0, 0),
            prefix_len: 24,
            ifindex: BOND,
            link_up: true,
            usable: true,
            speed_mbps: 0,
        };
        let of_vlan = LocalAddress { ip: ip(1, 0), ifindex: VLAN, ..local };
        host.paths.set_local(host.now, &[local, of_vlan]);
        host
    }

    /// The bond's ports, and by which of them it sends.
    fn tell(&mut self, usable: &[bool]) {
        let member = |(n, usable): (u32, &bool)| LagMember { ifindex: FIRST + n, usable: *usable };
        let members = (0..).zip(usable).map(member).collect();
        let lag = Lag { ifindex: BOND, above: vec![VLAN], hashed: Hashed::All, members };
        self.paths.set_lags(self.now, &[lag]);
        self.settle();
    }

    fn settle(&mut self) {
        while self.paths.poll_transmit(self.now).is_some() {}
        self.events.extend(core::iter::from_fn(|| self.paths.poll_event()));
        assert_eq!(self.paths.check(), Ok(()));
    }

    /// Lets time pass until then.
    fn reach(&mut self, now: Duration) {
        while let Some(at) = self.paths.next_deadline().filter(|at| *at <= now) {
            self.now = self.now.max(at);
            self.paths.handle_timeout(self.now);
            self.settle();
        }
        self.now = now;
    }

    /// Connects a queue pair with this host's.
    fn connect(&mut self, n: u32, to: usize, options: PathOptions) {
        self.connect_in(n, 0, to, options);
    }

    /// In this subnet: the second one is that of the VLAN.
    fn connect_in(&mut self, n: u32, subnet: usize, to: usize, options: PathOptions) {
        let (qpn, remote) = (qpn(n), 0x11 + n);
        let ends = (ip(subnet, 0), ip(subnet, to));
        let peer = self.paths.attach(self.now, qpn, remote, ends.0, ends.1, options).unwrap();
        self.peers.insert(n, peer);
        self.settle();
    }

    /// Those with these numbers, to the same host.
    fn connect_all(&mut self, numbers: core::ops::Range<u32>) {
        numbers.for_each(|n| self.connect(n, 1, options()));
    }

    fn path(&self, n: u32) -> PathId {
        self.paths.both_paths(qpn(n))[0].unwrap()
    }

    fn address(&self, n: u32) -> PathAddress {
        *self.paths.path(self.path(n)).unwrap()
    }

    /// The place of the bond's port by which a queue pair leaves.
    fn port_of(&self, n: u32) -> usize {
        (self.paths.lag_member(self.path(n)).unwrap() - FIRST) as usize
    }

    /// How many of these queue pairs leave by each of so many ports.
    fn shares(&self, numbers: core::ops::Range<u32>, ports: usize) -> Vec<usize> {
        let mut shares = vec![0; ports];
        numbers.for_each(|n| shares[self.port_of(n)] += 1);
        shares
    }

    /// A queue pair sends something, and nothing is acknowledged until it has left its port of the bond,
    /// for so long at most. Asked as often as a transport does.
    fn leave(&mut self, n: u32, time: Duration) {
        let (port, end) = (self.port_of(n), self.now + time);
        while self.port_of(n) == port && self.now < end {
            self.stall(n, 25 * MS);
        }
        assert_ne!(self.port_of(n), port);
    }

    /// A queue pair sends something, and nothing is acknowledged for so long.
    fn stall(&mut self, n: u32, time: Duration) {
        let (since, end) = (self.now, self.now + time);
        let path = self.path(n);
        self.paths.sent(self.now, path, 1000);
        while self.now < end {
            self.reach(self.now + 5 * MS);
            self.paths.stalled(self.now, path, qpn(n), since);
            self.settle();
        }
        self.paths.lost(self.now, path, 1000, false);
    }

    /// A queue pair sends something, which is acknowledged.
    fn succeed(&mut self, n: u32) {
        let path = self.path(n);
        self.paths.sent(self.now, path, 1000);
        self.reach(self.now + 2 * MS);
        self.paths.acked(self.now, path, 1000, Some(MS));
        self.settle();
    }
}

fn qpn(n: u32) -> u32 {
    0x0001_0100 + n
}

fn even(shares: &[usize]) -> bool {
    let (least, most) = (shares.iter().min(), shares.iter().max());
    least.zip(most).is_some_and(|(least, most)| most - least <= 1)
}

#[test]
fn from_two_queue_pairs_on_the_ports_of_a_bond_have_as_many() {
    for ports in 1..=6 {
        for multipath in [false, true] {
            for slot in 1..5 {
                let mut host = Host::new(slot, &vec![true; ports]);
                for n in 0..40 {
                    host.connect(n, 1, PathOptions { multipath, ..options() });
                    let shares = host.shares(0..n + 1, ports);
                    assert!(even(&shares), "{shares:?}");
                }
                // One source port for each is enough.
                let mut sources: Vec<u16> = (0..40).map(|n| host.address(n).source_port).collect();
                sources.sort_unstable();
                sources.dedup();
                assert_eq!(sources.len(), ports);
            }
        }
    }
}

#[test]
fn single_queue_pairs_of_processes_and_to_hosts_take_different_ports() {
    // The slots of processes follow each other.
    let by_process: Vec<usize> = (1..5)
        .map(|slot| {
            let mut host = Host::new(slot, &[true; 4]);
            host.connect_all(0..1);
            host.port_of(0)
        })
        .collect();
    let mut sorted = by_process.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3], "{by_process:?}");
    let mut host = Host::new(1, &[true; 4]);
    for n in 0..40 {
        host.connect(n, 1 + n as usize, options());
        assert!(even(&host.shares(0..n + 1, 4)));
    }
}

#[test]
fn a_queue_pair_takes_the_place_of_one_that_is_gone_and_keeps_its_own() {
    let mut host = Host::new(1, &[true; 2]);
    host.connect_all(0..6);
    let ports: Vec<usize> = (0..6).map(|n| host.port_of(n)).collect();
    for n in [0, 2] {
        host.paths.detach(host.now, qpn(n));
    }
    assert_eq!(ports[0], ports[2]);
    host.connect_all(6..7);
    assert_eq!(host.port_of(6), ports[0]);
    for n in [1, 3, 4, 5] {
        let again = host.paths.reattach(host.now, qpn(n), 0x11 + n, ip(0, 0), ip(0, 1), options());
        assert!(again.is_ok());
        assert_eq!(host.port_of(n), ports[n as usize]);
    }
}

#[test]
fn queue_pairs_with_flow_labels_are_dealt_too() {
    // RDMA CM gives each connection a label; programs give many queue pairs the same one.
    for of in [|n| 0x1234 + 0x777 * n, |_| 0x1234] {
        for ports in 2..=4 {
            let mut host = Host::new(1, &vec![true; ports]);
            for n in 0..12 {
                let flow_label: u32 = of(n);
                host.connect(n, 1, PathOptions { flow_label, ..options() });
                let shares = host.shares(0..n + 1, ports);
                assert!(even(&shares), "{shares:?}");
            }
            let mut usable = vec![true; ports];
            usable[0] = false;
            host.tell(&usable);
            let shares = host.shares(0..12, ports);
            assert!(shares[0] == 0 && even(&shares[1..]), "{shares:?}");
            host.tell(&vec![true; ports]);
            assert!(even(&host.shares(0..12, ports)));
            // Those without are dealt among them.
            host.connect_all(12..18);
            assert!(even(&host.shares(0..18, ports)));
        }
    }
}

#[test]
fn a_flow_label_chooses_the_port_where_it_leads_to_the_right_port_of_the_bond() {
    for flow_label in 1..40 {
        let mut host = Host::new(1, &[true; 3]);
        let options = PathOptions { flow_label, ..options() };
        host.connect(0, 1, options);
        let (first, port) = (host.port_of(0), host.address(0).source_port);
        assert_eq!(port, 0xc000 | flow_label as u16);
        let mut usable = [true; 3];
        usable[first] = false;
        host.tell(&usable);
        assert_ne!(host.port_of(0), first);
        // It stays where it is, and so does the next one with the label of the first.
        host.tell(&[true; 3]);
        assert_ne!(host.port_of(0), first);
        host.connect(1, 1, options);
        assert_eq!((host.port_of(1), host.address(1).source_port), (first, port));
    }
}

#[test]
fn a_bond_is_shared_by_what_is_above_it() {
    for ports in 2..=4 {
        let mut host = Host::new(1, &vec![true; ports]);
        for n in 0..12 {
            host.connect_in(n, n as usize % 2, 1, options());
            let shares = host.shares(0..n + 1, ports);
            assert!(even(&shares), "{shares:?}");
        }
        let mut usable = vec![true; ports];
        usable[0] = false;
        host.tell(&usable);
        assert!(even(&host.shares(0..12, ports)[1..]));
        host.tell(&vec![true; ports]);
        assert!(even(&host.shares(0..12, ports)));
    }
}

#[test]
fn queue_pairs_that_share_a_path_are_counted_one_by_one() {
    let mut host = Host::new(1, &[true; 2]);
    host.connect_all(0..60);
    assert_eq!(host.shares(0..60, 2), [30, 30]);
    for n in 10..50 {
        host.paths.detach(host.now, qpn(n));
        host.settle();
    }
    host.connect_all(60..100);
    let shares = |numbers| host.shares(numbers, 2);
    let [before, after] = [shares(0..10), shares(50..100)];
    assert_eq!([before[0] + after[0], before[1] + after[1]], [30, 30]);
}

#[test]
fn an_alternate_path_leaves_by_the_port_of_its_flow_label() {
    for flow_label in 1..40 {
        let mut host = Host::new(1, &[true; 2]);
        host.connect(0, 1, PathOptions { flow_label: 0x1234, ..options() });
        let other = PathOptions { flow_label: 0x1234 + flow_label, ..options() };
        // Another queue pair has the label for its only path, which was dealt.
        host.connect(1, 1, other);
        // One port of the bond has more than the other, perhaps that of the label.
        host.connect(9, 1, options());
        host.paths.set_alternate(host.now, qpn(0), ip(0, 0), ip(0, 1), other).unwrap();
        host.settle();
        let alternate = |host: &Host| host.paths.both_paths(qpn(0))[1].unwrap();
        let port = |host: &Host| host.paths.path(alternate(host)).unwrap().source_port;
        let of_label = 0xc000 | (0x1234 + flow_label) as u16;
        assert_eq!(port(&host), of_label);
        for usable in [[true, false], [false, true], [true, true]] {
            host.tell(&usable);
            assert_eq!(port(&host), of_label);
        }
        host.paths.migrate(host.now, qpn(0)).unwrap();
        host.settle();
        host.tell(&[true, false]);
        assert_eq!(host.address(0).source_port, of_label);
        // Nothing tells it from others any more.
        host.paths.clear_alternate(host.now, qpn(0));
        host.settle();
        host.connect_all(2..6);
        host.tell(&[true, true]);
        let mut shares = host.shares(0..6, 2);
        shares[host.port_of(9)] += 1;
        assert!(even(&shares), "{shares:?}");
    }
}

#[test]
fn who_left_by_a_lost_port_moves_at_once_and_few_move_when_one_comes() {
    for ports in 2..=6 {
        for queue_pairs in 1..30 {
            let mut host = Host::new(1, &vec![true; ports]);
            host.connect_all(0..queue_pairs);
            let before: Vec<usize> = (0..queue_pairs).map(|n| host.port_of(n)).collect();
            let mut usable = vec![true; ports];
            usable[1] = false;
            host.events.clear();
            host.tell(&usable);
            let shares = host.shares(0..queue_pairs, ports);
            let mut left = shares.clone();
            assert_eq!(left.remove(1), 0);
            assert!(queue_pairs > 24 || even(&left), "{queue_pairs} by {ports}: {shares:?}");
            // Who moved asks for what is outstanding; the others do not, and nobody else moved.
            for n in 0..queue_pairs {
                let lost = before[n as usize] == 1;
                let asks = host.events.contains(&PathEvent::PathHeard { path: host.path(n) });
                let alone = queue_pairs <= 24;
                assert!(!alone || asks == lost, "{queue_pairs} by {ports}: {n}");
                assert!(!alone || lost || host.port_of(n) == before[n as usize]);
            }
            let during: Vec<usize> = (0..queue_pairs).map(|n| host.port_of(n)).collect();
            host.tell(&vec![true; ports]);
            let shares = host.shares(0..queue_pairs, ports);
            assert!(queue_pairs > 24 || even(&shares), "{queue_pairs} by {ports}: {shares:?}");
            let moved = (0..queue_pairs).filter(|n| host.port_of(*n) != during[*n as usize]);
            assert!(queue_pairs > 24 || moved.count() == shares[1], "only those that move to it");
            // Another one is enslaved.
            host.tell(&vec![true; ports + 1]);
            let shares = host.shares(0..queue_pairs, ports + 1);
            assert!(
                queue_pairs > 24 || even(&shares),
                "{queue_pairs} by {ports} and one: {shares:?}"
            );
        }
    }
}

#[test]
fn single_queue_pairs_to_many_hosts_use_a_port_that_comes() {
    let mut host = Host::new(1, &[true, false]);
    for n in 0..20 {
        host.connect(n, 1 + n as usize, options());
    }
    assert_eq!(host.shares(0..20, 2), [20, 0]);
    host.tell(&[true, true]);
    assert_eq!(host.shares(0..20, 2), [10, 10]);
}

/// Sockets are not without end.
#[test]
fn many_hosts_are_reached_by_few_source_ports() {
    let mut host = Host::new(1, &[true; 4]);
    for n in 0..200 {
        host.connect(n, 1 + n as usize, options());
    }
    assert_eq!(host.shares(0..200, 4), [50; 4]);
    let mut sources: Vec<u16> = (0..200).map(|n| host.address(n).source_port).collect();
    sources.sort_unstable();
    sources.dedup();
    assert!(sources.len() <= 24, "{}", sources.len());
}

#[test]
fn a_silent_port_is_left_and_used_again_by_all_once_one_has_tried_it() {
    let mut host = Host::new(1, &[true; 2]);
    host.connect_all(0..4);
    (0..4).for_each(|n| host.succeed(n));
    let silent = host.port_of(0);
    let by: Vec<u32> = (0..4).filter(|n| host.port_of(*n) == silent).collect();
    assert_eq!(by.len(), 2);
    by.iter().for_each(|n| host.leave(*n, 60 * MS));
    assert_eq!(host.shares(0..4, 2)[silent], 0);
    // New ones do not go there.
    host.connect_all(4..5);
    assert_eq!(host.shares(0..5, 2)[silent], 0);
    let left = host.now;
    // It is silent still: each try is of one queue pair, is over soon, and the next one comes later.
    let mut tries = Vec::new();
    while host.now < left + 40 * SECOND {
        (0..4).for_each(|n| match host.port_of(n) == silent {
            true => {
                tries.push(host.now - left);
                assert_eq!(host.shares(0..5, 2)[silent], 1);
                host.leave(n, 30 * MS);
            }
            false => host.succeed(n),
        });
        host.reach(host.now + 10 * MS);
    }
    assert!((4..7).contains(&tries.len()), "{tries:?}");
    assert!(tries[0] > 900 * MS && tries[0] < 1300 * MS, "{tries:?}");
    // It carries again.
    while host.now < left + 120 * SECOND {
        (0..5).for_each(|n| host.succeed(n));
        host.reach(host.now + 10 * MS);
    }
    assert!(even(&host.shares(0..5, 2)), "{:?}", host.shares(0..5, 2));
}

#[test]
fn an_end_that_only_answers_comes_back_when_nothing_is_asked_twice() {
    for carries in [false, true] {
        let mut host = Host::new(1, &[true; 2]);
        host.connect_all(0..2);
        let (silent, path) = (host.port_of(0), host.path(0));
        host.paths.unheard(host.now, path);
        assert_ne!(host.port_of(0), silent);
        let mut tries = 0;
        let end = host.now + 100 * SECOND;
        let mut was = false;
        while host.now < end {
            host.reach(host.now + 50 * MS);
            let peer = host.peers[&0];
            let came = host.paths.classify(peer, ip(0, 1), ip(0, 0), UDP, None, 100);
            assert_eq!(came.ok(), Some(path));
            let now = host.port_of(0) == silent;
            tries += u32::from(now && !was);
            was = now;
            if now && !carries {
                host.paths.unheard(host.now, path);
                host.settle();
                was = host.port_of(0) == silent;
            }
        }
        assert_eq!(host.port_of(0) == silent, carries);
        let wanted = if carries { 1..2 } else { 2..5 };
        assert!(wanted.contains(&tries), "{tries}");
        assert!(!carries || even(&host.shares(0..2, 2)));
    }
}

#[test]
fn a_peer_that_is_silent_by_all_ports_is_tried_by_each_and_few_ports_are_used() {
    let mut host = Host::new(1, &[true; 3]);
    host.connect_all(0..3);
    (0..3).for_each(|n| host.succeed(n));
    host.stall(0, 20 * SECOND);
    let path = host.paths.paths_of(host.peers[&0]).next().unwrap();
    let changes = path.counters.port_changes;
    assert!((4..60).contains(&changes), "{changes}");
    // It answers again, by whichever port that is.
    let end = host.now + 10 * SECOND;
    while host.now < end {
        (0..3).for_each(|n| host.succeed(n));
        host.reach(host.now + 10 * MS);
    }
    assert_eq!(host.shares(0..3, 3), [1, 1, 1]);
}

/// Its socket's queue is full, or its process was not run for a while.
#[test]
fn a_queue_pair_whose_port_carries_others_keeps_it() {
    let mut host = Host::new(1, &[true; 2]);
    host.connect_all(0..4);
    (0..4).for_each(|n| host.succeed(n));
    let port = host.port_of(0);
    let other = (1..4).find(|n| host.port_of(*n) == port).unwrap();
    let (since, path) = (host.now, host.path(0));
    for _ in 0..100 {
        host.reach(host.now + 5 * MS);
        host.succeed(other);
        host.paths.stalled(host.now, path, qpn(0), since);
    }
    assert_eq!(host.port_of(0), port);
}

#[test]
fn queue_pairs_that_keep_to_a_port_are_dealt_to_it_while_it_is_fit() {
    let mut host = Host::new(1, &[true, true, true]);
    let keep_to = |host: &mut Host, port: Option<u32>| {
        let mode =
            port.map_or(Mode::Balance, |n| Mode::Affinity(AffinityRule::Interface(FIRST + n)));
        host.paths.set_usage(host.now, &Usage { mode, ..Usage::of(&Config::default()) });
        host.settle();
    };
    keep_to(&mut host, Some(1));
    host.connect_all(0..6);
    assert_eq!(host.shares(0..6, 3), [0, 6, 0]);
    // While it does not carry, the others share them.
    host.tell(&[true, false, true]);
    assert_eq!(host.shares(0..6, 3), [3, 0, 3]);
    host.tell(&[true, true, true]);
    assert_eq!(host.shares(0..6, 3), [0, 6, 0]);
    // It falls silent, and carries again.
    (0..6).for_each(|n| host.succeed(n));
    (0..6).for_each(|n| host.leave(n, 60 * MS));
    assert_eq!(host.shares(0..6, 3), [3, 0, 3]);
    let end = host.now + 10 * SECOND;
    while host.now < end {
        (0..6).for_each(|n| host.succeed(n));
        host.reach(host.now + 10 * MS);
    }
    assert_eq!(host.shares(0..6, 3), [0, 6, 0]);
    // Another policy, and another port.
    keep_to(&mut host, None);
    assert_eq!(host.shares(0..6, 3), [2, 2, 2]);
    keep_to(&mut host, Some(2));
    assert_eq!(host.shares(0..6, 3), [0, 0, 6]);
}
