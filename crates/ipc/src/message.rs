//! The messages, their limits and their encoding.
//!
//! Every message is one datagram of at most [`MESSAGE_MAX`] bytes. The encoding is postcard's:
//! compact and not self-describing, hence the version in [`Hello`]. That message and its answer,
//! [`Reply::Hello`], are the first of their kinds, and their encoding may never change.

use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use polypath_telemetry::Occurrence;
use polypath_topology::{Bonding, PathSelector, Rule, RuleScope, Table};

use crate::error::IpcError;
use crate::lacp::LacpPort;
use crate::migration::{PathNews, PathOrder};
use crate::settings::Apm;
use crate::status::{BrokerStatus, ProcessStatus};

#[cfg(test)]
mod shape;

/// Version of everything in this module but [`Hello`]. Both ends must have the same.
pub const VERSION: u32 = 31;

/// Longest message in bytes. Below the default socket buffer of 208 KiB, so that a message
/// always fits into an empty socket.
pub const MESSAGE_MAX: usize = 180 * 1024;

/// The most bytes that the rules of a table may take in a message, so that the whole table fits.
const RULES_BYTES_MAX: usize = 6 * 1024;

/// Whether the rules of a table are short enough for a message.
#[must_use]
pub fn rules_fit(rules: &[Rule]) -> bool {
    encode(&rules).is_ok_and(|bytes| bytes.len() <= RULES_BYTES_MAX)
}

/// The longest part of a CM file, bytes. It fits into a message with what comes before it.
pub const CM_PART_MAX: usize = MESSAGE_MAX - 1024;

/// Longest program name or selection string in a [`Hello`], in bytes; the broker refuses longer.
pub const TEXT_MAX: usize = 1024;

/// Longest `write()` to `/dev/infiniband/rdma_cm` in bytes. The largest command of the kernel's ABI
/// (`rdma_ucm_accept`, with its private data and parameters) has less than 1 KiB; path records of
/// `SET_OPTION` come in-line after it.
pub const CM_COMMAND_MAX: usize = 16 * 1024;

/// First message on every connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// Process id as the sender sees it, for people; the broker trusts `SO_PEERCRED` alone.
    pub pid: u32,
    /// The program's name, for `polypath status`.
    pub program: String,
    /// The device selection (`POLYPATH_DEVICE`), empty if unset. The broker must know it because
    /// the CM tells the process which device and GID index an address is on.
    pub selection: String,
}

impl Hello {
    /// The message that introduces this process, with the given device selection.
    #[must_use]
    pub fn of_this_process(selection: &str) -> Self {
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            version: VERSION,
            pid: std::process::id(),
            program: program.trim_end().to_owned(),
            selection: selection.to_owned(),
        }
    }
}

/// A question to the connection manager of another host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// The address of this host to send from.
    pub local: IpAddr,
    /// The other host.
    pub remote: IpAddr,
    /// Through this interface.
    pub ifindex: u32,
    /// Bytes of payload, at least those of a management datagram (256). Only Polypath answers more.
    pub payload: u16,
    /// How long to wait, in milliseconds.
    pub timeout_ms: u32,
}

/// What became of a [`Ping`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PingAnswer {
    /// The other host answered.
    Answered {
        /// After this many microseconds.
        rtt_us: u64,
        /// It is Polypath.
        polypath: bool,
    },
    /// Nothing came in time.
    Silent,
    /// The other host is there, and nothing has the port (ICMP port unreachable).
    Refused,
    /// Packets of this length do not pass (ICMP fragmentation needed, or longer than the link's).
    TooLong,
    /// The kernel could not send, or was told that the host can't be reached.
    Unreachable {
        /// A Linux errno, positive.
        errno: i32,
    },
}

/// How much a status tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Everything known.
    All,
    /// Only what the counters of a port are made of, so that it costs no more with many queue pairs:
    /// of the broker its table and counters; of a process its devices, lanes and paths. All other
    /// lists, and the program's name, are empty.
    Traffic,
}

