//! Why packets and connections are dropped, each reason counted.

use polypath_ipc::status::Counter;

/// Packets for slots that nobody has.
pub(crate) const PACKETS_SUNK: &str = "packets_dropped_slot_unowned";
/// Packets lost because the broker's receive buffer was full.
pub(crate) const QP1_OVERFLOWS: &str = "qp1_overflows";

/// Reasons to drop a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drop {
    /// Longer than any management datagram.
    TooLong,
    /// From or to an address that is no host's.
    NotUnicast,
    /// No RoCEv2 packet.
    Malformed,
    /// Corrupt on the way, or sent with a wrong ICRC.
    IcrcWrong,
    /// For a queue pair below 0x10000 that is not QP1.
    NoSuchQp,
    /// Not a UD SEND-Only.
    WrongService,
    /// Not QP1's Q_Key.
    QkeyWrong,
    /// Not the default partition.
    PkeyWrong,
    /// Not 256 bytes of payload.
    NotAMad,
}

impl Drop {
    const ALL: [(Self, &str); 9] = [
        (Self::TooLong, "qp1_dropped_too_long"),
        (Self::NotUnicast, "qp1_dropped_not_unicast"),
        (Self::Malformed, "qp1_dropped_malformed"),
        (Self::IcrcWrong, "qp1_dropped_icrc_wrong"),
        (Self::NoSuchQp, "qp1_dropped_no_such_qp"),
        (Self::WrongService, "qp1_dropped_wrong_service"),
        (Self::QkeyWrong, "qp1_dropped_qkey_wrong"),
        (Self::PkeyWrong, "qp1_dropped_pkey_wrong"),
        (Self::NotAMad, "qp1_dropped_not_a_mad"),
    ];
}

/// Everything that the broker itself counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    drops: [u64; Drop::ALL.len()],
    /// MADs taken in.
    pub(crate) mads_received: u64,
    /// MADs sent.
    pub(crate) mads_sent: u64,
    /// MADs that the kernel did not take: no route, address gone, buffer full.
    pub(crate) mads_send_failed: u64,
    /// Connections that asked for more than the status.
    pub(crate) clients_accepted: u64,
    /// Connections refused: another user's, or too many.
    pub(crate) clients_refused: u64,
    /// Connections closed because of a message that makes no sense.
    pub(crate) clients_nonsense: u64,
    /// Connections closed because they did not take what the broker had for them.
    pub(crate) clients_slow: u64,
    /// Requests answered with an error.
    pub(crate) requests_refused: u64,
    /// Tables pushed.
    pub(crate) tables_pushed: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, drop: Drop) {
        let at = Drop::ALL.iter().position(|(reason, _)| *reason == drop);
        debug_assert!(at.is_some());
        if let Some(counter) = at.and_then(|at| self.drops.get_mut(at)) {
            *counter += 1;
        }
    }

    /// For people to read; reasons that never occurred are there too, so that their names are
    /// known.
    pub(crate) fn list(&self) -> Vec<Counter> {
        let Self {
            drops,
            mads_received,
            mads_sent,
            mads_send_failed,
            clients_accepted,
            clients_refused,
            clients_nonsense,
            clients_slow,
            requests_refused,
            tables_pushed,
        } = self;
        let own = [
            ("qp1_mads_received", mads_received),
            ("qp1_mads_sent", mads_sent),
            ("qp1_mads_send_failed", mads_send_failed),
            ("clients_accepted", clients_accepted),
            ("clients_refused", clients_refused),
            ("clients_nonsense", clients_nonsense),
            ("clients_slow", clients_slow),
            ("requests_refused", requests_refused),
            ("tables_pushed", tables_pushed),
        ];
        let drops = Drop::ALL.iter().map(|(_, name)| *name).zip(drops);
        own.into_iter().chain(drops).map(|(name, value)| counter(name, *value)).collect()
    }
}

/// What the connection manager counts.
pub(crate) fn cm_counters(cm: &polypath_cm::Counters) -> Vec<Counter> {
    vec![
        counter("cm_mads_received", cm.mads_received),
        counter("cm_mads_sent", cm.mads_sent),
        counter("cm_mads_not_sent", cm.mads_not_sent),
        counter("cm_mads_malformed", cm.mads_malformed),
        counter("cm_mads_unmatched", cm.mads_unmatched),
        counter("cm_mads_duplicate", cm.mads_duplicate),
        counter("cm_mads_retried", cm.mads_retried),
        counter("cm_requests_unserved", cm.requests_unserved),
        counter("cm_requests_stale", cm.requests_stale),
        counter("cm_requests_dropped", cm.requests_dropped),
        counter("cm_events_dropped", cm.events_dropped),
    ]
}

pub(crate) fn counter(name: &str, value: u64) -> Counter {
    Counter { name: name.to_owned(), value }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_counters_are_those_that_the_documentation_explains() {
        const PAGE: &str = include_str!("../../../docs/counters.md");
        let (_, rest) = PAGE.split_once("\n## Broker\n").unwrap();
        let (section, _) = rest.split_once("\n## ").unwrap();
        let lines = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let explained: BTreeSet<&str> = lines.collect();
        let mut list = Counters::default().list();
        list.extend(cm_counters(&polypath_cm::Counters::default()));
        let mut counted: BTreeSet<&str> = list.iter().map(|c| c.name.as_str()).collect();
        counted.extend([PACKETS_SUNK, QP1_OVERFLOWS]);
        assert_eq!(counted, explained, "in the code, in docs/counters.md");
    }

    #[test]
    fn every_reason_is_counted_under_its_own_name() {
        let mut counters = Counters::default();
        for (at, (drop, _)) in Drop::ALL.into_iter().enumerate() {
            (0..=at).for_each(|_| counters.count(drop));
        }
        let list = counters.list();
        for (at, (_, name)) in Drop::ALL.into_iter().enumerate() {
            let found: Vec<u64> = list.iter().filter(|c| c.name == name).map(|c| c.value).collect();
            assert_eq!(found, [at as u64 + 1]);
        }
    }
}
