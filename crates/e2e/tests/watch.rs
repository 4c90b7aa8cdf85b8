//! `polypath watch`: a link goes down under traffic, and a watcher sees what happened.

use polypath_e2e::{End, Error, Lab, PATIENT, Running, share, until};
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LIMIT: Duration = Duration::from_secs(20);

/// Waits for an event of a kind for which `wanted` returns true.
fn event(watcher: &Running, kind: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, Error> {
    until(&format!("a {kind} from `polypath watch`"), LIMIT, || {
        watcher.expect_alive()?;
        for line in watcher.lines_from(0) {
            let event: Value = serde_json::from_str(&line.text)
                .map_err(|error| Error::Missing(format!("no JSON: {error}: {}", line.text)))?;
            if event["kind"] == kind && wanted(&event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    })
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[test]
fn a_watcher_sees_the_fail_over_with_its_cause_and_time() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let server = lab.host(0).verbs(["ib_write_bw", "-d", "mp0", "-x", "1", "--run_infinitely"]);
    let server = server.spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client = ["ib_write_bw", "-d", "mp0", "-x", "1", "--run_infinitely", &address];
    let client = lab.host(1).verbs(client).spawn()?;
    lab.wait_traffic(&[&server, &client], 10_000_000, LIMIT)?;

    // Earlier events are reported first.
    let watcher = lab.host(1).watch(&["--past"])?;
    event(&watcher, "process_came", |event| event["program"] == "ib_write_bw")?;

    let before = now_us();
    lab.link_down(0, End::Both)?;
    let link = event(&watcher, "link_down", |event| event["fields"]["interface"] == "eth0")?;
    assert_eq!((&link["pid"], &link["level"]), (&Value::Null, &Value::from("warning")));
    // The other end has lost its link too, and may be the first to report it, on the other path.
    let reasons = ["link_down", "peer_notice"];
    let moved = event(&watcher, "failover", |event| {
        event["fields"]["reason"].as_str().is_some_and(|reason| reasons.contains(&reason))
    })?;
    let after = now_us();
    let at = moved["at_unix_us"].as_u64().unwrap_or(0);
    assert!((before..=after).contains(&at), "{before} {after} {moved}");
    let text = |key: &str| moved["fields"][key].as_str().unwrap_or_default().to_owned();
    assert!(text("from").ends_with("@eth0") && text("to").ends_with("@eth1"), "{moved}");
    assert_eq!(moved["program"], "ib_write_bw");
    let given_up = event(&watcher, "path_given_up", |event| event["pid"] == moved["pid"])?;
    assert_eq!(given_up["fields"]["path"], moved["fields"]["from"]);
    let resumed = event(&watcher, "traffic_resumed", |event| event["pid"] == moved["pid"])?;
    // It is 0 if nothing was on its way by the link that is down: nothing has stopped then.
    let blackout = resumed["fields"]["blackout_us"].as_u64().unwrap_or(u64::MAX);
    let longest = now_us() - before;
    assert!(
        blackout < longest && resumed["fields"]["reason"] == moved["fields"]["reason"],
        "{resumed}"
    );
    assert!(resumed["number"].as_u64() > moved["number"].as_u64(), "{resumed}");

    lab.link_up(0)?;
    event(&watcher, "link_up", |event| event["fields"]["interface"] == "eth0")?;
    event(&watcher, "path_up", |event| event["fields"]["path"] == moved["fields"]["from"])?;

    // The other end of the connection ends, and this end with it.
    client.signal(libc::SIGKILL);
    event(&watcher, "process_gone", |event| event["pid"] == moved["pid"])?;
    Ok(())
}

#[test]
fn an_alternate_path_that_loses_its_link_holds_nothing() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let meet = lab.host(0).ipv4(0);
    let run = |host: usize, role: &str| {
        let words = ["rping", role, "-a", &meet];
        lab.host(host).verbs(words).device(Some("roce2")).env("POLYPATH_APM", "on").spawn()
    };
    let server = run(0, "-s")?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let _client = run(1, "-c")?;
    until("the client's queue pair", LIMIT, || {
        Ok(lab.host(1).queue_pairs().is_ok_and(|qps| !qps.is_empty()).then_some(()))
    })?;
    let watcher = lab.host(1).watch(&["--past"])?;
    let armed = event(&watcher, "migration_armed", |_| true)?;
    lab.link_down(1, End::Both)?;
    event(&watcher, "alternate_lost", |event| event["fields"]["qpn"] == armed["fields"]["qpn"])?;
    lab.link_up(1)?;
    let again = |event: &Value| event["number"].as_u64() > armed["number"].as_u64();
    event(&watcher, "migration_armed", again)?;
    let text: Vec<String> = watcher.lines_from(0).into_iter().map(|line| line.text).collect();
    assert!(!text.iter().any(|line| line.contains("\"no_path\"")), "{text:#?}");
    Ok(())
}

#[test]
fn who_watches_before_anything_runs_sees_the_broker_come_and_go() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let watcher = lab.host(0).watch(&[])?;
    watcher.wait_line("waiting for one", LIMIT)?;
    lab.host(0).verbs(["ibv_devinfo"]).run(LIMIT)?.expect_success()?;
    watcher.wait_line("\"process_came\"", LIMIT)?;
    watcher.wait_line("\"process_gone\"", LIMIT)?;
    watcher.expect_alive()
}
