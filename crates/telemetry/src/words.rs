//! The types of events' fields: plain values that give their words when asked.

use core::fmt;
use core::net::IpAddr;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// The longest name of an interface in bytes: `IFNAMSIZ` of Linux, without the final zero.
const INTERFACE_NAME_MAX: usize = 15;

/// The name of an interface. It is kept in the event because the interface may be gone when somebody
/// reads it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InterfaceName {
    len: u8,
    bytes: [u8; INTERFACE_NAME_MAX],
}

impl InterfaceName {
    /// Creates the name, cut to 15 bytes.
    pub fn new(name: &str) -> Self {
        let end =
            (0..=INTERFACE_NAME_MAX.min(name.len())).rev().find(|&n| name.is_char_boundary(n));
        let mut bytes = [0; INTERFACE_NAME_MAX];
        let end = end.unwrap_or(0);
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        Self { len: end as u8, bytes }
    }

    /// A name for an interface of which only the number is known: `mark` and the number. It allocates
    /// no memory.
    pub fn of_number(mark: &str, number: u32) -> Self {
        let mut bytes = [0; INTERFACE_NAME_MAX];
        let mut room = &mut bytes[..];
        // A name that does not fit is cut off.
        let _ = write!(room, "{mark}{number}");
        let len = INTERFACE_NAME_MAX - room.len();
        Self { len: len as u8, bytes }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len.into()).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or("?")
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A path, identified by its addresses and interface. It is written `local>remote@interface`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathName {
    /// Local address.
    pub local: IpAddr,
    /// Remote address.
    pub remote: IpAddr,
    /// The local interface.
    pub interface: InterfaceName,
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}@{}", self.local, self.remote, self.interface)
    }
}

/// A queue pair number, written as hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Qpn(pub u32);

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A duration in microseconds, written in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Micros(pub u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ms", self.0 / 1000, self.0 % 1000)
    }
}

/// A Linux errno of a send or a socket, positive. Its words say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Errno(pub i32);

impl Errno {
    /// Its name in C, if it is one that sends return.
    const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EACCES => "EACCES",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::EAGAIN => "EAGAIN",
            libc::EHOSTDOWN => "EHOSTDOWN",
            libc::EHOSTUNREACH => "EHOSTUNREACH",
            libc::EINVAL => "EINVAL",
            libc::EIO => "EIO",
            libc::EMFILE => "EMFILE",
            libc::EMSGSIZE => "EMSGSIZE",
            libc::ENETDOWN => "ENETDOWN",
            libc::ENETUNREACH => "ENETUNREACH",
            libc::ENFILE => "ENFILE",
            libc::ENOBUFS => "ENOBUFS",
            libc::ENODEV => "ENODEV",
            libc::ENOMEM => "ENOMEM",
            libc::EPERM => "EPERM",
            _ => return None,
        })
    }

    /// Its name in C, or its number if it has no name here: `EPERM`, `errno_71`.
    pub fn name_or_number(self) -> String {
        self.name().map_or_else(|| format!("errno_{}", self.0), str::to_owned)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = match self.0 {
            libc::EACCES | libc::EPERM => "does a firewall of this host forbid UDP to port 4791?",
            libc::ENETUNREACH | libc::EHOSTUNREACH => "does a route lead there?",
            libc::ENETDOWN | libc::ENODEV | libc::EHOSTDOWN => "is the interface up?",
            libc::EADDRNOTAVAIL => "is the address still there?",
            libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n)",
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => "the interface's queue is full",
            libc::EMSGSIZE => "is the interface's MTU smaller than the queue pair's path MTU?",
            _ => "",
        };
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))?;
        if advice.is_empty() { Ok(()) } else { write!(f, ": {advice}") }
    }
}

/// The reason why a path was given up, or why traffic moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The local link lost its carrier or was taken down.
    LinkDown,
    /// The local address was removed.
    AddressRemoved,
    /// The administrator took the path down.
    AdminDown,
    /// The peer said that the path is dead.
    PeerNotice,
    /// Probes stayed unanswered while another path answered.
    ProbesLost,
    /// The preferred path is alive again.
    Primary,
    /// No path was alive before.
    FirstAlive,
    /// The association began or ended.
    Association,
    /// The path is not in the set any more.
    Removed,
}

