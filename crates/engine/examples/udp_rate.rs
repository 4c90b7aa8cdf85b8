//! Measures how fast packets get from a sender to a receiver, and what the ICRC costs.
//!
//! ```text
//! cargo run --release --example udp_rate                                   # over lo
//! udp_rate --from 10.9.0.1 --to 10.9.0.2 --from-ns a --to-ns b             # over a veth pair
//! ```
//!
//! Both ends take turns in one thread, and its CPU time is measured, so that a busy machine does
//! not matter. `--threads 2` gives each end its own thread. Plain means UDP_SEGMENT and UDP_GRO
//! without any other work on the data.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polypath_engine::media::FlowHandle;
use polypath_engine::media::udp::{FlowKey, Receiver, Sender};
use polypath_engine::memory::{KeyCache, MemoryTable, Segment, store};
use polypath_transport::{Access, Burst, PathId, Payload, Sge};
use polypath_wire::{Bth, Headers, Opcode, Psn, ROCE_PORT};

/// The largest number of bytes under way. It fits into the 208 KiB receive buffer of an
/// unprivileged socket, of which the kernel uses a part for itself.
const WINDOW: u64 = 128 * 1024;
const MESSAGE: u32 = 1 << 20;
/// BTH and ICRC.
const OVERHEAD: u32 = 16;
const ROUND: Duration = Duration::from_millis(1500);
const PINGS: u32 = 20_000;

#[derive(Clone)]
struct Options {
    from: IpAddr,
    to: IpAddr,
    from_ns: Option<String>,
    to_ns: Option<String>,
    mtu: u32,
    rounds: u32,
    threads: u32,
    only: String,
}

impl Options {
    /// Whether a measurement was requested: all are, unless one is named.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.eq_ignore_ascii_case(name)
    }

    /// The number of payload bytes in this many bytes of packets.
    fn payload(&self, bytes: u64) -> f64 {
        bytes as f64 * f64::from(self.mtu) / f64::from(self.mtu + OVERHEAD)
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    /// No ICRC, no packet structure.
    Plain,
    /// Packets with ICRC computed and verified.
    Icrc,
    /// The same, and the payload is copied to its place.
    Stored,
    /// Like READ responses: the payload is copied before it is sent.
    Copied,
}

fn main() -> io::Result<()> {
    let options = options();
    println!("{} -> {}, {} bytes of payload a packet", options.from, options.to, options.mtu);
    let modes = [Mode::Plain, Mode::Icrc, Mode::Stored, Mode::Copied];
    // The modes take turns, so that noise of the machine affects all alike.
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..options.rounds {
        for (mode, rates) in modes.iter().zip(&mut rates) {
            if options.wants(&format!("{mode:?}")) {
                rates.push(bulk(&options, *mode)?);
            }
        }
    }
    let medians: Vec<f64> = rates.iter_mut().map(|r| median(r)).collect();
    for (mode, rate) in modes.iter().zip(&medians) {
        if !rate.is_nan() {
            println!("{mode:?}: {:.2} GB/s, {:.2} of plain", rate / 1e9, rate / medians[0]);
        }
    }
    if !["Ping", "Raw", "Ours"].iter().any(|name| options.wants(name)) {
        return Ok(());
    }
    if options.from_ns == options.to_ns {
        // Both ends would need port 4791.
        return Ok(());
    }
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        if options.wants("Raw") || options.wants("Ping") {
            raw.push(ping(&options, false)?);
        }
        if options.wants("Ours") || options.wants("Ping") {
            ours.push(ping(&options, true)?);
        }
    }
    let (raw, ours) = (median(&mut raw), median(&mut ours));
    println!(
        "half round trip of 64 bytes: raw UDP {raw:.2} us, ours {ours:.2} us, {:.2}",
        ours / raw
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn options() -> Options {
    let lo = IpAddr::from([127, 0, 0, 1]);
    let mut o = Options {
        from: lo,
        to: lo,
        from_ns: None,
        to_ns: None,
        mtu: 4096,
        rounds: 3,
        threads: 1,
        only: String::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_default();
        match arg.as_str() {
            "--from" => o.from = value.parse().expect("an address after --from"),
            "--to" => o.to = value.parse().expect("an address after --to"),
            "--from-ns" => o.from_ns = Some(value),
            "--to-ns" => o.to_ns = Some(value),
            "--mtu" => o.mtu = value.parse().expect("bytes after --mtu"),
            "--rounds" => o.rounds = value.parse().expect("a number after --rounds"),
            "--only" => o.only = value,
            "--threads" => o.threads = value.parse().expect("1 or 2 after --threads"),
            other => panic!("unknown option {other}"),
        }
    }
    o
}

/// Moves this thread to a named network namespace.
fn enter(ns: Option<&String>) -> io::Result<()> {
    let Some(ns) = ns else { return Ok(()) };
    let file = std::fs::File::open(format!("/run/netns/{ns}"))?;
    // SAFETY: no pointers.
    match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket like the one that the broker opens for a lane.
fn slot_socket() -> io::Result<OwnedFd> {
    // std would make the socket IPv6-only if that is the system's default.
    // SAFETY: no pointers; the descriptor is new.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: all zeroes are a value of this structure, whose size is passed with it.
    let rc = unsafe {
        let off: libc::c_int = 0;
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_V6ONLY,
            (&raw const off).cast(),
            4,
        );
        let mut addr: libc::sockaddr_in6 = std::mem::zeroed();
        addr.sin6_family = libc::AF_INET6 as u16;
        addr.sin6_port = ROCE_PORT.to_be();
        libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), size_of_val(&addr) as u32)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

fn write_burst<'a>(
    opcode: Opcode,
    packets: u32,
    mtu: u32,
    payload: Payload<'a, Segment>,
) -> Burst<'a, Segment> {
    let headers = &*Box::leak(Box::new(Headers::new(Bth {
        dest_qpn: 0x11,
        psn: Psn::new(1),
        ..Bth::new(opcode)
    })));
    let (path, covered_twice) = (PathId(0), false);
    let (first, middle, last) = (headers, headers, headers);
    let changing = false;
    Burst { path, first, middle, last, packets, mtu, payload, covered_twice, changing }
}

