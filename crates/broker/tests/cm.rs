//! The connection manager between two hosts: commands go in, MADs travel between the brokers,
//! events come out.

mod common;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use common::{
    PATIENCE, address, client, cm_command, counter, create_id, in_namespace, readable,
    resolve_address, run,
};
use polypath_ipc::message::{CM_PART_MAX, Request};
use polypath_ipc::settings::Apm;
use polypath_ipc::{Client, CmFile};
use rustix::thread::gettid;

// linux/rdma_user_cm.h
const BIND_IP: u32 = 2;
const RESOLVE_ROUTE: u32 = 4;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;

const ADDR_RESOLVED: u32 = 0;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;

/// A program that uses the rdma_cm device as librdmacm does.
struct Program {
    client: Client,
    cm: CmFile,
}

impl Program {
    fn new() -> Self {
        let mut client = client("");
        let cm = client.open_cm(Apm::Off, None).unwrap();
        Self { client, cm }
    }

    fn command(&mut self, command: u32, room: u16, body: &[u8]) -> Vec<u8> {
        cm_command(&mut self.client, self.cm.file, (command, room), body).unwrap()
    }

    fn create_id(&mut self, uid: u64) -> u32 {
        create_id(&mut self.client, self.cm.file, uid).unwrap()
    }

    /// Creates an id that listens.
    fn listen(&mut self, at: SocketAddr) {
        let id = self.create_id(1);
        let mut bind = 0_u64.to_ne_bytes().to_vec();
        bind.extend(address(Some(at)));
        bind.extend(id.to_ne_bytes());
        self.command(BIND_IP, 0, &bind);
        self.command(LISTEN, 0, &[id.to_ne_bytes(), 8_u32.to_ne_bytes()].concat());
    }

    fn accept(&mut self, request: u32) {
        let mut accept = 2_u64.to_ne_bytes().to_vec();
        accept.extend(parameters(0x0001_0002));
        accept.extend(request.to_ne_bytes());
        accept.extend([0; 12]);
        self.command(ACCEPT, 0, &accept);
    }

    /// The next event: its kind, its id and its status.
    fn event(&mut self) -> (u32, u32, i32) {
        let mut buffer = [0; 1024];
        assert!(readable(&self.cm.events.as_fd(), PATIENCE), "no event");
        let got = polypath_ipc::socket::receive(self.cm.events.as_fd(), &mut buffer).unwrap();
        assert!(got.len > 20, "the broker closed the file");
        let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
        (word(12), word(8), word(16).cast_signed())
    }

    fn expect(&mut self, event: u32) -> u32 {
        let (got, id, status) = self.event();
        assert_eq!((got, status), (event, 0));
        id
    }
}

/// `struct rdma_ucm_conn_param`.
fn parameters(qpn: u32) -> Vec<u8> {
    let mut bytes = vec![0; 272];
    bytes[..4].copy_from_slice(&qpn.to_ne_bytes());
    // private_data_len, srq, responder resources, initiator depth, flow control, retries, RNR,
    // valid
    bytes[264..].copy_from_slice(&[0, 0, 1, 1, 0, 7, 7, 1]);
    bytes
}

fn serve(at: SocketAddr, ready: &mpsc::Sender<()>) {
    let mut program = Program::new();
    program.listen(at);
    ready.send(()).unwrap();
    let request = program.expect(CONNECT_REQUEST);
    program.accept(request);
    program.expect(ESTABLISHED);
    // The other program dies, and its broker ends the connection.
    program.expect(DISCONNECTED);
    assert!(counter(&mut program.client, "qp1_mads_received") >= 3);
}