/// The size of the memory of a channel in bytes: for each direction a page and 1 MiB of packets.
pub const CHANNEL_BYTES: u64 = 2 * (4 << 10) + 2 * (1 << 20);

/// The largest number of interfaces in a [`Request::Lacp`].
pub const LACP_PORTS_MAX: usize = 256;

/// The longest packet that a TCP stream may begin with, in bytes.
pub const OPENING_MAX: usize = 512;

/// The ends of a TCP stream between two lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// This host's address.
    pub local: IpAddr,
    /// The other host's address.
    pub remote: IpAddr,
    /// The slot of the other host's lane.
    pub slot: u8,
}

/// What a process asks of the broker. Each request but [`StatusReport`](Self::StatusReport) and
/// [`Events`](Self::Events) has
/// exactly one [`Reply`] ([`Status`](Self::Status): several).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Introduces the connection. Answer: [`Reply::Hello`].
    Hello(Hello),
    /// Asks for a slot. Answer: [`Reply::Lane`] with the slot's receive socket, or an error: `ENOSPC` if
    /// all are taken, `EADDRINUSE` if the one that was asked for is.
    OpenLane {
        /// The slot, for who continues queue pairs that had numbers there; `None`: any.
        slot: Option<u8>,
    },
    /// Gives a slot back. Answer: [`Reply::Done`].
    CloseLane {
        /// The slot, as [`Reply::Lane`] gave it.
        slot: u8,
    },
    /// Asks for memory to share with another lane of this host. Answer: [`Reply::Channel`]; the other
    /// lane's process gets [`Push::Channel`]. Or an error: `EBADF` if the first slot is not the process's
    /// own, `ENOENT` if nobody has the other, `EEXIST` if the two lanes have a channel, `EDQUOT` if one
    /// of the processes has as many as it may.
    OpenChannel {
        /// The slot of the process's own lane.
        slot: u8,
        /// The slot of the other lane.
        to: u8,
    },
    /// Lets other hosts' lanes open TCP streams to a lane of the process, until the slot is given back. The
    /// broker listens on the port while one of its processes wants that. Answer: [`Reply::Done`], and a
    /// [`Push::Stream`] for each stream. Or an error: `EBADF` if the slot is not the process's own, `EDQUOT`
    /// if there are too many ports, those of the system.
    AcceptStreams {
        /// The slot.
        slot: u8,
        /// The TCP port.
        port: u16,
    },
    /// Asks for a TCP stream to a lane of another host, whose broker listens on this port. Answer:
    /// [`Reply::Done`] at once; a [`Push::Stream`] follows if the connection succeeds. Or an error: `EBADF`
    /// if the slot is not the process's own, `EDQUOT` if too many are under way, those of the system.
    OpenStream {
        /// The slot of the process's own lane.
        slot: u8,
        /// The addresses, and the slot of the other lane.
        ends: Ends,
        /// The TCP port of the other host's broker.
        port: u16,
        /// The packet that the stream begins with, at most [`OPENING_MAX`] bytes.
        opening: Vec<u8>,
    },
    /// Asks for slots again that the process had of a broker that was killed. All or none. Answer:
    /// [`Reply::Done`], or an error with `EBADF` if one of them is not the process's own.
    Resume {
        /// The slots.
        slots: Vec<u8>,
    },
    /// Asks for interfaces and addresses. Answer: [`Reply::Table`].
    GetTable,
    /// Stands for `open("/dev/infiniband/rdma_cm")`. Answer: [`Reply::Cm`] with the application's
    /// end of the event socket.
    OpenCm {
        /// Whether ids migrate to an alternate path without having asked for it, and how.
        apm: Apm,
        /// The TCP port by which messages of the process's connections may go where UDP brings no answer
        /// (`tcp=on`). The broker listens there while the process is connected.
        tcp: Option<u16>,
    },
    /// Stands for `write()` to an open CM file. Answer: [`Reply::CmResponse`], or [`Reply::Error`]
    /// with the errno that `write()` would give.
    CmCommand {
        /// The file, as [`Reply::Cm`] gave it.
        file: u64,
        /// Another number for each command of the process. If a broker is killed before its answer has come,
        /// the process asks its successor with the same number, which executes the command unless an answer
        /// of the one before is written down.
        number: u64,
        /// What the application wrote: `rdma_ucm_cmd_hdr` and the command. What refers to the
        /// process is made self-contained by the sender: a `SET_OPTION`'s value follows it, and a
        /// `MIGRATE_ID`'s descriptor is replaced by the number of its [`Reply::Cm`].
        bytes: Vec<u8>,
    },
    /// Puts an event that the application has not read from one CM file into another, because its id
    /// moved there. Answer: [`Reply::Done`].
    CmRequeue {
        /// The file that the id moved to.
        file: u64,
        /// The event as it came: a `struct rdma_ucm_event_resp`.
        event: Vec<u8>,
    },
    /// Stands for `close()` of a CM file; hanging up the event socket does the same. Answer:
    /// [`Reply::Done`].
    CloseCm {
        /// The file, as [`Reply::Cm`] gave it.
        file: u64,
    },
    /// Takes a CM file away, because its process leaves this host. Answer: [`Reply::CmTaken`], with the
    /// broker's end of the event socket, or [`Reply::Error`] with `EBUSY` if something of it can't move now.
    /// Events that the application has not read yet are in the socket.
    CmTake {
        /// The file, as [`Reply::Cm`] gave it.
        file: u64,
    },
    /// Asks for the next part of what the last [`CmTake`](Self::CmTake) gives. Answer: [`Reply::CmTaken`], or
    /// [`Reply::Error`] with `ENODATA` if there is no more.
    CmTakeMore,
    /// Gives a part of what [`CmPut`](Self::CmPut) gives the last part of. Answer: [`Reply::Done`], or
    /// [`Reply::Error`] with `EMSGSIZE` if all parts are longer than any file can be.
    CmPutPart {
        /// The part, as [`Reply::CmTaken`] gave it.
        bytes: Vec<u8>,
    },
    /// Takes a CM file over, whose process has come from another host. The event socket comes with the
    /// request. Answer: [`Reply::Done`], or [`Reply::Error`] with `EADDRINUSE` if one of its numbers or ports
    /// is in use here.
    CmPut {
        /// The number of the file, which it keeps.
        file: u64,
        /// The last part of what [`Reply::CmTaken`] gave.
        bytes: Vec<u8>,
        /// As in [`OpenCm`](Self::OpenCm).
        apm: Apm,
        /// As in [`OpenCm`](Self::OpenCm).
        tcp: Option<u16>,
    },
    /// Goes on with a CM file of a broker that was killed. Answer: [`Reply::Done`], or [`Reply::Error`] with
    /// `EBADF` if this broker has no such file of the process.
    CmResume {
        /// The number of the file, which it keeps.
        file: u64,
        /// As in [`OpenCm`](Self::OpenCm).
        apm: Apm,
        /// As in [`OpenCm`](Self::OpenCm).
        tcp: Option<u16>,
    },
    /// Turns this connection into an event stream. Answer: [`Reply::Table`]; [`Push`]es follow, and
    /// the only requests allowed from then on are [`StatusReport`](Self::StatusReport) and
    /// [`Events`](Self::Events).
    Subscribe,
    /// The answer to [`Push::StatusRequest`]; has no reply.
    StatusReport {
        /// The number that the request had.
        id: u64,
        /// Whether more parts follow. Parts are merged by [`ProcessStatus::append`].
        more: bool,
        /// The report, or a part of it.
        status: Box<ProcessStatus>,
    },
    /// Asks for the status of the broker and of all processes. Answers: one or more
    /// [`Reply::Status`], any number of [`Reply::ProcessStatus`], one [`Reply::StatusEnd`].
    Status {
        /// How much it tells.
        scope: Scope,
    },
    /// Takes paths down or up again by hand, in every process and for those to come. Answer:
    /// [`Reply::Done`].
    Path {
        /// Which paths.
        selector: PathSelector,
        /// `false` takes them down.
        up: bool,
    },
    /// Sets how mp devices use their paths, in every process and for those to come. Answer:
    /// [`Reply::Done`], or an error with `ESRCH` if there is no such process or queue pair.
    SetRule {
        /// The scope. For a queue pair the broker finds the process.
        scope: RuleScope,
        /// The settings. They go before those that a command has set for the same scope; `None` takes all of
        /// these back.
        settings: Option<Bonding>,
    },
    /// Says how interfaces speak LACP, and whether that lets them carry traffic, in place of what the same
    /// connection said before. It counts until the connection ends. Answer: [`Reply::Done`].
    Lacp {
        /// At most [`LACP_PORTS_MAX`].
        ports: Vec<LacpPort>,
    },
    /// Reads the configuration file again. Answer: [`Reply::Done`], or an error with `EINVAL` if the file
    /// has a mistake; then what was in force stays.
    ReloadConfig,
    /// Takes a process off this host, as it can be checkpointed then and restored on another one
    /// ([`Push::Depart`]). Answer: [`Reply::Done`] once it has no connection any more. Or an error: `ESRCH`
    /// if there is no such process, `EBUSY` if it has ids of the connection manager, which would be lost,
    /// and `force` is not set.
    Move {
        /// The process.
        pid: u32,
        /// How long it waits to be restored before it goes on where it is, in milliseconds.
        within_ms: u32,
        /// Take it off even if ids are lost.
        force: bool,
    },
    /// Ends the broker. Answer: [`Reply::Done`], or an error with `EBUSY` if other processes are
    /// connected and `force` is not set.
    Shutdown {
        /// End it although processes use it.
        force: bool,
    },
    /// Answer: [`Reply::Done`].
    Ping,
    /// Asks another host whether it is there; answered by [`Reply::Ping`] when that is known.
    PingHost(Ping),
    /// Turns this connection into one that is told what happens in all processes. Answer:
    /// [`Reply::Done`]; [`Push::Events`] follow, and no request is allowed from then on.
    Watch {
        /// Begin with what happened lately, as far as it is kept; else with what happens from now on.
        past: bool,
    },
    /// On an event stream: what happened in the process. It has no reply.
    Events {
        /// Events that were dropped before these, because there were too many at once.
        lost: u64,
        /// At most [`TOLD_MAX`], oldest first.
        events: Vec<Occurrence>,
    },
    /// On an event stream: what happened to the paths of queue pairs. It has no reply.
    Paths {
        /// At most [`TOLD_MAX`], oldest first.
        news: Vec<PathNews>,
    },
}

