//! Unmodified programs that connect through librdmacm.

use polypath_e2e::{Case, Error, Lab, Ready, matrix};
use std::time::Duration;

const OTHER: Ready = Ready::Cm(7174);
const DEFAULT: Ready = Ready::Cm(7471);

matrix! {
    rping: Case::two(
        "rping -s -a {server} -v -V -C 100 -S 1000", OTHER,
        "rping -c -a {server} -v -V -C 100 -S 1000", &["rdma-ping-99"],
    );
    rping_ipv6: Case::two(
        "rping -s -a {server6} -v -V -C 20", OTHER,
        "rping -c -a {server6} -v -V -C 20", &["rdma-ping-19"],
    );
    rping_own_queue_pairs: Case::two(
        "rping -s -q -a {server} -v -V -C 20", OTHER,
        "rping -c -q -a {server} -v -V -C 20", &["rdma-ping-19"],
    );
    rping_persistent_server: Case::two(
        "rping -s -P -a {server}", OTHER,
        "rping -c -a {server} -v -V -C 20", &["rdma-ping-19"],
    ).server_may_stay();
    ucmatose: Case::two(
        "ucmatose -b {server} -c 4 -C 20", DEFAULT,
        "ucmatose -s {server} -c 4 -C 20", &["return status 0"],
    );
    ucmatose_migrates_ids: Case::two(
        "ucmatose -b {server} -c 2 -m", DEFAULT,
        "ucmatose -s {server} -c 2 -m", &["return status 0"],
    );
    udaddy: Case::two(
        "udaddy -b {server} -c 2 -C 20", OTHER,
        "udaddy -s {server} -c 2 -C 20", &["return status 0"],
    );
    mckey: Case::two(
        "mckey -m 239.1.1.1 -b {server} -C 5", Ready::Line("receiving data transfers"),
        "mckey -m 239.1.1.1 -b {client} -s -C 5", &["return status 0"],
    );
    cmtime_1000_connections: Case::two(
        "cmtime -b {server} -c 1000", DEFAULT,
        "cmtime -s {server} -c 1000", &["connect"],
    ).server_may_stay().within(Duration::from_secs(60));
    rdma_client_and_server: Case::two(
        "rdma_server", DEFAULT,
        "rdma_client -s {server}", &["rdma_client: end 0"],
    );
    rdma_xclient_and_xserver: Case::two(
        "rdma_xserver", DEFAULT,
        "rdma_xclient -s {server}", &["rdma_xclient: end 0"],
    );
    rdma_xclient_and_xserver_xrc: Case::two(
        "rdma_xserver -c x", DEFAULT,
        "rdma_xclient -c x -s {server}", &["rdma_xclient: end 0"],
    );
    rstream: Case::two(
        "rstream -b {server} -S 65536 -C 50 -I 1 -T v", DEFAULT,
        "rstream -s {server} -S 65536 -C 50 -I 1 -T v", &["64k"],
    );
}

/// Two clients use a persistent server, one after the other.
#[test]
fn a_persistent_rping_server_serves_again() -> Result<(), Error> {
    const LIMIT: Duration = Duration::from_secs(10);
    let _share = polypath_e2e::share(polypath_e2e::PATIENT);
    let lab = Lab::new()?;
    let address = lab.host(0).ipv4(0);
    let server = lab.host(0).verbs(["rping", "-s", "-P", "-a", &address]).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    for _ in 0..2 {
        let client = ["rping", "-c", "-a", &address, "-v", "-V", "-C", "5"];
        lab.host(1).verbs(client).run(LIMIT)?.expect_success()?.expect_line("rdma-ping-4")?;
    }
    server.expect_alive()
}

/// If no program listens, the client is told at once, and says so.
#[test]
fn a_connection_to_nobody_is_refused() -> Result<(), Error> {
    let _share = polypath_e2e::share(polypath_e2e::PATIENT);
    let lab = Lab::new()?;
    let client = ["rping", "-c", "-a", &lab.host(0).ipv4(0), "-C", "1"];
    // A broker must run on the other host, because otherwise nothing there can refuse.
    lab.host(0).verbs(["ibv_devinfo"]).run(Duration::from_secs(10))?.expect_success()?;
    let client = lab.host(1).verbs(client).run(Duration::from_secs(20))?;
    assert!(!client.status.success(), "{}", client.text());
    Ok(())
}

/// A host that does not exist is told as Linux tells it, in the time that the program allows for it.
#[test]
fn a_host_that_does_not_exist_is_not_resolved() -> Result<(), Error> {
    let _share = polypath_e2e::share(polypath_e2e::PATIENT);
    let lab = Lab::new()?;
    for (address, end) in [(lab.host(0).ipv4(0), '.'), (lab.host(0).ipv6(0), ':')] {
        let (link, _) = address.rsplit_once(end).expect("an address has parts");
        let nobody = format!("{link}{end}77");
        let client = lab.host(1).verbs(["rping", "-c", "-a", &nobody, "-C", "1"]);
        let text = client.run(Duration::from_secs(20))?.text();
        assert!(text.contains("RDMA_CM_EVENT_ADDR_ERROR, error -110"), "{nobody}: {text}");
    }
    Ok(())
}
