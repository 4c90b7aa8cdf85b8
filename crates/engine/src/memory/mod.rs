//! Memory regions and windows: which memory a key gives access to, and the access itself.
//!
//! # Keys
//!
//! A key has 32 bits: 24 random ones that name the region or window, and 8 that for a window are the
//! consumer's (`ibv_inc_rkey`). lkey and rkey of a region are the same number. Nothing in a key can be
//! guessed from another.
//!
//! # Who may touch memory, and until when
//!
//! A [`Segment`] is the result of a check: [`MemoryTable::resolve`],
//! [`MemoryTable::resolve_remote`] and their twins in [`KeyCache`] are the only places where one may
//! be made. All of it happens under a lane's lock: the check, the copy, and the transmission, and no
//! segment is used after the lock was released and taken again without another check.
//! Deregistration removes the key, tells all caches ([`MemoryTable::generation`] moves), and then has
//! every lane's lock taken once. When it returns, no lane is inside an access that was checked before,
//! and none that comes later finds the key: nothing touches the memory any more.
//!
//! # Memory that is not there
//!
//! Registration touches every page as pinning would (`MADV_POPULATE_READ`, `_WRITE`), so an unmapped
//! range, or a read-only one with `LOCAL_WRITE`, is `EFAULT`, and the data path takes no page faults.
//! Regions beyond [`POPULATE_MAX`] are only looked up in `/proc/self/maps`.
//! With `ON_DEMAND` (implicit, the whole address space, included) nothing is touched at
//! registration; every check asks the kernel for the pages it is about, and a range without memory is
//! a [`Fault::Range`](polypath_transport::Fault).
//! Nothing is pinned. Every access is made under [`guard`]: where the memory is gone, because it was
//! unmapped, protected or cut from its file since the check or long before, it is a
//! [`Fault::Gone`](polypath_transport::Fault), never the end of the process (hardware would have reached
//! pages that nobody sees any more). What is guaranteed beyond that is in docs/robustness.md. A fork needs
//! no care: nothing but the process itself accesses its memory, by its own page tables.
//!
//! Memory that the device has allocated or mapped itself (device memory, DMA-BUFs) is kept as long as
//! a region of it is registered. A null region has no memory: see `null`. A region may be made of pages
//! that lie anywhere: see `page_list`.
//!
//! # Cost
//!
//! A check through a [`KeyCache`] is one atomic load, one probe of a small direct-mapped cache and
//! four comparisons, a few nanoseconds; a miss takes the table's read lock and a hash look-up.

mod access;
mod cache;
mod device;
mod guard;
mod names;
mod null;
mod page_list;
mod pages;
#[cfg(test)]
pub(crate) mod place;
mod probe;
mod region;
mod segment;
pub mod signals;
mod table;
#[cfg(test)]
mod tests;
mod window;

pub use access::{atomic, atomic_write, copy_out, make_visible, store};
pub use cache::KeyCache;
pub use device::{DeviceBytes, DmaBuf};
pub(crate) use guard::guarded;
pub use page_list::PageList;
pub use pages::PageRange;
pub use probe::POPULATE_MAX;
pub use region::{Keeper, Region};
pub use segment::Segment;
pub use table::{MemoryTable, REGIONS_MAX, WINDOWS_MAX};
pub use window::{BindInfo, STAGED_BINDS_MAX, WindowType};