impl Reason {
    /// The name for programs: one word with underscores.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinkDown => "link_down",
            Self::AddressRemoved => "address_removed",
            Self::AdminDown => "admin_down",
            Self::PeerNotice => "peer_notice",
            Self::ProbesLost => "probes_lost",
            Self::Primary => "primary",
            Self::FirstAlive => "first_alive",
            Self::Association => "association",
            Self::Removed => "removed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinkDown => "local link down",
            Self::AddressRemoved => "local address removed",
            Self::AdminDown => "taken down by the administrator, or its interface left the device",
            Self::PeerNotice => "the peer gave it up",
            Self::ProbesLost => "probes unanswered while another path answers",
            Self::Primary => "the primary path is back",
            Self::FirstAlive => "first path to live again",
            Self::Association => "multi-path association changed",
            Self::Removed => "removed from the path set",
        })
    }
}

/// The reason why a queue pair changed to its alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MigrationCause {
    /// The program, or the connection manager for it, set the migration state.
    Software,
    /// The peer had migrated.
    Peer,
    /// The retries were used up.
    Retries,
    /// The primary path lost its local link or address, or was taken down.
    PathLost,
    /// The primary path was silent while the alternate one answered.
    Silence,
}

impl MigrationCause {
    /// All causes.
    pub const ALL: [Self; 5] =
        [Self::Software, Self::Peer, Self::Retries, Self::PathLost, Self::Silence];

    /// The name for programs: one word with underscores.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Peer => "peer",
            Self::Retries => "retries",
            Self::PathLost => "path_lost",
            Self::Silence => "silence",
        }
    }
}

impl fmt::Display for MigrationCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Software => "asked for",
            Self::Peer => "the peer has migrated",
            Self::Retries => "no retries left",
            Self::PathLost => "the primary path is lost here",
            Self::Silence => "the primary path is silent, the alternate one answers",
        })
    }
}

/// The value of an event's field, for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The field has no value.
    Nothing,
    /// A number.
    Number(u64),
    /// A name, an address, or text.
    Text(String),
}

/// A type that can be a field of an event.
pub(crate) trait Field {
    /// Writes it in words, for people.
    fn words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Its value, for programs.
    fn value(&self) -> Value;
    /// Cuts a text to at most that many bytes.
    fn cut(&mut self, _max: usize) {}
}

/// Writes a field in words.
pub(crate) struct Words<'a, F>(pub(crate) &'a F);

impl<F: Field> fmt::Display for Words<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.words(f)
    }
}

/// Implements [`Field`] for types whose words are those of their `Display`.
macro_rules! fields {
    ($($type:ty: $field:ident => $value:expr;)+) => {$(
        impl Field for $type {
            fn words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }

            fn value(&self) -> Value {
                let $field = self;
                $value
            }
        }
    )+};
}

fields! {
    InterfaceName: name => Value::Text(name.to_string());
    PathName: path => Value::Text(path.to_string());
    IpAddr: ip => Value::Text(ip.to_string());
    Qpn: qpn => Value::Number(qpn.0.into());
    Micros: micros => Value::Number(micros.0);
    u16: number => Value::Number((*number).into());
    u32: number => Value::Number((*number).into());
    u64: number => Value::Number(*number);
    Reason: reason => Value::Text(reason.name().to_owned());
    MigrationCause: cause => Value::Text(cause.name().to_owned());
    Errno: errno => Value::Text(errno.name_or_number());
}

impl Field for String {
    fn words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }

    fn value(&self) -> Value {
        Value::Text(self.clone())
    }

    fn cut(&mut self, max: usize) {
        if self.len() > max {
            let end = (0..=max).rev().find(|&at| self.is_char_boundary(at)).unwrap_or(0);
            self.truncate(end);
        }
    }
}

impl Field for Option<PathName> {
    fn words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Some(path) => path.words(f),
            None => f.write_str("no path"),
        }
    }

    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Nothing, Field::value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interfaces_name_is_kept_whole_and_a_longer_one_is_cut() {
        assert_eq!(InterfaceName::new("enp129s0f0np0v1").as_str(), "enp129s0f0np0v1");
        assert_eq!(InterfaceName::new("enp129s0f0np0v12").as_str(), "enp129s0f0np0v1");
        assert_eq!(InterfaceName::new("länger-als-15-b").as_str(), "länger-als-15-");
        assert_eq!(InterfaceName::new("").as_str(), "");
    }

    #[test]
    fn an_interface_without_a_name_is_called_by_its_number() {
        assert_eq!(InterfaceName::of_number("", 0), InterfaceName::new("0"));
        assert_eq!(InterfaceName::of_number("#", u32::MAX).as_str(), "#4294967295");
        assert_eq!(InterfaceName::of_number("interface", u32::MAX).as_str(), "interface429496");
    }

    #[test]
    fn an_errno_says_what_to_do() {
        let said = Errno(libc::EPERM).to_string();
        assert!(said.contains("not permitted") && said.contains("firewall"), "{said}");
        assert!(!Errno(libc::EIO).to_string().ends_with(": "));
    }
}
