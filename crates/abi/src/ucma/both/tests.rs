use core::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use libc::c_int;
use rustix::event::{PollFd, PollFlags, poll};

use super::address::sockaddr;
use super::fake::{FakeDevice, FakeId, FakeWorld, Kernel, kernel};
use super::kernel::bind_body;
use super::relay::Source;
use super::*;
use crate::ucma::ids::Ids;
use crate::ucma::layout::{ACCEPT, CONNECT, CONNECT_REQUEST, DISCONNECT, EVENT_LEN, QUERY_ROUTE};

const REAL: &str = "10.0.0.1";
const OURS: &str = "10.1.0.1";
const ESTABLISHED: u32 = 9;
const MULTICAST_JOIN: u32 = 12;

/// A program with one file, as `ucma::command` serves it.
struct Program {
    ids: Ids,
    world: FakeWorld,
    file: u64,
    device: Arc<FakeDevice>,
    /// The socket that the program reads from.
    socket: OwnedFd,
    /// The broker's end of its event socket.
    broker: Option<OwnedFd>,
}

/// The broker's number of the first file.
const NUMBER: u64 = 500;

impl Program {
    fn new() -> Self {
        Self::of(&kernel(&[REAL]))
    }

    fn of(kernel: &Arc<Mutex<Kernel>>) -> Self {
        let mut ids = Ids::new();
        let device = FakeDevice::open(kernel);
        let (file, socket, broker) = open(&mut ids, NUMBER, &device);
        let world = FakeWorld::new(&[OURS]);
        Self { ids, world, file, device, socket, broker: Some(broker) }
    }

    fn on(&mut self, file: u64, from: u64, code: u32, body: &[u8], value: &[u8]) -> Answer {
        let bytes = command(code, body, 4);
        let mut portable = bytes.clone();
        portable.extend(value);
        // SAFETY: the commands here have no pointers, or point to the caller's data.
        let asked = unsafe { Asked::new(file, code, &bytes, &portable, from) };
        let outcome = self.ids.both.execute(asked, &mut self.world)?;
        outcome.job.map_or(Ok(()), Job::run)?;
        Ok(outcome.answer)
    }

    fn give(&mut self, code: u32, body: &[u8]) -> Answer {
        self.on(self.file, 0, code, body, &[])
    }

    fn create(&mut self, uid: u64) -> u32 {
        let mut body = [0; 24];
        put_u64(&mut body, 0, uid);
        body[16..24].copy_from_slice(&resolve::TCP_RC);
        let number = u32_at(&self.give(CREATE_ID, &body).unwrap(), 0).unwrap();
        self.ids.created(number, uid);
        number
    }

    fn destroy(&mut self, number: u32) -> u32 {
        let mut body = [0; 16];
        put_u32(&mut body, 8, number);
        assert_eq!(self.give(DESTROY_ID, &body).unwrap().len(), 4);
        self.ids.destroyed(number)
    }

    fn bind(&mut self, number: u32, to: &str) -> Answer {
        let to: SocketAddr = to.parse().unwrap();
        let mut body = bind_body(number, sockaddr(to));
        body[10..12].copy_from_slice(&to.port().to_be_bytes());
        self.give(BIND_IP, &body)
    }

    fn listen(&mut self, number: u32) -> Answer {
        let mut body = [0; 8];
        put_u32(&mut body, 0, number);
        self.give(LISTEN, &body)
    }

    fn resolve(&mut self, number: u32, from: Option<&str>, to: &str) -> Answer {
        let mut body = [0; 64];
        if let Some(from) = from {
            body[..28].copy_from_slice(&sockaddr(from.parse().unwrap()));
        }
        body[28..56].copy_from_slice(&sockaddr(to.parse().unwrap()));
        put_u32(&mut body, 56, number);
        self.give(RESOLVE_IP, &body)
    }

    fn connect(&mut self, number: u32) -> Answer {
        let mut body = [0; 288];
        put_u32(&mut body, 272, number);
        self.give(CONNECT, &body)
    }

