//! This host's links and addresses, and the faults of paths that follow from them.

use core::net::IpAddr;

use crate::bytes::is_link_local;
use crate::config::{DownRule, LocalAddress};
use crate::lag::{Hashed, Lag, LagMember};
use crate::select::Pair;
use crate::types::Reason;

/// The addresses that the host has told. It knows addresses only, no paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalAddresses {
    list: Vec<LocalAddress>,
    /// The host has told its addresses. Before that, any may be there.
    known: bool,
    /// Pairs of addresses that the administrator took down.
    down: Vec<DownRule>,
    /// Bonds, of the kernel's or not.
    lags: Vec<Lag>,
}

impl LocalAddresses {
    /// Sets all addresses that there are now.
    pub(crate) fn set(&mut self, addresses: &[LocalAddress]) {
        let canonical = |a: &LocalAddress| LocalAddress { ip: a.ip.to_canonical(), ..*a };
        self.list = addresses.iter().map(canonical).collect();
        self.known = true;
    }

    /// Sets the pairs that are down by hand now. Returns whether that is a change.
    pub(crate) fn set_down(&mut self, down: &[DownRule]) -> bool {
        let down: Vec<DownRule> = down.iter().map(DownRule::canonical).collect();
        let changed = down != self.down;
        self.down = down;
        changed
    }

    /// Sets the bonds. Returns whether that is a change.
    pub(crate) fn set_lags(&mut self, lags: &[Lag]) -> bool {
        let changed = lags != self.lags;
        self.lags = lags.to_vec();
        changed
    }

    pub(crate) fn lags(&self) -> &[Lag] {
        &self.lags
    }

    /// The bond that the interface of this index is, or that it stands on.
    pub(crate) fn lag(&self, ifindex: u32) -> Option<&Lag> {
        self.lags.iter().find(|lag| lag.ifindex == ifindex || lag.above.contains(&ifindex))
    }

    /// The addresses as peers are told of them: interfaces above a bond count as that bond, because a path by
    /// one of them is no other way than a path by another one, and a queue pair keeps to its VLAN. So do
    /// the link-local addresses of interfaces that send from another one's.
    pub(crate) fn by_link(&self) -> Vec<LocalAddress> {
        let of_link = |a: &LocalAddress| {
            let shares = |lag: &&Lag| {
                let is_port = lag.members.iter().any(|member| member.ifindex == a.ifindex);
                lag.hashed == Hashed::Bound && is_port && is_link_local(a.ip)
            };
            let lag = self.lag(a.ifindex).or_else(|| self.lags.iter().find(shares));
            let ifindex = lag.map_or(a.ifindex, |lag| lag.ifindex);
            LocalAddress { ifindex, ..*a }
        };
        self.list.iter().map(of_link).collect()
    }

    /// The bond, and its port by which the n-th path between two addresses is to leave
    /// ([`Path::turn`](crate::path::Path::turn)).
    pub(crate) fn wanted_member(&self, (pair, n): (Pair, u8)) -> Option<(&Lag, LagMember)> {
        let lag = self.lag(self.ifindex_of(pair.0))?;
        Some((lag, lag.member_of(pair, n)?))
    }

    pub(crate) fn list(&self) -> &[LocalAddress] {
        &self.list
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.list.iter().any(|a| a.ip == ip)
    }

    /// What is wrong with a local address, if anything.
    fn address_fault(&self, ip: IpAddr) -> Option<Reason> {
        let mut fault = self.known.then_some(Reason::AddressRemoved);
        for a in self.list.iter().filter(|a| a.ip == ip) {
            if a.usable && a.link_up {
                return None;
            }
            fault = Some(if a.usable { Reason::LinkDown } else { Reason::AdminDown });
        }
        fault
    }

    /// What is wrong with a path between two addresses, as far as this host knows.
    pub(crate) fn fault(&self, local: IpAddr, remote: IpAddr) -> Option<Reason> {
        let down = || self.is_down(local, remote).then_some(Reason::AdminDown);
        self.address_fault(local).or_else(down)
    }

