//! Programs over bonds whose slaves fail: the cases, and how they are run and judged.

use crate::stage::{ADDRESSES, LIMIT, Mode, Stage};
use polypath_e2e::guest::{Answer, Problem};
use polypath_e2e::pass;
use std::fmt;
use std::time::{Duration, Instant};

/// How Polypath is chosen for the programs: the device of the bond is what they get. Queue pairs are held for
/// long, because a silence may last longer than it should on a busy machine.
pub(crate) const OURS: &str = "env POLYPATH_MP=hold=120 polypath run --";
/// Bytes that only a program which transfers sends: probes and LACP would take minutes.
const PROGRESS: u64 = 128 << 10;
/// The time after which it is looked whether programs still run.
const SOON: Duration = Duration::from_secs(2);
/// The time for which a slave is silent, where nothing ends the silence.
const SILENCE: Duration = Duration::from_secs(2);

/// A program that is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// rping, which checks its data.
    Rping,
    /// A program of perftest, with its options.
    Perftest(&'static str),
}

/// The programs.
pub(crate) const KINDS: [Kind; 4] = [
    Kind::Rping,
    Kind::Perftest("ib_write_bw -s 65536 -q 4"),
    Kind::Perftest("ib_send_bw -s 65536"),
    Kind::Perftest("ib_atomic_bw -A FETCH_AND_ADD"),
];

impl Kind {
    /// The command, without what makes it a client.
    pub(crate) fn server(self) -> String {
        match self {
            Self::Rping => format!("rping -s -a {} -V -S 9000", ADDRESSES[0]),
            Self::Perftest(words) => format!("stdbuf -oL {words} -R -D 3600 -f 1"),
        }
    }

    pub(crate) fn client(self) -> String {
        match self {
            Self::Rping => format!("rping -c -a {} -V -S 9000", ADDRESSES[0]),
            Self::Perftest(_) => format!("{} {}", self.server(), ADDRESSES[0]),
        }
    }

    /// The port of the connection manager on which the server listens.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Rping => 7174,
            Self::Perftest(_) => 18515,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rping => "rping -V",
            Self::Perftest(words) => words,
        })
    }
}

/// A program over a bond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) slaves: usize,
    pub(crate) kind: Kind,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} slaves, {}", self.mode, self.slaves, self.kind)
    }
}

/// The cases whose names contain `only`. A sample has each mode and each program.
pub(crate) fn plan(only: &str, sample: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for slaves in [2, 4] {
        for (m, mode) in Mode::ALL.into_iter().enumerate() {
            for (k, kind) in KINDS.into_iter().enumerate() {
                // Each mode with one program over two slaves, and LACP over four.
                let sampled = if slaves == 2 { m == k } else { mode == Mode::Lacp && k == 3 };
                if !sample || sampled {
                    cases.push(Case { mode, slaves, kind });
                }
            }
        }
    }
    cases.retain(|case| case.to_string().contains(only));
    cases
}

/// What happens to a slave while a program runs. Whatever it was, it is taken back before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It loses its carrier, at both ends.
    Carrier,
    /// It is released from the bond, at both ends.
    Release,
    /// It takes nothing from either end, and keeps its carrier.
    Silence,
}

/// The order, which has each slave of two fail.
const FAULTS: [Fault; 4] = [Fault::Carrier, Fault::Carrier, Fault::Release, Fault::Silence];

/// Runs a case. An error names what went wrong.
pub(crate) fn run(stage: &mut Stage, case: Case) -> Result<(), Problem> {
    stage.bond(case.mode, case.slaves)?;
    start(stage, case.kind, [OURS; 2])?;
    play(stage, case).map_err(|problem| with_output(stage, &problem))?;
    end(stage, case.kind)
}

/// Starts a program at both ends, and waits until it transfers.
///
/// perftest's client connects twice, and its server listens anew in between. A client that is quicker is
/// rejected and ends, which says nothing of the bond, so it is started again.
pub(crate) fn start(stage: &mut Stage, kind: Kind, over: [&str; 2]) -> Result<(), Problem> {
    const ATTEMPTS: usize = 5;
    for _ in 0..ATTEMPTS {
        stage.both("rm -f /tmp/program")?;
        stage.guest(0).server.start(&format!("program {} {}", over[0], kind.server()))?;
        stage.wait_cm(0, kind.port()).map_err(|problem| with_output(stage, &problem))?;
        stage.guest(1).server.start(&format!("program {} {}", over[1], kind.client()))?;
        // perftest writes the head of its table when it has connected, and probes are no sign of that.
        let connected = match kind {
            Kind::Rping => Ok(()),
            Kind::Perftest(_) => stage.guest(1).server.wait_line("#bytes", LIMIT),
        };
        let Err(problem) = connected.and_then(|()| progress(stage, "at the start", LIMIT)) else {
            return Ok(());
        };
        let problem = with_output(stage, &problem);
        stop(stage)?;
        if !problem.to_string().contains("REJECTED") {
            return Err(problem);
        }
    }
    Err(Problem::Failed(format!("the client was rejected {ATTEMPTS} times")))
}

/// Ends both programs, whatever they do.
pub(crate) fn stop(stage: &mut Stage) -> Result<(), Problem> {
    for guest in [1, 0] {
        // One that has ended can't be killed, and has nothing more to say.
        let _ = stage.guest(guest).client.run("kill -9 $(cat /tmp/program)", LIMIT)?;
        let _ = stage.guest(guest).server.finish(Duration::from_secs(10));
    }
    Ok(())
}

