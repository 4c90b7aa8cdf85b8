//! A broker that is killed: its place is taken, and the lanes do not notice.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{
    PATIENCE, client, cm_command, create_id, create_id_body, in_namespace, readable,
    resolve_address, run, start_broker, veth, wait_for_end,
};
use polypath_ipc::settings::Apm;
use polypath_ipc::{Client, CmFile, Hello, IpcError, Lane};

const PORT: u16 = 4791;

fn kill(pid: u32) {
    run(&format!("kill -KILL {pid}"));
    wait_for_end(pid);
}

/// Sends a packet for a slot over the loopback interface. Returns true if it arrives at that lane.
fn reaches(lane: &Lane, mark: u8) -> bool {
    let packet = [4, 0x40, 0xff, 0xff, 0, lane.slot, 0, mark, 0, 0, 0, mark, 1, 2, 3, 4];
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&packet, ("127.0.0.1", PORT)).unwrap();
    let socket = UdpSocket::from(lane.socket.try_clone().unwrap());
    let mut buffer = [0; 64];
    socket.recv(&mut buffer).is_ok_and(|_| buffer[7] == mark)
}

/// Connects to the broker that has taken over.
fn successor() -> Client {
    let until = Instant::now() + PATIENCE;
    loop {
        match Client::connect(&Hello::of_this_process("")) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < until, "nobody takes over: {error}"),
        }
    }
}

#[test]
fn lanes_outlive_brokers_that_are_killed() {
    in_namespace("lanes_outlive_brokers_that_are_killed", || {
        let mut control = client("");
        let mut lanes: Vec<Lane> = (0..3).map(|_| control.open_lane().unwrap()).collect();
        control.close_lane(lanes.remove(1).slot).unwrap();
        for round in 1..=4 {
            kill(control.broker_pid());
            // This works before anybody has connected, and afterwards too.
            assert!(lanes.iter().all(|lane| reaches(lane, round)), "round {round}");
            let mut next = successor();
            assert_ne!(next.broker_pid(), control.broker_pid());
            assert!(lanes.iter().all(|lane| reaches(lane, 100 + round)), "round {round}");
            let mine: Vec<u8> = lanes.iter().map(|lane| lane.slot).collect();
            next.resume(&mine).unwrap();
            let more = next.open_lane().unwrap();
            assert!(!mine.contains(&more.slot), "a slot in use was given out");
            lanes.push(more);
            assert!(lanes.iter().all(|lane| reaches(lane, 200 + round)), "round {round}");
            control = next;
        }
        // Adopted slots belong to the connection as usual.
        drop(control);
        let mut other = client("");
        assert!((0..1000).any(|_| other.status().unwrap().broker.slots.is_empty()));
        assert!(!reaches(&lanes[0], 1));
    });
}

#[test]
fn slots_of_others_are_not_given_away() {
    in_namespace("slots_of_others_are_not_given_away", || {
        let mut control = client("");
        let lane = control.open_lane().unwrap();
        // One slot is nobody's, and the other one belongs to another connection, whose broker
        // lives.
        for slot in [lane.slot, lane.slot % 254 + 1] {
            assert_eq!(client("").resume(&[slot]).unwrap_err().errno(), libc::EBADF);
        }
        kill(control.broker_pid());
        let mut next = successor();
        assert_eq!(
            next.resume(&[lane.slot, lane.slot % 254 + 1]).unwrap_err().errno(),
            libc::EBADF
        );
        next.resume(&[lane.slot]).unwrap();
        assert_eq!(successor().resume(&[lane.slot]).unwrap_err().errno(), libc::EBADF);
    });
}

