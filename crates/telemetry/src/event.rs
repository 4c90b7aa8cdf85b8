//! Events, each declared once. They are kept and sent as values, and become text only when somebody
//! reads them.

use core::fmt;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::words::{
    Errno, Field, InterfaceName, Micros, MigrationCause, PathName, Qpn, Reason, Value, Words,
};

/// The importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// It happens although all is well.
    Note,
    /// An administrator may want to do something about it.
    Warning,
    /// Something does not work, or stopped working.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// The description of a kind of event, without its fields' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// Its name: words with underscores, such as `path_given_up`.
    pub name: &'static str,
    /// Its level.
    pub level: Level,
    /// When it happens: sentences that begin with a capital letter and end with a full stop.
    pub help: &'static str,
    /// The names of its fields.
    pub fields: &'static [&'static str],
}

/// Declares events: an enumeration, and for each event its name for programs and its text for people.
macro_rules! events {
    (
        $(#[doc = $about:literal])+
        pub enum $enum:ident {
            $(
                $(#[doc = $help:literal])+
                #[event($name:literal, $level:ident, $words:literal)]
                $variant:ident { $($(#[doc = $what:literal])+ $field:ident: $type:ty,)* },
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $enum {
            $($(#[doc = $help])+ $variant { $($(#[doc = $what])+ $field: $type,)* },)+
        }

        impl $enum {
            /// All kinds, in the order of their declaration.
            pub const KINDS: &'static [EventKind] = &[$(EventKind {
                name: $name,
                level: Level::$level,
                help: crate::counter::trimmed(concat!($($help),+)),
                fields: &[$(stringify!($field)),*],
            },)+];

            /// The description of its kind.
            pub fn kind(&self) -> &'static EventKind {
                const NAMES: &[&str] = &[$($name),+];
                let name = match self {
                    $(Self::$variant { .. } => $name,)+
                };
                let at = NAMES.iter().position(|other| *other == name).unwrap_or(0);
                &Self::KINDS[at]
            }

            /// Cuts each of its texts to at most `max` bytes.
            pub fn cut(&mut self, max: usize) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        $(Field::cut($field, max);)*
                    })+
                }
            }

            /// The names and values of its fields.
            pub fn fields(&self) -> Vec<(&'static str, Value)> {
                match self {
                    $(Self::$variant { $($field),* } => {
                        vec![$((stringify!($field), Field::value($field))),*]
                    })+
                }
            }
        }

        impl fmt::Display for $enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant { $($field),* } => {
                        $(let $field = Words($field);)*
                        $(let _ = &$field;)*
                        write!(f, $words)
                    })+
                }
            }
        }
    };
}

