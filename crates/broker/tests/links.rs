//! Links and addresses: changes are pushed at once, and indexes stay the same.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{client, in_namespace, run, table_where, veth};
use polypath_topology::{MP, PathSelector, ROCE, Selection, devices};

#[test]
fn a_link_that_flaps_is_pushed_each_time() {
    in_namespace("a_link_that_flaps_is_pushed_each_time", || {
        veth("eth0", "far0");
        let (mut events, _) = client("roce:eth0").subscribe().unwrap();
        for _ in 0..5 {
            run("ip link set far0 down");
            table_where(&mut events, |table| !table.port_by_name("eth0").unwrap().link_up);
            run("ip link set far0 up");
            table_where(&mut events, |table| table.port_by_name("eth0").unwrap().link_up);
        }
    });
}

#[test]
fn a_change_is_told_within_milliseconds() {
    in_namespace("a_change_is_told_within_milliseconds", || {
        veth("eth0", "far0");
        let (mut events, _) = client("").subscribe().unwrap();
        let mut took: Vec<Duration> = (1..=20)
            .map(|i| {
                run(&format!("ip addr add 10.0.0.{i}/24 dev eth0"));
                // The kernel has sent its notification before the command ended.
                let ended = Instant::now();
                let ip = std::net::IpAddr::from([10, 0, 0, i]);
                table_where(&mut events, |table| table.port_with_address(ip).is_some());
                ended.elapsed()
            })
            .collect();
        took.sort();
        let median = took[took.len() / 2];
        assert!(median < Duration::from_millis(25), "median {median:?} of {took:?}");
    });
}

#[test]
fn addresses_come_and_go_and_the_others_keep_their_gid_index() {
    in_namespace("addresses_come_and_go_and_the_others_keep_their_gid_index", || {
        veth("eth0", "far0");
        run("ip addr add 10.0.0.1/24 dev eth0");
        run("ip addr add 10.0.1.1/24 dev eth0");
        let (mut events, table) = client("roce:eth0").subscribe().unwrap();
        let selection = Selection::parse("roce:eth0").unwrap();
        let gid = |table: &polypath_topology::Table, index: usize| {
            devices(table, &selection)[0].ports[0].gids[index].ip.to_string()
        };
        assert_eq!((gid(&table, 1), gid(&table, 2)), ("10.0.0.1".into(), "10.0.1.1".into()));

        run("ip addr del 10.0.0.1/24 dev eth0");
        let gone = std::net::IpAddr::from([10, 0, 0, 1]);
        let table = table_where(&mut events, |table| table.port_with_address(gone).is_none());
        assert!(devices(&table, &selection)[0].ports[0].gids[1].is_empty());
        assert_eq!(gid(&table, 2), "10.0.1.1");

        run("ip -6 addr add 2001:db8::1/64 dev eth0 nodad");
        let new = "2001:db8::1".parse().unwrap();
        let table = table_where(&mut events, |table| table.port_with_address(new).is_some());
        assert_eq!((gid(&table, 1), gid(&table, 2)), ("2001:db8::1".into(), "10.0.1.1".into()));
    });
}

#[test]
fn two_interfaces_make_mp0_and_device_numbers_stay() {
    in_namespace("two_interfaces_make_mp0_and_device_numbers_stay", || {
        veth("eth0", "eth1");
        let mut control = client("");
        assert_eq!(*control.selection(), Selection::of(MP));
        let table = control.table().unwrap();
        let names = |table, selection| -> Vec<String> {
            devices(table, &selection).into_iter().map(|device| device.name).collect()
        };
        assert_eq!(names(&table, Selection::of(MP)), ["mp0"]);
        assert_eq!(names(&table, Selection::of(ROCE)), ["roce0", "roce1"]);

        let (mut events, _) = client("").subscribe().unwrap();
        run("ip link add br0 type bridge");
        table_where(&mut events, |table| table.port_by_name("br0").is_some());
        run("ip link set eth0 master br0");
        let table = table_where(&mut events, |table| table.port_by_name("eth0").unwrap().enslaved);
        // Its peer, eth1, was created first.
        assert_eq!(names(&table, Selection::of(ROCE)), ["roce0", "roce2"]);
        assert_eq!(table.port_by_name("eth1").unwrap().speed_mbps, Some(10_000));
    });
}

