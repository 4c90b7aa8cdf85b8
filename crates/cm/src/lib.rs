//! The connection manager of Polypath: the part the Linux kernel plays for RDMA CM, without I/O.
//!
//! The real librdmacm talks to a character device whose commands are answered here, and peers (the
//! kernel's connection manager, or another of these) are talked to in InfiniBand CM MADs.
#![forbid(unsafe_code)]

mod env;

use core::time::Duration;

pub use env::{ClientId, Device, Environment, FileId, MadAddress, OutgoingMad, Route, RouteQuery};

/// Limits and protocol constants.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// Most ids over all files.
    pub max_ids: usize,
    /// Most ids of one file.
    pub max_ids_per_file: usize,
    /// Most events queued for one file; beyond it connection requests are dropped, so that the
    /// peer tries again.
    pub max_events_per_file: usize,
    /// Most outgoing MADs not yet taken.
    pub max_queued_mads: usize,
    /// Largest backlog of a listening id, also the one used for a backlog of zero or less
    /// (`net.rdma_ucm.max_backlog`).
    pub max_backlog: u32,
    /// Ports chosen for binds to port 0.
    pub ephemeral_ports: core::ops::RangeInclusive<u16>,
}

impl Default for CmConfig {
    fn default() -> Self {
        Self {
            max_ids: 65_536,
            max_ids_per_file: 32_768,
            max_events_per_file: 16_384,
            max_queued_mads: 16_384,
            max_backlog: 1024,
            ephemeral_ports: 32_768..=60_999,
        }
    }
}

/// The connection manager: every id of every client, and every connection.
pub struct Cm {
    config: CmConfig,
    random: Box<dyn FnMut() -> u32 + Send>,
}

/// One id, for `polypath status`.
#[derive(Clone, Debug)]
pub struct IdStatus {
    /// The id as the application's librdmacm knows it.
    pub id: u32,
    /// The file which holds it.
    pub file: FileId,
    /// The state, in words.
    pub state: &'static str,
    /// The port space, in words.
    pub port_space: &'static str,
    /// Local address and port.
    pub local: Option<core::net::SocketAddr>,
    /// Remote address and port.
    pub remote: Option<core::net::SocketAddr>,
    /// Local queue pair number, 0 if not known.
    pub qp_num: u32,
    /// Remote queue pair number, 0 if not known.
    pub remote_qp_num: u32,
}

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// MADs that came in.
    pub mads_received: u64,
    /// MADs that went out.
    pub mads_sent: u64,
    /// MADs dropped because they could not be parsed.
    pub mads_malformed: u64,
    /// MADs dropped because they belong to no connection.
    pub mads_unmatched: u64,
    /// MADs of a connection that came in twice.
    pub mads_duplicate: u64,
    /// MADs sent again after a timeout.
    pub mads_retried: u64,
    /// Requests dropped because a backlog or table was full.
    pub requests_dropped: u64,
    /// Events dropped because a file's queue was full.
    pub events_dropped: u64,
}

impl Cm {
    /// A connection manager without ids. `random` gives communication ids, transaction ids and
    /// first PSNs; it must be unpredictable in production.
    pub fn new(config: CmConfig, random: impl FnMut() -> u32 + Send + 'static) -> Self {
        Self { config, random: Box::new(random) }
    }

    /// A client opened the device.
    pub fn open_file(&mut self, _file: FileId, _client: ClientId) {}

    /// A client closed the device, or died: every id of the file is destroyed, and connections are
    /// taken down with a DREQ.
    pub fn close_file(&mut self, _now: Duration, _file: FileId, _env: &mut dyn Environment) {}

    /// Executes one write to the device: `struct rdma_ucm_cmd_hdr` and its command. Returns the
    /// bytes to copy to the response address the command names (empty if it has none).
    ///
    /// Two commands refer to the client's process; the host makes them self-contained:
    /// `SET_OPTION` is followed by its option value, and `MIGRATE_ID`'s `fd` is the number of a
    /// [`FileId`].
    ///
    /// # Errors
    /// The errno the application shall see.
    pub fn command(
        &mut self,
        _now: Duration,
        _file: FileId,
        _bytes: &[u8],
        _env: &mut dyn Environment,
    ) -> Result<Vec<u8>, i32> {
        let _ = (&self.config.max_ids, (self.random)());
        Err(38)
    }

    /// Takes in one MAD that came to QP1.
    pub fn handle_mad(
        &mut self,
        _now: Duration,
        _from: MadAddress,
        _mad: &[u8],
        _env: &mut dyn Environment,
    ) {
    }

    /// Runs every timer that is due.
    pub fn handle_timeout(&mut self, _now: Duration, _env: &mut dyn Environment) {}

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called, on the clock of `now`.
    pub fn next_deadline(&self) -> Option<Duration> {
        None
    }

    /// The next MAD to send.
    pub fn poll_mad(&mut self) -> Option<OutgoingMad> {
        None
    }

    /// The next event for the application: a whole `struct rdma_ucm_event_resp`. Events of one
    /// file come in order. An event taken counts as reported.
    pub fn poll_event(&mut self) -> Option<(FileId, Vec<u8>)> {
        None
    }

    /// The next event of one file, for a host whose other files can take no more for now.
    pub fn poll_event_of(&mut self, _file: FileId) -> Option<Vec<u8>> {
        None
    }

    /// Addresses or interfaces changed: ids bound to an address which no device of their client
    /// stands for any more get `RDMA_CM_EVENT_ADDR_CHANGE`.
    pub fn handle_address_change(&mut self, _now: Duration, _env: &mut dyn Environment) {}

    /// A device went away for a client: its ids get `RDMA_CM_EVENT_DEVICE_REMOVAL`.
    pub fn handle_device_removal(
        &mut self,
        _now: Duration,
        _client: ClientId,
        _node_guid: [u8; 8],
        _env: &mut dyn Environment,
    ) {
    }

    /// Every id, for people to read.
    pub fn describe(&self) -> Vec<IdStatus> {
        Vec::new()
    }

    /// Counts since the start.
    pub fn counters(&self) -> &Counters {
        const NONE: &Counters = &Counters {
            mads_received: 0,
            mads_sent: 0,
            mads_malformed: 0,
            mads_unmatched: 0,
            mads_duplicate: 0,
            mads_retried: 0,
            requests_dropped: 0,
            events_dropped: 0,
        };
        NONE
    }
}
