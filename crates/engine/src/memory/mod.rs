//! Memory regions and windows: the memory that a key gives access to, and the access itself.
//!
//! # Keys
//!
//! A key has 32 bits: 24 random ones name the region or window. The other 8 belong to the consumer
//! if it is a window's key (`ibv_inc_rkey`). A region's lkey and rkey are the same number. No key
//! can be guessed from another one.
//!
//! # Who may touch memory, and until when
//!
//! A [`Segment`] is the result of a check. Only [`MemoryTable::resolve`],
//! [`MemoryTable::resolve_remote`] and the methods of the same names in [`KeyCache`] create one.
//! The check, the copy and the transmission all happen under a lane's lock, and once the lock was
//! released, a segment is not used again without another check. Deregistration removes the key,
//! invalidates all caches (by a new [`MemoryTable::generation`]), and then takes every lane's lock
//! once. When it returns, no lane is inside an access that was checked before, and no later check
//! finds the key: nothing accesses the memory any more.
//!
//! # Memory that is missing
//!
//! Registration touches every page, as pinning would (`MADV_POPULATE_READ`, `_WRITE`). So an
//! unmapped range, or a read-only one with `LOCAL_WRITE`, is `EFAULT`, and the data path has no
//! page faults. Regions larger than [`POPULATE_MAX`] are only looked up in `/proc/self/maps`. With
//! `ON_DEMAND` (including the implicit region, the whole address space) registration touches
//! nothing. Instead every check asks the kernel for the pages in question, and a range without
//! memory is a [`Fault::Range`](polypath_transport::Fault). Nothing is pinned. Every access runs
//! under [`guard`]: if the memory is gone, because it was unmapped, protected or truncated since
//! the check or long before, the result is a [`Fault::Gone`](polypath_transport::Fault), never the
//! end of the process (hardware would have accessed pages that nobody sees any more).
//! docs/robustness.md says what is guaranteed beyond that. A fork needs no special care: only the
//! process itself accesses its memory, by its own page tables.
//!
//! Memory that the device allocated or mapped itself (device memory, DMA-BUFs) is kept as long as a
//! region of it is registered. A null region has no memory: see `null`. A region may consist of
//! pages that lie anywhere: see `page_list`.
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

pub use access::{atomic, atomic_write, copy_out, copy_out_to, make_visible, store};
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
