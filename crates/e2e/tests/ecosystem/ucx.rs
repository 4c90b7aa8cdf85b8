//! UCX. Its processes are on one machine here, so it must not use shared memory.
//!
//! Debian 13 builds `ucx_perftest` as an MPI program, too. It behaves like one that `mpirun` started,
//! unless its input is a terminal.

use super::LIMIT;
use polypath_e2e::{Case, Error, Lab, PATIENT, Ready, share};

const WAITS: Ready = Ready::Tcp(13337);

/// Makes a case of ucx_perftest with these transports.
macro_rules! perftest {
    ($transports:literal, $test:literal) => {
        Case::two(
            concat!("env UCX_TLS=", $transports, " ucx_perftest"),
            WAITS,
            concat!("env UCX_TLS=", $transports, " ucx_perftest {server} -t ", $test),
            &["Final:"],
        )
        .within(LIMIT)
        .typed()
    };
}

programs! {
    rc_tag_latency: perftest!("rc_v", "tag_lat -n 500 -w 50");
    /// It looks for completions, asks for the next event, and sleeps without looking again.
    rc_tag_latency_asleep: Case::two(
        "env UCX_TLS=rc_v ucx_perftest -E sleep", WAITS,
        "env UCX_TLS=rc_v ucx_perftest {server} -E sleep -t tag_lat -s 8192 -n 4000 -w 50",
        &["Final:"],
    ).within(LIMIT).typed();
    #[ignore = "long: make ecosystem runs it"]
    rc_tag_bandwidth: perftest!("rc_v", "tag_bw -s 65536 -n 200 -w 20");
    #[ignore = "long: make ecosystem runs it"]
    rc_tag_rendezvous: perftest!("rc_v", "tag_lat -s 4000000 -n 20 -w 2");
    #[ignore = "long: make ecosystem runs it"]
    rc_active_messages: perftest!("rc_v", "ucp_am_lat -s 3000 -n 500 -w 50");
    #[ignore = "long: make ecosystem runs it"]
    rc_active_messages_bandwidth: perftest!("rc_v", "ucp_am_bw -s 100000 -n 100 -w 10");
    #[ignore = "long: make ecosystem runs it"]
    rc_put: perftest!("rc_v", "ucp_put_lat -n 500 -w 50");
    #[ignore = "long: make ecosystem runs it"]
    rc_put_bandwidth: perftest!("rc_v", "ucp_put_bw -s 65536 -n 200 -w 20");
    #[ignore = "long: make ecosystem runs it"]
    rc_get: perftest!("rc_v", "ucp_get -s 65536 -n 200 -w 20");
    #[ignore = "long: make ecosystem runs it"]
    rc_fetch_add: perftest!("rc_v", "ucp_fadd -n 200 -w 20");
    #[ignore = "long: make ecosystem runs it"]
    rc_compare_swap: perftest!("rc_v", "ucp_cswap -n 200 -w 20");
    #[ignore = "long: make ecosystem runs it"]
    rc_stream: perftest!("rc_v", "stream_bw -s 10000 -n 200 -w 20");
    ud_tag_latency: perftest!("ud_v", "tag_lat -n 500 -w 50");
    #[ignore = "long: make ecosystem runs it"]
    ud_tag_bandwidth: perftest!("ud_v", "tag_bw -s 65536 -n 100 -w 10");
    #[ignore = "long: make ecosystem runs it"]
    ud_active_messages: perftest!("ud_v", "ucp_am_lat -s 3000 -n 500 -w 50");
    #[ignore = "long: make ecosystem runs it"]
    ud_put: perftest!("ud_v", "ucp_put_lat -n 500 -w 50");
    #[ignore = "long: make ecosystem runs it"]
    ud_get: perftest!("ud_v", "ucp_get -s 4096 -n 100 -w 10");
    /// UCX chooses between TCP and the devices by itself, and takes the devices.
    #[ignore = "long: make ecosystem runs it"]
    own_choice: Case::two(
        "env UCX_TLS=^sm ucx_perftest", WAITS,
        "env UCX_TLS=^sm UCX_LOG_LEVEL=info ucx_perftest {server} -t tag_lat -n 500 -w 50",
        &["tag(rc_verbs/", "Final:"],
    ).within(LIMIT).typed();
}

#[test]
fn ucx_info_lists_both_transports_of_each_device() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    for (device, name, count) in [(None, "mp0:1", 2), (Some("roce"), "roce1:1", 2)] {
        let info = lab.host(0).verbs(["ucx_info", "-d"]).device(device).run(LIMIT)?;
        let info = info.expect_success()?;
        let text = info.text();
        let found = text.lines().filter(|line| line.contains(name)).count();
        assert_eq!(found, count, "{name} in:\n{text}");
        info.expect_line("Transport: rc_verbs")?.expect_line("Transport: ud_verbs")?;
    }
    Ok(())
}
