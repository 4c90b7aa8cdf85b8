//! What a kind of device is to the rest of the house.

use std::fmt::Debug;

use crate::choice::Choice;
use crate::device::{DeviceKind, DeviceSpec};
use crate::error::SelectionError;
use crate::interface::Port;
use crate::table::Table;

/// Makes devices of one kind out of interfaces. Whoever opens such a device is another: the engine has
/// a driver for each kind, and the broker has none.
///
/// The broker and each process ask their own copies of a provider, so what it answers depends on its
/// arguments alone.
pub trait Provider: Debug + Send + Sync {
    /// The kind.
    fn kind(&self) -> &'static DeviceKind;

    /// Whether a program that selects nothing gets devices of this kind, where so many interfaces count
    /// without being named. One kind suits each number.
    fn suits(&self, _interfaces: usize) -> bool {
        false
    }

    /// Reads what a user wrote after the prefix and its colon. By itself, that is the names of interfaces.
    ///
    /// # Errors
    /// [`SelectionError`], which says what to write instead.
    fn parse(&self, text: &str) -> Result<Choice, SelectionError> {
        Choice::of_interfaces(self.kind(), text)
    }

    /// The devices chosen, in order. Interfaces named but missing are left out, and a device without any
    /// interface does not exist. [`gids`](DeviceSpec::gids) are left empty:
    /// [`devices`](fn@crate::devices) fills them.
    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec>;

    /// Interfaces that the choice would take in, were a device not limited to
    /// [`MEMBERS_MAX`](crate::MEMBERS_MAX).
    fn left_out<'a>(&self, _table: &'a Table, _choice: &Choice) -> Vec<&'a Port> {
        Vec::new()
    }

    /// Whether the GID tables of the chosen devices are there for other programs as well: they belong
    /// to single interfaces, or to what the prefix alone means. The broker keeps only few tables
    /// ([`CHOSEN_TABLES_MAX`](crate::gids::CHOSEN_TABLES_MAX)) that belong to one choice.
    fn shares_gid_tables(&self, choice: &Choice) -> bool {
        choice.text.is_empty()
    }
}

impl PartialEq for dyn Provider {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }
}

impl Eq for dyn Provider {}
