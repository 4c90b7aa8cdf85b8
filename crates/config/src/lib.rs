//! The configuration file: where it is, and what it says.
//!
//! It is in TOML and holds rules of how mp devices use their paths ([`polypath_topology::rules`]):
//!
//! ```
//! let rules = polypath_config::parse(
//!     r#"
//!     [mp]                      # everything
//!     policy = "balance"
//!     updelay = 500             # milliseconds
//!
//!     [[rule]]                  # peers in this subnet
//!     peer = "10.0.1.0/24"
//!     policy = "affinity"
//!     affinity = "round-robin"
//!
//!     [[rule]]                  # all processes of this program
//!     program = "ib_write_bw"
//!     policy = "active-backup"
//!     primary = "eth1"
//!     "#,
//! );
//! assert_eq!(rules.unwrap().len(), 3);
//! ```
//!
//! The broker reads the file, and the command checks it. [`parse()`] does no I/O and accepts a file as a
//! whole or not at all; a [`Mistake`] names the line and says what to write.
#![forbid(unsafe_code)]

mod load;
mod mistake;
mod parse;

pub use load::{FILE_BYTES_MAX, LoadError, Location, load};
pub use mistake::Mistake;
pub use parse::parse;