fn connect(to: SocketAddr) {
    let mut program = Program::new();
    let id = program.create_id(7);
    resolve_address(&mut program.client, program.cm.file, id, to).unwrap();
    assert_eq!(program.expect(ADDR_RESOLVED), id);
    program.command(RESOLVE_ROUTE, 0, &[id.to_ne_bytes(), 2000_u32.to_ne_bytes()].concat());
    program.expect(ROUTE_RESOLVED);
    let mut connect = parameters(0x0001_0001);
    connect.extend(id.to_ne_bytes());
    connect.extend([0; 12]);
    program.command(CONNECT, 0, &connect);
    // The peer has no kernel queue pair: librdmacm changes its state and sends ACCEPT again. Here
    // it is enough that the answer came.
    let (event, _, status) = program.event();
    assert_eq!(status, 0);
    if event != ESTABLISHED {
        let mut accept = 7_u64.to_ne_bytes().to_vec();
        accept.extend(vec![0; 272]);
        accept.extend(id.to_ne_bytes());
        accept.extend([0; 12]);
        program.command(ACCEPT, 0, &accept);
    }
    let status = program.client.status().unwrap();
    let own = status.broker.cm_ids.iter().find(|shown| shown.id == id).unwrap();
    let shown: SocketAddr = own.remote.parse().unwrap();
    assert_eq!((own.pid, shown.ip()), (std::process::id(), to.ip()));
}

/// The server's address, with the scope that a link-local one needs.
fn socket_address(ip: IpAddr, link: &str) -> SocketAddr {
    let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
    let ifindex = rustix::net::netdevice::name_to_index(socket, link).unwrap();
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 7471, 0, ifindex).into()
        }
        _ => SocketAddr::new(ip, 7471),
    }
}

/// Runs a test between two hosts: this thread's namespace and another thread's, with a link between
/// them.
fn between_two_hosts(addresses: [&str; 2], prefix: u8) {
    let ips: [IpAddr; 2] = addresses.map(|ip| ip.parse().unwrap());
    let (to_first, from_second) = mpsc::channel();
    let (to_second, from_first) = mpsc::channel();
    let configure = move |link: &str, ip: &str| {
        let nodad = if ip.contains(':') { " nodad" } else { "" };
        run(&format!("ip link set {link} up"));
        run(&format!("ip addr add {ip}/{prefix} dev {link}{nodad}"));
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: this changes the namespace of this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            to_first.send(gettid().as_raw_pid()).unwrap();
            from_first.recv().unwrap();
            run("ip link set lo up");
            configure("eth1", addresses[1]);
            to_first.send(0).unwrap();
            from_first.recv().unwrap();
            connect(socket_address(ips[0], "eth1"));
        });
        let other = from_second.recv().unwrap();
        run("ip link add eth0 type veth peer name eth1");
        run(&format!("ip link set eth1 netns {other}"));
        configure("eth0", addresses[0]);
        to_second.send(()).unwrap();
        from_second.recv().unwrap();
        serve(socket_address(ips[0], "eth0"), &to_second);
    });
}

#[test]
fn a_connection_over_ipv4_is_made_and_taken_down() {
    in_namespace("a_connection_over_ipv4_is_made_and_taken_down", || {
        between_two_hosts(["10.0.0.1", "10.0.0.2"], 24);
    });
}

#[test]
fn a_connection_over_ipv6_is_made_and_taken_down() {
    in_namespace("a_connection_over_ipv6_is_made_and_taken_down", || {
        between_two_hosts(["2001:db8::1", "2001:db8::2"], 64);
    });
}

#[test]
fn a_connection_over_link_local_addresses_is_made_and_taken_down() {
    in_namespace("a_connection_over_link_local_addresses_is_made_and_taken_down", || {
        between_two_hosts(["fe80::1", "fe80::2"], 64);
    });
}

#[test]
fn a_connection_within_one_host_is_made_and_taken_down() {
    in_namespace("a_connection_within_one_host_is_made_and_taken_down", || {
        common::veth("eth0", "far0");
        run("ip addr add 10.0.0.1/24 dev eth0");
        let at: SocketAddr = "10.0.0.1:7471".parse().unwrap();
        let (ready, is_ready) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                is_ready.recv().unwrap();
                connect(at);
            });
            serve(at, &ready);
        });
    });
}

