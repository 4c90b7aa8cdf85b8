//! By which way a host is reached: when its connection manager is tried by TCP, beside UDP.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The most hosts that are remembered. The one that was of use the longest time ago is forgotten.
const HOSTS_MAX: usize = 1024;

/// UDP is taken to pass while something came by it in so much time.
const LATELY: Duration = Duration::from_secs(10);

/// How often a message to a host was sent again, without an answer, when TCP is tried: to one that nothing
/// comes from by UDP, and to one that answers other messages. The second may lose some, or have a slow
/// program.
const TRIES_SILENT: u8 = 1;
const TRIES_HEARD: u8 = 3;

/// How long TCP is left alone after a connection was refused.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of a host.
#[derive(Debug, Default)]
struct Way {
    /// When something came by UDP.
    udp: Option<Duration>,
    /// When something came by TCP, and the port.
    tcp: Option<(Duration, u16)>,
    /// When a connection was not made.
    failed: Option<Duration>,
    /// When it was of use.
    used: Duration,
}

impl Way {
    fn is_silent(&self) -> bool {
        self.tcp.is_some_and(|(tcp, _)| self.udp.is_none_or(|udp| udp + LATELY < tcp))
    }
}

/// All hosts that TCP was of interest for.
#[derive(Debug, Default)]
pub(crate) struct Ways(BTreeMap<IpAddr, Way>);

impl Ways {
    fn of(&mut self, now: Duration, host: IpAddr) -> &mut Way {
        if self.0.len() >= HOSTS_MAX && !self.0.contains_key(&host) {
            let oldest = self.0.iter().min_by_key(|(_, way)| way.used).map(|(host, _)| *host);
            oldest.map(|oldest| self.0.remove(&oldest));
        }
        let way = self.0.entry(host).or_default();
        way.used = now;
        way
    }

    /// A message came by UDP. Only hosts are noted that this host wanted something from.
    pub(crate) fn heard_by_udp(&mut self, now: Duration, host: IpAddr) {
        if let Some(way) = self.0.get_mut(&host) {
            way.udp = Some(now);
        }
    }

    /// A message came by TCP. Returns whether the host is known to be silent by UDP only now.
    pub(crate) fn heard_by_tcp(&mut self, now: Duration, host: IpAddr, port: u16) -> bool {
        let way = self.of(now, host);
        let before = way.is_silent();
        way.tcp = Some((now, port));
        !before && way.is_silent()
    }

    /// A connection was not made.
    pub(crate) fn failed(&mut self, now: Duration, host: IpAddr) {
        self.of(now, host).failed = Some(now);
    }

    /// Whether a host speaks by TCP and not by UDP.
    pub(crate) fn is_silent(&self, host: IpAddr) -> bool {
        self.0.get(&host).is_some_and(Way::is_silent)
    }

    /// The port by which a host that is silent by UDP was reached.
    pub(crate) fn port(&self, host: IpAddr) -> Option<u16> {
        let way = self.0.get(&host).filter(|way| way.is_silent())?;
        way.tcp.map(|(_, port)| port)
    }

    /// Whether to try TCP for a message that was sent `attempt` times before. `prohibited`: this host's
    /// kernel refuses to send it by UDP.
    pub(crate) fn wants_tcp(
        &mut self,
        now: Duration,
        host: IpAddr,
        attempt: u8,
        prohibited: bool,
    ) -> bool {
        let way = self.of(now, host);
        if way.failed.is_some_and(|failed| now < failed + PAUSE) {
            return false;
        }
        let heard = way.udp.is_some_and(|udp| now <= udp + LATELY);
        let tries = if heard { TRIES_HEARD } else { TRIES_SILENT };
        prohibited || attempt >= tries || way.is_silent()
    }

    /// Whether a message for which there is a stream goes by UDP as well.
    pub(crate) fn wants_udp(&self, host: IpAddr, attempt: u8) -> bool {
        attempt > 0 || !self.is_silent(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 4791;

    fn host(n: u16) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 | u32::from(n)).into()
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn tcp_is_tried_when_a_message_was_sent_again() {
        let mut ways = Ways::default();
        assert!(!ways.wants_tcp(s(1), host(1), 0, false));
        assert!(ways.wants_tcp(s(5), host(1), 1, false));
        assert!(
            ways.wants_tcp(s(5), host(2), 0, true),
            "the kernel said at once that UDP is of no use"
        );
        // Where UDP brings something, a message that stays unanswered has more time.
        ways.heard_by_udp(s(5), host(1));
        assert!(
            !ways.wants_tcp(s(6), host(1), 1, false) && !ways.wants_tcp(s(6), host(1), 2, false)
        );
        assert!(ways.wants_tcp(s(6), host(1), 3, false));
        assert!(ways.wants_tcp(s(16), host(1), 1, false));
    }

    #[test]
    fn a_host_that_answers_by_tcp_alone_is_remembered_until_udp_brings_something() {
        let mut ways = Ways::default();
        assert!(ways.wants_tcp(s(5), host(1), 1, false) && !ways.is_silent(host(1)));
        assert!(ways.wants_udp(host(1), 0));
        assert!(ways.heard_by_tcp(s(6), host(1), PORT), "news");
        assert!(!ways.heard_by_tcp(s(7), host(1), PORT), "none any more");
        assert!(ways.wants_tcp(s(600), host(1), 0, false) && !ways.wants_udp(host(1), 0));
        assert!(ways.wants_udp(host(1), 1), "a stream may be dead");
        assert_eq!((ways.port(host(1)), ways.port(host(2))), (Some(PORT), None));
        ways.heard_by_udp(s(601), host(1));
        assert!(!ways.wants_tcp(s(601), host(1), 0, false) && ways.wants_udp(host(1), 0));
        assert_eq!(ways.port(host(1)), None);
        // Both bring something: TCP alone is not relied on.
        assert!(!ways.heard_by_tcp(s(602), host(1), PORT) && ways.wants_udp(host(1), 0));
        assert!(ways.heard_by_tcp(s(620), host(1), PORT));
    }

    #[test]
    fn a_port_that_refuses_is_left_alone_for_a_moment() {
        let mut ways = Ways::default();
        assert!(ways.wants_tcp(s(5), host(1), 1, false));
        ways.failed(s(5), host(1));
        assert!(!ways.wants_tcp(s(5), host(1), 9, true));
        assert!(ways.wants_tcp(s(6), host(1), 2, false));
    }

    #[test]
    fn strangers_are_not_remembered_and_many_hosts_are_bounded() {
        let mut ways = Ways::default();
        ways.heard_by_udp(s(1), host(1));
        assert_eq!(ways.0.len(), 0);
        for n in 0..2000 {
            ways.wants_tcp(s(n.into()), host(n), 0, false);
        }
        assert_eq!(ways.0.len(), HOSTS_MAX);
        assert!(!ways.0.contains_key(&host(0)) && ways.0.contains_key(&host(1999)));
    }
}
