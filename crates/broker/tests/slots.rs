//! Slots: the kernel steers each packet to the socket of its queue pair's lane.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{PATIENCE, client, counter, in_namespace, readable, run, veth};
use polypath_ipc::Lane;

const PORT: u16 = 4791;

/// A multicast group.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// A packet whose BTH names a queue pair of this slot.
fn packet(slot: u8, mark: u8) -> Vec<u8> {
    vec![4, 0x40, 0xff, 0xff, 0, slot, 0, mark, 0, 0, 0, mark, 0xaa, 0xbb, 0xcc, 0xdd]
}

fn send(to: &str, packet: &[u8]) {
    let to: IpAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any).unwrap().send_to(packet, (to, PORT)).unwrap();
}

/// The marks of all waiting packets.
fn marks(lane: &Lane) -> Vec<u8> {
    let socket = UdpSocket::from(lane.socket.try_clone().unwrap());
    let mut buffer = [0; 64];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|_| buffer[7])).collect()
}

/// Sets an option of a lane's socket. `T` must be the plain structure that the option takes.
fn set<T: Copy>(lane: &Lane, level: libc::c_int, option: libc::c_int, value: T) {
    // SAFETY: `value` is valid for its size.
    let result = unsafe {
        libc::setsockopt(
            lane.socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Makes a lane's socket join [`GROUP`] on the loopback interface.
fn join(lane: &Lane) {
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from(GROUP).to_be() },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: 1,
    };
    set(lane, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, request);
}

fn setup() {
    veth("eth0", "far0");
    run("ip addr add 10.0.0.1/24 dev eth0");
    run("ip -6 addr add 2001:db8::1/64 dev eth0 nodad");
}

#[test]
fn every_packet_reaches_the_socket_of_its_slot() {
    in_namespace("every_packet_reaches_the_socket_of_its_slot", || {
        setup();
        let mut control = client("");
        let lanes: Vec<Lane> = (0..5).map(|_| control.open_lane().unwrap()).collect();
        for to in ["127.0.0.1", "10.0.0.1", "::1", "2001:db8::1"] {
            for mark in 1..=20 {
                lanes.iter().for_each(|lane| send(to, &packet(lane.slot, mark)));
            }
            let expect: Vec<u8> = (1..=20).collect();
            for lane in &lanes {
                assert_eq!(marks(lane), expect, "slot {} at {to}", lane.slot);
            }
        }
        assert!(lanes[0].receive_buffer >= 200_000, "{}", lanes[0].receive_buffer);
    });
}

#[test]
fn packets_for_nobody_are_dropped_and_counted() {
    in_namespace("packets_for_nobody_are_dropped_and_counted", || {
        setup();
        let mut control = client("");
        let lane = control.open_lane().unwrap();
        let free = if lane.slot == 100 { 101 } else { 100 };
        let name = "packets_dropped_slot_unowned";
        (0..7).for_each(|mark| send("10.0.0.1", &packet(free, mark)));
        (0..7).for_each(|mark| send("2001:db8::1", &packet(255, mark)));
        assert_eq!(counter(&mut control, name), 14);

        control.close_lane(lane.slot).unwrap();
        (0..3).for_each(|mark| send("10.0.0.1", &packet(lane.slot, mark)));
        assert_eq!(counter(&mut control, name), 17);
        assert!(marks(&lane).is_empty());
        let errno = control.close_lane(lane.slot).unwrap_err().errno();
        assert_eq!(errno, libc::EBADF);
    });
}

#[test]
fn nonsense_for_queue_pair_1_is_counted_by_reason() {
    in_namespace("nonsense_for_queue_pair_1_is_counted_by_reason", || {
        let mut control = client("");
        send("127.0.0.1", &[1, 2, 3]);
        send("127.0.0.1", &[0; 5000]);
        let mut forged = packet(0, 1);
        forged[0] = 0x64;
        forged.resize(280, 0);
        send("127.0.0.1", &forged);
        send("::1", &forged);
        // The broker reads packets and requests in no fixed order, so it is asked until it has read
        // them.
        let expect = [
            ("qp1_dropped_malformed", 1),
            ("qp1_dropped_too_long", 1),
            ("qp1_dropped_icrc_wrong", 2),
        ];
        for (name, count) in expect {
            let patience = Instant::now() + PATIENCE;
            while counter(&mut control, name) < count && Instant::now() < patience {}
            assert_eq!(counter(&mut control, name), count, "{name}");
        }
    });
}

#[test]
fn a_freed_slot_is_used_again_last_and_comes_clean() {
    in_namespace("a_freed_slot_is_used_again_last_and_comes_clean", || {
        setup();
        let mut control = client("");
        let first = control.open_lane().unwrap();
        join(&first);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        run("ip route add 239.0.0.0/8 dev lo");
        let to_group = |mark| {
            sender.send_to(&packet(255, mark), (GROUP, PORT)).unwrap();
        };
        to_group(1);
        assert_eq!(marks(&first), [1], "a lane that joined gets the group's packets");
        send("10.0.0.1", &packet(first.slot, 2));
        control.close_lane(first.slot).unwrap();
        to_group(3);

        let mut seen = vec![first.slot];
        loop {
            let lane = control.open_lane().unwrap();
            if lane.slot == first.slot {
                to_group(4);
                assert!(marks(&lane).is_empty());
                send("10.0.0.1", &packet(lane.slot, 5));
                assert_eq!(marks(&lane), [5]);
                break;
            }
            assert!(!seen.contains(&lane.slot));
            seen.push(lane.slot);
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=254).collect::<Vec<u8>>());
        assert_eq!(control.open_lane().unwrap_err().errno(), libc::ENOSPC);
    });
}

