//! Two hosts on the same links, whose connections migrate.

use core::net::IpAddr;
use core::time::Duration;

use polypath_cm::{AlternatePath, PathOrder};

use super::pairs::{any, establish, server};
use super::{Client, PS_TCP, World};

/// The address of a host on one of its links; link 0 is that of [`v4`].
pub fn on(link: u8, host: usize) -> IpAddr {
    IpAddr::from([10, 77, link, host as u8 + 1])
}

pub fn addresses(host: usize, links: &[u8]) -> Vec<(IpAddr, u32)> {
    links.iter().map(|link| (on(*link, host), u32::from(*link) + 2)).collect()
}

/// Two hosts on the same links, whose connections migrate if they are told so.
pub struct Two {
    pub w: World,
    pub a: Client,
    pub b: Client,
}

impl Two {
    pub fn new(links: &[u8], migrates: [bool; 2]) -> Self {
        let mut w = World::new(2);
        for (host, migrates) in migrates.into_iter().enumerate() {
            let env = &mut w.hosts[host].env;
            env.addresses = addresses(host, links);
            (env.multi_path, env.migrates) = (true, migrates);
        }
        let (a, b) = (w.open(0, 1), w.open(1, 1));
        w.listener(b, 0x100, PS_TCP, any());
        Self { w, a, b }
    }

    pub fn connected(links: &[u8]) -> Self {
        let mut two = Self::new(links, [true; 2]);
        two.establish();
        two
    }

    pub fn establish(&mut self) -> (u32, u32) {
        establish(&mut self.w, self.a, self.b, server())
    }

    /// The queue pairs of the first connection.
    pub fn qps(&self) -> [u32; 2] {
        let qp = |host: usize| {
            self.w.hosts[host].cm.describe().iter().map(|id| id.qp_num).max().unwrap()
        };
        [qp(0), qp(1)]
    }

    /// The pairs that both ends' queue pairs have loaded, as the active end sees them; none if
    /// they differ.
    pub fn alternate(&self) -> Option<(IpAddr, IpAddr)> {
        let of = |host: usize| {
            let ids = self.w.hosts[host].cm.describe();
            ids.iter().find_map(|id| id.migration)?.alternate
        };
        let (a, b) = (of(0)?, of(1)?);
        assert_eq!(a, (b.1, b.0), "both ends agree");
        Some(a)
    }

    /// Drops the orders so far.
    pub fn take_orders(&mut self) {
        for host in [0, 1] {
            self.w.orders(host);
        }
    }

    pub fn settle(&mut self) {
        self.w.run_for(Duration::from_secs(2));
    }
}

pub fn loads(orders: &[PathOrder]) -> Vec<AlternatePath> {
    let load = |order: &PathOrder| match order {
        PathOrder::LoadAlternate { alternate, .. } => Some(*alternate),
        PathOrder::Migrate { .. } | PathOrder::Leave { .. } => None,
    };
    orders.iter().filter_map(load).collect()
}

pub fn follows(orders: &[PathOrder]) -> Vec<(IpAddr, IpAddr)> {
    let to = |order: &PathOrder| match order {
        PathOrder::Migrate { to, .. } => Some(*to),
        PathOrder::LoadAlternate { .. } | PathOrder::Leave { .. } => None,
    };
    orders.iter().filter_map(to).collect()
}
