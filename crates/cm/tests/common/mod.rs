//! Hosts with a connection manager each, joined by a network that loses, duplicates and reorders
//! MADs.
#![allow(dead_code, unreachable_pub)] // Each test uses its part.

pub mod client;
pub mod migrating;
pub mod pairs;

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polypath_cm::{
    ClientId, Cm, CmConfig, Device, Environment, FileId, MadAddress, Neighbour, OutgoingMad,
    PathOrder, PathTaken, Route, RouteQuery,
};
use polypath_wire::Gid;
use polypath_wire::cm::CmMad;

pub use client::*;

/// An xorshift generator, so that every run with the same seed is the same.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() >> 32 < (percent << 32) / 100
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }
}

/// The network of a host, as its connection manager sees it.
pub struct HostEnv {
    pub addresses: Vec<(IpAddr, u32)>,
    pub node_guid: [u8; 8],
    /// Addresses without a device.
    pub bare: Vec<IpAddr>,
    pub groups: BTreeSet<(u32, IpAddr)>,
    /// Whether the devices are multi-path ones, whose addresses are all told to peers.
    pub multi_path: bool,
    /// Whether connections migrate without being asked to.
    pub migrates: bool,
    /// How often connections are balanced, at most.
    pub balances: Option<Duration>,
    /// Hosts on the link that do not answer, and how often they were asked for.
    pub silent: BTreeMap<IpAddr, u32>,
}

impl HostEnv {
    fn device(&self, at: usize) -> Device {
        Device {
            node_guid: self.node_guid,
            ibdev_index: 7,
            port_num: 1,
            gid_index: at as u8 + 1,
            gid: Gid::from_ip(self.addresses[at].0).0,
            active_mtu: 5,
            ack_delay: 15,
        }
    }
}

impl Environment for HostEnv {
    fn route(&mut self, _: ClientId, query: &RouteQuery) -> Option<Route> {
        if query.destination == UNROUTABLE {
            return None;
        }
        let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let fits = |a: &&(IpAddr, u32)| {
            a.0.is_ipv4() == query.destination.is_ipv4()
                && is_link_local(a.0) == is_link_local(query.destination)
                && query.source.is_none_or(|s| s == a.0)
                && query.ifindex.is_none_or(|i| i == a.1)
        };
        let (source, ifindex) = *self.addresses.iter().find(fits)?;
        Some(Route { source, ifindex })
    }

    fn neighbour(&mut self, _: &Route, remote: IpAddr, asked: bool) -> Neighbour {
        let Some(times) = self.silent.get_mut(&remote) else { return Neighbour::There };
        assert_eq!(asked, *times == 1);
        *times += 1;
        if *times == 1 { Neighbour::Asked } else { Neighbour::Silent }
    }

    fn device_for(
        &mut self,
        _: ClientId,
        local: IpAddr,
        ifindex: Option<u32>,
    ) -> Option<(Device, u32)> {
        let fits = |a: &(IpAddr, u32)| a.0 == local && ifindex.is_none_or(|i| i == a.1);
        let at = self.addresses.iter().position(fits)?;
        Some((self.device(at), self.addresses[at].1))
    }

    fn any_device(&mut self, _: ClientId) -> Option<(Device, IpAddr, u32)> {
        let (ip, ifindex) = *self.addresses.first()?;
        Some((self.device(0), ip, ifindex))
    }

    fn is_local(&mut self, address: IpAddr, _: Option<u32>) -> bool {
        self.bare.contains(&address) || self.addresses.iter().any(|a| a.0 == address)
    }

    fn addresses(&mut self, _: ClientId) -> Vec<(IpAddr, u32)> {
        if self.multi_path { self.addresses.clone() } else { Vec::new() }
    }

    fn apm_by_default(&mut self, _: ClientId) -> bool {
        self.migrates
    }

    fn balance_interval(&mut self, _: ClientId) -> Option<Duration> {
        self.balances
    }

    fn multicast_join(&mut self, _: ClientId, ifindex: u32, group: IpAddr) -> Result<(), i32> {
        self.groups.insert((ifindex, group));
        Ok(())
    }