    /// The kernel's id behind an id, as the kernel stores it.
    fn behind(&self, number: u32) -> Option<FakeId> {
        let kernel = self.ids.both.ids.get(&number)?.kernel?;
        self.device.kernel().side.ids.get(&kernel).cloned()
    }

    fn side(&self, number: u32) -> Side {
        self.ids.both.ids[&number].side
    }

    fn kernel_ids(&self) -> usize {
        self.device.kernel().side.ids.len()
    }

    fn serve(&mut self, source: Source) {
        self.ids.serve(self.file, source, false, &mut self.world);
    }

    /// The next event that the program reads, handled as `ucma::write` does.
    fn read(&mut self) -> Option<(u64, u32, u32)> {
        let event = receive(&self.socket)?;
        assert_eq!(self.ids.delivered(&event, NUMBER), crate::ucma::ids::EventFate::Deliver);
        Some(parts(&event))
    }
}

type Answer = Result<Vec<u8>, c_int>;

fn open(ids: &mut Ids, number: u64, device: &Arc<FakeDevice>) -> (u64, OwnedFd, OwnedFd) {
    let (theirs, ours) = polypath_ipc::socket::pair().unwrap();
    let (socket, inlet) = polypath_ipc::socket::pair().unwrap();
    let file = ids.both.attach(number, Arc::clone(device) as Arc<dyn Device>, theirs, inlet);
    (file, socket, ours)
}

fn event(uid: u64, id: u32, kind: u32) -> Vec<u8> {
    let mut bytes = vec![0; EVENT_LEN];
    put_u64(&mut bytes, 0, uid);
    put_u32(&mut bytes, 8, id);
    put_u32(&mut bytes, 12, kind);
    bytes
}

fn parts(event: &[u8]) -> (u64, u32, u32) {
    (u64_at(event, 0).unwrap(), u32_at(event, 8).unwrap(), u32_at(event, 12).unwrap())
}

fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = [0_u8; 512];
    // SAFETY: the buffer has the stated length.
    let got = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), 512, libc::MSG_DONTWAIT)
    };
    usize::try_from(got).ok().map(|got| buffer[..got].to_vec())
}

#[test]
fn the_source_address_says_whose_an_id_is() {
    let mut program = Program::new();
    for (address, side) in [
        ("10.0.0.1:7", Side::Kernel),
        ("10.1.0.1:7", Side::Polypath),
        ("127.0.0.1:7", Side::Polypath),
    ] {
        program.world.side.addresses.push("127.0.0.1");
        let id = program.create(1);
        program.bind(id, address).unwrap();
        assert_eq!(program.side(id), side, "{address}");
        assert_eq!(program.behind(id).is_some(), side == Side::Kernel, "{address}");
    }
    // The ids that were used only for queries are gone.
    assert_eq!((program.kernel_ids(), program.world.side.ids.len()), (1, 3));
}

#[test]
fn an_address_of_nobody_is_refused_by_the_broker() {
    let mut program = Program::new();
    let id = program.create(1);
    assert_eq!(program.bind(id, "10.9.0.1:7").err(), Some(libc::ENODEV));
    assert_eq!((program.side(id), program.kernel_ids()), (Side::Open, 0));
    program.bind(id, "10.0.0.1:7").unwrap();
    assert_eq!(program.side(id), Side::Kernel);
}

#[test]
fn what_the_kernel_says_of_its_own_address_is_the_answer() {
    let mut program = Program::new();
    program.device.kernel().side.taken.push(7);
    let id = program.create(1);
    assert_eq!(program.bind(id, "10.0.0.1:7").err(), Some(libc::EADDRINUSE));
    assert_eq!((program.side(id), program.kernel_ids()), (Side::Open, 0));
}

#[test]
fn an_address_of_both_is_the_kernels_unless_its_interface_is_named() {
    for (named, side) in [(false, Side::Kernel), (true, Side::Polypath)] {
        let mut program = Program::new();
        program.world.side.addresses.push(REAL);
        program.world.named = named;
        let id = program.create(1);
        program.bind(id, "10.0.0.1:7").unwrap();
        assert_eq!((program.side(id), program.world.side.ids.len()), (side, 1));
    }
}

