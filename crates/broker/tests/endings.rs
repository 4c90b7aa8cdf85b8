//! Peers that ask after a process that has ended.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Stdio};

use common::{PATIENCE, client, counter, in_namespace};
use polypath_ipc::Lane;
use polypath_wire::ended::{HELLO_QKEY, KIND};
use polypath_wire::ext::Deth;
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::{Bth, Headers, Opcode, ROCE_PORT};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Says HELLO from a queue pair of one slot to one of another.
fn ask(from: u8, slot: u8) {
    let (asker, asked) = (u32::from(from) << 16 | 5, u32::from(slot) << 16 | 6);
    let bth = Bth { dest_qpn: asked, ..Bth::new(Opcode::UD_SEND_ONLY) };
    let headers =
        Headers { deth: Some(Deth { qkey: HELLO_QKEY, src_qpn: asker }), ..Headers::new(bth) };
    let mut payload = [0; 88];
    payload[..8].copy_from_slice(&[b'P', b'P', b'T', b'H', 1, 1, from, 0]);
    payload[16..32].fill(7);
    payload[48..52].copy_from_slice(&asker.to_be_bytes());
    payload[52..56].copy_from_slice(&asked.to_be_bytes());
    let packet = headers.packet(&payload);
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    let flow = Flow::new(HERE, HERE, socket.local_addr().unwrap().port());
    let icrc = FlowCrc::new(&flow).compute(0, &packet);
    socket.send_to(&[&packet[..], &icrc].concat(), (HERE, ROCE_PORT)).unwrap();
}

/// The slot of which the lane hears next that its process has ended.
fn told(lane: &Lane) -> u8 {
    let socket = UdpSocket::from(lane.socket.try_clone().unwrap());
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 256];
    let len = socket.recv(&mut buffer).expect("an answer");
    let payload = &buffer[20..len];
    assert_eq!((payload[5], &payload[32..48]), (KIND, &[7; 16][..]));
    payload[6]
}

/// This is not a test, but a process that has a lane in the tests below.
#[test]
fn owner() {
    if std::env::var_os("POLYPATH_TEST_OWNER").is_some() {
        let mut control = client("");
        let lane = control.open_lane().unwrap();
        println!("\nslot {}", lane.slot);
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
        if std::env::var_os("POLYPATH_TEST_LEAVES").is_some() {
            control.close_lane(lane.slot).unwrap();
        }
    }
}

/// Starts a process that has a lane. It may give the slot back before it ends.
fn start(gives_back: bool) -> (Child, u8) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "owner", "--nocapture"]).env("POLYPATH_TEST_OWNER", "1");
    if gives_back {
        command.env("POLYPATH_TEST_LEAVES", "1");
    }
    let mut owner = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let slot = lines.find_map(|line| line.strip_prefix("slot ")?.parse().ok()).unwrap();
    (owner, slot)
}

#[test]
fn only_of_a_process_that_has_ended_without_taking_leave_it_is_said() {
    in_namespace("only_of_a_process_that_has_ended_without_taking_leave_it_is_said", || {
        let mut control = client("");
        let own = control.open_lane().unwrap();
        let (mut killed, ended) = start(false);
        let (mut leaver, given_back) = start(true);
        let (mut other, cut_off) = (client(""), client("").open_lane().unwrap().slot);
        let kept = other.open_lane().unwrap();
        // Their processes live, and one of them hears the HELLO itself.
        [cut_off, ended, kept.slot].into_iter().for_each(|slot| ask(own.slot, slot));
        killed.kill().unwrap();
        killed.wait().unwrap();
        drop(leaver.stdin.take());
        leaver.wait().unwrap();
        let slots =
            |control: &mut polypath_ipc::Client| control.status().unwrap().broker.slots.len();
        assert!((0..1000).any(|_| slots(&mut control) == 2));
        // The answers come in this order, so there was none before the first one.
        let never_used = (1..=254)
            .find(|slot| ![own.slot, ended, given_back, cut_off, kept.slot].contains(slot));
        for slot in [cut_off, given_back, never_used.unwrap(), ended] {
            ask(own.slot, slot);
        }
        assert_eq!(told(&own), ended);
        assert_eq!(counter(&mut control, "endings_told"), 1);

        // Somebody else has its slot now.
        let again = control.open_lane_on(ended).unwrap();
        control.close_lane(again.slot).unwrap();
        let (mut killed, last) = start(false);
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!((0..1000).any(|_| slots(&mut control) == 2));
        [ended, last].into_iter().for_each(|slot| ask(own.slot, slot));
        assert_eq!(told(&own), last);
    });
}