/// Bytes of payload per second.
fn bulk(options: &Options, mode: Mode) -> io::Result<f64> {
    if options.threads == 1 { one_thread(options, mode) } else { two_threads(options, mode) }
}

/// Runs both ends in turns on one CPU. This measures the total cost of a byte, whatever else the
/// machine does.
fn one_thread(options: &Options, mode: Mode) -> io::Result<f64> {
    enter(options.to_ns.as_ref())?;
    let mut sink = Sink::new(mode)?;
    enter(options.from_ns.as_ref())?;
    let mut source = Source::new(options, mode)?;
    let begin = cpu_time();
    let mut received = 0;
    while cpu_time() - begin < ROUND {
        for _ in 0..2 {
            source.send()?;
        }
        loop {
            match sink.receive()? {
                0 => break,
                n => received += n,
            }
        }
    }
    Ok(options.payload(received) / (cpu_time() - begin).as_secs_f64())
}

/// The CPU time that this thread has used.
fn cpu_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Keeps the thread on one CPU, because spinning threads that share a CPU wait for each other's
/// time slices.
fn pin(cpu: usize) {
    // SAFETY: all zeroes are an empty set; the calls read and write only the set given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn two_threads(options: &Options, mode: Mode) -> io::Result<f64> {
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let bound = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| -> io::Result<()> {
            pin(1);
            enter(options.to_ns.as_ref())?;
            let mut sink = Sink::new(mode)?;
            bound.wait();
            while !stop.load(Ordering::Relaxed) {
                let n = sink.receive()?;
                if n > 0 {
                    received.fetch_add(n, Ordering::Release);
                }
            }
            Ok(())
        });
        pin(0);
        enter(options.from_ns.as_ref())?;
        bound.wait();
        let result = send_in_window(options, mode, &received);
        stop.store(true, Ordering::Relaxed);
        receiving.join().expect("receiver")?;
        result
    })
}