#[test]
fn without_a_source_the_route_to_the_destination_says_it() {
    let mut program = Program::new();
    for (route, to, side) in [
        (Some(REAL), "10.0.0.9:1", Side::Kernel),
        (Some(OURS), "10.1.0.9:1", Side::Polypath),
        (None, "10.2.0.9:1", Side::Polypath),
        (Some(REAL), "127.0.0.1:1", Side::Polypath),
    ] {
        program.world.route = route;
        let id = program.create(1);
        program.resolve(id, None, to).unwrap();
        assert_eq!(program.side(id), side, "{to}");
    }
    // If the source is given, no route is looked up.
    program.world.route = Some(OURS);
    let id = program.create(1);
    program.resolve(id, Some("10.0.0.1:0"), "10.1.0.9:1").unwrap();
    assert_eq!(program.side(id), Side::Kernel);
}

#[test]
fn an_address_that_could_not_be_resolved_does_not_bind_the_next() {
    let mut program = Program::new();
    program.world.route = Some(REAL);
    let id = program.create(1);
    program.resolve(id, None, "10.0.0.9:1").unwrap();
    program.world.route = Some(OURS);
    program.resolve(id, None, "10.1.0.9:1").unwrap();
    assert_eq!((program.side(id), program.kernel_ids()), (Side::Polypath, 0));
}

#[test]
fn commands_of_an_id_go_to_its_side_with_its_number_there() {
    let mut program = Program::new();
    // The kernel's numbers differ from the broker's.
    let (ours, real) = (program.create(1), program.create(2));
    program.bind(ours, "10.1.0.1:7").unwrap();
    program.bind(real, "10.0.0.1:7").unwrap();
    program.connect(ours).unwrap();
    program.connect(real).unwrap();
    assert_eq!(program.behind(real).unwrap().given, [BIND_IP, CONNECT]);
    assert_eq!(program.behind(real).unwrap().uid, 2);
    assert_eq!(program.world.side.ids[&ours].given, [BIND_IP, CONNECT]);
    assert_eq!(program.world.side.ids[&real].given, []);
}

#[test]
fn options_set_before_the_address_reach_the_kernel() {
    let mut program = Program::new();
    let id = program.create(1);
    let mut body = [0; 24];
    put_u32(&mut body, 8, id);
    put_u32(&mut body, 16, 1);
    put_u32(&mut body, 20, 4);
    let file = program.file;
    program.on(file, 0, SET_OPTION, &body, &[1, 0, 0, 0]).unwrap();
    program.bind(id, "10.0.0.1:7").unwrap();
    assert_eq!(program.behind(id).unwrap().options, [1]);
}

#[test]
fn a_wildcard_is_bound_to_one_port_at_both_and_listens_at_both() {
    let mut program = Program::new();
    // The first port that the kernel chooses is taken at the broker.
    program.world.side.taken.push(40_000);
    program.world.side.refusal = Some(libc::EADDRNOTAVAIL);
    for to in ["0.0.0.0:0", "[::]:0", "0.0.0.0:7471"] {
        let id = program.create(1);
        program.bind(id, to).unwrap();
        program.listen(id).unwrap();
        let (kernel, broker) = (program.behind(id).unwrap(), &program.world.side.ids[&id]);
        assert!(kernel.listens && broker.listens, "{to}");
        assert_eq!(kernel.source, broker.source, "{to}");
        assert_ne!(kernel.source.unwrap().port(), 40_000);
    }
    assert_eq!(program.kernel_ids(), 3);
}

#[test]
fn an_id_that_was_not_bound_listens_at_both_too() {
    let mut program = Program::new();
    let id = program.create(1);
    program.listen(id).unwrap();
    assert!(program.behind(id).unwrap().listens && program.world.side.ids[&id].listens);
}

