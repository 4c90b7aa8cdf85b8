//! A simulated host: the real connection manager, what it asks its host for, and its QP1.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polypath_cm::{
    ClientId, Cm, CmConfig, Device, Environment, MadAddress, OutgoingMad, Route, RouteQuery,
};
use polypath_wire::cm::CmMad;
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::mad::MAD_LEN;
use polypath_wire::{Bth, Gid, Headers, Opcode, Packet, Psn, QP1_QKEY, ext::Deth};

use super::case::CmCase;
use crate::datagram::{Datagram, address};
use crate::rng::Rng;

const QP1: u32 = 1;
/// The interface index of the first link.
const FIRST_INTERFACE: u32 = 2;
/// The largest number of hosts.
const HOSTS_MAX: usize = 4;
const SOURCE_PORT: u16 = 0xc001;

/// The node GUID of a host's devices.
pub(super) fn guid(host: usize) -> [u8; 8] {
    [0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, host as u8 + 1]
}

/// The source of communication ids. A host that starts again continues where it was.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    counter: Arc<AtomicU32>,
    /// The seed of random ids. Without it, ids count up, so that connections of all hosts have the same
    /// ids.
    seed: Option<u64>,
}

impl Numbers {
    pub(super) fn new(case: &CmCase, host: usize) -> Self {
        let by_chance = case.seed & 1 == 0;
        let seed = by_chance.then_some(case.seed ^ (host as u64 + 1) << 32);
        Self { counter: Arc::new(AtomicU32::new(1)), seed }
    }

    fn source(&self) -> impl FnMut() -> u32 + Send + 'static {
        let (counter, seed) = (self.counter.clone(), self.seed);
        move || {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            seed.map_or(number, |seed| (Rng::new(seed ^ u64::from(number)).bits() >> 32) as u32)
        }
    }
}

/// The host's network, as its connection manager sees it.
#[derive(Debug)]
pub(super) struct Env {
    host: usize,
    /// The addresses and interface indexes, one for each link.
    addresses: Vec<(IpAddr, u32)>,
    /// Whether the host has each address now.
    pub(super) there: Vec<bool>,
    multi_path: bool,
    /// Whether connections migrate. Then links are separate networks.
    pub(super) migrates: bool,
    /// How often connections are balanced, at most.
    pub(super) balances: Option<Duration>,
    /// The clients whose device was removed.
    pub(super) removed: BTreeSet<ClientId>,
}

impl Env {
    /// The addresses that the host has now, with their interface indexes.
    fn there(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        self.addresses.iter().zip(&self.there).filter(|(_, there)| **there).map(|(a, _)| *a)
    }

    fn device(&self, at: usize) -> Device {
        Device {
            node_guid: guid(self.host),
            ibdev_index: 7,
            port_num: 1,
            gid_index: at as u8 + 1,
            gid: Gid::from_ip(self.addresses[at].0).0,
            active_mtu: 5,
            ack_delay: 15,
        }
    }
}

impl Environment for Env {
    fn route(&mut self, _: ClientId, query: &RouteQuery) -> Option<Route> {
        let mut ways = self.there();
        let (source, ifindex) = ways.find(|a| query.source.is_none_or(|s| s == a.0))?;
        let link = (ifindex - FIRST_INTERFACE) as usize;
        let on_link = |host| address(link, host, source.is_ipv6()) == query.destination;
        let has_way = !self.migrates || (0..HOSTS_MAX).any(on_link);
        has_way.then_some(Route { source, ifindex })
    }

    fn device_for(
        &mut self,
        client: ClientId,
        local: IpAddr,
        _: Option<u32>,
    ) -> Option<(Device, u32)> {
        let at = self.addresses.iter().position(|a| a.0 == local)?;
        let there = !self.removed.contains(&client) && self.there[at];
        there.then(|| (self.device(at), self.addresses[at].1))
    }

    fn any_device(&mut self, client: ClientId) -> Option<(Device, IpAddr, u32)> {
        let (ip, ifindex) = self.there().next()?;
        (!self.removed.contains(&client)).then(|| (self.device(0), ip, ifindex))
    }

    fn is_local(&mut self, address: IpAddr, _: Option<u32>) -> bool {
        self.there().any(|a| a.0 == address)
    }

    fn addresses(&mut self, _: ClientId) -> Vec<(IpAddr, u32)> {
        if self.multi_path { self.there().collect() } else { Vec::new() }
    }

    fn apm_by_default(&mut self, _: ClientId) -> bool {
        self.migrates
    }

    fn balance_interval(&mut self, _: ClientId) -> Option<Duration> {
        self.balances
    }

    fn multicast_join(&mut self, _: ClientId, _: u32, _: IpAddr) -> Result<(), i32> {
        Ok(())
    }

    fn multicast_leave(&mut self, _: ClientId, _: u32, _: IpAddr) {}
}

/// A host.
#[derive(Debug)]
pub(super) struct CmHost {
    pub(super) cm: Cm,
    pub(super) env: Env,
    numbers: Numbers,
}

