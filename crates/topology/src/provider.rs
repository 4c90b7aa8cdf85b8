//! The interface of a kind of device to the other crates.

use std::fmt::Debug;

use crate::choice::Choice;
use crate::device::{DeviceKind, DeviceSpec};
use crate::error::SelectionError;
use crate::interface::Port;
use crate::table::Table;

/// Makes devices of one kind from interfaces. It does not open them: the engine has a driver for each
/// kind, and the broker has none.
///
/// The broker and each process call their own copies of a provider, so its answers must depend on its
/// arguments alone.
pub trait Provider: Debug + Send + Sync {
    /// The description of the kind.
    fn kind(&self) -> &'static DeviceKind;

    /// Whether a program without a selection gets devices of this kind if `interfaces` interfaces count
    /// without being named. For each number exactly one kind returns true.
    fn suits(&self, _interfaces: usize) -> bool {
        false
    }

    /// Parses what a user wrote after the prefix and its colon. By default this is a list of interface
    /// names.
    ///
    /// # Errors
    /// [`SelectionError`], which says what to write instead.
    fn parse(&self, text: &str) -> Result<Choice, SelectionError> {
        Choice::of_interfaces(self.kind(), text)
    }

    /// The chosen devices, in order. Named interfaces that do not exist are left out, and so are
    /// devices without any interface. The ports' [`gids`](crate::PortSpec::gids) are left empty:
    /// [`devices`](fn@crate::devices) fills them.
    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec>;

    /// The interfaces that the choice would include if a device were not limited to
    /// [`MEMBERS_MAX`](crate::MEMBERS_MAX).
    fn left_out<'a>(&self, _table: &'a Table, _choice: &Choice) -> Vec<&'a Port> {
        Vec::new()
    }

    /// Whether other programs use the GID tables of the chosen devices as well, because the tables
    /// belong to single interfaces or to the prefix alone. The broker keeps only a few tables
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