#[test]
fn a_port_that_either_refuses_is_refused() {
    // The kernel returns the latter if the port is taken on a single address.
    for errno in [libc::EADDRINUSE, libc::EADDRNOTAVAIL] {
        for broker in [false, true] {
            let mut program = Program::new();
            {
                let mut kernel = program.device.kernel();
                let side = if broker { &mut program.world.side } else { &mut kernel.side };
                side.taken.push(7);
                side.refusal = Some(errno);
            }
            let id = program.create(1);
            assert_eq!(program.bind(id, "0.0.0.0:7").err(), Some(errno));
            assert_eq!((program.kernel_ids(), program.side(id)), (0, Side::Open));
        }
    }
}

#[test]
fn an_id_on_a_wildcard_that_connects_becomes_its_routes() {
    for (route, side) in [(REAL, Side::Kernel), (OURS, Side::Polypath)] {
        let mut program = Program::new();
        program.world.route = Some(route);
        let id = program.create(1);
        program.bind(id, "0.0.0.0:0").unwrap();
        program.resolve(id, None, "10.9.0.9:1").unwrap();
        assert_eq!(program.side(id), side);
        assert_eq!(program.kernel_ids(), usize::from(side == Side::Kernel));
    }
}

#[test]
fn connections_of_both_arrive_by_one_descriptor() {
    let mut program = Program::new();
    let listener = program.create(0xa);
    program.bind(listener, "0.0.0.0:7471").unwrap();
    program.listen(listener).unwrap();

    let real = program.device.kernel().side.create(program.device.number(), 0);
    program.device.raise(event(0xa, real, CONNECT_REQUEST));
    program.serve(Source::Kernel);
    let (uid, first, kind) = program.read().unwrap();
    assert_eq!((uid, kind), (0xa, CONNECT_REQUEST));

    let second = program.world.side.create(NUMBER, 0);
    let broker = program.broker.take().unwrap();
    let request = event(0xa, second, CONNECT_REQUEST);
    polypath_ipc::socket::send(broker.as_fd(), &request, None).unwrap();
    program.serve(Source::Broker);
    assert_eq!(program.read(), Some((0xa, second, CONNECT_REQUEST)));
    assert!(first != second && first != listener && second != listener);

    // Each is accepted on its side, and its events have the program's number and name.
    for (number, uid) in [(first, 0xb), (second, 0xc)] {
        let mut body = [0; 296];
        put_u64(&mut body, 0, uid);
        put_u32(&mut body, 280, number);
        program.give(ACCEPT, &body).unwrap();
        program.ids.named(number, uid);
    }
    assert_eq!(program.behind(first).unwrap().uid, 0xb);
    assert_eq!(program.world.side.ids[&second].uid, 0xc);
    program.device.raise(event(0xb, real, ESTABLISHED));
    program.serve(Source::Kernel);
    assert_eq!(program.read(), Some((0xb, first, ESTABLISHED)));
    assert_eq!(program.destroy(first), 1);
    assert_eq!(program.destroy(listener), 2);
    assert_eq!(program.kernel_ids(), 0);
}

#[test]
fn events_of_an_id_that_ends_are_dropped_with_what_they_announce() {
    let mut program = Program::new();
    let listener = program.create(0xa);
    program.bind(listener, "10.0.0.1:7").unwrap();
    program.listen(listener).unwrap();
    let kernel = program.ids.both.ids[&listener].kernel.unwrap();
    program.device.raise(event(0xa, kernel, ESTABLISHED));
    program.serve(Source::Kernel);
    assert!(program.read().is_some());

    let child = program.device.kernel().side.create(program.device.number(), 0);
    program.device.raise(event(0xa, kernel, ESTABLISHED));
    program.device.raise(event(0xa, child, CONNECT_REQUEST));
    assert_eq!(program.destroy(listener), 1);
    program.serve(Source::Kernel);
    assert!(receive(&program.socket).is_none());
    assert_eq!((program.kernel_ids(), program.world.side.ids.len()), (0, 0));
}