events! {
    /// Something that happened in a process, or that the broker saw.
    pub enum Event {
        /// A path answers, for the first time or again, and may be used.
        #[event("path_up", Note, "path {path} can be used")]
        PathUp {
            /// The path.
            path: PathName,
        },
        /// A path is not used any more, whether it carried traffic or not.
        #[event("path_given_up", Warning, "path {path} is given up: {reason}")]
        PathGivenUp {
            /// The path.
            path: PathName,
            /// The reason.
            reason: Reason,
        },
        /// A path that was silent answers by another UDP source port, and so perhaps by another way through
        /// the network.
        #[event(
            "path_repathed",
            Note,
            "path {path} answers by source port {to}; by {from} it was silent"
        )]
        PathRepathed {
            /// The path.
            path: PathName,
            /// The source port by which it fell silent.
            from: u16,
            /// The source port by which it answers.
            to: u16,
        },
        /// The traffic to a peer moves to another path.
        #[event("failover", Warning, "traffic to {peer} moves from {from} to {to}: {reason}")]
        FailOver {
            /// The peer's address.
            peer: IpAddr,
            /// The path left; none if no path lived before.
            from: Option<PathName>,
            /// The path taken.
            to: PathName,
            /// The reason.
            reason: Reason,
        },
        /// The first acknowledgement came on the path that the traffic moved to, or on any other one that
        /// carries it.
        #[event("traffic_resumed", Note, "traffic to {peer} flows again after {blackout_us} ({reason})")]
        TrafficResumed {
            /// The peer's address.
            peer: IpAddr,
            /// The time from the last acknowledgement on the old path to the first on the new one, in
            /// microseconds.
            blackout_us: Micros,
            /// The reason why the traffic had moved.
            reason: Reason,
        },
        /// No path to a peer lives. Its queue pairs wait for one, for as long as the hold time.
        #[event("no_path", Error, "no path to {peer} lives; its queue pairs are held")]
        NoPath {
            /// The peer's address.
            peer: IpAddr,
        },
        /// The connection manager of a peer answers by TCP, and not by UDP.
        #[event(
            "connects_by_tcp",
            Note,
            "messages of the connection manager pass between {local} and {peer} by TCP, not by UDP"
        )]
        ConnectsByTcp {
            /// This host's address.
            local: IpAddr,
            /// The peer's address.
            peer: IpAddr,
        },
        /// No path came back within the hold time; queue pairs run into their retry limits.
        #[event("peer_lost", Error, "no path to {peer} came back within the hold time")]
        PeerLost {
            /// The peer's address.
            peer: IpAddr,
        },
        /// One queue pair uses another path than the other queue pairs of its peer.
        #[event(
            "detour",
            Error,
            "queue pair {qpn} goes by {to} instead of {from}, which carries other packets but not its own: \
             does that path take packets of the path MTU?"
        )]
        Detour {
            /// The queue pair.
            qpn: Qpn,
            /// The path left.
            from: PathName,
            /// The path taken.
            to: PathName,
        },
        /// A queue pair has changed to its alternate path (automatic path migration).
        #[event("migrated", Warning, "queue pair {qpn} migrates from {from} to {to}: {cause}")]
        Migrated {
            /// The queue pair.
            qpn: Qpn,
            /// The path left.
            from: Option<PathName>,
            /// The path taken.
            to: Option<PathName>,
            /// The reason.
            cause: MigrationCause,
        },
        /// A queue pair has changed to its alternate path, which is another UDP source port of the same
        /// addresses.
        #[event(
            "migrated_to_port",
            Warning,
            "queue pair {qpn} migrates from source port {from} to {to} of {path}: {cause}"
        )]
        MigratedToPort {
            /// The queue pair.
            qpn: Qpn,
            /// The addresses and the interface of both.
            path: PathName,
            /// The source port left.
            from: u16,
            /// The source port taken.
            to: u16,
            /// The reason.
            cause: MigrationCause,
        },
        /// Both ends of a connection have an alternate path loaded: either may migrate.
        #[event("migration_armed", Note, "queue pair {qpn} can migrate to {alternate}")]
        MigrationArmed {
            /// The queue pair.
            qpn: Qpn,
            /// Its alternate path.
            alternate: Option<PathName>,
        },
        /// The alternate path of a queue pair cannot be used any more.
        #[event("alternate_lost", Warning, "queue pair {qpn} has lost its alternate path {alternate}")]
        AlternateLost {
            /// The queue pair.
            qpn: Qpn,
            /// Its alternate path.
            alternate: Option<PathName>,
        },
        /// The connection manager had an alternate path for a queue pair, which cannot be loaded.
        #[event("alternate_refused", Warning, "queue pair {qpn} gets no alternate path: {text}")]
        AlternateRefused {
            /// The queue pair.
            qpn: Qpn,
            /// The reason, as text.
            text: String,
        },
        /// A queue pair ran out of retries, and its alternate path does not lead to the peer either.
        #[event(
            "migration_failed",
            Error,
            "queue pair {qpn} cannot migrate: its alternate path {alternate} leads nowhere either"
        )]
        MigrationFailed {
            /// The queue pair.
            qpn: Qpn,
            /// Its alternate path.
            alternate: Option<PathName>,
        },
        /// A queue pair failed, or dropped something.
        #[event("queue_pair_error", Error, "{text}")]
        QueuePairError {
            /// The queue pair.
            qpn: Qpn,
            /// What happened and what to do about it, as text.
            text: String,
        },
        /// A queue pair ends, because a completion found its queue full.
        #[event(
            "completion_queue_overrun",
            Error,
            "queue pair {qpn} ends: its completion queue overran; make it larger or poll more often"
        )]
        CompletionQueueOverrun {
            /// The queue pair.
            qpn: Qpn,
        },
        /// The kernel refuses packets of a path. Reported again after half a minute at the earliest.
        #[event("send_refused", Error, "packets of path {path} cannot be sent: {errno}")]
        SendRefused {
            /// The path on which they should have left.
            path: PathName,
            /// The reason.
            errno: Errno,
        },
        /// No socket could be opened for a path. Opening it is tried again.
        #[event("no_socket", Error, "cannot send by path {path}: {errno}")]
        NoSocket {
            /// The path.
            path: PathName,
            /// The reason.
            errno: Errno,
        },
        /// Packets no longer fit the MTU of their interface.
        #[event(
            "fragmented",
            Error,
            "packets of path {path}, of {bytes} bytes and headers, no longer fit the MTU of their interface: \
             they are sent in fragments, which is slower and which, over IPv4, only Polypath accepts; \
             raise the MTU, or connect anew"
        )]
        Fragmented {
            /// The path on which they leave.
            path: PathName,
            /// The UDP payload of one of them, in bytes.
            bytes: u64,
        },
        /// The kernel returns errors instead of packets.
        #[event("receive_failed", Error, "packets cannot be received: {errno}")]
        ReceiveFailed {
            /// The reason.
            errno: Errno,
        },
        /// The process could not report all its events. This many are missing here.
        #[event("events_lost", Warning, "{count} events are missing: too many at once")]
        EventsLost {
            /// The number of missing events.
            count: u64,
        },
        /// A program opened its first device.
        #[event("process_came", Note, "{program} uses Polypath")]
        ProcessCame {
            /// Its name.
            program: String,
        },
        /// A program ended, or closed its connection to the broker.
        #[event("process_gone", Note, "{program} is gone")]
        ProcessGone {
            /// Its name.
            program: String,
        },
        /// An interface appeared in the network namespace.
        #[event("interface_added", Note, "interface {interface} is there")]
        InterfaceAdded {
            /// Its name.
            interface: InterfaceName,
        },
        /// An interface disappeared.
        #[event("interface_removed", Warning, "interface {interface} is gone")]
        InterfaceRemoved {
            /// Its name.
            interface: InterfaceName,
        },
        /// A link has its carrier, and was not taken down.
        #[event("link_up", Note, "link {interface} is up")]
        LinkUp {
            /// The interface.
            interface: InterfaceName,
        },
        /// A link lost its carrier, or was taken down.
        #[event("link_down", Warning, "link {interface} is down")]
        LinkDown {
            /// The interface.
            interface: InterfaceName,
        },
        /// An interface has another address.
        #[event("address_added", Note, "interface {interface} has address {address}")]
        AddressAdded {
            /// The interface.
            interface: InterfaceName,
            /// The address.
            address: IpAddr,
        },
        /// An address was removed from an interface that is still there.
        #[event("address_removed", Warning, "interface {interface} no longer has address {address}")]
        AddressRemoved {
            /// The interface.
            interface: InterfaceName,
            /// The address.
            address: IpAddr,
        },
        /// Paths were taken out of service by `polypath path down`.
        #[event("paths_taken_down", Note, "paths {selector} are taken down by hand")]
        PathsTakenDown {
            /// The selector that was given to the command.
            selector: String,
        },
        /// A command or a configuration file has changed how mp devices use their paths.
        #[event("rule_changed", Note, "{scope}: {settings}")]
        RuleChanged {
            /// The processes, peers or queue pairs that it is about.
            scope: String,
            /// The settings, or `default` if there are none any more.
            settings: String,
        },
        /// Paths were returned to service by `polypath path up`.
        #[event("paths_taken_up", Note, "paths {selector} are taken up by hand")]
        PathsTakenUp {
            /// The selector that was given to the command.
            selector: String,
        },
    }
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occurrence {
    /// The time in microseconds since 1970 UTC.
    pub at_unix_us: u64,
    /// The event.
    pub event: Event,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(n: u8) -> PathName {
        PathName {
            local: [10, 0, n, 1].into(),
            remote: [10, 0, n, 2].into(),
            interface: InterfaceName::new("eth0"),
        }
    }

    #[test]
    fn an_event_tells_people_in_words_and_programs_by_fields() {
        let event = Event::FailOver {
            peer: [10, 0, 0, 2].into(),
            from: None,
            to: path(1),
            reason: Reason::LinkDown,
        };
        assert_eq!(
            event.to_string(),
            "traffic to 10.0.0.2 moves from no path to 10.0.1.1>10.0.1.2@eth0: local link down"
        );
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(
            event.fields(),
            [
                ("peer", text("10.0.0.2")),
                ("from", Value::Nothing),
                ("to", text("10.0.1.1>10.0.1.2@eth0")),
                ("reason", text("link_down"))
            ]
        );
        assert_eq!((event.kind().name, event.kind().level), ("failover", Level::Warning));
        let fields: Vec<&str> = event.fields().into_iter().map(|(name, _)| name).collect();
        assert_eq!(fields, event.kind().fields);
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        let mut names: Vec<&str> = Event::KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Event::KINDS.len());
    }

    #[test]
    fn a_span_of_time_is_told_in_milliseconds() {
        assert_eq!(Micros(1_234_005).to_string(), "1234.005 ms");
    }
}
