//! Parses and builds every header and message that Polypath sends or receives.
//!
//! The crate turns bytes into values that can't hold nonsense, and back:
//!
//! - RoCEv2 packets as they travel in UDP port 4791 ([`packet`], [`bth`], [`ext`], [`opcode`]),
//!   with their invariant CRC ([`icrc`]),
//! - Polypath's multi-path packets, which use manufacturer opcodes ([`ext::MpHeader`]; laid out
//!   byte by byte in `docs/wire.md`),
//! - the connection management messages on QP1 ([`mad`], [`cm`]),
//! - what surrounds them: [`gid`]s and the [`grh`] of UD receive buffers.
//!
//! The crate does no I/O, keeps no state, reads no clock, and judges no packet beyond its own syntax.
//! The transport decides whether a packet fits its queue pair. Only the functions that return or fill a
//! `Vec` allocate memory: those that build whole packets and captures.
//!
//! ```
//! use polypath_wire::{bth::Bth, opcode::Opcode, packet::{Headers, Packet}, psn::Psn};
//!
//! let bth = Bth { dest_qpn: 0x11, psn: Psn::new(7), ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY) };
//! let mut buf = [0u8; 64];
//! let n = Headers::new(bth).emit(&mut buf);
//! buf[n..n + 4].copy_from_slice(b"ping");
//! // The 4 bytes after the payload are the ICRC, which `parse` skips and `icrc` checks.
//! let packet = Packet::parse(&buf[..n + 8]).unwrap();
//! assert_eq!(packet.payload, b"ping");
//! assert_eq!(packet.headers.bth.psn.get(), 7);
//! ```
#![forbid(unsafe_code)]

pub mod bth;
mod bytes;
pub mod cm;
pub mod ended;
pub mod error;
pub mod ext;
pub mod flow_label;
pub mod gid;
pub mod grh;
pub mod icrc;
pub mod ip;
mod layout;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod pcapng;
pub mod psn;
pub mod relay;

pub use bth::Bth;
pub use error::ParseError;
pub use gid::Gid;
pub use opcode::{Opcode, Service};
pub use packet::{Headers, MAX_HEADERS_LEN, Packet};
pub use psn::Psn;

/// UDP destination port of RoCEv2 (IBTA annex A17; IANA `roce`).
pub const ROCE_PORT: u16 = 4791;

/// Length in bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Length of a UDP header in bytes (RFC 768).
pub const UDP_HEADER_LEN: usize = 8;

/// Q_Key of QP1, which communication management uses (IBTA 10.2.5).
pub const QP1_QKEY: u32 = 0x8001_0000;

/// The default partition key, the only one on RoCE.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The destination QPN of a multicast packet.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// Mask of the 24 bits of a queue pair number.
pub const QPN_MASK: u32 = 0x00ff_ffff;
