//! Unmodified verbs programs of rdma-core.

use polypath_e2e::{Case, End, Error, Lab, PATIENT, compile_c, matrix, share};
use std::time::Duration;

const ROUND_TRIPS: &[&str] = &["iters in"];

matrix! {
    rc_pingpong: Case::tcp("ibv_rc_pingpong -g 1 -c", ROUND_TRIPS);
    rc_pingpong_events: Case::tcp("ibv_rc_pingpong -g 1 -c -e", ROUND_TRIPS);
    rc_pingpong_large: Case::tcp("ibv_rc_pingpong -g 1 -c -s 1000001 -n 50 -m 4096", ROUND_TRIPS);
    rc_pingpong_new_post_api: Case::tcp("ibv_rc_pingpong -g 1 -c -N", ROUND_TRIPS);
    rc_pingpong_ipv6: Case::tcp("ibv_rc_pingpong -g 2 -c", ROUND_TRIPS);
    rc_pingpong_timestamps: Case::tcp("ibv_rc_pingpong -g 1 -t -n 200", ROUND_TRIPS);
    uc_pingpong: Case::tcp("ibv_uc_pingpong -g 1 -c", ROUND_TRIPS);
    uc_pingpong_events: Case::tcp("ibv_uc_pingpong -g 1 -c -e", ROUND_TRIPS);
    ud_pingpong: Case::tcp("ibv_ud_pingpong -g 1 -c", ROUND_TRIPS);
    ud_pingpong_events: Case::tcp("ibv_ud_pingpong -g 1 -c -e", ROUND_TRIPS);
    srq_pingpong: Case::tcp("ibv_srq_pingpong -g 1 -c", ROUND_TRIPS);
    srq_pingpong_events: Case::tcp("ibv_srq_pingpong -g 1 -c -e", ROUND_TRIPS);
    xsrq_pingpong: Case::tcp("ibv_xsrq_pingpong -g 1", &["success"]);
    xsrq_pingpong_events: Case::tcp("ibv_xsrq_pingpong -g 1 -e", &["success"]);
}

const LIMIT: Duration = Duration::from_secs(10);

fn run(program: &str, device: Option<&str>) -> Result<polypath_e2e::Finished, Error> {
    run_for(program, device, LIMIT)
}

fn run_for(
    program: &str,
    device: Option<&str>,
    limit: Duration,
) -> Result<polypath_e2e::Finished, Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    lab.host(0).verbs(program.split(' ')).device(device).run(limit)?.expect_success()
}

/// Runs one of our own C programs on both devices. It sends to itself and checks what it gets.
fn run_own(name: &str) -> Result<(), Error> {
    run_own_for(name, LIMIT)
}

fn run_own_for(name: &str, limit: Duration) -> Result<(), Error> {
    let program = compile_c(&format!("{name}.c"))?;
    for device in [None, Some("roce")] {
        let finished = run_for(&program, device, limit)?;
        finished.expect_line("checks passed")?;
    }
    Ok(())
}

#[test]
fn memory_that_was_given_up_is_an_error_of_the_access_and_never_a_signal() -> Result<(), Error> {
    run_own_for("gone", Duration::from_secs(60))
}

/// 100,000 WRITEs, each of whose packets may have to be sent again.
#[test]
fn a_buffer_that_changes_while_it_is_sent_ends_nothing() -> Result<(), Error> {
    run_own_for("changing", Duration::from_secs(60))
}

#[test]
fn memory_windows_give_what_was_bound_and_no_more() -> Result<(), Error> {
    run_own("windows")
}

#[test]
fn a_call_that_succeeds_leaves_errno_alone() -> Result<(), Error> {
    run_own("errno")
}

#[test]
fn xrc_reaches_the_queues_of_its_domain_and_no_others() -> Result<(), Error> {
    run_own("xrc")
}

#[test]
fn atomic_writes_and_flushes_place_what_was_written() -> Result<(), Error> {
    run_own("placement")
}

#[test]
fn datagrams_reach_any_number_of_destinations_and_none_is_too_long() -> Result<(), Error> {
    run_own("datagrams")
}

/// Each device has its own interface, and so has each multicast membership.
#[test]
fn queue_pairs_of_two_devices_in_one_group_hear_each_its_own_interface() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("groups.c")?;
    let lab = Lab::new()?;
    let _sender = lab.host(1).verbs([&*program, "send"]).device(Some("roce")).spawn()?;
    let receiver = lab.host(0).verbs([&*program, "receive"]).device(Some("roce"));
    receiver.run(Duration::from_secs(60))?.expect_success()?.expect_line("checks passed").map(drop)
}

