//! The programs of the demonstration, the faults that they meet, and the checks of their results.

use crate::outcome::{Blackout, Outcome};
use crate::view::View;
use polypath_e2e::{
    Direction, End, Error, Finished, Flow, Lab, Running, compile_c, longest_gap, pass, until,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Undisturbed time before and after each event.
const CALM: Duration = Duration::from_millis(2500);
/// How long a program runs: the events of `disturb`, and calm before and after them.
const RUNNING_S: u64 = 15;
const LIMIT: Duration = Duration::from_secs(60);
const RPING_PORT: u16 = 7174;

/// A program that is shown.
pub(crate) enum Act {
    /// rping: data goes there and back and is compared, and each round is numbered.
    Rping,
    /// A program of perftest, by name.
    Perftest(&'static str),
    /// The project's own program, which checks every operation.
    Exact,
}

/// The programs in the order in which they are shown.
pub(crate) const ACTS: [Act; 4] =
    [Act::Rping, Act::Perftest("ib_write_bw"), Act::Perftest("ib_send_bw"), Act::Exact];

impl Act {
    /// Its title.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Rping => "rping -v -V (verifies every round)".to_owned(),
            Self::Perftest(program) => format!("{program} -D {RUNNING_S}"),
            Self::Exact => {
                "exact (counts additions, atomic writes, messages, writes and reads)".to_owned()
            }
        }
    }

    /// Runs it and its faults, and returns the outcome.
    pub(crate) fn play(&self, lab: &Arc<Lab>, view: &View) -> Result<Outcome, Error> {
        let before = moved(lab)?;
        let (server, client) = self.start(lab)?;
        until("traffic", LIMIT, || {
            client.expect_alive()?;
            server.expect_alive()?;
            Ok((moved(lab)? > before + 100_000).then_some(()))
        })?;
        let blackouts = disturb(lab, view)?;
        let client = client.finish(LIMIT).and_then(Finished::expect_success);
        // The program that waits in vain is not always the one that is stuck.
        let client = client.map_err(|error| error.with_server(&server.doing()))?;
        let server = server.finish(LIMIT)?.expect_success()?;
        let (verified, result) = self.judge(&server, client)?;
        Ok(Outcome {
            title: self.title(),
            moved_bytes: moved(lab)? - before,
            verified,
            result,
            blackouts,
            failovers: view.failovers(),
        })
    }

    /// Starts server and client. Programs that meet over TCP meet over the second link, so that the
    /// silent cut of the first link does not disturb connections that are not RDMA.
    fn start(&self, lab: &Arc<Lab>) -> Result<(Running, Running), Error> {
        let seconds = RUNNING_S.to_string();
        let meet = lab.host(0).ipv4(1);
        match self {
            Self::Rping => {
                let rounds = rping_rounds(lab)?.to_string();
                start_rping(lab, &rounds)
            }
            Self::Perftest(program) => {
                let words = [*program, "-D", seconds.as_str()];
                let server = lab.host(0).verbs(words).spawn()?;
                server.wait_tcp_listen(18515, LIMIT)?;
                let words = words.into_iter().chain([meet.as_str()]);
                Ok((server, lab.host(1).verbs(words).spawn()?))
            }
            Self::Exact => {
                let program = compile_c("exact.c")?;
                let server = lab.host(0).verbs([&*program, "-s", "7000"]).spawn()?;
                server.wait_tcp_listen(7000, LIMIT)?;
                let client = [&*program, "-c", &meet, "7000", &seconds];
                Ok((server, lab.host(1).verbs(client).spawn()?))
            }
        }
    }

    /// Checks the output. Returns the number of verified operations, and the result in words.
    fn judge(&self, server: &Finished, client: Finished) -> Result<(u64, String), Error> {
        match self {
            Self::Rping => {
                let rounds = consecutive_rounds(&client.text())?;
                Ok((rounds, format!("{rounds} rounds verified, none missing, none twice")))
            }
            Self::Perftest(_) => {
                let (operations, mib_per_s) = perftest_result(&client.expect_line("BW average")?)?;
                Ok((0, format!("{operations} operations completed, {mib_per_s} MiB/s on average")))
            }
            Self::Exact => {
                let last =
                    |f: &Finished| f.lines.last().map_or_else(String::new, |l| l.text.clone());
                if last(&client) != last(server) {
                    return Err(wrong("exact", format!("{} but {}", last(&client), last(server))));
                }
                let rounds = number_after(&last(&client), "rounds=").unwrap_or(0);
                let what = "add, atomic write, send, write and read";
                Ok((5 * rounds, format!("{rounds} rounds of {what}, all exact")))
            }
        }
    }
}

