//! Policies by which the data of an unmodified program uses all paths.

use polypath_e2e::{Error, Host, Lab, PATIENT, share, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Fewer bytes than this by a path are probes and answers, not the program's data.
const DATA_LEAST: u64 = 16 << 20;

/// The bytes that the processes of a host have sent by each of their active paths.
fn sent_bytes(host: &Host) -> Result<Vec<u64>, Error> {
    let status = host.status()?;
    let lists =
        status["processes"].as_array().into_iter().flatten().map(|process| &process["paths"]);
    let paths = lists.filter_map(serde_json::Value::as_array).flatten();
    let active = paths.filter(|path| path["state"] == "active");
    Ok(active.filter_map(|path| path["sent_bytes"].as_u64()).collect())
}

fn all_paths_carry_data(settings: &str, queue_pairs: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let words = ["ib_write_bw", "-q", queue_pairs, "--run_infinitely"];
    let server = lab.host(0).verbs(words).env("POLYPATH_MP", settings).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()]));
    let client = client.env("POLYPATH_MP", settings).spawn()?;
    until("data by both paths", LIMIT, || {
        client.expect_alive()?;
        server.expect_alive()?;
        let sent = sent_bytes(lab.host(1))?;
        Ok((sent.len() == 2 && sent.iter().all(|bytes| *bytes > DATA_LEAST)).then_some(()))
    })
}

#[test]
fn one_queue_pair_uses_all_paths() -> Result<(), Error> {
    all_paths_carry_data("policy=balance", "1")
}

#[test]
fn queue_pairs_that_take_turns_use_all_paths() -> Result<(), Error> {
    all_paths_carry_data("policy=affinity,affinity=round-robin", "2")
}

#[test]
fn queue_pairs_that_are_hashed_use_all_paths() -> Result<(), Error> {
    // All of so many use one path about once in 30000 times.
    all_paths_carry_data("policy=affinity", "16")
}
