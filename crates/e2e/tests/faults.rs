//! Paths fail while unmodified programs use them, and nothing is lost. On the multi-path device every
//! program must succeed and verify its data, and an atomic counter must have the exact value.

use polypath_e2e::{
    Direction, End, Error, Finished, Host, Lab, Running, compile_c, pass, until, wait_failover,
};
use std::time::{Duration, Instant};

/// A fault of the links while a program runs.
#[derive(Clone, Copy, Debug)]
enum Fault {
    SilentCut,
    LinkDown,
    AddressRemoved,
    OneDirection,
    Flapping,
    BothGone,
}

/// The largest number of labs at a time. Most of the time the programs wait while links are down.
const FAULTY: usize = 3;
/// How long a link stays away, unless something else is said.
const AWAY: Duration = Duration::from_secs(2);
/// The time for programs to start, and to end after their work.
const MARGIN: Duration = Duration::from_secs(30);
/// The rest of a program's running time after the last link has come back.
const AFTER: Duration = Duration::from_secs(3);
const FLAP: Duration = Duration::from_millis(200);
const FLAPPING: Duration = Duration::from_secs(10);

impl Fault {
    /// The time from the first to the last event.
    fn duration(self) -> Duration {
        match self {
            Self::Flapping => FLAPPING,
            Self::OneDirection => 3 * AWAY,
            _ => AWAY,
        }
    }

    /// Causes the fault and mends it.
    fn inflict(self, lab: &Lab) -> Result<(), Error> {
        match self {
            Self::SilentCut => {
                lab.cut(0, Direction::Both)?;
                pass(AWAY);
                lab.heal(0)
            }
            Self::LinkDown => {
                lab.link_down(0, End::Both)?;
                pass(AWAY);
                lab.link_up(0)
            }
            Self::AddressRemoved => {
                lab.host(1).remove_addresses(0)?;
                pass(AWAY);
                lab.host(1).add_addresses(0)
            }
            Self::OneDirection => {
                for host in [1, 0] {
                    lab.cut(0, Direction::From(host))?;
                    pass(AWAY);
                    lab.heal(0)?;
                    if host == 1 {
                        pass(AWAY);
                    }
                }
                Ok(())
            }
            Self::Flapping => {
                // The links go down in turn, never both at a time, so that traffic is always hit.
                let end = Instant::now() + FLAPPING;
                for link in [0, 1].into_iter().cycle() {
                    if Instant::now() >= end {
                        break;
                    }
                    lab.link_down(link, End::Both)?;
                    pass(FLAP);
                    lab.link_up(link)?;
                    pass(FLAP);
                }
                Ok(())
            }
            Self::BothGone => {
                lab.cut(0, Direction::Both)?;
                lab.cut(1, Direction::Both)?;
                pass(AWAY);
                lab.heal(0)?;
                lab.heal(1)
            }
        }
    }

    /// Whether traffic must have changed its path.
    fn moves_traffic(self) -> bool {
        !matches!(self, Self::BothGone)
    }
}

/// A server and a client that run for a while and check their results.
struct Pair {
    server: Running,
    client: Running,
}

impl Pair {
    /// Waits for both to end well.
    fn finish(self, limit: Duration) -> Result<(Finished, Finished), Error> {
        let client = self.client.finish(limit).and_then(Finished::expect_success);
        let server = self.server.finish(MARGIN).and_then(Finished::expect_success);
        match (client, server) {
            (Ok(client), Ok(server)) => Ok((client, server)),
            (Err(client), Err(server)) => {
                Err(Error::Missing(format!("{client}\nand the server: {server}")))
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

/// Starts a perftest program for at least `seconds`, with these settings of the mp device. It connects over
/// link 1, because most faults hit only link 0.
fn perftest(lab: &Lab, program: &str, seconds: u64, settings: &str) -> Result<Pair, Error> {
    let seconds = seconds.to_string();
    let words = [program, "-D", &seconds];
    let server = lab.host(0).verbs(words).env("POLYPATH_MP", settings).spawn()?;
    server.wait_tcp_listen(18515, MARGIN)?;
    let meet = lab.host(0).ipv4(1);
    let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()]));
    let client = client.env("POLYPATH_MP", settings).spawn()?;
    Ok(Pair { server, client })
}

fn run_perftest(program: &str, fault: Fault, least: Duration, settings: &str) -> Result<(), Error> {
    let _share = polypath_e2e::share(FAULTY);
    let lab = Lab::new()?;
    let seconds = least.max(fault.duration() + AFTER + Duration::from_secs(3)).as_secs();
    let pair = perftest(&lab, program, seconds, settings)?;
    lab.wait_traffic(&[&pair.client, &pair.server], 100_000, MARGIN)?;
    fault.inflict(&lab)?;
    expect_failover(lab.host(1), fault)?;
    let (client, _) = pair.finish(Duration::from_secs(seconds) + MARGIN)?;
    client.expect_line("BW average")?.expect_no_line("Completion with error").map(drop)
}

/// rping counts its rounds, so its length is set by their number. Afterwards its duration shows whether
/// that was long enough.
fn run_rping(fault: Fault) -> Result<(), Error> {
    let _share = polypath_e2e::share(FAULTY);
    let lab = Lab::new()?;
    let address = lab.host(0).ipv4(0);
    let words = ["-a", &address, "-V", "-v", "-S", "100"];
    let server = ["rping", "-s"].into_iter().chain(words);
    let server = lab.host(0).verbs(server).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, MARGIN)?;
    // Without a count it runs until it is told to end.
    let client = lab.host(1).verbs(["rping", "-c"].into_iter().chain(words)).spawn()?;
    let pair = Pair { server, client };
    pair.client.wait_line("rdma-ping-9", MARGIN)?;
    fault.inflict(&lab)?;
    expect_failover(lab.host(1), fault)?;
    let rounds = pair.client.lines_from(0).len();
    until("rping to go on", MARGIN, || {
        pair.client.expect_alive()?;
        pair.server.expect_alive()?;
        Ok((pair.client.lines_from(rounds).len() > 50).then_some(()))
    })?;
    for program in [&pair.client, &pair.server] {
        let text = program.text();
        assert!(
            !text.contains("data mismatch") && !text.contains("cq completion failed"),
            "{text}"
        );
    }
    Ok(())
}

