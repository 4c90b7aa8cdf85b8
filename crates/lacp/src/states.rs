//! The states of the machines, with the standard's names.

use core::fmt;

macro_rules! states {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $state:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $state,)* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$state => $text,)* })
            }
        }
    };
}

states! {
    /// Receive machine (clause 6.4.12).
    ReceiveState {
        /// The link is down.
        PortDisabled = "port disabled",
        /// The partner was not heard in time, or not yet.
        Expired = "expired",
        /// LACP is impossible, because the link is half duplex.
        LacpDisabled = "lacp disabled",
        /// No partner: what is known of it are defaults.
        Defaulted = "defaulted",
        /// The partner was heard in time.
        Current = "current",
    }
}

states! {
    /// Periodic transmission machine (clause 6.4.13).
    PeriodicState {
        /// Silent: the link is down, or both ends are passive.
        NoPeriodic = "none",
        /// Every second.
        Fast = "fast",
        /// Every 30 seconds.
        Slow = "slow",
    }
}

states! {
    /// Mux machine (clause 6.4.15). `CollectingDistributing` belongs to coupled control, the two after it to
    /// independent control.
    MuxState {
        /// Belongs to no aggregator.
        Detached = "detached",
        /// Waits for other ports of its aggregator.
        Waiting = "waiting",
        /// Belongs to its aggregator and waits for the partner.
        Attached = "attached",
        /// Receives and sends.
        CollectingDistributing = "collecting distributing",
        /// Receives, and waits until the partner does.
        Collecting = "collecting",
        /// Receives and sends.
        Distributing = "distributing",
    }
}

states! {
    /// Actor or Partner Churn Detection machine (clause 6.4.17).
    ChurnState {
        /// Not in sync, but not for long.
        Monitor = "monitor",
        /// In sync.
        None = "none",
        /// Not in sync for a minute: the two ends do not agree.
        Churned = "churned",
    }
}

states! {
    /// The variable `Selected` (clause 6.4.8).
    Selected {
        /// Belongs to no aggregator.
        Unselected = "unselected",
        /// Belongs to an aggregator that is not the active one.
        Standby = "standby",
        /// Belongs to the active aggregator.
        Selected = "selected",
    }
}
