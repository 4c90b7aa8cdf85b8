//! The connection manager of Polypath: the kernel's part of RDMA CM, without I/O.
//!
//! Applications keep the real librdmacm, which talks to a character device. [`Cm`] answers its
//! commands ([`Cm::command`]) and makes its events ([`Cm::poll_event_of`]); it talks to peers (the
//! kernel's connection manager, a hardware one, or another of these) in InfiniBand CM MADs
//! ([`Cm::handle_mad`], [`Cm::poll_mad`]). It asks its host about routes and devices through
//! [`Environment`], takes the time as an argument, and does nothing by itself: the host calls
//! [`Cm::handle_timeout`] when [`Cm::next_deadline`] has come.
//!
//! Inside, from the bottom up: `abi` is the bytes of the device; `ibcm` is the InfiniBand
//! connection manager (IBTA chapter 12), which knows connections and their MADs; `cma` is the RDMA
//! CM (IBTA annex A11), which knows the ids of applications, their addresses and ports.
//!
//! # What the host must do
//!
//! - Two commands point into the client's process. The host appends the option value to
//!   `SET_OPTION`, and replaces the `fd` of `MIGRATE_ID` with the number of its [`FileId`].
//! - An event taken by [`Cm::poll_event_of`] counts as reported. It may still be on its way to the
//!   application while the application destroys or migrates the id. In that case the holder of the
//!   event must drop it, subtract it in the response (one `u32`, the number of events reported),
//!   and destroy the id that a dropped connection request announced.
//! - A MAD sent to one of the host's own addresses must come back through [`Cm::handle_mad`].
//!
//! # What it does not do
//!
//! It changes the state of no queue pair: applications do that themselves, with attributes that
//! they query here. Only alternate paths (APM) are loaded by the host, as [`Cm::poll_path_order`]
//! says, because applications know nothing of them; the host tells migrations back
//! ([`Cm::path_migrated`]).
#![forbid(unsafe_code)]

mod abi;
mod apm;
mod cma;
mod early;
mod env;
mod errno;
mod files;
mod ibcm;
mod ids;
mod kept;
mod moving;
mod path;
mod ports;
mod sizes;

use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::VecDeque;

pub use apm::{AlternatePath, PathOrder, PathTaken};
pub use cma::status::{IdStatus, MigrationStatus};
pub use env::{
    ClientId, Device, Environment, FileId, MadAddress, Neighbour, OutgoingMad, Route, RouteQuery,
};
pub use kept::{KEPT_MEMBERSHIPS_MAX, KeptId};
pub use moving::{CantMove, MovedFile};
pub use polypath_telemetry::CmCounters;
pub use sizes::TableSizes;

/// Limits, and the settings that the kernel has.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// The largest number of ids in all files; librdmacm can number 65,536.
    pub max_ids: usize,
    /// The number of the first id, modulo 65,536. Ids keep their numbers when they move between hosts, so it
    /// is random in production.
    pub first_id: u32,
    /// The largest number of ids of one file.
    pub max_ids_per_file: usize,
    /// The largest number of connections, including those that outlive their id.
    pub max_connections: usize,
    /// The largest number of events queued for one file that more are added to without limit: further
    /// connection requests are dropped, so that the peer tries again, and events that the program
    /// writes are refused.
    pub max_events_per_file: usize,
    /// The largest number of outgoing MADs that wait to be taken.
    pub max_queued_mads: usize,
    /// Largest backlog of a listening id, also the one used for a backlog of zero
    /// (`net.rdma_ucm.max_backlog`).
    pub max_backlog: u32,
    /// Whether changes of ids are noted for [`Cm::take_changed_ids`], which has to be called then.
    pub keeps: bool,
    /// The ports that binds to port 0 choose from (`net.ipv4.ip_local_port_range`).
    pub ephemeral_ports: RangeInclusive<u16>,
}

impl Default for CmConfig {
    fn default() -> Self {
        Self {
            max_ids: 65_536,
            first_id: 0,
            max_ids_per_file: 32_768,
            max_connections: 131_072,
            max_events_per_file: 16_384,
            max_queued_mads: 65_536,
            max_backlog: 1024,
            keeps: false,
            ephemeral_ports: 32_768..=60_999,
        }
    }
}