/// This is not a test, but the process that has a lane in the test below.
#[test]
fn owner() {
    if std::env::var_os("POLYPATH_TEST_OWNER").is_some() {
        let mut control = client("");
        let _lane = control.open_lane().unwrap();
        println!("\nbroker {}", control.broker_pid());
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

#[test]
fn slots_of_a_process_that_dies_before_it_has_connected_again_are_freed() {
    in_namespace("slots_of_a_process_that_dies_before_it_has_connected_again_are_freed", || {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner", "--nocapture"])
            .env("POLYPATH_TEST_OWNER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
        let broker = lines.find_map(|line| line.strip_prefix("broker ")?.parse().ok()).unwrap();
        kill(broker);
        let mut next = successor();
        assert_eq!(next.status().unwrap().broker.slots.len(), 1);
        owner.kill().unwrap();
        owner.wait().unwrap();
        assert!((0..1000).any(|_| next.status().unwrap().broker.slots.is_empty()));
    });
}

/// Destroys an id.
fn destroy_id(client: &mut Client, file: u64, id: u32) -> Result<Vec<u8>, IpcError> {
    let body = [&1_u64.to_ne_bytes()[..], &id.to_ne_bytes(), &[0; 4]].concat();
    cm_command(client, file, (1, 4), &body)
}

fn hung_up(file: &CmFile) -> bool {
    readable(&file.events, Duration::ZERO)
}

#[test]
fn cm_files_outlive_brokers_that_are_killed() {
    in_namespace("cm_files_outlive_brokers_that_are_killed", || {
        let mut control = client("");
        let file = control.open_cm(Apm::Off, None).unwrap();
        let mut ids = vec![create_id(&mut control, file.file, 1).unwrap()];
        for _ in 0..3 {
            kill(control.broker_pid());
            let mut next = successor();
            // No program can end what it has not taken back.
            assert!(destroy_id(&mut next, file.file, ids[0]).is_err());
            next.cm_resume(file.file, Apm::Off, None).unwrap();
            let again = next.cm_resume(file.file, Apm::Off, None);
            assert_eq!(again.unwrap_err().errno(), libc::EBADF);
            ids.push(create_id(&mut next, file.file, 1).unwrap());
            control = next;
        }
        assert!(!hung_up(&file));
        for id in &ids {
            destroy_id(&mut control, file.file, *id).unwrap();
        }
        assert!(destroy_id(&mut control, file.file, ids[0]).is_err());
        // A broker that ends leaves nothing.
        control.shutdown(true).unwrap();
        assert!(readable(&file.events, PATIENCE));
        assert!(client("").cm_resume(file.file, Apm::Off, None).is_err());
    });
}

/// A program that does not read its events has more of them than its socket takes.
#[test]
fn events_that_wait_outlive_brokers_that_are_killed() {
    const IDS: u32 = 400;
    in_namespace("events_that_wait_outlive_brokers_that_are_killed", || {
        veth("eth0", "peer0");
        run("ip addr add 10.0.0.1/24 dev eth0");
        let mut control = client("");
        let file = control.open_cm(Apm::Off, None).unwrap();
        for uid in 1..=IDS {
            let id = create_id(&mut control, file.file, uid.into()).unwrap();
            let own = "10.0.0.1:7471".parse().unwrap();
            resolve_address(&mut control, file.file, id, own).unwrap();
        }
        kill(control.broker_pid());
        let mut next = successor();
        next.cm_resume(file.file, Apm::Off, None).unwrap();
        let mut buffer = [0; 1024];
        for uid in 1..=IDS {
            assert!(readable(&file.events, PATIENCE), "no event of id {uid}");
            let got = polypath_ipc::socket::receive(file.events.as_fd(), &mut buffer).unwrap();
            let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
            let (of, event, status) = (word(0), word(12), word(16));
            assert_eq!((got.len, of, event, status), (336, uid, 0, 0), "ADDR_RESOLVED, in order");
        }
        assert!(!hung_up(&file), "and nothing else");
    });
}

/// The program asks again if the broker is killed before its answer has come.
#[test]
fn a_command_is_executed_once_whichever_broker_answers() {
    in_namespace("a_command_is_executed_once_whichever_broker_answers", || {
        let mut control = client("");
        let file = control.open_cm(Apm::Off, None).unwrap();
        let create = [&0_u32.to_ne_bytes()[..], &[24, 0, 4, 0], &create_id_body(1)].concat();
        let first = control.cm_command(file.file, 70, &create).unwrap();
        let mut same = Vec::new();
        for _ in 0..3 {
            kill(control.broker_pid());
            control = successor();
            control.cm_resume(file.file, Apm::Off, None).unwrap();
            same.push(control.cm_command(file.file, 70, &create).unwrap());
        }
        assert_eq!(same, [&*first; 3]);
        let other = control.cm_command(file.file, 71, &create).unwrap();
        assert_ne!(other, first);
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        destroy_id(&mut control, file.file, number(&first)).unwrap();
        kill(control.broker_pid());
        control = successor();
        control.cm_resume(file.file, Apm::Off, None).unwrap();
        assert!(destroy_id(&mut control, file.file, number(&first)).is_err(), "another command");
        destroy_id(&mut control, file.file, number(&other)).unwrap();
    });
}

#[test]
fn a_cm_file_that_its_program_closes_meanwhile_is_gone() {
    in_namespace("a_cm_file_that_its_program_closes_meanwhile_is_gone", || {
        let mut control = client("");
        let kept = control.open_cm(Apm::Off, None).unwrap();
        let CmFile { file, events } = control.open_cm(Apm::Off, None).unwrap();
        create_id(&mut control, file, 1).unwrap();
        kill(control.broker_pid());
        let mut next = successor();
        drop(events);
        let gone = |next: &mut Client| next.status().unwrap().broker.cm_ids.is_empty();
        next.cm_resume(kept.file, Apm::Off, None).unwrap();
        // The broker may not have noticed yet. Then it closes the file as soon as it has.
        let _ = next.cm_resume(file, Apm::Off, None);
        assert!((0..1000).any(|_| gone(&mut next)));
        assert!(next.cm_resume(file, Apm::Off, None).is_err());
        create_id(&mut next, kept.file, 1).unwrap();
    });
}

#[test]
fn nobody_takes_over_where_nothing_is_in_use() {
    in_namespace("nobody_takes_over_where_nothing_is_in_use", || {
        let mut broker = start_broker("");
        let mut control = client("");
        let lane = control.open_lane().unwrap();
        control.close_lane(lane.slot).unwrap();
        drop(lane);
        broker.kill().unwrap();
        broker.wait().unwrap();
        let until = Instant::now() + PATIENCE;
        while UdpSocket::bind("[::]:4791").is_err() {
            assert!(Instant::now() < until, "the port is not free");
        }
        let hello = Hello::of_this_process("");
        assert!(matches!(Client::connect(&hello), Err(IpcError::NoBroker)));
    });
}

#[test]
fn a_keeper_that_is_killed_is_replaced() {
    in_namespace("a_keeper_that_is_killed_is_replaced", || {
        let mut control = client("");
        let lane = control.open_lane().unwrap();
        let broker = control.broker_pid();
        let children = format!("/proc/{broker}/task/{broker}/children");
        let keeper: u32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        kill(keeper);
        // The next broker is told this only when it is noticed as missing, at the next change.
        let second = control.open_lane().unwrap();
        kill(broker);
        assert!(reaches(&lane, 1) && reaches(&second, 2));
        let mut next = successor();
        next.resume(&[lane.slot, second.slot]).unwrap();
        assert!(reaches(&lane, 3) && reaches(&second, 4));
    });
}
