//! The reasons for dropping packets, each of which is counted.

use polypath_telemetry::BrokerCounters;

/// A reason for dropping a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drop {
    /// It is longer than any management datagram.
    TooLong,
    /// Its source or destination is not an address of a host.
    NotUnicast,
    /// It is not a RoCEv2 packet.
    Malformed,
    /// It was damaged on its way, or sent with a wrong ICRC.
    IcrcWrong,
    /// It is for a queue pair below 0x10000 other than QP1.
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
    /// Counts a drop for this reason.
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