fn send_in_window(options: &Options, mode: Mode, received: &AtomicU64) -> io::Result<f64> {
    let mut source = Source::new(options, mode)?;
    let mut sent = 0;
    let begin = Instant::now();
    let mut last_progress = (0, begin);
    while begin.elapsed() < ROUND {
        let done = received.load(Ordering::Acquire);
        if done != last_progress.0 {
            last_progress = (done, Instant::now());
        } else if last_progress.1.elapsed() > Duration::from_millis(50) {
            // Something was lost after all, so start again.
            eprintln!("{} bytes lost", sent - done);
            sent = done;
            last_progress.1 = Instant::now();
        }
        if sent.saturating_sub(done) + source.bytes() > WINDOW {
            std::hint::spin_loop();
            continue;
        }
        source.send()?;
        sent += source.bytes();
    }
    Ok(options.payload(received.load(Ordering::Acquire)) / begin.elapsed().as_secs_f64())
}

/// The sending end.
struct Source {
    mode: Mode,
    memory: Vec<u8>,
    table: MemoryTable,
    key: u32,
    sender: Sender,
    flow: FlowHandle,
    plain: UdpSocket,
    to: SocketAddr,
    run: u32,
    mtu: u32,
    offset: u32,
}

impl Source {
    fn new(options: &Options, mode: Mode) -> io::Result<Self> {
        let memory = vec![0x5au8; MESSAGE as usize];
        let table = MemoryTable::new();
        let key = table
            .register(1, memory.as_ptr() as usize, memory.len(), 0, Access::empty())
            .expect("own memory")
            .key();
        let mut sender = Sender::new();
        let flow = sender.open(flow_key(options.from, options.to))?;
        let plain = UdpSocket::bind(SocketAddr::new(options.from, 0))?;
        let size = (options.mtu + OVERHEAD) as libc::c_int;
        // SAFETY: an option of 4 bytes.
        unsafe {
            libc::setsockopt(
                plain.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                size_of_val(&size) as u32,
            );
        }
        let run = (65_000 / (options.mtu + OVERHEAD)).min(64);
        let to = SocketAddr::new(options.to, ROCE_PORT);
        let mtu = options.mtu;
        Ok(Self { mode, memory, table, key, sender, flow, plain, to, run, mtu, offset: 0 })
    }

    /// The bytes that one send puts on the wire, without IP and UDP headers.
    fn bytes(&self) -> u64 {
        u64::from(self.run * (self.mtu + OVERHEAD))
    }

    fn send(&mut self) -> io::Result<()> {
        let bytes = self.bytes() as u32;
        if self.offset + bytes > MESSAGE {
            self.offset = 0;
        }
        if self.mode == Mode::Plain {
            self.plain.send_to(&self.memory[self.offset as usize..][..bytes as usize], self.to)?;
        } else {
            let sge = Sge { addr: 0, len: MESSAGE, lkey: self.key };
            let segments = [self.table.resolve(1, sge, Access::empty()).expect("in range")];
            let len = self.run * self.mtu;
            let payload = Payload::Memory { segments: &segments, skip: self.offset, len };
            let opcode = match self.mode {
                Mode::Copied => Opcode::RC_READ_RESPONSE_MIDDLE,
                _ => Opcode::RC_WRITE_MIDDLE,
            };
            let burst = write_burst(opcode, self.run, self.mtu, payload);
            assert!(self.sender.queue(self.flow, &burst).is_ok());
            self.sender.flush();
        }
        self.offset += bytes;
        Ok(())
    }
}

/// The receiving end.
struct Sink {
    mode: Mode,
    receiver: Receiver,
    memory: Vec<u8>,
    table: MemoryTable,
    keys: KeyCache,
    key: u32,
    offset: u64,
}

impl Sink {
    fn new(mode: Mode) -> io::Result<Self> {
        let receiver = Receiver::new(slot_socket()?)?;
        let memory = vec![0u8; MESSAGE as usize];
        let table = MemoryTable::new();
        let key = table
            .register(1, memory.as_ptr() as usize, memory.len(), 0, Access::LOCAL_WRITE)
            .expect("own memory")
            .key();
        Ok(Self { mode, receiver, memory, table, keys: KeyCache::new(), key, offset: 0 })
    }