/// The program's end of the event socket stays what it is.
#[test]
fn a_file_that_was_taken_away_goes_on_where_it_is_put() {
    in_namespace("a_file_that_was_taken_away_goes_on_where_it_is_put", || {
        common::veth("eth0", "far0");
        run("ip addr add 10.0.0.1/24 dev eth0");
        let at: SocketAddr = "10.0.0.1:7471".parse().unwrap();
        let mut program = Program::new();
        program.listen(at);

        let number = program.cm.file;
        let (bytes, socket) = program.client.cm_take(number).unwrap();
        let ids = |client: &mut Client| client.status().unwrap().broker.cm_ids.len();
        assert_eq!(ids(&mut program.client), 0);
        let gone = program.client.cm_take(number).unwrap_err();
        assert_eq!(gone.errno(), libc::EBADF, "{gone}");

        // It comes from another host, so the connection to the broker is another one.
        program.client = client("");
        let mut put = |bytes: &[u8], number, socket: &OwnedFd| {
            let moved = (bytes.to_vec(), socket.try_clone().unwrap());
            let refused = program.client.cm_put(number, moved, Apm::Off, None);
            refused.map_err(|error| error.errno())
        };
        for len in 0..bytes.len() {
            assert_eq!(put(&bytes[..len], number, &socket), Err(libc::EINVAL), "{len}");
        }
        assert_eq!(put(&bytes, 1 << 32, &socket), Err(libc::EINVAL));
        put(&bytes, number, &socket).unwrap();
        assert_eq!(put(&bytes, number, &socket), Err(libc::EADDRINUSE), "the file");
        assert_eq!(put(&bytes, number ^ 1, &socket), Err(libc::EADDRINUSE), "its id");
        assert_eq!(ids(&mut program.client), 1);

        thread::scope(|scope| {
            let client = scope.spawn(move || connect(at));
            let request = program.expect(CONNECT_REQUEST);
            let busy = program.client.cm_take(number).unwrap_err();
            assert_eq!(busy.errno(), libc::EBUSY, "{busy}");
            program.accept(request);
            program.expect(ESTABLISHED);
            client.join().unwrap();
        });
    });
}

/// They do not fit into one message.
#[test]
fn a_file_with_thousands_of_ids_goes_in_parts() {
    in_namespace("a_file_with_thousands_of_ids_goes_in_parts", || {
        common::veth("eth0", "far0");
        run("ip addr add 10.0.0.1/24 dev eth0");
        let mut program = Program::new();
        for n in 0..4000 {
            program.listen(SocketAddr::from(([10, 0, 0, 1], 2000 + n)));
        }
        let number = program.cm.file;
        let (bytes, socket) = program.client.cm_take(number).unwrap();
        assert!(bytes.len() > CM_PART_MAX, "{}", bytes.len());
        let more = program.client.call(&Request::CmTakeMore).unwrap_err();
        assert_eq!(more.errno(), libc::ENODATA, "{more}");

        program.client = client("");
        program.client.cm_put(number, (bytes.clone(), socket), Apm::Off, None).unwrap();
        assert_eq!(program.client.status().unwrap().broker.cm_ids.len(), 4000);
        let (again, _socket) = program.client.cm_take(number).unwrap();
        assert_eq!(again.len(), bytes.len());
    });
}

#[test]
fn a_file_in_endless_parts_is_refused() {
    in_namespace("a_file_in_endless_parts_is_refused", || {
        let mut client = client("");
        let part = Request::CmPutPart { bytes: vec![0; CM_PART_MAX] };
        let refused = (0..1000).find_map(|_| client.call(&part).err());
        let error = refused.expect("less than 180 MiB");
        assert_eq!(error.errno(), libc::EMSGSIZE, "{error}");
    });
}
