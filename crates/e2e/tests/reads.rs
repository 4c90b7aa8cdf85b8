//! The data of READs that are posted together with requests that change the same memory.

use polypath_e2e::{Error, Lab, PATIENT, compile_c, share};
use std::time::Duration;

/// The time limit for one run of the program.
const LIMIT: Duration = Duration::from_secs(60);

/// Options of a packet filter rule that drops one of a hundred RoCE packets that arrive.
const LOSS: &str = "-t raw -A PREROUTING -p udp --dport 4791 -m statistic --mode random \
                    --probability 0.01 -j DROP";

/// Runs the program between two hosts or on one, with loss if `lossy` and the machine can do it.
fn run(device: Option<&str>, server: usize, lossy: bool) -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("reads.c")?;
    let lab = Lab::new()?;
    if lossy {
        let words: Vec<&str> = LOSS.split_whitespace().collect();
        for host in 0..2 {
            if let Err(error) = lab.host(host).tool("iptables", &words, "") {
                println!("NOT RUN: READs over a lossy link, for want of iptables: {error}");
                return Ok(());
            }
        }
    }
    let serving = lab.host(server).verbs([&*program, "-s", "7000"]).device(device).spawn()?;
    serving.wait_tcp_listen(7000, LIMIT)?;
    let rounds = if lossy { "5" } else { "20" };
    let asking = [&*program, "-c", &lab.host(server).ipv4(0), "7000", rounds];
    let asking = lab.host(1).verbs(asking).device(device).spawn()?;
    asking.finish(LIMIT)?.expect_success()?.expect_line("checked")?;
    serving.finish(LIMIT)?.expect_success()?.expect_line("served").map(drop)
}

macro_rules! reads {
    ($($name:ident: $device:expr, $server:expr, $lossy:expr;)+) => {
        $(#[test]
        fn $name() -> Result<(), Error> {
            run($device, $server, $lossy)
        })+
    };
}

reads! {
    come_before_later_requests_on_several_paths: None, 0, false;
    come_before_later_requests_on_one_path: Some("roce"), 0, false;
    come_before_later_requests_on_one_host: None, 1, false;
    come_before_later_requests_on_one_host_and_path: Some("roce"), 1, false;
    come_before_later_requests_on_several_lossy_paths: None, 0, true;
    come_before_later_requests_on_one_lossy_path: Some("roce"), 0, true;
}