/// Another network namespace, which exists as long as its process runs.
struct Elsewhere(Child);

impl Elsewhere {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo here; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        Self(child)
    }
}

#[test]
fn interfaces_that_lead_back_into_the_host_are_no_members() {
    in_namespace("interfaces_that_lead_back_into_the_host_are_no_members", || {
        // Two links to the other namespace, as between hosts, and the interfaces that Docker adds.
        let mut elsewhere = Elsewhere::new();
        let far = elsewhere.0.id();
        for (number, name) in ["eth0", "eth1", "veth7"].iter().enumerate() {
            run(&format!("ip link add {name} type veth peer name far{number} netns {far}"));
            run(&format!("ip link set {name} up"));
        }
        run("ip link add docker0 type bridge");
        run("ip link set veth7 master docker0");
        run("ip addr add 172.17.0.1/16 dev docker0");
        run("ip link set docker0 up");
        run("ip addr add 10.0.0.1/24 dev eth0");
        run("ip addr add 10.0.1.1/24 dev eth1");
        let members = |table: &polypath_topology::Table, selection: &Selection| -> Vec<String> {
            let device = devices(table, selection).swap_remove(0);
            device.interfaces(table).map(|port| port.name.clone()).collect()
        };
        let mut control = client("");
        assert_eq!(*control.selection(), Selection::of(MP));
        let table = control.table().unwrap();
        assert_eq!(members(&table, &Selection::of(MP)), ["eth0", "eth1"]);
        // Interfaces that are named are used.
        let named = Selection::parse("mp:eth0+docker0").unwrap();
        assert_eq!(members(&table, &named), ["eth0", "docker0"]);
        elsewhere.0.kill().unwrap();
        elsewhere.0.wait().unwrap();
    });
}

#[test]
fn all_connections_of_a_process_mean_the_same_devices() {
    in_namespace("all_connections_of_a_process_mean_the_same_devices", || {
        run("ip link add br0 type bridge");
        let first = client("");
        assert_eq!(*first.selection(), Selection::of(ROCE));
        veth("eth0", "far0");
        assert_eq!(*client("").selection(), Selection::of(ROCE));
        drop(first);
        let (mut events, _) = client("").subscribe().unwrap();
        run("ip link set br0 up");
        table_where(&mut events, |table| table.ports.len() == 4);
    });
}

#[test]
fn a_removed_interface_takes_its_device_away() {
    in_namespace("a_removed_interface_takes_its_device_away", || {
        veth("eth0", "far0");
        let (mut events, _) = client("").subscribe().unwrap();
        run("ip link del eth0");
        table_where(&mut events, |table| table.port_by_name("eth0").is_none());
    });
}

#[test]
fn paths_taken_down_by_hand_are_told_and_remembered() {
    in_namespace("paths_taken_down_by_hand_are_told_and_remembered", || {
        let (mut events, _) = client("roce:lo").subscribe().unwrap();
        let mut control = client("roce:lo");
        let selector: PathSelector = "10.0.0.1-10.0.0.2".parse().unwrap();
        control.set_path(selector.clone(), false).unwrap();
        let down = std::slice::from_ref(&selector);
        table_where(&mut events, |table| table.down == down);
        assert_eq!(control.table().unwrap().down, down);
        control.set_path(selector.clone(), true).unwrap();
        assert!(control.table().unwrap().down.is_empty());
    });
}

#[test]
fn a_selection_without_any_interface_is_refused_with_advice() {
    in_namespace("a_selection_without_any_interface_is_refused_with_advice", || {
        let hello = polypath_ipc::Hello::of_this_process("roce:eth9");
        let error = polypath_ipc::Client::connect_or_start(&hello).unwrap_err();
        assert!(error.to_string().contains("(have: lo)"), "{error}");
    });
}