/// Adds what the programs wrote so far.
pub(crate) fn with_output(stage: &mut Stage, problem: &Problem) -> Problem {
    // They may have ended, and what they wrote is read up to here.
    let soon = Duration::from_secs(1);
    let mut words = |guest: usize| match stage.guest(guest).server.finish(soon) {
        Ok(Answer { status, text }) => format!("ended with status {status}\n{text}"),
        Err(problem) => problem.to_string(),
    };
    let (server, client) = (words(0), words(1));
    Problem::Failed(format!("{problem}\nthe server: {server}\nthe client: {client}"))
}

impl Fault {
    /// Lets it happen to a cable, or takes it back.
    pub(crate) fn set(self, stage: &mut Stage, cable: usize, on: bool) -> Result<(), Problem> {
        match (self, on) {
            (Self::Carrier, on) => stage.cable(cable, !on),
            (Self::Release, true) => stage.both(&format!("release eth{cable}")),
            (Self::Release, false) => stage.both(&format!("enslave eth{cable}")),
            (Self::Silence, true) => stage.both(&format!("silence eth{cable}")),
            (Self::Silence, false) => stage.both(&format!("speak eth{cable}")),
        }
    }
}

fn play(stage: &mut Stage, case: Case) -> Result<(), Problem> {
    for (number, fault) in FAULTS.into_iter().enumerate() {
        let cable = match stage.busiest()? {
            // Modes that use all slaves have no busiest one.
            0 if case.mode != Mode::ActiveBackup => number % case.slaves,
            busiest => busiest,
        };
        fault.set(stage, cable, true)?;
        let what = format!("{fault:?} of eth{cable}");
        // Nothing but LACP notices that a link is silent.
        match fault {
            Fault::Silence if case.mode != Mode::Lacp => pass(SILENCE),
            _ => progress(stage, &format!("during {what}"), LIMIT)?,
        }
        fault.set(stage, cable, false)?;
        stage.wait_whole()?;
        progress(stage, &format!("after {what}"), LIMIT)?;
    }
    Ok(())
}

/// Waits until the program has transferred some more, for at most `limit`. If that does not come soon, the
/// program may have ended.
pub(crate) fn progress(stage: &mut Stage, when: &str, limit: Duration) -> Result<(), Problem> {
    wait_bytes(stage, &|received| received.iter().sum(), when, limit)
}

/// Waits until the first guest has received some more by a cable.
pub(crate) fn progress_by(
    stage: &mut Stage,
    cable: usize,
    when: &str,
    limit: Duration,
) -> Result<(), Problem> {
    wait_bytes(stage, &|received| received[cable], &format!("by cable {cable} {when}"), limit)
}

fn wait_bytes(
    stage: &mut Stage,
    bytes: &dyn Fn(&[u64]) -> u64,
    when: &str,
    limit: Duration,
) -> Result<(), Problem> {
    let start = Instant::now();
    let before = bytes(&stage.received()?);
    while bytes(&stage.received()?) < before + PROGRESS {
        if start.elapsed() > SOON && (stage.has_ended(0)? || stage.has_ended(1)?) {
            return Err(Problem::Failed(format!("a program has ended {when}")));
        }
        if start.elapsed() > limit {
            let seconds = limit.as_secs();
            return Err(Problem::Failed(format!("it stood still for {seconds} s {when}")));
        }
        pass(Duration::from_millis(20));
    }
    Ok(())
}

/// Ends a program at both ends, and judges what it wrote.
pub(crate) fn end(stage: &mut Stage, kind: Kind) -> Result<(), Problem> {
    const KILLED: i32 = 128 + 9;
    // rping has no end of its own: its client is killed, and its server sees that the connection ends. Of
    // perftest, the client is told, and a server that takes part: one waits for the other.
    let (told, wanted): (&[usize], _) = match kind {
        Kind::Perftest(words) if words.starts_with("ib_send") => (&[0, 1], [0, 0]),
        Kind::Perftest(_) => (&[1], [0, 0]),
        Kind::Rping => (&[1], [0, KILLED]),
    };
    for guest in told {
        let command = if kind == Kind::Rping { "kill -9 $(cat /tmp/program)" } else { "end" };
        stage.guest(*guest).client.start(command)?;
    }
    for guest in told {
        // A program that has ended before is judged by what it wrote.
        let _ = stage.guest(*guest).client.finish(LIMIT)?;
    }
    let mut wrong = false;
    let mut said = String::new();
    // The client first: if its server waits for it for ever, it says why.
    for (guest, wanted) in wanted.into_iter().enumerate().rev() {
        let answer = stage.guest(guest).server.finish(LIMIT);
        let Answer { status, text } =
            answer.map_err(|problem| Problem::Failed(format!("{said}{problem}")))?;
        let ended_well = status == wanted || guest == 0 && is_rpings_race(kind, status, &text);
        let complains = ["mismatch", "error", "Error"].iter().any(|word| text.contains(word));
        wrong |= !ended_well || complains;
        said += &format!("in guest {guest}, status {status}, wanted {wanted}:\n{text}\n");
    }
    if wrong { Err(Problem::Failed(format!("a program did not end well: {said}"))) } else { Ok(()) }
}

/// Whether rping's server, which its client has left, closed its event channel before the thread that reads
/// it did so again: on any adapter it then exits with status 255.
fn is_rpings_race(kind: Kind, status: i32, text: &str) -> bool {
    kind == Kind::Rping
        && status == 255
        && text.contains("DISCONNECT EVENT")
        && text.contains("rdma_get_cm_event: Bad file descriptor")
}