/// What the broker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The connection is accepted.
    Hello {
        /// The broker's [`VERSION`]. If it is another than ours, the connection is at its end.
        version: u32,
        /// The broker's process id.
        pid: u32,
        /// The device selection as resolved for this process: [`Selection::resolve`] with the table
        /// of this moment.
        ///
        /// [`Selection::resolve`]: polypath_topology::Selection::resolve
        selection: String,
    },
    /// Done, and nothing to tell.
    Done,
    /// A slot is open; its socket comes with the message.
    Lane {
        /// 1..=254: the top byte of all QPNs of the lane.
        slot: u8,
        /// Size in bytes of the socket's receive buffer as the kernel accounts for it (`SO_RCVBUF`
        /// as read back: twice the payload asked for).
        receive_buffer: u32,
    },
    /// One end of a channel comes with the message: a socket, in which a message with the memory waits.
    Channel,
    /// Interfaces and addresses.
    Table(Box<Table>),
    /// A CM file is open; the event socket comes with the message.
    Cm {
        /// Names the file in further requests; fits into 32 bits.
        file: u64,
    },
    /// A CM file is the process's own now: nothing of it is left in the broker. The broker's end of the event
    /// socket comes with the first part.
    CmTaken {
        /// A part of its ids and connections, for another broker of the same version.
        bytes: Vec<u8>,
        /// Whether there are more parts.
        more: bool,
    },
    /// What the kernel would have written to the command's response address.
    CmResponse {
        /// The response structure; empty if the command has none.
        bytes: Vec<u8>,
    },
    /// The broker's own status, or a part of it, to be merged by [`BrokerStatus::append`].
    Status(Box<BrokerStatus>),
    /// A process's report, or a part of it; the same process id may come several times.
    ProcessStatus(Box<ProcessStatus>),
    /// All reports have been sent.
    StatusEnd {
        /// Processes that did not answer in time.
        silent: Vec<u32>,
    },
    /// The request failed.
    Error {
        /// A Linux errno, positive.
        errno: i32,
        /// What failed and why.
        text: String,
    },
    /// What became of a question to another host.
    Ping(PingAnswer),
}

