//! Beginning and end of a broker: the first client starts it, there is one per namespace, it ends
//! when it is idle, and one client's misbehaviour does not harm others.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use common::{
    BROKER, PATIENCE, client, counter, in_namespace, next, readable, start_broker, wait_for_end,
    writable,
};
use polypath_ipc::message::{self, Request, Scope, TOLD_MAX, Told};
use polypath_ipc::status::{LaneStatus, ProcessStatus, QpStatus};
use polypath_ipc::{Client, EventStream, Hello, IpcError, Push};
use polypath_telemetry::{Event, Occurrence, Qpn};

#[test]
fn many_who_start_at_once_share_one_broker() {
    in_namespace("many_who_start_at_once_share_one_broker", || {
        let starters: Vec<_> = (0..16).map(|_| std::thread::spawn(|| client(""))).collect();
        let clients: Vec<Client> = starters.into_iter().map(|t| t.join().unwrap()).collect();
        let brokers: BTreeSet<u32> = clients.iter().map(Client::broker_pid).collect();
        assert_eq!(brokers.len(), 1);
    });
}

#[test]
fn a_second_broker_leaves_quietly() {
    in_namespace("a_second_broker_leaves_quietly", || {
        let mut control = client("");
        let mut second = start_broker("");
        assert!(second.wait().unwrap().success());
        control.call(&Request::Ping).unwrap();
    });
}

#[test]
fn an_idle_broker_ends_and_leaves_name_and_port_free() {
    in_namespace("an_idle_broker_ends_and_leaves_name_and_port_free", || {
        let mut broker = start_broker("--idle-timeout 0.2");
        let hello = Hello::of_this_process("");
        let control = Client::connect(&hello).unwrap();
        let started = Instant::now();
        drop(control);
        assert!(broker.wait().unwrap().success());
        let stayed = started.elapsed();
        assert!(stayed >= Duration::from_millis(150) && stayed < PATIENCE, "{stayed:?}");
        assert!(matches!(Client::connect(&hello), Err(IpcError::NoBroker)));
        std::net::UdpSocket::bind("[::]:4791").unwrap();
    });
}

#[test]
fn a_client_keeps_the_broker_however_long_it_is_silent() {
    in_namespace("a_client_keeps_the_broker_however_long_it_is_silent", || {
        let mut broker = start_broker("--idle-timeout 0.05");
        let mut control = client("");
        assert!(!readable(&control.as_fd(), Duration::from_millis(300)), "not hung up");
        control.call(&Request::Ping).unwrap();
        control.shutdown(false).unwrap();
        assert!(broker.wait().unwrap().success());
    });
}

/// A broker ends at once, repeatedly, while clients connect.
#[test]
fn who_connects_while_the_broker_leaves_gets_another() {
    in_namespace("who_connects_while_the_broker_leaves_gets_another", || {
        let script = std::env::temp_dir().join(format!("polypath-hasty-{}", std::process::id()));
        let mut file = std::fs::File::create(&script).unwrap();
        writeln!(file, "#!/bin/sh\nexec {BROKER} \"$@\" --idle-timeout 0.001").unwrap();
        file.set_permissions(PermissionsExt::from_mode(0o700)).unwrap();
        drop(file);
        // SAFETY: no other thread of this process runs yet that could read the environment.
        unsafe { std::env::set_var("POLYPATH_BROKER_BIN", &script) };
        // The next client connects 0 to 2 ms after the last one went, so at any point of the
        // broker's end; later on the longest pause grows, because a broker without a processor
        // leaves later.
        let mut brokers = BTreeSet::new();
        let began = Instant::now();
        for round in 0.. {
            let mut control = client("");
            control.open_lane().unwrap();
            brokers.insert(control.broker_pid());
            drop(control);
            if round >= 60 && brokers.len() > 8 {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "it left {} times only", brokers.len() - 1);
            let pause = Duration::from_micros(round % 60 * 33) * (1 + (round / 60) as u32);
            let gone = Instant::now();
            while gone.elapsed() < pause {
                std::hint::spin_loop();
            }
        }
        std::fs::remove_file(&script).unwrap();
    });
}