fn start_rping(lab: &Lab, rounds: &str) -> Result<(Running, Running), Error> {
    let address = lab.host(0).ipv4(0);
    let words = ["-a", address.as_str(), "-v", "-V", "-C", rounds];
    let server = lab.host(0).verbs(["rping", "-s"].into_iter().chain(words)).spawn()?;
    lab.host(0).wait_cm_listen(&server, RPING_PORT, LIMIT)?;
    let client = lab.host(1).verbs(["rping", "-c"].into_iter().chain(words)).spawn()?;
    Ok((server, client))
}

/// Measures how many rounds rping makes in [`RUNNING_S`], because it has no option for a duration.
fn rping_rounds(lab: &Lab) -> Result<u64, Error> {
    const TRIAL: u64 = 2000;
    let (server, client) = start_rping(lab, &TRIAL.to_string())?;
    let client = client.finish(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    let (Some(first), Some(last)) = (client.lines.first(), client.lines.last()) else {
        return Err(wrong("rping", "wrote nothing".to_owned()));
    };
    let seconds = last.at.duration_since(first.at).as_secs_f64().max(1e-3);
    Ok((TRIAL as f64 / seconds * RUNNING_S as f64) as u64)
}

/// Cuts one link silently, heals it, then takes the other one down.
fn disturb(lab: &Arc<Lab>, view: &View) -> Result<Vec<Blackout>, Error> {
    let flow = Flow::watch(lab, 0);
    pass(CALM);
    let cut = Instant::now();
    view.event("eth0 is cut silently: its packets vanish, no event anywhere");
    lab.cut(0, Direction::Both)?;
    pass(CALM);
    view.event("eth0 heals");
    lab.heal(0)?;
    pass(CALM);
    let down = Instant::now();
    view.event("eth1 loses its link at both ends");
    lab.link_down(1, End::Both)?;
    pass(CALM);
    view.event("eth1 is back");
    lab.heal(1)?;
    pass(CALM / 2);
    let samples = flow.finish()?;
    let after =
        |event: Instant| longest_gap(&samples, event - Duration::from_millis(5), event + CALM);
    Ok(vec![
        Blackout { fault: "cut", duration: after(cut) },
        Blackout { fault: "link down", duration: after(down) },
    ])
}

fn moved(lab: &Lab) -> Result<u64, Error> {
    Ok(lab.received_bytes()?.iter().flatten().sum())
}

fn wrong(program: &str, problem: String) -> Error {
    Error::Program { program: program.to_owned(), problem, output: String::new() }
}

/// Counts rping's rounds, and fails unless each follows the one before.
fn consecutive_rounds(text: &str) -> Result<u64, Error> {
    let mut due = 0;
    for line in text.lines() {
        let Some(number) = number_after(line, "rdma-ping-") else { continue };
        if number != due {
            return Err(wrong("rping", format!("round {number} came where {due} was due")));
        }
        due += 1;
    }
    match due {
        0 => Err(wrong("rping", format!("no round was made\n{text}"))),
        rounds => Ok(rounds),
    }
}

fn number_after(line: &str, mark: &str) -> Option<u64> {
    let digits = line.split_once(mark)?.1;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The number of iterations, and the average bandwidth in words, from perftest's table.
fn perftest_result(finished: &Finished) -> Result<(u64, String), Error> {
    let rows = finished.lines.iter().skip_while(|line| !line.text.contains("BW average")).skip(1);
    let fields = rows.map(|line| line.text.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields.len() >= 5)
        .find_map(|fields| Some((fields[1].parse().ok()?, fields[3].to_owned())))
        .ok_or_else(|| wrong("perftest", format!("no result\n{}", finished.text())))
}