#[test]
fn of_the_free_slots_the_one_that_was_given_back_first_is_given_out_first() {
    in_namespace("of_the_free_slots_the_one_that_was_given_back_first_is_given_out_first", || {
        let mut control = client("");
        let slots: Vec<u8> = (1..=254).map(|_| control.open_lane().unwrap().slot).collect();
        let given_back = [slots[7], slots[3], slots[200]];
        for slot in given_back {
            control.close_lane(slot).unwrap();
        }
        assert_eq!(given_back.map(|_| control.open_lane().unwrap().slot), given_back);
    });
}

#[test]
fn a_slot_that_is_asked_for_is_given_unless_somebody_has_it() {
    in_namespace("a_slot_that_is_asked_for_is_given_unless_somebody_has_it", || {
        setup();
        let mut control = client("");
        let first = control.open_lane().unwrap();
        // Sockets are opened on the way to it.
        let wanted = ((u16::from(first.slot) + 99) % 254 + 1) as u8;
        let given = control.open_lane_on(wanted).unwrap();
        assert_eq!(given.slot, wanted);
        send("10.0.0.1", &packet(wanted, 1));
        assert!(readable(&given.socket, PATIENCE), "the slot's packet waits");
        assert_eq!(marks(&given), [1]);

        let mut another = client("");
        let taken = another.open_lane_on(wanted).unwrap_err();
        assert_eq!(taken.errno(), libc::EADDRINUSE, "{taken}");
        for none in [0, 255] {
            let refused = control.open_lane_on(none).unwrap_err();
            assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
        }
        control.close_lane(wanted).unwrap();
        send("10.0.0.1", &packet(wanted, 2));
        let again = another.open_lane_on(wanted).unwrap();
        send("10.0.0.1", &packet(wanted, 3));
        assert!(readable(&again.socket, PATIENCE), "the slot's packet waits");
        assert_eq!(marks(&again), [3], "what came between was for nobody");

        // The others are assigned once each, including those on the way.
        let mut seen = vec![first.slot, wanted];
        seen.extend((0..252).map(|_| control.open_lane().unwrap().slot));
        seen.sort_unstable();
        assert_eq!(seen, (1..=254).collect::<Vec<u8>>());
        assert_eq!(control.open_lane().unwrap_err().errno(), libc::ENOSPC);
    });
}