/// What the broker sends on an event stream without having been asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Push {
    /// Interfaces or addresses changed, or paths were taken down or up by hand. Several changes may
    /// have been merged into one table.
    Table(Box<Table>),
    /// Asks for a report of what the process knows, by [`Request::StatusReport`].
    StatusRequest {
        /// Its number, which the report repeats.
        id: u64,
        /// How much the report tells.
        scope: Scope,
    },
    /// What the connection manager wants done with a queue pair. Engines of the process that do not have the
    /// queue pair's lane ignore it.
    Path(PathOrder),
    /// Another lane shares memory with one of the process's. One end of the channel comes with the message.
    Channel {
        /// The slot of the process's own lane.
        slot: u8,
        /// The slot of the other lane.
        to: u8,
    },
    /// A TCP stream, whose socket comes with the message, for one of the process's lanes.
    Stream {
        /// The slot of the process's own lane.
        slot: u8,
        /// Its ends, as this host sees them.
        ends: Ends,
        /// The packet that it began with; `None` if the process has asked for the stream.
        opening: Option<Vec<u8>>,
    },
    /// Asks the process to give back all that it has of this host: its lanes' slots and sockets, shared
    /// memory, TCP streams, connections. Its queue pairs stay. It connects to the broker that it finds once
    /// it was restored, or after the time.
    Depart {
        /// The time, in milliseconds.
        within_ms: u32,
    },
    /// The broker goes away.
    Goodbye,
    /// What happened, for who asked by [`Request::Watch`].
    Events {
        /// Events before these that are not told, because the watcher did not read in time.
        lost: u64,
        /// Oldest first.
        events: Vec<Told>,
    },
}