extern "C" fn note_signal(_: libc::c_int) {
    SIGNALLED.store(true, std::sync::atomic::Ordering::SeqCst);
}

static SIGNALLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[test]
fn the_host_notices_nothing_of_the_start() {
    in_namespace("the_host_notices_nothing_of_the_start", || {
        let handler: extern "C" fn(libc::c_int) = note_signal;
        let mut pipe = [0; 2];
        // SAFETY: the handler only stores to an atomic; `pipe` has room for two descriptors.
        unsafe {
            libc::signal(libc::SIGCHLD, handler as libc::sighandler_t);
            // It is inheritable, like the descriptors of a careless host program.
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        }
        let control = client("");
        assert!(!SIGNALLED.load(std::sync::atomic::Ordering::SeqCst), "no SIGCHLD");
        // SAFETY: plain integers.
        let child = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((child, errno), (-1, Some(libc::ECHILD)), "no child, no zombie");

        let proc = format!("/proc/{}", control.broker_pid());
        let link = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        let ours = link(pipe[0]);
        for entry in std::fs::read_dir(format!("{proc}/fd")).unwrap() {
            let theirs = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
            assert_ne!(theirs, ours, "a descriptor of the host's in the broker");
        }
        let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
        assert!(status.contains("PPid:\t"), "{status}");
        assert!(!status.contains(&format!("PPid:\t{}\n", std::process::id())));
        // Not by getsid(2): it says 0 where our own session began outside of this process namespace.
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let session =
            |of: &str| of.lines().find(|line| line.starts_with("NSsid:")).map(str::to_owned);
        assert!(session(&status).is_some(), "{status}");
        assert_ne!(session(&status), session(&own), "a session of its own");
        let environment = std::fs::read(format!("{proc}/environ")).unwrap();
        assert!(!environment.windows(11).any(|bytes| bytes == b"LD_PRELOAD="));
        let cwd = std::fs::read_link(format!("{proc}/cwd")).unwrap();
        assert_eq!(cwd.to_str(), Some("/"));
    });
}

#[test]
fn the_first_calls_reach_the_next_broker_if_one_is_killed_before_its_answer() {
    let name = "the_first_calls_reach_the_next_broker_if_one_is_killed_before_its_answer";
    in_namespace(name, || {
        let mut killed = Vec::new();
        let hello = Hello::of_this_process("");
        let last = Client::begin(&hello, |mut client| {
            if killed.len() < 2 {
                let pid = client.broker_pid();
                // SAFETY: signals a process that this test started.
                unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
                killed.push(pid);
            }
            client.table().map(|_| client.broker_pid())
        });
        let last = last.unwrap();
        assert_eq!(killed.len(), 2);
        assert!(!killed.contains(&last), "{killed:?}, {last}");
    });
}

#[test]
fn a_missing_program_is_named() {
    in_namespace("a_missing_program_is_named", || {
        // SAFETY: no other thread of this process runs that could read the environment.
        unsafe { std::env::set_var("POLYPATH_BROKER_BIN", "/no/such/program") };
        let error = Client::connect_or_start(&Hello::of_this_process("")).unwrap_err();
        assert!(error.to_string().contains("POLYPATH_BROKER_BIN"), "{error}");
    });
}

#[test]
fn a_forked_child_must_connect_anew() {
    in_namespace("a_forked_child_must_connect_anew", || {
        let mut control = client("");
        // SAFETY: the child only makes a call that fails before any system call but getpid, and
        // exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let forked = matches!(control.call(&Request::Ping), Err(IpcError::Forked));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!forked)) };
        }
        let mut status = -1;
        // SAFETY: `status` is valid for writing.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        control.call(&Request::Ping).unwrap();
    });
}