impl CmHost {
    pub(super) fn new(case: &CmCase, host: usize, numbers: Numbers) -> Self {
        let links = 0..case.links.len();
        let ip = |link| (address(link, host, case.v6), FIRST_INTERFACE + link as u32);
        let multi_path = case.multi_path;
        let config = CmConfig { max_connections: case.max_connections, ..CmConfig::default() };
        Self {
            cm: Cm::new(config, numbers.source()),
            env: Env {
                host,
                addresses: links.map(ip).collect(),
                there: vec![true; case.links.len()],
                multi_path,
                migrates: false,
                balances: None,
                removed: BTreeSet::new(),
            },
            numbers,
        }
    }

    /// Starts the host again. Addresses that were gone stay gone.
    pub(super) fn reboot(&mut self, case: &CmCase) {
        let there = core::mem::take(&mut self.env.there);
        *self = Self::new(case, self.env.host, self.numbers.clone());
        self.env.there = there;
    }

    /// Receives a datagram that came to QP1.
    pub(super) fn receive(&mut self, now: Duration, datagram: &Datagram) {
        let flow = &datagram.flow;
        let Some((mad, source_qpn)) = parse(datagram) else { return };
        let ifindex = self.env.addresses.iter().find(|a| a.0 == flow.dst).map_or(0, |a| a.1);
        self.take(now, (flow.dst, flow.src), ifindex, source_qpn, mad);
    }

    /// Receives a MAD that was sent between these addresses.
    pub(super) fn take(
        &mut self,
        now: Duration,
        (local, remote): (IpAddr, IpAddr),
        ifindex: u32,
        source_qpn: u32,
        mad: &[u8],
    ) {
        let from = MadAddress { local, remote, ifindex, source_qpn };
        self.cm.handle_mad(now, from, mad, &mut self.env);
    }
}

/// Makes the datagram of a MAD. Its PSN is the number of the MAD in the run, which identifies it later.
pub(super) fn datagram(out: &OutgoingMad, psn: u32, now: Duration) -> Datagram {
    let flow = Flow::new(out.local, out.remote, SOURCE_PORT);
    let bth = Bth { dest_qpn: QP1, psn: Psn::new(psn), ..Bth::new(Opcode::UD_SEND_ONLY) };
    let deth = Deth { qkey: QP1_QKEY, src_qpn: QP1 };
    let mut bytes = vec![0; 512];
    let at = Headers { deth: Some(deth), ..Headers::new(bth) }.emit(&mut bytes);
    bytes.truncate(at + MAD_LEN);
    bytes[at..].copy_from_slice(&out.mad);
    let icrc = FlowCrc::new(&flow).compute(0, &bytes);
    bytes.extend(icrc);
    Datagram {
        flow,
        id: 0,
        traffic_class: out.traffic_class,
        hop_limit: 64,
        flow_label: 0,
        bytes,
        corrupted: false,
        forged: false,
        sent: now,
    }
}

/// The MAD of a datagram and its source queue pair; `None` if it was damaged.
fn parse(datagram: &Datagram) -> Option<(&[u8], u32)> {
    let id = datagram.id;
    // The identification is known here, unlike at a socket, where every other one is accepted as well:
    // one damaged datagram in 65,536 would pass.
    FlowCrc::new(&datagram.flow).verify(&datagram.bytes, id).filter(|found| *found == id)?;
    let packet = Packet::parse(&datagram.bytes).ok()?;
    let deth = packet.headers.deth?;
    (packet.headers.bth.dest_qpn == QP1).then_some((packet.payload, deth.src_qpn))
}

/// The message of a datagram, if it is undamaged.
pub(super) fn message(datagram: &Datagram) -> Option<CmMad> {
    parse(datagram).and_then(|(mad, _)| CmMad::parse(mad).ok())
}

/// The number of the MAD in the run, if the datagram is undamaged.
pub(super) fn number(datagram: &Datagram) -> Option<u32> {
    parse(datagram)?;
    Packet::parse(&datagram.bytes).ok().map(|p| p.headers.bth.psn.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_mad_passes_by_no_other_identification() {
        let out = OutgoingMad {
            local: address(0, 0, false),
            remote: address(0, 1, false),
            ifindex: FIRST_INTERFACE,
            traffic_class: 0,
            attempt: 0,
            client: None,
            qp_num: 0,
            mad: [7; MAD_LEN],
        };
        let mut sent = datagram(&out, 5, Duration::ZERO);
        assert_eq!((number(&sent), parse(&sent)), (Some(5), Some((&[7; MAD_LEN][..], QP1))));
        // The same bytes with the ICRC that they would have with another identification.
        let at = sent.bytes.len() - 4;
        let icrc = FlowCrc::new(&sent.flow).compute(1, &sent.bytes[..at]);
        sent.bytes[at..].copy_from_slice(&icrc);
        assert_eq!((number(&sent), parse(&sent)), (None, None));
    }
}
