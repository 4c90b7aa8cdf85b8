//! The devices that a user chose after a kind's prefix.

use crate::bond_options::BondOptions;
use crate::device::{DeviceKind, MEMBERS_MAX};
use crate::error::SelectionError;
use crate::interface::Port;
use crate::table::Table;

/// The devices chosen among those of one kind, as parsed from the text after its prefix. The default is
/// the choice of the prefix alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The text, as it is shown and told to the broker. The provider parses it to this same choice. It
    /// is empty if only the prefix was written.
    pub text: String,
    /// The names of interfaces in the text, in order.
    pub interfaces: Vec<String>,
    /// The options of a bond device; `None` if none were written.
    pub bond: Option<BondOptions>,
}

impl Choice {
    /// Parses names of interfaces joined by `+`, as in `eth0+eth1`.
    ///
    /// ```
    /// use polypath_topology::{Choice, Provider as _, ROCE};
    /// let choice = Choice::of_interfaces(ROCE.kind(), "eth0+eth1").unwrap();
    /// assert_eq!(choice.interfaces, ["eth0", "eth1"]);
    /// ```
    ///
    /// # Errors
    /// [`SelectionError`], which says what to write for devices of this kind.
    pub fn of_interfaces(kind: &DeviceKind, text: &str) -> Result<Self, SelectionError> {
        let mut interfaces: Vec<String> = Vec::new();
        for name in text.split('+').map(str::trim) {
            if name.is_empty() || name.len() > 15 || name.contains(['/', ':', ' ']) {
                return Err(SelectionError::form(&format!("{}:{text}", kind.prefix), [kind]));
            }
            if interfaces.iter().any(|other| other == name) {
                return Err(SelectionError::Twice(name.to_owned()));
            }
            if interfaces.len() == MEMBERS_MAX {
                return Err(SelectionError::TooMany);
            }
            interfaces.push(name.to_owned());
        }
        Ok(Self { text: interfaces.join("+"), interfaces, bond: None })
    }

    /// The prefix and the text, as a user writes them.
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> String {
        if self.text.is_empty() { prefix.to_owned() } else { format!("{prefix}:{}", self.text) }
    }

    /// The chosen interfaces, in order. Names of missing interfaces are left out. If none is named,
    /// these are the uplinks; without an uplink, all interfaces that can carry a device; without any of
    /// these, loopback.
    #[must_use]
    pub fn ports<'a>(&self, table: &'a Table) -> Vec<&'a Port> {
        if self.interfaces.is_empty() {
            return unnamed(table);
        }
        self.interfaces.iter().filter_map(|name| table.port_by_name(name)).collect()
    }
}

impl Choice {
    /// The choice of one interface of the table.
    pub(crate) fn of_interface(name: &str) -> Self {
        Self { text: name.to_owned(), interfaces: vec![name.to_owned()], bond: None }
    }

    /// The chosen interfaces for which a device over all of them has no room.
    pub(crate) fn beyond_room<'a>(&self, table: &'a Table) -> Vec<&'a Port> {
        let mut ports = self.ports(table);
        ports.split_off(MEMBERS_MAX.min(ports.len()))
    }
}

/// The interfaces that are used if none is named.
pub(crate) fn unnamed(table: &Table) -> Vec<&Port> {
    let those = |holds: fn(&Port) -> bool| -> Vec<&Port> {
        table.ports.iter().filter(|port| holds(port)).collect()
    };
    let choices = [
        those(|port| port.usable() && port.uplink),
        those(Port::usable),
        those(|port| port.loopback),
    ];
    choices.into_iter().find(|ports| !ports.is_empty()).unwrap_or_default()
}
