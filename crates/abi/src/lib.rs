//! libibverbs' C interface over the devices of Polypath, as a library to be preloaded
//! (`LD_PRELOAD=libpolypath.so`): unmodified programs see our devices beside the real ones.
//!
//! What a program calls and where it ends up:
//!
//! - **Functions of libibverbs**: [`export`] has every public one with rdma-core's symbol version,
//!   and sends each call to us or to the real library ([`forward`]), depending on whose object it is
//!   about. The files named after the objects are our side of it, over the traits of `polypath-verbs`.
//! - **Inline functions of the headers** go through the tables that [`context`] fills in.
//! - **`dlopen("libibverbs.so…")`** gives this library: [`dl`].
//! - **Files**: hard-coded paths of devices of ours under `/sys` and `/dev` are answered from a
//!   made-up directory: [`paths`].
//! - **`NETLINK_RDMA` sockets**, by which iproute2's `rdma` looks at devices: [`rdmanl`].
//! - **Signals of faults** come to the engine before the program: `interpose::signals`.
//! - **librdmacm** stays the real one; it talks to the kernel's `/dev/infiniband/rdma_cm`, which
//!   [`ucma`] stands in for.
//!
//! The library is loaded into every program of a session, most of which have nothing to do with
//! RDMA: it does nothing until one of these is used, and says nothing unless `POLYPATH_LOG` is set
//! or a program asks for devices and there are none.
//!
//! Unsafe code is everywhere here, for this is the border to C; every block says why it is sound.
//! Safe code begins at the traits.

mod ah;
mod broker;
mod buffer;
mod channel;
mod context;
mod convert;
mod cq;
mod cq_ex;
mod cq_make;
mod device;
mod dl;
mod dm;
mod draft;
mod events;
mod export;
mod fork;
mod forward;
mod guard;
mod identity;
mod import;
mod interpose;
mod layout;
mod leave;
mod lock;
mod log;
mod memory;
mod open;
mod ours;
mod paths;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod qp_make;
mod query;
mod rdmanl;
mod srq;
mod strings;
mod ucma;
mod wait;
mod xrc;

#[cfg(test)]
mod double;