/// Most events in a message.
pub const TOLD_MAX: usize = 48;

/// An event as a watcher is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Counts the events that this broker was told of.
    pub number: u64,
    /// The process in which it happened, 0 if it happened to this host.
    pub pid: u32,
    /// The name of the process, empty if there is none.
    pub program: String,
    /// What, and when.
    pub occurrence: Occurrence,
}

/// Encodes a message.
///
/// # Errors
/// [`IpcError::TooLong`] if it has more than [`MESSAGE_MAX`] bytes.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, IpcError> {
    let bytes = encode_long(message)?;
    if bytes.len() > MESSAGE_MAX {
        return Err(IpcError::TooLong(bytes.len()));
    }
    Ok(bytes)
}

/// Encodes what goes in parts, as long as it is.
///
/// # Errors
/// [`IpcError::Protocol`] if it has no encoding.
pub fn encode_long<T: Serialize>(contents: &T) -> Result<Vec<u8>, IpcError> {
    postcard::to_stdvec(contents).map_err(|_| IpcError::Protocol("it could not be encoded"))
}

/// Decodes a message; bytes left over are an error.
///
/// # Errors
/// [`IpcError::Protocol`] if the bytes are not one whole message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, IpcError> {
    if bytes.len() > MESSAGE_MAX {
        return Err(IpcError::Protocol("it is too long"));
    }
    decode_long(bytes)
}

/// Decodes what came in parts; bytes left over are an error.
///
/// # Errors
/// [`IpcError::Protocol`] if the bytes are not all of it.
pub fn decode_long<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, IpcError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(IpcError::Protocol("bytes are left over")),
        Err(_) => Err(IpcError::Protocol("it does not decode")),
    }
}

#[cfg(test)]
mod tests;