#[test]
fn a_number_that_the_kernel_gives_again_is_the_new_ids() {
    let mut program = Program::new();
    let old = program.create(1);
    program.bind(old, "10.0.0.1:7").unwrap();
    let kernel = program.ids.both.ids[&old].kernel;
    program.destroy(old);
    program.world.side.create(NUMBER, 0);
    let new = program.create(2);
    program.bind(new, "10.0.0.1:7").unwrap();
    assert_eq!(program.ids.both.ids[&new].kernel, kernel);
    program.device.raise(event(2, kernel.unwrap(), ESTABLISHED));
    program.serve(Source::Kernel);
    assert_eq!(program.read(), Some((2, new, ESTABLISHED)));
}

#[test]
fn an_id_moves_to_another_file_at_both() {
    let kernel = kernel(&[REAL]);
    let mut program = Program::of(&kernel);
    let device = FakeDevice::open(&kernel);
    let (second, socket, _broker) = open(&mut program.ids, 501, &device);
    let id = program.create(1);
    program.bind(id, "10.0.0.1:7").unwrap();

    let mut body = [0; 16];
    put_u32(&mut body, 8, id);
    put_u32(&mut body, 12, program.device.fd().cast_unsigned());
    // The broker gets the file's number instead of the descriptor.
    let bytes = command(MIGRATE_ID, &body, 4);
    put_u32(&mut body, 12, NUMBER as u32);
    let portable = command(MIGRATE_ID, &body, 4);
    let from = program.file;
    // SAFETY: the command points to nothing that is written.
    let asked = unsafe { Asked::new(second, MIGRATE_ID, &bytes, &portable, from) };
    program.ids.both.execute(asked, &mut program.world).unwrap();
    program.ids.moved(id, 501);

    assert_eq!(program.behind(id).unwrap().file, device.number());
    assert_eq!(program.world.side.ids[&id].file, 501);
    assert_eq!(program.connect(id).err(), Some(libc::EINVAL), "by the old file");
    let mut body = [0; 8];
    put_u32(&mut body, 0, id);
    program.on(second, 0, DISCONNECT, &body, &[]).unwrap();
    let number = program.ids.both.ids[&id].kernel.unwrap();
    device.raise(event(1, number, ESTABLISHED));
    program.ids.serve(second, Source::Kernel, false, &mut program.world);
    assert_eq!(parts(&receive(&socket).unwrap()), (1, id, ESTABLISHED));
}

#[test]
fn memberships_of_both_have_different_numbers() {
    let mut program = Program::new();
    let mut numbers = Vec::new();
    for address in ["10.0.0.1:0", "10.1.0.1:0"] {
        let id = program.create(1);
        program.bind(id, address).unwrap();
        let mut body = [0; 48];
        put_u64(&mut body, 8, 0x70);
        put_u32(&mut body, 44, id);
        let number = u32_at(&program.give(JOIN_IP_MCAST, &body).unwrap(), 0).unwrap();
        program.ids.joined(number, 0x70, id);
        numbers.push(number);
    }
    assert_eq!(numbers, [3 | MEMBERSHIP, 3]);
    program.device.raise(event(0x70, 3, MULTICAST_JOIN));
    program.serve(Source::Kernel);
    assert_eq!(program.read(), Some((0x70, 3 | MEMBERSHIP, MULTICAST_JOIN)));
    let mut body = [0; 16];
    put_u32(&mut body, 8, numbers[0]);
    assert_eq!(program.give(LEAVE_MCAST, &body), Ok(vec![0; 4]));
    assert_eq!(program.ids.left(numbers[0]), 1);
}

