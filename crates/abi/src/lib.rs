//! libibverbs' C interface to Polypath's devices, as a library that is preloaded
//! (`LD_PRELOAD=libpolypath.so`). Unmodified programs see our devices beside the real ones.
//!
//! The calls of a program go to these places:
//!
//! - **Functions of libibverbs**: [`export`] has every public function with rdma-core's symbol
//!   version. It sends each call to us or to the real library ([`forward`]), depending on whose
//!   object it is about. The files that are named after the objects implement our side on top of
//!   the traits of `polypath-verbs`.
//! - **Inline functions of the headers** go through the tables that [`context`] fills in.
//! - **`dlopen("libibverbs.so…")`** opens this library: [`dl`].
//! - **Files**: hard-coded paths of our devices under `/sys` and `/dev` lead to a made-up
//!   directory: [`paths`].
//! - **`NETLINK_RDMA` sockets**, through which iproute2's `rdma` looks at devices: [`rdmanl`].
//! - **Signals of faults** come to the engine before they come to the program:
//!   `interpose::signals`.
//! - **librdmacm** stays the real one. It talks to the kernel's `/dev/infiniband/rdma_cm`, which
//!   [`ucma`] replaces.
//!
//! The library is loaded into every program of a session, and most of these have nothing to do with
//! RDMA. So it does nothing until one of these is used, and writes nothing unless `POLYPATH_LOG` is
//! set, or a program asks for devices and there are none.
//!
//! This crate is the border to C, so unsafe code is everywhere. Every block says why it is sound.
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
mod lag;
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
mod post_recv;
mod qp;
mod qp_ex;
mod qp_make;
mod query;
mod rdmanl;
mod srq;
mod strings;
mod ucma;
mod unaligned;
mod wait;
mod xrc;

#[cfg(test)]
mod double;
mod enable_apm;