/// Runs our own program, which checks each of its additions, messages, writes and reads.
fn run_exact(fault: Fault, settings: &str) -> Result<(), Error> {
    let _share = polypath_e2e::share(FAULTY);
    let program = compile_c("exact.c")?;
    let lab = Lab::new()?;
    let seconds = (fault.duration() + AFTER).as_secs().to_string();
    let server =
        lab.host(0).verbs([&*program, "-s", "7000"]).env("POLYPATH_MP", settings).spawn()?;
    server.wait_tcp_listen(7000, MARGIN)?;
    let client = [&*program, "-c", &lab.host(0).ipv4(1), "7000", &seconds];
    let client = lab.host(1).verbs(client).env("POLYPATH_MP", settings).spawn()?;
    client.wait_line("connected", MARGIN)?;
    let pair = Pair { server, client };
    lab.wait_traffic(&[&pair.client, &pair.server], 100_000, MARGIN)?;
    fault.inflict(&lab)?;
    expect_failover(lab.host(1), fault)?;
    let (client, server) = pair.finish(fault.duration() + MARGIN)?;
    let last = |finished: &Finished| finished.lines.last().map(|line| line.text.clone());
    assert_eq!(last(&client), last(&server), "both count the same rounds");
    Ok(())
}

/// A setting by which all paths carry data.
const BALANCE: &str = "policy=balance";

/// Settings by which everything is sent by two paths.
const TWICE: &str = "policy=redundant";
/// Settings by which the second path carries data only if the first does not suffice.
const FEW: &str = "policy=efficient";

/// Checks that the fault had an effect: the client's host reports at least one fail-over.
fn expect_failover(host: &Host, fault: Fault) -> Result<(), Error> {
    if !fault.moves_traffic() {
        return Ok(());
    }
    wait_failover(host, &[], MARGIN)
}

macro_rules! faults {
    ($($name:ident: $run:expr;)+) => {
        $(mod $name {
            use super::*;

            #[test]
            fn silent_cut() -> Result<(), Error> {
                $run(Fault::SilentCut)
            }
            #[test]
            fn link_down() -> Result<(), Error> {
                $run(Fault::LinkDown)
            }
            #[test]
            fn address_removed() -> Result<(), Error> {
                $run(Fault::AddressRemoved)
            }
            #[test]
            fn cut_in_one_direction() -> Result<(), Error> {
                $run(Fault::OneDirection)
            }
            #[test]
            fn flapping() -> Result<(), Error> {
                $run(Fault::Flapping)
            }
            #[test]
            fn both_paths_gone() -> Result<(), Error> {
                $run(Fault::BothGone)
            }
        })+
    };
}

faults! {
    exact: |fault| run_exact(fault, "");
    exact_on_all_paths: |fault| run_exact(fault, BALANCE);
    exact_by_two_paths: |fault| run_exact(fault, TWICE);
    exact_on_few_paths: |fault| run_exact(fault, FEW);
    rping: run_rping;
    write_bw: |fault| run_perftest("ib_write_bw", fault, Duration::from_secs(20), "");
    write_bw_by_two_paths: |fault| run_perftest("ib_write_bw", fault, Duration::ZERO, TWICE);
    read_bw_by_two_paths: |fault| run_perftest("ib_read_bw", fault, Duration::ZERO, TWICE);
    send_bw_by_two_paths: |fault| run_perftest("ib_send_bw", fault, Duration::ZERO, TWICE);
    atomic_bw_by_two_paths: |fault| run_perftest("ib_atomic_bw", fault, Duration::ZERO, TWICE);
    write_bw_on_few_paths: |fault| run_perftest("ib_write_bw", fault, Duration::ZERO, FEW);
    read_bw_on_few_paths: |fault| run_perftest("ib_read_bw", fault, Duration::ZERO, FEW);
    read_bw: |fault| run_perftest("ib_read_bw", fault, Duration::ZERO, "");
    read_bw_on_all_paths: |fault| run_perftest("ib_read_bw", fault, Duration::ZERO, BALANCE);
    send_bw: |fault| run_perftest("ib_send_bw", fault, Duration::ZERO, "");
    atomic_bw: |fault| run_perftest("ib_atomic_bw", fault, Duration::ZERO, "");
}