/// The connection manager: every id of every client, and every connection.
///
/// ```
/// use core::time::Duration;
/// use polypath_cm::{ClientId, Cm, CmConfig, FileId};
///
/// let mut seed = 1u32;
/// let mut cm = Cm::new(CmConfig::default(), move || {
///     seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
///     seed
/// });
/// cm.open_file(FileId(1), ClientId(100));
/// assert!(cm.describe().is_empty());
/// assert_eq!(cm.next_deadline(), None);
/// ```
pub struct Cm {
    config: CmConfig,
    files: files::FileTable,
    ids: ids::IdTable,
    ports: ports::PortTable,
    memberships: cma::multicast::MembershipTable,
    ib: ibcm::Connections,
    early: early::Waiting,
    orders: VecDeque<PathOrder>,
    turns: cma::balance::Turns,
    neighbours: cma::neighbour::Neighbours,
}

impl Cm {
    /// Creates a connection manager without ids. `random` gives communication ids, transaction ids
    /// and
    /// first PSNs; it must be unpredictable in production.
    pub fn new(config: CmConfig, random: impl FnMut() -> u32 + Send + 'static) -> Self {
        let (connections, mads) = (config.max_connections, config.max_queued_mads);
        let (first_id, keeps) = (config.first_id, config.keeps);
        Self {
            config,
            files: files::FileTable::default(),
            ids: ids::IdTable::new(first_id, keeps),
            ports: ports::PortTable::default(),
            memberships: cma::multicast::MembershipTable::new(first_id),
            ib: ibcm::Connections::new(connections, mads, keeps, Box::new(random)),
            early: early::Waiting::default(),
            orders: VecDeque::new(),
            turns: cma::balance::Turns::default(),
            neighbours: cma::neighbour::Neighbours::default(),
        }
    }

    /// Opens a file for a client that opened the device. The number must not be in use.
    pub fn open_file(&mut self, file: FileId, client: ClientId) {
        self.files.open(file, client);
    }

    /// Closes a file, because its client closed the device or died. Every id of the file is
    /// destroyed, and its connections are ended with a DREQ.
    pub fn close_file(&mut self, now: Duration, file: FileId, env: &mut dyn Environment) {
        self.close(now, file, env);
    }

    /// Executes one write to the device: `struct rdma_ucm_cmd_hdr` and its command. Returns the
    /// bytes to copy to the response address that the command names; none if it has no response.
    /// They are at most as many as the header has room for.
    ///
    /// The response address is the `u64` at offset 8 of the write, or 16 of a `CREATE_ID`.
    ///
    /// # Errors
    /// The errno that the application gets.
    pub fn command(
        &mut self,
        now: Duration,
        file: FileId,
        bytes: &[u8],
        env: &mut dyn Environment,
    ) -> Result<Vec<u8>, i32> {
        let frame = abi::Frame::parse(bytes)?;
        let result = self.execute(now, file, &frame, env);
        if frame.code == abi::Code::Listen {
            self.take_early(now, env);
        }
        result
    }

    /// Handles one MAD that arrived at QP1.
    pub fn handle_mad(
        &mut self,
        now: Duration,
        from: MadAddress,
        mad: &[u8],
        env: &mut dyn Environment,
    ) {
        let (ids, ports) = (&self.ids, &self.ports);
        let is_served = |service_id| cma::incoming::is_served(ids, ports, service_id);
        if !self.early.keep(now, from, mad, is_served) {
            self.receive(now, from, mad, env);
        }
    }

    /// Handles the waiting requests that now have a listener, or that got none in time.
    fn take_early(&mut self, now: Duration, env: &mut dyn Environment) {
        let (ids, ports) = (&self.ids, &self.ports);
        let is_served = |service_id| cma::incoming::is_served(ids, ports, service_id);
        for early in self.early.due(now, is_served) {
            self.receive(now, early.from, &early.mad, env);
        }
        self.deliver_events(now, env);
    }

    fn receive(&mut self, now: Duration, from: MadAddress, mad: &[u8], env: &mut dyn Environment) {
        let (ids, ports) = (&self.ids, &self.ports);
        let is_served = |service_id| cma::incoming::is_served(ids, ports, service_id);
        self.ib.receive(now, &from, mad, &is_served);
        self.deliver_events(now, env);
    }