    /// Receives one batch. Returns its number of bytes.
    fn receive(&mut self) -> io::Result<u64> {
        let mut bytes = 0;
        let Self { mode, receiver, memory, table, keys, key, offset } = self;
        receiver.receive(&mut |r| {
            bytes += r.datagram.len() as u64;
            if *mode == Mode::Plain {
                return;
            }
            assert!(r.verify(), "a packet is corrupt");
            if *mode != Mode::Icrc && r.datagram.len() > OVERHEAD as usize {
                let payload = &r.datagram[12..r.datagram.len() - 4];
                let len = payload.len() as u32;
                if *offset + u64::from(len) > memory.len() as u64 {
                    *offset = 0;
                }
                let sge = Sge { addr: *offset, len, lkey: *key };
                let to = keys.resolve(table, 1, sge, Access::LOCAL_WRITE).expect("in range");
                store(to, payload).expect("the buffer stays");
                *offset += u64::from(len);
            }
        })?;
        Ok(bytes)
    }
}

fn flow_key(local: IpAddr, remote: IpAddr) -> FlowKey {
    FlowKey { local, remote, ifindex: None, source_port: 0xc001, traffic_class: 0, hop_limit: 64 }
}

/// Half of a round trip in microseconds, the median of all.
fn ping(options: &Options, ours: bool) -> io::Result<f64> {
    let stop = AtomicBool::new(false);
    let bound = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| -> io::Result<()> {
            pin(1);
            enter(options.to_ns.as_ref())?;
            let mut side = Side::new(options.to, options.from, ours)?;
            bound.wait();
            while !stop.load(Ordering::Relaxed) {
                if side.receive()? {
                    side.send()?;
                }
            }
            Ok(())
        });
        let result = ping_from(options, ours, &bound);
        stop.store(true, Ordering::Relaxed);
        answering.join().expect("peer")?;
        result
    })
}

fn ping_from(options: &Options, ours: bool, bound: &std::sync::Barrier) -> io::Result<f64> {
    pin(0);
    enter(options.from_ns.as_ref())?;
    let mut side = Side::new(options.from, options.to, ours)?;
    bound.wait();
    let mut times = Vec::with_capacity(PINGS as usize);
    for _ in 0..PINGS {
        let begin = Instant::now();
        side.send()?;
        while !side.receive()? {
            if begin.elapsed() > Duration::from_millis(100) {
                break;
            }
        }
        times.push(begin.elapsed().as_nanos() as f64 / 2000.0);
    }
    Ok(median(&mut times))
}

/// One end of a ping-pong.
enum Side {
    Raw(UdpSocket, SocketAddr, Box<[u8; 4096]>),
    Ours(Box<Receiver>, Box<Sender>, FlowHandle),
}

impl Side {
    fn new(local: IpAddr, remote: IpAddr, ours: bool) -> io::Result<Self> {
        if ours {
            let mut sender = Box::new(Sender::new());
            let flow = sender.open(flow_key(local, remote))?;
            return Ok(Self::Ours(Box::new(Receiver::new(slot_socket()?)?), sender, flow));
        }
        // It does not matter which end is which, as long as each knows the other's port.
        let port = |ip: IpAddr, other: IpAddr| if ip == other { 0 } else { 5001 };
        let socket = match UdpSocket::bind(SocketAddr::new(local, 5001)) {
            Ok(socket) => socket,
            Err(_) => UdpSocket::bind(SocketAddr::new(local, 5002))?,
        };
        socket.set_nonblocking(true)?;
        let other = match (port(local, remote), socket.local_addr()?.port()) {
            (0, 5001) => 5002,
            _ => 5001,
        };
        Ok(Self::Raw(socket, SocketAddr::new(remote, other), Box::new([0; 4096])))
    }

    fn send(&mut self) -> io::Result<()> {
        match self {
            Self::Raw(socket, to, _) => socket.send_to(&[0; 80], *to).map(drop),
            Self::Ours(_, sender, flow) => {
                let payload = Payload::Bytes(&[0; 64]);
                let burst = write_burst(Opcode::RC_SEND_ONLY, 1, 4096, payload);
                assert!(sender.queue(*flow, &burst).is_ok());
                sender.flush();
                Ok(())
            }
        }
    }

    fn receive(&mut self) -> io::Result<bool> {
        match self {
            Self::Raw(socket, _, buffer) => match socket.recv_from(&mut buffer[..]) {
                Ok(_) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(e) => Err(e),
            },
            Self::Ours(receiver, ..) => {
                let mut good = false;
                receiver.receive(&mut |r| good = r.verify())?;
                Ok(good)
            }
        }
    }
}