    /// Whether paths between two addresses were taken down by hand.
    pub(crate) fn is_down(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.down.iter().any(|rule| rule.covers(local, remote))
    }

    /// The interface that has an address; 0 if none has it.
    pub(crate) fn ifindex_of(&self, ip: IpAddr) -> u32 {
        let fit = |a: &&LocalAddress| a.ip == ip;
        let found = self.list.iter().filter(fit).max_by_key(|a| a.usable && a.link_up);
        found.map_or(0, |a| a.ifindex)
    }

    /// The speed of the interface that has an address, Mbit/s; 0 if unknown.
    pub(crate) fn speed_mbps(&self, ip: IpAddr) -> u32 {
        self.list.iter().filter(|a| a.ip == ip).map(|a| a.speed_mbps).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, ifindex: u32, usable: bool, link_up: bool) -> LocalAddress {
        let ip = ip.parse().unwrap();
        LocalAddress { ip, prefix_len: 24, ifindex, link_up, usable, speed_mbps: ifindex * 1000 }
    }

    #[test]
    fn only_the_link_local_address_of_a_port_that_shares_is_no_way_of_its_own() {
        let mut local = LocalAddresses::default();
        let all = [("10.0.1.1", 2), ("fe80::3", 3), ("fd00::3", 3), ("fe80::4", 4)];
        local.set(&all.map(|(ip, ifindex)| address(ip, ifindex, true, true)));
        let links = |local: &LocalAddresses| -> Vec<u32> {
            local.by_link().iter().map(|a| a.ifindex).collect()
        };
        let members =
            vec![LagMember { ifindex: 2, usable: true }, LagMember { ifindex: 3, usable: true }];
        let lag = |hashed| Lag { ifindex: 2, above: vec![], hashed, members: members.clone() };
        local.set_lags(&[lag(Hashed::Bound)]);
        assert_eq!(links(&local), [2, 2, 3, 4]);
        local.set_lags(&[lag(Hashed::All)]);
        assert_eq!(links(&local), [2, 3, 3, 4], "a slave of the kernel's has none that counts");
    }

    #[test]
    fn the_gravest_that_is_known_of_a_path_is_told() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let (here, there) = (ip("10.0.1.1"), ip("10.0.1.2"));
        let mut local = LocalAddresses::default();
        assert_eq!(local.fault(here, there), None, "nothing is known yet");
        local.set(&[]);
        assert_eq!(local.fault(here, there), Some(Reason::AddressRemoved));
        local.set(&[address("10.0.1.1", 2, true, false)]);
        assert_eq!(local.fault(here, there), Some(Reason::LinkDown));
        local.set(&[address("10.0.1.1", 2, false, true)]);
        assert_eq!(local.fault(here, there), Some(Reason::AdminDown));
        local.set(&[address("10.0.1.1", 2, true, true)]);
        assert_eq!(local.fault(here, there), None);
        let rule = DownRule { local: Some(ip("::ffff:10.0.1.1")), remote: None };
        assert!(local.set_down(&[rule]));
        assert!(!local.set_down(&[rule]), "that is no change");
        assert_eq!(local.fault(here, there), Some(Reason::AdminDown));
        assert!(local.set_down(&[]));
        assert_eq!(local.fault(here, there), None);
    }

    #[test]
    fn an_address_that_two_interfaces_have_is_that_of_the_one_that_works() {
        let mut local = LocalAddresses::default();
        let ip = "10.0.1.1".parse().unwrap();
        local
            .set(&[address("::ffff:10.0.1.1", 2, true, true), address("10.0.1.1", 3, true, false)]);
        assert_eq!((local.ifindex_of(ip), local.fault(ip, ip)), (2, None));
        assert_eq!(local.speed_mbps(ip), 3000);
        local.set(&[]);
        assert_eq!((local.ifindex_of(ip), local.contains(ip)), (0, false));
    }
}