    /// Runs every timer that is due.
    pub fn handle_timeout(&mut self, now: Duration, env: &mut dyn Environment) {
        self.ib.handle_timeout(now);
        self.take_early(now, env);
        self.look_for_neighbours(now, env);
        self.balance(now, env);
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) must be called, on the clock of
    /// `now`.
    pub fn next_deadline(&self) -> Option<Duration> {
        let deadlines = [
            self.ib.next_deadline(),
            self.early.next_deadline(),
            self.turns.next_deadline(),
            self.neighbours.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Takes the next MAD to send.
    pub fn poll_mad(&mut self) -> Option<OutgoingMad> {
        self.ib.poll_outgoing()
    }

    /// The files in which events wait.
    pub fn files_with_events(&self) -> Vec<FileId> {
        self.files.with_events()
    }

    /// The event that [`poll_event_of`](Self::poll_event_of) takes next. A host that may be killed takes it
    /// only when it has passed it on.
    pub fn next_event_of(&self, file: FileId) -> Option<&[u8]> {
        self.files.first_of(file).map(|event| event.bytes.as_slice())
    }

    /// Puts an event back that was taken from a file, because its id has moved to this one.
    pub fn put_back_event(&mut self, file: FileId, bytes: Vec<u8>) {
        let named = abi::event::id_of(&bytes).and_then(|id| self.ids.get(id));
        let owner = named.filter(|id| id.file == file).map_or(files::NOBODY, |id| id.id);
        self.ids.touch(owner);
        // It was queued before, so no limit counts.
        self.files.push(file, files::Queued::of(owner, bytes));
    }

    /// Takes the next event of one file: a whole `struct rdma_ucm_event_resp`. An event taken counts as
    /// reported.
    pub fn poll_event_of(&mut self, file: FileId) -> Option<Vec<u8>> {
        let event = self.files.pop_of(file)?;
        self.reported(&event);
        Some(event.bytes)
    }

    /// Handles a change of addresses or interfaces. An id that is not yet connected and whose
    /// address lost its device gets `RDMA_CM_EVENT_ADDR_CHANGE`. Connections that migrate look at
    /// their alternate paths again.
    pub fn handle_address_change(&mut self, now: Duration, env: &mut dyn Environment) {
        self.addresses_changed(env);
        self.paths_changed(now, env);
    }

    /// Takes the next thing that the host is to do with a queue pair.
    pub fn poll_path_order(&mut self) -> Option<PathOrder> {
        self.orders.pop_front()
    }

    /// Handles a client's queue pair that has migrated, whoever began it: to the alternate path that
    /// was loaded, or to the path `to`. A host that can say `to` should: the queue pair may have
    /// migrated before it executed the last order. To say it again, or to say the path that the
    /// connection began with, changes nothing, except that an order to follow the peer is over without
    /// success.
    pub fn path_migrated(
        &mut self,
        now: Duration,
        client: ClientId,
        qp_num: u32,
        to: Option<PathTaken>,
        env: &mut dyn Environment,
    ) {
        if let Some(connection) = self.ib.of_qp(client, qp_num) {
            self.migrated(now, connection, to, true, env);
        }
    }

    /// Handles an alternate path that the host could not load into a client's queue pair, or that
    /// the queue pair has lost. Another one is looked for.
    pub fn alternate_failed(&mut self, now: Duration, client: ClientId, qp_num: u32) {
        if let Some(connection) = self.ib.of_qp(client, qp_num) {
            self.not_loaded(now, connection);
        }
    }

    /// Handles a client's queue pair that has a path set, which moves it to other paths by itself. The two
    /// connection managers agree on nothing any more for its connection.
    pub fn has_path_set(&mut self, now: Duration, client: ClientId, qp_num: u32) {
        if let Some(connection) = self.ib.of_qp(client, qp_num) {
            self.ib.set_paths(now, connection, false);
        }
    }

    /// Handles a device that is gone for a client: its ids get `RDMA_CM_EVENT_DEVICE_REMOVAL`.
    pub fn handle_device_removal(
        &mut self,
        now: Duration,
        client: ClientId,
        node_guid: [u8; 8],
        env: &mut dyn Environment,
    ) {
        self.device_removed(now, client, node_guid, env);
    }

    /// The number of connections, including those that outlive their id.
    pub fn connection_count(&self) -> usize {
        self.ib.len()
    }

    /// The sizes of the tables.
    pub fn table_sizes(&self) -> TableSizes {
        let ib = self.ib.sizes();
        TableSizes {
            ids: self.ids.len(),
            ports: self.ports.len(),
            memberships: self.memberships.len(),
            events: self.files.waiting_events(),
            early: self.early.len(),
            timers: ib.timers + self.neighbours.len(),
            ..ib
        }
    }

    /// The counters since the start.
    pub fn counters(&self) -> &CmCounters {
        &self.ib.counters
    }
}

impl core::fmt::Debug for Cm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cm")
            .field("ids", &self.ids.len())
            .field("connections", &self.ib.len())
            .field("counters", &self.ib.counters)
            .finish_non_exhaustive()
    }
}
