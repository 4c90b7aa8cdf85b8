//! uDAPL (DAT): its own test programs, with the provider that uses RDMA CM.

use polypath_e2e::{Error, Host, Lab, PATIENT, Ready, Scratch, share};

use super::LIMIT;

/// The contents of a file in the place of `/etc/dat.conf`. The parameters are a network interface and a
/// port.
const REGISTRY: &str = "lab u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"eth0 0\" \"\"\n";

/// Runs a server and a client of a program.
fn check(
    program: &str,
    device: Option<&str>,
    ready: Ready,
    server: &str,
    client: &str,
    expect: &str,
) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let scratch = Scratch::new(&format!("udapl-{program}-{}", device.unwrap_or("mp")))?;
    let registry = scratch.write("dat.conf", REGISTRY.as_bytes())?;
    let registry = registry.as_os_str();
    let [at, from] = [lab.host(0), lab.host(1)];
    let start = |host: &Host, options: &str| {
        let line = format!("{program} {options}").replace("{server}", &at.ipv4(0));
        host.verbs(line.split(' ')).device(device).env("DAT_OVERRIDE", registry)
    };
    let server = start(at, server).spawn()?;
    match ready {
        Ready::Tcp(port) => server.wait_tcp_listen(port, LIMIT)?,
        Ready::Cm(port) => at.wait_cm_listen(&server, port, LIMIT)?,
        Ready::Line(text) => drop(server.wait_line(text, LIMIT)?),
    }
    let client = start(from, client);
    client.run(LIMIT)?.expect_success()?.expect_line(expect)?;
    // dapltest's server does not end.
    if program == "dapltest" {
        return server.expect_alive();
    }
    server.finish(LIMIT)?.expect_success().map(drop)
}

macro_rules! programs {
    ($($name:ident: $program:literal, $ready:expr, $server:literal, $client:literal, $expect:literal;)+) => {
        programs!(@ roce, Some("roce"); $($name: $program, $ready, $server, $client, $expect;)+);
        programs!(@ mp, None; $($name: $program, $ready, $server, $client, $expect;)+);
    };
    (@ $module:ident, $device:expr; $($name:ident: $($argument:expr),+;)+) => {
        mod $module {
            use super::*;
            $(
                #[test]
                #[ignore = "needs packages of its own: make ecosystem runs it"]
                fn $name() -> Result<(), Error> {
                    programs!(@ check $device, $($argument),+)
                }
            )+
        }
    };
    (@ check $device:expr, $program:expr, $ready:expr, $server:expr, $client:expr, $expect:expr) => {
        check($program, $device, $ready, $server, $client, $expect)
    };
}

programs! {
    messages_writes_and_reads: "dtest", Ready::Tcp(15828), "-P lab -s -b 65536 -B 50",
        "-P lab -h {server} -b 65536 -B 50", "DAPL Test Complete. PASSED";
    consumers_wait_for_events: "dtest", Ready::Tcp(15828), "-P lab -s -c", "-P lab -h {server} -c",
        "DAPL Test Complete. PASSED";
    shared_receive_queues: "dtestsrq", Ready::Cm(45248), "-P lab -s", "-P lab -h {server}",
        "DAPL RC SRQ Test Complete";
    immediate_data_and_atomics: "dtestx", Ready::Tcp(15828), "-P lab -s", "-P lab -h {server}",
        "immed/atomic test PASSED";
    // By default dtestcm listens in the range of automatic ports, which its thousand ids use.
    a_thousand_connections: "dtestcm", Ready::Cm(7045), "-P lab -s -p 7045",
        "-P lab -h {server} -p 7045", "TOTAL:";
    transactions: "dapltest", Ready::Cm(62000), "-T S -D lab",
        "-T T -s {server} -D lab -i 100 -t 2 -w 2 -R BE client SR 4096 4 server SR 4096 4 \
         client RW 65536 2 client RR 65536 2",
        "End of Work";
}