#[test]
fn events_wait_until_the_program_makes_room() {
    let mut program = Program::new();
    let id = program.create(1);
    program.bind(id, "10.0.0.1:7").unwrap();
    let kernel = program.ids.both.ids[&id].kernel.unwrap();
    let mut raised = 0;
    while !program.ids.both.files[&program.file].is_full() {
        program.device.raise(event(1, kernel, ESTABLISHED));
        raised += 1;
        program.serve(Source::Kernel);
    }
    // The kernel keeps the events that come now.
    program.device.raise(event(1, kernel, ESTABLISHED));
    program.serve(Source::Kernel);
    let mut read = 0;
    while program.read().is_some() {
        read += 1;
        program.serve(Source::Inlet);
    }
    assert_eq!(read, raised);
    program.serve(Source::Kernel);
    assert!(program.read().is_some());
}

#[test]
fn a_file_that_is_closed_closes_the_kernels() {
    let mut program = Program::new();
    let id = program.create(1);
    program.bind(id, "10.0.0.1:7").unwrap();
    let device = Arc::downgrade(&program.device);
    let (file, mut world) = (program.file, program.world);
    drop((program.device, program.socket));
    assert!(device.upgrade().is_some());
    program.ids.serve(file, Source::Inlet, true, &mut world);
    assert!(device.upgrade().is_none());
    assert!(program.ids.both.ids.is_empty() && program.ids.both.numbers.is_empty());
}

#[test]
fn without_its_broker_the_file_ends_and_the_kernels_ids_can_still_be_destroyed() {
    let mut program = Program::new();
    let id = program.create(1);
    program.bind(id, "10.0.0.1:7").unwrap();
    program.broker = None;
    program.world.gone = true;
    program.serve(Source::Broker);
    assert_eq!(receive(&program.socket), Some(Vec::new()), "hung up");
    let mut body = [0; 8];
    put_u32(&mut body, 0, id);
    program.give(DISCONNECT, &body).unwrap();
    program.destroy(id);
    assert_eq!(program.kernel_ids(), 0);
}

#[test]
fn a_connection_over_a_real_device_without_a_broker_is_refused() {
    let mut program = Program::new();
    let listener = program.create(0xa);
    program.bind(listener, "10.0.0.1:7").unwrap();
    program.world.gone = true;
    let child = program.device.kernel().side.create(program.device.number(), 0);
    program.device.raise(event(0xa, child, CONNECT_REQUEST));
    program.serve(Source::Kernel);
    assert!(receive(&program.socket).is_none());
    assert_eq!(program.kernel_ids(), 1);
}

#[test]
fn a_short_command_is_refused() {
    let mut program = Program::new();
    for code in [BIND_IP, BIND, RESOLVE_IP, LISTEN, DESTROY_ID, SET_OPTION, QUERY_ROUTE] {
        assert_eq!(program.give(code, &[0; 3]).err(), Some(libc::EINVAL), "{code}");
    }
}

/// Waits until a descriptor has one of these events.
fn wait(fd: &OwnedFd, events: PollFlags) {
    assert_eq!(poll(&mut [PollFd::new(fd, events)], None), Ok(1));
}

#[test]
fn the_thread_carries_events_and_ends_a_file_that_is_closed() {
    const NUMBER: u32 = 0xfff0;
    let kernel = kernel(&[REAL]);
    let device = FakeDevice::open(&kernel);
    let ring = device.ring();
    let (socket, _broker) = {
        let mut ids = crate::ucma::IDS.lock();
        let (file, socket, broker) = open(&mut ids, 1, &device);
        ids.created(NUMBER, 0x900);
        let id = Id {
            file,
            uid: 0x900,
            kind: resolve::TCP_RC,
            options: Vec::new(),
            side: Side::Kernel,
            bound: true,
            kernel: Some(0x77),
        };
        assert!(ids.both.insert(NUMBER, id).is_none());
        // This happens before there is a thread to pass it on.
        device.raise(event(0x900, 0x77, ESTABLISHED));
        ids.both.watch(file).unwrap();
        (socket, broker)
    };
    drop(device);
    wait(&socket, PollFlags::IN);
    assert_eq!(parts(&receive(&socket).unwrap()), (0x900, NUMBER, ESTABLISHED));
    drop(socket);
    wait(&ring, PollFlags::empty());
    crate::ucma::IDS.lock().destroyed(NUMBER);
}