    fn multicast_leave(&mut self, _: ClientId, ifindex: u32, group: IpAddr) {
        self.groups.remove(&(ifindex, group));
    }
}

pub const UNROUTABLE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

pub struct Host {
    pub cm: Cm,
    pub env: HostEnv,
    pub events: BTreeMap<FileId, VecDeque<Event>>,
}

/// The faults of the network, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFaults {
    pub loss: u64,
    pub duplication: u64,
    /// The longest additional delay.
    pub jitter: Duration,
}

const LATENCY: Duration = Duration::from_micros(50);

/// The hosts and the network between them.
pub struct World {
    /// What the random choices follow from.
    pub seed: u64,
    pub now: Duration,
    pub hosts: Vec<Host>,
    pub link_faults: LinkFaults,
    pub rng: Rng,
    /// Decides about each MAD; false drops it.
    pub filter: Box<dyn FnMut(&CmMad) -> bool>,
    /// Addresses that no MAD reaches and no MAD leaves from.
    pub dead: BTreeSet<IpAddr>,
    in_flight: BTreeMap<(Duration, u64), OutgoingMad>,
    sequence: u64,
    /// Every MAD, as it was sent.
    pub sent: Vec<OutgoingMad>,
}

pub fn v4(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, host as u8 + 1))
}

pub fn v6(host: usize) -> IpAddr {
    format!("fd77::{}", host + 1).parse().unwrap()
}

pub fn link_local(host: usize) -> IpAddr {
    format!("fe80::{}", host + 1).parse().unwrap()
}

impl World {
    pub fn new(hosts: usize) -> Self {
        Self::with_config(hosts, 1, &CmConfig::default())
    }

    pub fn with_config(hosts: usize, seed: u64, config: &CmConfig) -> Self {
        let host = |n: usize| {
            let mut rng = Rng::new(seed * 1000 + n as u64);
            Host {
                cm: Cm::new(config.clone(), move || (rng.next() >> 32) as u32),
                env: HostEnv {
                    addresses: vec![(v4(n), 2), (v6(n), 2), (link_local(n), 2)],
                    node_guid: [0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, n as u8 + 1],
                    bare: vec![IpAddr::V4(Ipv4Addr::new(172, 16, 0, 1))],
                    groups: BTreeSet::new(),
                    multi_path: false,
                    migrates: false,
                    balances: None,
                    silent: BTreeMap::new(),
                },
                events: BTreeMap::new(),
            }
        };
        Self {
            seed,
            now: Duration::from_secs(1000),
            hosts: (0..hosts).map(host).collect(),
            link_faults: LinkFaults::default(),
            rng: Rng::new(seed),
            filter: Box::new(|_| true),
            dead: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            sequence: 0,
            sent: Vec::new(),
        }
    }

    /// Opens the device for a process on a host.
    pub fn open(&mut self, host: usize, file: u32) -> Client {
        let file = FileId(file);
        self.hosts[host].cm.open_file(file, ClientId(u64::from(file.0)));
        Client { host, file }
    }

    pub fn close(&mut self, client: Client) {
        let host = &mut self.hosts[client.host];
        host.cm.close_file(self.now, client.file, &mut host.env);
    }

    /// Takes the MADs that the connection managers send, and their events if `take_events` is set.
    fn collect(&mut self, take_events: bool) {
        for host in &mut self.hosts {
            while let Some(mad) = host.cm.poll_mad() {
                self.sent.push(mad.clone());
                let parsed = CmMad::parse(&mad.mad).expect("we send what can be parsed");
                let is_dead = self.dead.contains(&mad.local) || self.dead.contains(&mad.remote);
                if is_dead || !(self.filter)(&parsed) || self.rng.chance(self.link_faults.loss) {
                    continue;
                }
                let copies = 1 + usize::from(self.rng.chance(self.link_faults.duplication));
                for _ in 0..copies {
                    let jitter = self.link_faults.jitter.as_nanos() as u64;
                    let jitter = Duration::from_nanos(self.rng.below(jitter + 1));
                    self.sequence += 1;
                    let key = (self.now + LATENCY + jitter, self.sequence);
                    self.in_flight.insert(key, mad.clone());
                }
            }
            for file in host.cm.files_with_events() {
                while take_events && let Some(bytes) = host.cm.poll_event_of(file) {
                    host.events.entry(file).or_default().push_back(Event::parse(&bytes));
                }
            }
        }
    }

