//! Interfaces and addresses of a network namespace, and the devices that programs see on them.
//!
//! A [`Table`] is what the broker last saw. A [`Selection`] says which devices a program wants. A
//! [`Provider`] implements one kind of device: what users write to choose such devices, and which of
//! them exist on the interfaces of a table. [`PROVIDERS`] lists all kinds. [`devices`] is the only
//! function that makes devices from interfaces: the broker, the engine, the C interface and the command
//! call it and get the same answer. Nothing here does I/O.
//!
//! ```
//! use polypath_topology::{Selection, Table, devices};
//!
//! # fn main() -> Result<(), polypath_topology::SelectionError> {
//! let table = Table::default(); // normally that of the broker
//! for device in devices(&table, &Selection::parse("mp:eth0+eth1")?) {
//!     println!("{} over {:?}", device.name, device.members().collect::<Vec<_>>());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `docs/extend/device.md` shows how to add a kind of device.
#![forbid(unsafe_code)]

mod bond;
mod bond_options;
mod bonding;
mod choice;
mod device;
mod error;
pub mod gids;
mod interface;
mod kernel_bond;
mod links;
mod mp;
mod multiport;
mod provider;
mod registry;
mod roce;
mod rule_check;
pub mod rules;
mod selection;
mod selector;
mod shares;
mod subnet;
pub mod table;

pub use bond::BOND;
pub use bond_options::{BondMode, BondOptions, HashPolicy};
pub use bonding::{
    AffinityRule, Bonding, BondingError, LOCAL, LOCAL_DEFAULT, Policy, Reselect, TCP, TCP_DEFAULT,
    Tcp,
};
pub use choice::Choice;
pub use device::{
    Aggregation, DeviceKind, DeviceSpec, LOCAL_CA_ACK_DELAY, MEMBERS_MAX, OVERHEAD, PortSpec,
    roce_mtu, width_and_speed,
};
pub use error::SelectionError;
pub use gids::{GID_TABLE_LEN, GidEntry, GidTable, NamedGidTable};
pub use interface::{Address, Port};
pub use kernel_bond::{HashedPorts, KernelBond, KernelSlave};
pub use links::{above, links_of};
pub use mp::MP;
pub use multiport::ROCE2;
pub use provider::Provider;
pub use registry::PROVIDERS;
pub use roce::ROCE;
pub use rule_check::RuleError;
pub use rules::{InForce, Rule, RuleScope, RuleSource};
pub use selection::{Selection, devices, interface_problem};
pub use selector::{PathSelector, PathSelectorError};
pub use subnet::{Subnet, SubnetError, same_prefix};
pub use table::Table;
