//! Members of a bond that share an IPv4 address.
//!
//! Linux bonding gives the address to the bond, and its members have none. Without the kernel's bond, one
//! member has it, and the others send from it, too: a socket that is bound to an interface sends by that
//! one, from any address of the host, and Linux takes what arrives for an address by any interface. So
//! nothing but the hardware address has to be shared, where a switch is to take the members for one link.

use std::net::IpAddr;

use crate::device::PortSpec;
use crate::interface::Port;
use crate::table::Table;

impl PortSpec {
    /// The interfaces that send from the same IPv4 addresses, the one that has them first: those that have
    /// no others. Interfaces without any send from the addresses of the first that has some. There are at
    /// least two in each share. There is none unless
    /// [`Aggregation::shares`](crate::Aggregation::shares).
    #[must_use]
    pub fn shares<'a>(&self, table: &'a Table) -> Vec<Vec<&'a Port>> {
        if !self.aggregation.shares {
            return Vec::new();
        }
        let mut shares: Vec<Vec<&Port>> = Vec::new();
        let mut without = Vec::new();
        for port in self.interfaces(table).filter(|port| !port.loopback) {
            let own = || ipv4(port);
            let has_all = |head: &Port| own().all(|ip| ipv4(head).any(|other| other == ip));
            let fits = |share: &&mut Vec<&Port>| share.first().is_some_and(|head| has_all(head));
            if own().next().is_none() {
                without.push(port);
            } else if let Some(share) = shares.iter_mut().find(fits) {
                share.push(port);
            } else {
                shares.push(vec![port]);
            }
        }
        if let Some(first) = shares.first_mut() {
            first.append(&mut without);
        }
        shares.retain(|share| share.len() > 1);
        shares
    }
}

fn ipv4(port: &Port) -> impl Iterator<Item = IpAddr> {
    port.addresses.iter().map(|address| address.ip).filter(IpAddr::is_ipv4)
}

#[cfg(test)]
mod tests {
    use crate::gids::tests::port;
    use crate::selection::{Selection, devices};
    use crate::table::Table;

    fn shares(choice: &str, ips: [&[&str]; 3]) -> Vec<Vec<u32>> {
        let names = ["eth0", "eth1", "eth2"];
        let ports =
            (2..).zip(names).zip(ips).map(|((ifindex, name), ips)| port(ifindex, name, ips));
        let table = Table { ports: ports.collect(), ..Table::default() };
        let selection = Selection::parse(choice).unwrap();
        let ports = devices(&table, &selection).into_iter().flat_map(|device| device.ports);
        let shares: Vec<Vec<u32>> = ports
            .flat_map(|port| port.shares(&table))
            .map(|share| share.into_iter().map(|port| port.ifindex).collect())
            .collect();
        let most = shares.iter().map(Vec::len).max();
        let ports = selection.settings_below(&table).ports;
        assert_eq!(ports.map(usize::from), most, "a source port for each");
        shares
    }

    #[test]
    fn members_without_an_address_of_their_own_send_from_anothers() {
        let (a, b): (&[&str], &[&str]) = (&["10.0.0.1"], &["10.0.1.1"]);
        let xor = "bond:eth0+eth1+eth2,mode=balance-xor";
        assert_eq!(shares(xor, [a, &[], &[]]), [[2, 3, 4]]);
        assert_eq!(shares(xor, [&[], a, &["fd00::1"]]), [[3, 2, 4]], "IPv6 does not count");
        assert_eq!(shares(xor, [a, a, b]), [[2, 3]], "the same address");
        assert_eq!(shares(xor, [a, b, &[]]), [[2, 4]], "the first one's");
        assert_eq!(shares(xor, [a, &["10.0.0.1", "10.0.1.1"], a]), [[2, 4]]);
        assert!(shares(xor, [&[], &[], &[]]).is_empty());
        assert_eq!(shares("bond:eth0+eth1+eth2,mode=4", [a, &[], &[]]), [[2, 3, 4]]);
        assert_eq!(shares("bond:eth0+eth1+eth2", [a, &[], &[]]), [[2, 3, 4]], "balance-rr");
    }

    #[test]
    fn where_one_member_carries_none_shares() {
        let a: &[&str] = &["10.0.0.1"];
        for mode in ["active-backup", "broadcast"] {
            assert!(shares(&format!("bond:eth0+eth1+eth2,mode={mode}"), [a, &[], a]).is_empty());
        }
        assert!(shares("mp:eth0+eth1+eth2", [a, &[], &[]]).is_empty());
    }
}