#[test]
fn a_program_that_had_no_descriptors_at_first_hears_of_links_later() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("starved.c")?;
    let lab = Lab::new()?;
    let programs = lab.host(0).verbs([&*program]).device(Some("roce:eth0")).spawn()?;
    programs.wait_line("all are ready", Duration::from_secs(60))?;
    lab.link_down(0, End::Both)?;
    let finished = programs.finish(Duration::from_secs(60))?.expect_success()?;
    finished.expect_line("checks passed").map(drop)
}

#[test]
fn the_default_is_one_device_over_all_interfaces() -> Result<(), Error> {
    let devices = run("ibv_devices", None)?.expect_line("mp0")?;
    devices.expect_no_line("roce").map(drop)
}

#[test]
fn plain_devices_are_one_per_interface() -> Result<(), Error> {
    let devices = run("ibv_devices", Some("roce"))?.expect_line("roce0")?.expect_line("roce1")?;
    devices.expect_no_line("mp0").map(drop)
}

#[test]
fn devices_can_be_chosen_by_interface() -> Result<(), Error> {
    run("ibv_devices", Some("roce:eth1"))?.expect_line("roce1")?.expect_no_line("roce0")?;
    run("ibv_devices", Some("mp:eth1+eth0"))?.expect_line("mp0").map(drop)
}

#[test]
fn devinfo_shows_an_active_port_and_the_gids_in_rxe_order() -> Result<(), Error> {
    for device in [None, Some("roce")] {
        let info = run("ibv_devinfo -v", device)?;
        let info = info.expect_line("PORT_ACTIVE")?.expect_line("Ethernet")?;
        let gids: Vec<&str> = info
            .lines
            .iter()
            .map(|line| line.text.as_str())
            .filter(|l| l.contains("GID["))
            .collect();
        assert!(gids[0].contains("fe80:"), "{gids:?}");
        assert!(gids[1].contains("::ffff:10.0.0.1"), "{gids:?}");
        assert!(gids[2].contains("fd00:"), "{gids:?}");
    }
    Ok(())
}

/// The receiver of a message stops its queue pair upon the completion. The sender must get its
/// acknowledgement nevertheless.
fn the_last_message_is_acknowledged(way: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("last.c")?;
    let lab = Lab::new()?;
    for _ in 0..5 {
        let run = lab.host(0).verbs([&*program, way]).device(Some("roce"));
        run.run(Duration::from_secs(30))?.expect_success()?.expect_line("acknowledged")?;
    }
    Ok(())
}

#[test]
fn a_message_is_acknowledged_before_its_receiver_goes_to_the_error_state() -> Result<(), Error> {
    the_last_message_is_acknowledged("modify")
}

#[test]
fn a_message_is_acknowledged_before_its_receiver_is_destroyed() -> Result<(), Error> {
    the_last_message_is_acknowledged("destroy")
}

/// Both ends wait for the peer's WRITE to appear in their memory, so the lanes' threads must receive
/// it.
#[test]
fn messages_go_on_although_nobody_polls_a_completion_queue() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("unpolled.c")?;
    let lab = Lab::new()?;
    for (device, busy_poll) in [("roce", "0"), ("roce", "100"), ("mp", "1000")] {
        for words in [&[&*program, "2000"][..], &[&*program, "2000", "one"]] {
            let run = lab.host(0).verbs(words.iter().copied()).device(Some(device));
            let run = run.env("POLYPATH_BUSY_POLL", busy_poll);
            run.run(Duration::from_secs(30))?.expect_success()?.expect_line("half round trip")?;
        }
    }
    Ok(())
}

#[test]
fn threads_wait_for_events_in_every_way() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("waiting.c")?;
    let lab = Lab::new()?;
    for (device, busy_poll) in [("roce", "0"), ("mp", "100"), ("roce", "1000")] {
        let run = lab.host(0).verbs([&*program, "2000"]).device(Some(device));
        let run = run.env("POLYPATH_BUSY_POLL", busy_poll).run(Duration::from_secs(60))?;
        run.expect_success()?.expect_line("after another had a signal")?;
    }
    Ok(())
}

#[test]
fn an_empty_list_of_devices_is_explained() -> Result<(), Error> {
    run("ibv_devices", Some("roce:nosuch"))?
        .expect_line("interface `nosuch` does not exist")
        .map(drop)
}