#[test]
fn a_process_that_uses_a_socket_after_it_gave_back_the_slot_leaves_nothing_to_the_next_owner() {
    let name =
        "a_process_that_uses_a_socket_after_it_gave_back_the_slot_leaves_nothing_to_the_next_owner";
    in_namespace(name, || {
        setup();
        run("ip route add 239.0.0.0/8 dev lo");
        let mut control = client("");
        let first = control.open_lane().unwrap();
        control.close_lane(first.slot).unwrap();
        // The kernel steers no unicast to it any more, but it is still a socket.
        set(&first, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        join(&first);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(&packet(255, 1), (GROUP, PORT)).unwrap();
        assert!(readable(&first.socket, PATIENCE), "the group's packet waits");

        let lanes = std::iter::repeat_with(|| control.open_lane().unwrap());
        let next = lanes.take(254).find(|lane| lane.slot == first.slot).unwrap();
        sender.send_to(&packet(255, 2), (GROUP, PORT)).unwrap();
        send("10.0.0.1", &packet(next.slot, 3));
        assert!(readable(&next.socket, PATIENCE), "the slot's packet waits");
        assert_eq!(marks(&next), [3]);
    });
}

/// This is not a test, but the process that `the_slots_of_a_killed_process_are_freed` kills.
#[test]
fn victim() {
    if std::env::var_os("POLYPATH_TEST_VICTIM").is_some() {
        let mut control = client("");
        let lanes: Vec<Lane> = (0..3).map(|_| control.open_lane().unwrap()).collect();
        println!("\nslot {}", lanes[0].slot);
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

#[test]
fn the_slots_of_a_killed_process_are_freed() {
    in_namespace("the_slots_of_a_killed_process_are_freed", || {
        setup();
        let mut control = client("");
        let (mut events, _) = client("").subscribe().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture"])
            .env("POLYPATH_TEST_VICTIM", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let slot = lines
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("slot ").map(|slot| slot.parse::<u8>().unwrap()));
        let slot = slot.unwrap();
        assert_eq!(control.status().unwrap().broker.slots.len(), 3);
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Each status is a round trip through the broker's loop, which notices the hang-up
        // meanwhile.
        let freed = (0..1000).any(|_| control.status().unwrap().broker.slots.is_empty());
        assert!(freed);
        let sunk = counter(&mut control, "packets_dropped_slot_unowned");
        send("10.0.0.1", &packet(slot, 1));
        assert_eq!(counter(&mut control, "packets_dropped_slot_unowned"), sunk + 1);
        let _ = events.next_event();
    });
}

#[test]
fn lanes_of_a_broker_killed_with_its_keeper_keep_the_port_and_the_next_one_says_so() {
    in_namespace(
        "lanes_of_a_broker_killed_with_its_keeper_keep_the_port_and_the_next_one_says_so",
        || {
            let mut control = client("");
            let lane = control.open_lane().unwrap();
            let broker = control.broker_pid();
            run(&format!("pkill -9 -P {broker}"));
            run(&format!("kill -9 {broker}"));
            assert!(readable(&control.as_fd(), PATIENCE), "the connection ends");
            let hello = polypath_ipc::Hello::of_this_process("");
            let error = polypath_ipc::Client::connect_or_start(&hello).unwrap_err().to_string();
            let us = format!("(pid {})", std::process::id());
            assert!(error.contains("4791") && error.contains(&us), "{error}");
            drop(lane);
            let mut control = client("");
            control.open_lane().unwrap();
        },
    );
}

#[test]
fn a_port_that_is_taken_is_explained() {
    in_namespace("a_port_that_is_taken_is_explained", || {
        let _taken = UdpSocket::bind("0.0.0.0:4791").unwrap();
        let hello = polypath_ipc::Hello::of_this_process("");
        let error = polypath_ipc::Client::connect_or_start(&hello).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        assert!(error.contains("network namespace"), "{error}");
    });
}

#[test]
fn a_process_without_a_descriptor_left_is_told_so() {
    in_namespace("a_process_without_a_descriptor_left_is_told_so", || {
        let mut control = client("");
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let none = rustix::process::Rlimit {
            current: Some(u64::try_from(next).unwrap()),
            ..rustix::process::getrlimit(rustix::process::Resource::Nofile)
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        assert_eq!(control.open_lane().unwrap_err().errno(), libc::EMFILE);
    });
}
