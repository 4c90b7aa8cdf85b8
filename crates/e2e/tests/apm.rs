//! Unmodified programs migrate between plain RoCE paths (automatic path migration), because the connection
//! managers of both ends agree on an alternate path, load it, and renew it after each migration.

use std::time::Duration;

use polypath_e2e::{End, Error, Host, Lab, PATIENT, Running, share, until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// The connected queue pairs of a host.
fn queue_pairs(host: &Host) -> Result<Vec<Value>, Error> {
    let status = host.status()?;
    let lists = status["processes"].as_array().into_iter().flatten();
    let qps = lists.filter_map(|process| process["qps"].as_array()).flatten();
    Ok(qps.filter(|qp| qp["state"] == "RTS").cloned().collect())
}

/// The texts of what happened in the processes of a host.
fn events(host: &Host) -> Result<Vec<String>, Error> {
    let status = host.status()?;
    let lists = status["processes"].as_array().into_iter().flatten();
    let events = lists.filter_map(|process| process["events"].as_array()).flatten();
    Ok(events.filter_map(|event| Some(event["text"].as_str()?.to_owned())).collect())
}

/// How often the only queue pair of a host has migrated.
fn migrations(host: &Host) -> Result<u64, Error> {
    Ok(queue_pairs(host)?.iter().filter_map(|qp| qp["counters"]["migrations"].as_u64()).sum())
}

/// Starts a program with a connection over link 0 and an alternate path over link 1.
fn start(lab: &Lab, device: &str, words: &[&str]) -> Result<[Running; 2], Error> {
    let run = |host: usize, words: &[&str]| {
        lab.host(host).verbs(words).device(Some(device)).env("POLYPATH_APM", "on").spawn()
    };
    let meet = lab.host(0).ipv4(0);
    let common = [words, &["-a", &meet]].concat();
    let server = run(0, &[&["rping", "-s"], &common[..]].concat())?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let client = run(1, &[&["rping", "-c"], &common[..]].concat())?;
    Ok([server, client])
}

/// Waits until both ends have become able to migrate `times` times.
fn wait_armed(lab: &Lab, programs: &[Running; 2], times: usize) -> Result<(), Error> {
    until("both ends to be armed", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        for host in 0..2 {
            let armed = events(lab.host(host))?;
            if armed.iter().filter(|text| text.contains("can migrate to")).count() < times {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// Waits until both ends have migrated `times` times.
fn wait_migrated(lab: &Lab, programs: &[Running; 2], times: u64) -> Result<(), Error> {
    until("both ends to migrate", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        let done = migrations(lab.host(0))? >= times && migrations(lab.host(1))? >= times;
        Ok(done.then_some(()))
    })
}

#[test]
fn rping_goes_on_when_one_link_after_the_other_goes_down() -> Result<(), Error> {
    let _share = share(PATIENT);
    for device in ["roce", "roce2"] {
        let lab = Lab::new()?;
        let programs = start(&lab, device, &["-V", "-S", "3000"])?;
        for round in 0..4 {
            wait_armed(&lab, &programs, round + 1)?;
            let link = round % 2;
            lab.link_down(link, if round < 2 { End::Both } else { End::Of(round % 2) })?;
            wait_migrated(&lab, &programs, round as u64 + 1)?;
            lab.link_up(link)?;
        }
        let [server, client] = programs;
        client.signal(libc::SIGINT);
        let client = client.finish(LIMIT)?;
        assert!(!client.text().contains("mismatch"), "{}", client.text());
        drop(server);
    }
    Ok(())
}
