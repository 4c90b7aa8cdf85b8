//! Two hosts, each with one link, and between them two routers with several equal-cost ways.
//!
//! The routers choose the way of a packet by a hash of addresses and UDP ports, as a fabric does
//! (`fib_multipath_hash_policy`). A way can fall silent without an event at hosts or routers: each router
//! then sends to a hardware address that nobody has.

use crate::lab::{received, tool};
use crate::ns::{FIRST_INHERITED, Namespace};
use crate::{Error, Host};
use std::fmt::Write as _;

const MTU: u32 = 9000;

/// Two hosts, joined by two routers. Host `h` has the address `10.h.0.(h+1)` on its interface `eth0`. The
/// routers are joined by links of which each is a way.
#[derive(Debug)]
pub struct Fabric {
    hosts: [Host; 2],
    routers: [Namespace; 2],
    ways: usize,
}

impl Fabric {
    /// Builds a fabric of so many ways, 1 to 8.
    ///
    /// # Errors
    /// If the system does not allow namespaces or routing in them, or `ip` fails.
    pub fn new(ways: usize) -> Result<Self, Error> {
        assert!((1..=8).contains(&ways), "1 to 8 ways");
        let first = Namespace::new(None)?;
        let routers = [first.clone(), Namespace::new(Some(&first))?];
        let host = |number| Ok(Host::bare(Namespace::new(Some(&first))?, number));
        let fabric = Self { hosts: [host(0)?, host(1)?], routers, ways };
        fabric.build()?;
        Ok(fabric)
    }

    fn build(&self) -> Result<(), Error> {
        let hosts = [self.hosts[0].namespace(), self.hosts[1].namespace()];
        let inherited = FIRST_INHERITED;
        for (number, router) in self.routers.iter().enumerate() {
            let end = format!("eth0 mtu {MTU} netns /proc/self/fd/{inherited}");
            let wire = format!("link add host mtu {MTU} type veth peer name {end}\n");
            tool(router, &[hosts[number]], "ip", &["-batch", "-"], &wire)?;
        }
        let mut wires = String::new();
        for way in 0..self.ways {
            let [near, far] = [0, 1].map(|router| mac(way, router));
            let peer = format!("way{way} address {far} mtu {MTU} netns /proc/self/fd/{inherited}");
            writeln!(
                wires,
                "link add way{way} address {near} mtu {MTU} type veth peer name {peer}"
            )
            .ok();
        }
        tool(&self.routers[0], &[&self.routers[1]], "ip", &["-batch", "-"], &wires)?;
        for (number, router) in self.routers.iter().enumerate() {
            set_sysctls(router)?;
            let other = 1 - number;
            let mut setup = format!("addr add 10.{number}.0.254/24 dev host\nlink set host up\n");
            let mut route = format!("route add 10.{other}.0.0/24");
            for way in 0..self.ways {
                let (own, next) = (number + 1, other + 1);
                writeln!(setup, "addr add 10.9.{way}.{own}/24 dev way{way}").ok();
                writeln!(setup, "link set way{way} up").ok();
                write!(route, " nexthop via 10.9.{way}.{next} dev way{way} weight 1").ok();
            }
            tool(router, &[], "ip", &["-batch", "-"], &format!("{setup}{route}\n"))?;
            (0..self.ways).try_for_each(|way| self.set_neighbour(number, way, true))?;
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let address = host.ipv4(number);
            let setup = format!(
                "link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n\
                 route add default via 10.{number}.0.254\n"
            );
            host.tool("ip", &["-batch", "-"], &setup)?;
        }
        Ok(())
    }

    /// Tells a router where the other end of a way is: there, or nowhere.
    fn set_neighbour(&self, router: usize, way: usize, there: bool) -> Result<(), Error> {
        let other = 1 - router;
        let lladdr = if there { mac(way, other) } else { mac(way, 9) };
        let next = format!("10.9.{way}.{}", other + 1);
        let command = format!("neigh replace {next} lladdr {lladdr} dev way{way} nud permanent\n");
        tool(&self.routers[router], &[], "ip", &["-batch", "-"], &command)
    }

    /// One of the two hosts.
    ///
    /// # Panics
    /// If `number` is neither 0 nor 1.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> String {
        self.hosts[host].ipv4(host)
    }

    /// Lets what goes by a way vanish, in both directions.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn silence(&self, way: usize) -> Result<(), Error> {
        (0..2).try_for_each(|router| self.set_neighbour(router, way, false))
    }

    /// Lets packets pass by a way again.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn heal(&self, way: usize) -> Result<(), Error> {
        (0..2).try_for_each(|router| self.set_neighbour(router, way, true))
    }

    /// The bytes that each way has carried to host 0 so far.
    ///
    /// # Errors
    /// When the counters can't be read.
    pub fn carried(&self) -> Result<Vec<u64>, Error> {
        let table = self.routers[0].proc_net("dev")?;
        Ok((0..self.ways).map(|way| received(&table, &format!("way{way}"))).collect())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.hosts.iter().for_each(|host| host.namespace().kill_all());
        self.routers.iter().for_each(Namespace::kill_all);
    }
}

/// The hardware address of a router's end of a way.
fn mac(way: usize, router: usize) -> String {
    format!("02:00:00:00:{way:02x}:{:02x}", router + 1)
}

/// Lets a router forward packets, and hash ports as well as addresses.
fn set_sysctls(router: &Namespace) -> Result<(), Error> {
    // Containers often have /proc/sys read-only. In a mount namespace of its own, it can be made writable.
    let set = "cd /proc/sys/net/ipv4 && echo 1 > ip_forward && echo 1 > fib_multipath_hash_policy";
    let script = format!(
        "{{ {set}; }} 2>/dev/null || unshare --mount sh -c \
         '{{ mount -o remount,rw,bind /proc/sys || mount -t proc proc /proc; }} && {set}'"
    );
    tool(router, &[], "sh", &["-c", &script], "")
}