#[test]
fn sigterm_ends_it_cleanly_and_event_streams_are_told() {
    in_namespace("sigterm_ends_it_cleanly_and_event_streams_are_told", || {
        let mut broker = start_broker("");
        let (mut events, _) = client("").subscribe().unwrap();
        common::run(&format!("kill -TERM {}", broker.id()));
        assert_eq!(next(&mut events), Push::Goodbye);
        assert!(broker.wait().unwrap().success());
    });
}

#[test]
fn who_connects_to_a_stopped_broker_is_told_which_process_it_is() {
    in_namespace("who_connects_to_a_stopped_broker_is_told_which_process_it_is", || {
        let before = client("");
        let pid = before.broker_pid();
        common::run(&format!("kill -STOP {pid}"));
        let (user, hello) = (rustix::process::getuid().as_raw(), Hello::of_this_process(""));
        let patience = Duration::from_millis(200);
        let error = Client::connect_within(patience, user, &hello).unwrap_err();
        assert_eq!(error.errno(), libc::ETIMEDOUT);
        assert!(error.to_string().contains(&format!("kill -CONT {pid}")), "{error}");
        common::run(&format!("kill -CONT {pid}"));
        assert_eq!(client("").broker_pid(), pid);
    });
}

#[test]
fn a_broker_in_use_ends_only_by_force() {
    in_namespace("a_broker_in_use_ends_only_by_force", || {
        let other = client("");
        let mut control = client("");
        let error = control.shutdown(false).unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        control.shutdown(true).unwrap();
        wait_for_end(other.broker_pid());
    });
}

/// Sends raw bytes, as a client could.
fn raw(connection: &Client, bytes: &[u8]) -> std::io::Result<()> {
    polypath_ipc::socket::send(connection.as_fd(), bytes, None)
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    in_namespace("nonsense_ends_its_own_connection_only", || {
        let mut good = client("");
        let hostile: [&[u8]; 4] = [&[255; 40], &[], &[5, 0, 255, 255, 255, 255, 127], &[0]];
        for bytes in hostile {
            let mut bad = client("");
            let _ = raw(&bad, bytes);
            let error = bad.call(&Request::Ping).unwrap_err();
            assert!(matches!(error, IpcError::Refused { .. } | IpcError::Closed), "{error}");
            good.call(&Request::Ping).unwrap();
        }
        assert!(counter(&mut good, "clients_nonsense") >= 3);
    });
}

#[test]
fn a_client_of_another_version_is_told() {
    in_namespace("a_client_of_another_version_is_told", || {
        let _broker = client("");
        let hello = Hello { version: 999, ..Hello::of_this_process("") };
        let error = Client::connect(&hello).unwrap_err();
        assert!(matches!(error, IpcError::Version { ours: 999, .. }), "{error}");
    });
}

#[test]
fn a_client_that_takes_no_answers_harms_nobody() {
    in_namespace("a_client_that_takes_no_answers_harms_nobody", || {
        let mut good = client("");
        let greedy = client("");
        rustix::io::ioctl_fionbio(&greedy, true).unwrap();
        let request = message::encode(&Request::GetTable).unwrap();
        let full = (0..1_000_000).find(|_| raw(&greedy, &request).is_err());
        assert!(full.is_some(), "the broker goes on reading from who does not read");
        let started = Instant::now();
        (0..100).for_each(|_| drop(good.call(&Request::Ping).unwrap()));
        assert!(started.elapsed() < Duration::from_secs(2));
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", good.broker_pid())).unwrap();
        let resident: u64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(resident * 4096 < 64 << 20, "{resident} pages");
    });
}

