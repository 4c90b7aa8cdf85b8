//! The errors of a selection of devices.

use crate::device::{DeviceKind, MEMBERS_MAX};

/// A selection that is invalid, or that selects no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The text does not have the form of a selection.
    #[error("`{text}` selects no device: write {write}, with the names of your interfaces")]
    Form {
        /// The text that was written, cut to 64 characters.
        text: String,
        /// The forms that may be written, such as `roce, roce:eth0, mp or mp:eth0+eth1`.
        write: String,
    },
    /// An interface is named twice.
    #[error("interface `{0}` is named twice in the device selection")]
    Twice(String),
    /// More than [`MEMBERS_MAX`] interfaces are named.
    #[error("a device selection names at most {MEMBERS_MAX} interfaces")]
    TooMany,
    /// An option of a bond device that can't be followed.
    #[error("`{option}` is no option of a bond device: {cure}")]
    Option {
        /// The option that was written, cut to 64 characters.
        option: String,
        /// What to do instead.
        cure: String,
    },
    /// There is no such interface.
    #[error("interface `{name}` does not exist in this network namespace (have: {known})")]
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No interface can carry a device.
    #[error("no interface can carry a device: one with a link-layer address is needed")]
    NothingUsable,
}

impl SelectionError {
    /// Creates an [`Option`](Self::Option).
    pub(crate) fn option(option: &str, cure: String) -> Self {
        Self::Option { option: option.chars().take(64).collect(), cure }
    }

    /// Creates a [`Form`](Self::Form) that says what may be written for devices of these kinds.
    #[must_use]
    pub fn form<'a>(text: &str, kinds: impl IntoIterator<Item = &'a DeviceKind>) -> Self {
        let forms: Vec<&str> = kinds.into_iter().flat_map(|kind| kind.forms).copied().collect();
        let write = match forms.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        };
        Self::Form { text: text.chars().take(64).collect(), write }
    }
}
