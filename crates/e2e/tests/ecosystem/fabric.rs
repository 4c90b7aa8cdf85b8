//! libfabric's verbs provider: connected endpoints, datagrams, and reliable datagrams over connected
//! ones. fi_pingpong compares what it receives (`-c`).

use super::LIMIT;
use polypath_e2e::{Case, Direction, Error, Lab, PATIENT, Ready, pass, share, wait_failover};
use std::time::Duration;

const WAITS: Ready = Ready::Tcp(47592);
const SIZES: &[&str] = &["64k", "1m"];

/// Makes a case of fi_pingpong with these options.
macro_rules! pingpong {
    ($options:literal, $expect:expr) => {
        Case::two(
            concat!("fi_pingpong -c ", $options),
            WAITS,
            concat!("fi_pingpong -c ", $options, " {server}"),
            $expect,
        )
        .within(LIMIT)
    };
}

programs! {
    connected: pingpong!("-p verbs -e msg -I 20", SIZES);
    #[ignore = "long: make ecosystem runs it"]
    datagrams: pingpong!("-p verbs -e dgram -I 20", &["4k"]);
    #[ignore = "long: make ecosystem runs it"]
    reliable_datagrams: pingpong!("-p verbs;ofi_rxm -e rdm -I 20", SIZES);
    #[ignore = "long: make ecosystem runs it"]
    tagged_reliable_datagrams: pingpong!("-p verbs;ofi_rxm -e rdm -m tagged -I 20", SIZES);
}

#[test]
fn fi_info_lists_each_device() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    for (device, names) in [(None, &["mp0"][..]), (Some("roce"), &["roce0", "roce1"])] {
        let info = lab.host(0).verbs(["fi_info", "-p", "verbs"]).device(device).run(LIMIT)?;
        let mut info = info.expect_success()?.expect_line("type: FI_EP_MSG")?;
        for name in names {
            info = info.expect_line(&format!("domain: {name}"))?;
        }
    }
    Ok(())
}

/// The link dies silently during a transfer. The program succeeds and finds its data right.
#[test]
#[ignore = "long: make ecosystem runs it"]
fn a_silent_cut_is_not_noticed() -> Result<(), Error> {
    const AWAY: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(180);
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let words = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-c", "-S", "65536", "-I", "5000"];
    let server = lab.host(0).verbs(words).spawn()?;
    server.wait_tcp_listen(47592, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([address.as_str()])).spawn()?;
    lab.wait_traffic(&[&client], 10_000_000, LIMIT)?;
    lab.cut(0, Direction::Both)?;
    wait_failover(lab.host(1), &[&client], LIMIT)?;
    pass(AWAY);
    // It ends over TCP, which uses only one link.
    lab.heal(0)?;
    client.finish(LONG)?.expect_success()?.expect_line("64k")?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(())
}