#[test]
fn status_gathers_all_reports_and_names_the_silent() {
    in_namespace("status_gathers_all_reports_and_names_the_silent", || {
        let (mut events, _) = client("").subscribe().unwrap();
        let asker = std::thread::spawn(|| client("").status().unwrap());
        let Push::StatusRequest { id, scope: Scope::All } = next(&mut events) else { panic!() };
        let qps = (0..500).map(|qpn| QpStatus { qpn, ..QpStatus::default() }).collect();
        let mut lane = LaneStatus::default();
        lane.drops.icrc_wrong = 3;
        let report = ProcessStatus { pid: 1, qps, lanes: vec![lane], ..ProcessStatus::default() };
        events.report(id, report).unwrap();
        let status = asker.join().unwrap();
        assert!(status.silent.is_empty());
        let [process] = &status.processes[..] else { panic!("{} reports", status.processes.len()) };
        assert_eq!(process.pid, std::process::id(), "the kernel's word counts");
        assert_eq!((process.qps.len(), process.qps[499].qpn), (500, 499));
        assert_eq!(process.lanes[0].drops.icrc_wrong, 3);

        let asker = std::thread::spawn(|| client("").traffic().unwrap());
        let Push::StatusRequest { id, scope: Scope::Traffic } = next(&mut events) else { panic!() };
        let paths = ProcessStatus { devices: vec!["mp0".into()], ..ProcessStatus::default() };
        events.report(id, paths).unwrap();
        let traffic = asker.join().unwrap();
        assert_eq!(traffic.processes[0].devices, ["mp0"]);
        assert_eq!(traffic.broker.table, status.broker.table);
        assert_eq!((traffic.broker.clients, traffic.broker.slots), (vec![], vec![]));

        let status = client("").status().unwrap();
        assert_eq!(status.silent, [std::process::id()]);
        assert!(status.broker.clients.iter().any(|client| client.events));
    });
}

#[test]
fn who_watches_is_told_what_happens_and_who_does_not_read_how_much_it_missed() {
    const NAME: &str = "who_watches_is_told_what_happens_and_who_does_not_read_how_much_it_missed";
    in_namespace(NAME, || {
        let (mut process, _) = client("").subscribe().unwrap();
        let mut watcher = client("").watch(true).unwrap();
        let mut slow = client("").watch(true).unwrap();
        let pid = std::process::id();
        let came = told_until(&mut watcher, |event| matches!(event, Event::ProcessCame { .. }));
        assert_eq!(came.last().unwrap().pid, pid);

        let text = "x".repeat(1000);
        let failed = Event::QueuePairError { qpn: Qpn(7), text };
        let happened = Occurrence { at_unix_us: 1, event: failed.clone() };
        assert!(process.tell(3, std::slice::from_ref(&happened)).unwrap());
        let events = told_until(&mut watcher, |event| *event == failed);
        let lost = Event::EventsLost { count: 3 };
        assert!(events.iter().any(|told| told.occurrence.event == lost && told.pid == pid));
        assert_eq!(events.last().unwrap().occurrence, happened);

        let batch = vec![happened; TOLD_MAX];
        let last = Event::CompletionQueueOverrun { qpn: Qpn(9) };
        let end = vec![Occurrence { at_unix_us: 2, event: last.clone() }];
        for batch in (0..400).map(|_| &batch).chain([&end]) {
            while !process.tell(0, batch).unwrap() {
                assert!(writable(&process.as_fd()), "those who do not read hold the broker up");
            }
        }
        let mut other = client("");
        drop(other.call(&Request::Ping).unwrap());
        let pages = format!("/proc/{}/statm", other.broker_pid());
        let pages = std::fs::read_to_string(pages).unwrap();
        let resident: u64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(resident * 4096 < 64 << 20, "{resident} pages");

        let (mut number, mut missed) = (0, 0);
        loop {
            let Push::Events { lost, events } = next(&mut slow) else { panic!() };
            missed += lost;
            number += lost;
            for told in &events {
                assert_eq!(told.number, number, "each is told once, or is counted as lost");
                number += 1;
            }
            if events.iter().any(|told| told.occurrence.event == last) {
                break;
            }
        }
        assert!(missed > 0);
    });
}

/// The events that a watcher is told, up to one that fits.
fn told_until(watcher: &mut EventStream, wanted: impl Fn(&Event) -> bool) -> Vec<Told> {
    let mut all = Vec::new();
    loop {
        let Push::Events { events, .. } = next(watcher) else { panic!() };
        for told in events {
            let found = wanted(&told.occurrence.event);
            all.push(told);
            if found {
                return all;
            }
        }
    }
}