    fn arrive(&mut self, mad: &OutgoingMad) {
        for host in &mut self.hosts {
            if host.env.addresses.iter().any(|a| a.0 == mad.remote) {
                let from =
                    MadAddress { local: mad.remote, remote: mad.local, ifindex: 2, source_qpn: 1 };
                host.cm.handle_mad(self.now, from, &mad.mad, &mut host.env);
            }
        }
    }

    /// Handles what happens next, if that is before `end`. Returns false if nothing is left to
    /// happen.
    pub fn step(&mut self, end: Duration, take_events: bool) -> bool {
        self.collect(take_events);
        let timer = self.hosts.iter().filter_map(|h| h.cm.next_deadline()).min();
        let arrival = self.in_flight.keys().next().map(|k| k.0);
        let Some(next) = timer.into_iter().chain(arrival).min().filter(|t| *t <= end) else {
            self.now = self.now.max(end);
            return false;
        };
        self.now = self.now.max(next);
        if arrival.is_some_and(|a| a <= self.now) {
            let (_, mad) = self.in_flight.pop_first().unwrap();
            self.arrive(&mad);
        } else {
            for host in &mut self.hosts {
                host.cm.handle_timeout(self.now, &mut host.env);
            }
        }
        self.collect(take_events);
        true
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end, true) {}
    }

    /// Lets time pass while no application takes its events.
    pub fn run_unread(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end, false) {}
    }

    /// Waits for the next event of a client, for up to five minutes.
    pub fn event(&mut self, client: Client) -> Event {
        let end = self.now + Duration::from_secs(300);
        loop {
            if let Some(event) = self.try_event(client) {
                return event;
            }
            assert!(self.step(end, true), "no event came for {client:?}");
        }
    }

    pub fn try_event(&mut self, client: Client) -> Option<Event> {
        self.collect(true);
        self.hosts[client.host].events.get_mut(&client.file)?.pop_front()
    }

    /// Takes the next event, which must be of the given kind.
    pub fn expect(&mut self, client: Client, kind: u32) -> Event {
        let event = self.event(client);
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    /// What a host is to do with its queue pairs.
    pub fn orders(&mut self, host: usize) -> Vec<PathOrder> {
        core::iter::from_fn(|| self.hosts[host].cm.poll_path_order()).collect()
    }

    /// Tells a connection manager that a queue pair has migrated.
    pub fn migrated(&mut self, c: Client, qp_num: u32, to: Option<(IpAddr, IpAddr)>) {
        let taken = |(local, remote)| PathTaken { local, remote, flow_label: None };
        self.migrated_to(c, qp_num, to.map(taken));
    }

    /// The same with the flow label of the path.
    pub fn migrated_to(&mut self, c: Client, qp_num: u32, to: Option<PathTaken>) {
        let (client, host) = (ClientId(u64::from(c.file.0)), &mut self.hosts[c.host]);
        host.cm.path_migrated(self.now, client, qp_num, to, &mut host.env);
    }

    /// Gives a host other addresses, and tells its connection manager.
    pub fn change_addresses(&mut self, host: usize, addresses: &[(IpAddr, u32)]) {
        let host = &mut self.hosts[host];
        host.env.addresses = addresses.to_vec();
        host.cm.handle_address_change(self.now, &mut host.env);
    }

    /// The names of the MADs sent so far, which are then forgotten.
    pub fn sent_names(&mut self) -> Vec<&'static str> {
        let sent = core::mem::take(&mut self.sent);
        sent.iter().map(|m| CmMad::parse(&m.mad).unwrap().message.name()).collect()
    }
}
