//! Rules of how mp devices use their paths: told to processes, remembered for those to come, and forgotten
//! with what they are about.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{PATIENCE, client, in_namespace, run, table_where, wait_for_end};
use polypath_ipc::{Client, Hello, IpcError};
use polypath_topology::rules::RULES_MAX;
use polypath_topology::{Bonding, RuleScope, Table};

/// Set in the environment of the other process.
const OTHER: &str = "POLYPATH_TEST_OTHER";

fn bonding(text: &str) -> Bonding {
    Bonding::parse(text).unwrap()
}

fn of_process(pid: u32) -> RuleScope {
    RuleScope { process: Some(pid), ..RuleScope::default() }
}

fn rules(table: &Table) -> Vec<String> {
    table.rules.iter().map(|rule| format!("{}: {}", rule.scope, rule.settings)).collect()
}

fn errno(result: Result<(), IpcError>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn rules_are_told_and_remembered_until_they_are_taken_back() {
    in_namespace("rules_are_told_and_remembered_until_they_are_taken_back", || {
        let (mut events, _) = client("roce:lo").subscribe().unwrap();
        let mut control = client("roce:lo");
        let everything = RuleScope::default();
        control.set_rule(everything.clone(), Some(bonding("balance"))).unwrap();
        table_where(&mut events, |table| rules(table) == ["everything: balance"]);
        control.set_rule(everything.clone(), Some(bonding("updelay=7"))).unwrap();
        let later = client("").table().unwrap();
        assert_eq!(rules(&later), ["everything: balance,updelay=7"]);
        let pid = std::process::id();
        control.set_rule(of_process(pid), Some(bonding("affinity"))).unwrap();
        control.set_rule(everything, None).unwrap();
        table_where(&mut events, |table| rules(table) == [format!("process {pid}: affinity")]);
    });
}

#[test]
fn what_cannot_be_followed_is_refused_and_changes_nothing() {
    in_namespace("what_cannot_be_followed_is_refused_and_changes_nothing", || {
        let mut control = client("roce:lo");
        let lane = control.open_lane().unwrap();
        let balance = || Some(bonding("balance"));
        let of_queue_pair = |slot: u8, process| RuleScope {
            queue_pair: Some(u32::from(slot) << 16 | 0x11),
            process,
            ..RuleScope::default()
        };
        for scope in [
            of_process(1),
            of_queue_pair(lane.slot.wrapping_add(1).max(1), None),
            of_queue_pair(lane.slot, Some(1)),
        ] {
            assert_eq!(errno(control.set_rule(scope, balance())), libc::ESRCH);
        }
        let scope = || of_queue_pair(lane.slot, None);
        assert_eq!(errno(control.set_rule(scope(), Some(bonding("updelay=1")))), libc::EINVAL);
        assert_eq!(rules(&control.table().unwrap()), [""; 0]);
        control.set_rule(scope(), balance()).unwrap();
        let set = control.table().unwrap().rules.remove(0);
        assert_eq!(set.scope.process, Some(std::process::id()), "the broker finds the process");
        for n in 1.. {
            let peer = Some(format!("10.0.0.{n}").parse().unwrap());
            let scope = RuleScope { peer, ..RuleScope::default() };
            if let Err(error) = control.set_rule(scope, balance()) {
                assert_eq!((error.errno(), n), (libc::ENOSPC, RULES_MAX));
                break;
            }
        }
    });
}

/// Starts another process that uses the broker, and waits until it does.
fn other_process() -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_client", "--nocapture"])
        .env(OTHER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "connected"));
    child
}

/// This is not a test, but the other process.
#[test]
fn other_client() {
    if std::env::var_os(OTHER).is_some() {
        let _control = client("roce:lo");
        println!("\nconnected");
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

#[test]
fn the_rules_of_a_process_end_with_it() {
    in_namespace("the_rules_of_a_process_end_with_it", || {
        let mut control = client("roce:lo");
        let (mut events, _) = client("roce:lo").subscribe().unwrap();
        let mut other = other_process();
        control.set_rule(of_process(other.id()), Some(bonding("balance"))).unwrap();
        control.set_rule(of_process(std::process::id()), Some(bonding("affinity"))).unwrap();
        table_where(&mut events, |table| table.rules.len() == 2);
        other.kill().unwrap();
        other.wait().unwrap();
        let own = format!("process {}: affinity", std::process::id());
        table_where(&mut events, |table| rules(table) == [own.clone()]);
    });
}

/// Writes the configuration file of this test's broker.
fn write_config(text: &str) {
    let directory = std::env::var("XDG_CONFIG_HOME").unwrap();
    let directory = std::path::Path::new(&directory).join("polypath");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.toml"), text).unwrap();
}

#[test]
fn the_file_is_followed_from_the_start_and_again_on_command_unless_it_has_a_mistake() {
    const NAME: &str =
        "the_file_is_followed_from_the_start_and_again_on_command_unless_it_has_a_mistake";
    in_namespace(NAME, || {
        write_config("[mp]\npolicy = \"balance\"\n");
        let mut control = client("roce:lo");
        assert_eq!(rules(&control.table().unwrap()), ["everything: balance"]);
        let (mut events, _) = client("roce:lo").subscribe().unwrap();
        let of_process = of_process(std::process::id());
        control.set_rule(of_process, Some(bonding("redundant"))).unwrap();
        write_config("[[rule]]\nprogram = \"rping\"\npolicy = \"affinity\"\n");
        control.reload_config().unwrap();
        let command = format!("process {}: redundant", std::process::id());
        let both = [command.clone(), "program rping: affinity".to_owned()];
        table_where(&mut events, |table| rules(table) == both);
        write_config("[mp]\npolicy = \"balanced\"\n");
        let error = control.reload_config().unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("config.toml, line 2: policy is `balanced`"), "{error}");
        assert_eq!(rules(&control.table().unwrap()), both);
        let config = control.status().unwrap().broker.config;
        assert!(config.path.ends_with("polypath/config.toml"), "{config:?}");
        assert!(config.error.contains("line 2"), "{config:?}");
        write_config("");
        control.reload_config().unwrap();
        assert_eq!(rules(&control.table().unwrap()), [command]);
        assert_eq!(control.status().unwrap().broker.config.error, "");
    });
}

#[test]
fn a_broker_starts_although_its_file_has_a_mistake() {
    in_namespace("a_broker_starts_although_its_file_has_a_mistake", || {
        write_config("[mp\n");
        let mut control = client("roce:lo");
        assert_eq!(rules(&control.table().unwrap()), [""; 0]);
        let error = control.status().unwrap().broker.config.error;
        assert!(error.contains("config.toml, line 1: "), "{error}");
    });
}

#[test]
fn the_broker_that_takes_over_has_the_rules() {
    in_namespace("the_broker_that_takes_over_has_the_rules", || {
        let mut control = client("roce:lo");
        let _lane = control.open_lane().unwrap();
        control.set_rule(RuleScope::default(), Some(bonding("balance"))).unwrap();
        // The answer to the next request says that the keeper was told.
        control.table().unwrap();
        let broker = control.broker_pid();
        run(&format!("kill -KILL {broker}"));
        wait_for_end(broker);
        let until = Instant::now() + PATIENCE;
        let mut next = loop {
            match Client::connect(&Hello::of_this_process("")) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < until, "nobody takes over: {error}"),
            }
        };
        assert_eq!(rules(&next.table().unwrap()), ["everything: balance"]);
    });
}
