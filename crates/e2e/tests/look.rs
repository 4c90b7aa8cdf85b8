//! Programs that examine devices through files and netlink: those of libibumad and iproute2, shells,
//! and programs that use every function of the C library for this.

use polypath_e2e::{Error, Finished, Lab, PATIENT, compile_c, share};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

fn run(device: Option<&str>, program: &[&str]) -> Result<Finished, Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    lab.host(0).verbs(program).device(device).run(LIMIT)?.expect_success()
}

#[test]
fn every_way_of_looking_around_sees_the_same() -> Result<(), Error> {
    let program = compile_c("look.c")?;
    run(None, &[&program, "mp0"])?.expect_line("all checks passed")?;
    run(Some("roce"), &[&program, "roce1"])?.expect_line("all checks passed").map(drop)
}

#[test]
fn ibstat_and_ibstatus_show_our_devices() -> Result<(), Error> {
    for (device, name) in [(None, "mp0"), (Some("roce"), "roce0")] {
        let stat = run(device, &["ibstat"])?.expect_line(&format!("CA '{name}'"))?;
        stat.expect_line("State: Active")?.expect_line("Link layer: Ethernet")?;
        let status = run(device, &["ibstatus"])?.expect_line(&format!("device '{name}' port 1"))?;
        status.expect_line("4: ACTIVE")?.expect_line("Gb/sec")?;
        run(device, &["ibstat", "-l"])?.expect_line(name)?;
    }
    Ok(())
}

#[test]
fn listing_the_class_names_each_device_without_an_error() -> Result<(), Error> {
    let list = run(Some("roce"), &["ls", "-l", "/sys/class/infiniband/"])?;
    let list = list.expect_line("roce0 -> ../../devices/virtual/polypath/")?;
    list.expect_line("roce1")?.expect_no_line("No such file").map(drop)
}

#[test]
fn a_shell_goes_there_and_looks() -> Result<(), Error> {
    // Some programs look for the adapter that a device belongs to.
    let up = "cd / && readlink -f /sys/class/infiniband/roce0/../.. && \
              cat /sys/class/infiniband/roce0/../../numa_node && ls -d /sys/class/infiniband/../net/lo";
    let above = run(Some("roce"), &["sh", "-c", up])?;
    above
        .expect_line("/sys/devices/virtual/polypath/roce0")?
        .expect_line("-1")?
        .expect_line("/sys/class/infiniband/../net/lo")?;
    let script = "cd /sys/class/infiniband && pwd -P && echo * && cat */ports/1/state";
    let shell = run(None, &["sh", "-c", script])?;
    shell.expect_line("/sys/class/infiniband")?.expect_line("mp0")?.expect_line("ACTIVE").map(drop)
}

#[test]
fn rdma_of_iproute2_shows_devices_links_and_what_is_in_use() -> Result<(), Error> {
    for (device, name) in [(None, "mp0"), (Some("roce"), "roce1")] {
        let dev = run(device, &["rdma", "dev"])?.expect_line(&format!("{name}: node_type ca"))?;
        dev.expect_line("node_guid")?;
        let link =
            run(device, &["rdma", "link"])?.expect_line(&format!("link {name}/1 state ACTIVE"))?;
        link.expect_line("netdev eth")?;
        run(device, &["rdma", "link", "show", &format!("{name}/1")])?.expect_line("LINK_UP")?;
        run(device, &["rdma", "resource"])?.expect_line(&format!("{name}: qp "))?;
        run(device, &["rdma", "system"])?.expect_line("netns shared")?;
    }
    Ok(())
}

#[test]
fn counters_count_what_was_carried() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let server = lab.host(0).verbs(["ib_write_bw", "-d", "mp0", "-x", "1", "--run_infinitely"]);
    let server = server.spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client = ["ib_write_bw", "-d", "mp0", "-x", "1", "--run_infinitely", &address];
    let client = lab.host(1).verbs(client).spawn()?;
    lab.wait_traffic(&[&server, &client], 10_000_000, LIMIT)?;
    let counters = "/sys/class/infiniband/mp0/ports/1/counters";
    let value = |host: usize, name: &str| -> Result<u64, Error> {
        let path = format!("{counters}/{name}");
        let read = lab.host(host).verbs(["cat", &path]).run(LIMIT)?.expect_success()?;
        Ok(read.text().lines().find_map(|line| line.trim().parse().ok()).unwrap_or(0))
    };
    // The counter is in units of four bytes.
    assert!(value(1, "port_xmit_data")? > 2_000_000);
    assert!(value(0, "port_rcv_data")? > 2_000_000);
    assert!(value(0, "port_rcv_packets")? > 1000);
    Ok(())
}
