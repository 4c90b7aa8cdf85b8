//! Why packets are dropped, each reason counted.

use polypath_telemetry::BrokerCounters;

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
    /// Its opcode is not that of a UD SEND-Only.
    WrongService,
    /// Its Q_Key is not that of QP1.
    QkeyWrong,
    /// Its P_Key is not that of the default partition.
    PkeyWrong,
    /// Its payload is not the 256 bytes of a MAD.
    NotAMad,
}

impl Drop {
    /// Counts it among the others of its reason.
    pub(crate) fn count(self, counters: &mut BrokerCounters) {
        *match self {
            Self::TooLong => &mut counters.qp1_dropped_too_long,
            Self::NotUnicast => &mut counters.qp1_dropped_not_unicast,
            Self::Malformed => &mut counters.qp1_dropped_malformed,
            Self::IcrcWrong => &mut counters.qp1_dropped_icrc_wrong,
            Self::NoSuchQp => &mut counters.qp1_dropped_no_such_qp,
            Self::WrongService => &mut counters.qp1_dropped_wrong_service,
            Self::QkeyWrong => &mut counters.qp1_dropped_qkey_wrong,
            Self::PkeyWrong => &mut counters.qp1_dropped_pkey_wrong,
            Self::NotAMad => &mut counters.qp1_dropped_not_a_mad,
        } += 1;
    }
}
