//! The runs behind the cells of the table, one function for each column.

use crate::systems::{LIMIT, Over, System, received, start};
use polypath_e2e::{
    Curve, Direction, End, Error, Fabric, Flow, Host, Lab, Meeting, Options, Words, longest_gap,
    pass, steps, until,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failures of each kind, of which the median counts.
const CUTS: usize = 5;
/// How long a path stays away.
const AWAY: Duration = Duration::from_millis(800);
/// For which time throughput is measured.
const MEASURED: Duration = Duration::from_secs(3);
/// The bandwidth of each link, where it is limited.
const MBIT: u64 = 100;
/// The longest gap in traffic that counts as going on.
const PATIENCE: Duration = Duration::from_secs(20);
/// The step of a plot.
const STEP: Duration = Duration::from_millis(20);

/// What happens to the path in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    LinkDown,
    Silence,
}

impl Failure {
    fn hit(self, lab: &Lab, link: usize) -> Result<(), Error> {
        match self {
            Self::LinkDown => lab.link_down(link, End::Both),
            Self::Silence => lab.cut(link, Direction::Both),
        }
    }
}

fn hosts(lab: &Lab) -> [&Host; 2] {
    [lab.host(0), lab.host(1)]
}

fn begin(system: System, lab: &Lab, links: usize, words: Words) -> Result<Over, Error> {
    start(system, hosts(lab), links, false, words, || received(lab))
}

/// The link by which host 0 receives the most at present.
fn busiest(lab: &Lab, transfer: &Over) -> Result<usize, Error> {
    let before = lab.received_bytes_of(0)?;
    until("traffic on some link", LIMIT, || {
        transfer.expect_alive()?;
        let now = lab.received_bytes_of(0)?;
        let grown: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        let most = (0..grown.len()).max_by_key(|link| grown[*link]).unwrap_or(0);
        Ok((grown[most] > 1 << 20).then_some(most))
    })
}

/// The median time in milliseconds for which traffic stands still when the path in use fails.
pub(crate) fn blackout(system: System, failure: Failure) -> Result<f64, Error> {
    let lab = Arc::new(Lab::new()?);
    let transfer = begin(system, &lab, 2, Words::WRITE)?;
    let mut gaps = Vec::new();
    for _ in 0..CUTS {
        transfer.wait_ready(hosts(&lab))?;
        let link = busiest(&lab, &transfer)?;
        let flow = Flow::watch(&lab, 0);
        // The samples must begin before the failure.
        pass(Duration::from_millis(10));
        let at = Instant::now();
        failure.hit(&lab, link)?;
        pass(AWAY);
        let samples = flow.finish()?;
        lab.heal(link)?;
        // The last packets may have been counted just before the command returned.
        let from = at - Duration::from_millis(2);
        gaps.push(longest_gap(&samples, from, at + AWAY).as_secs_f64() * 1e3);
    }
    transfer.expect_alive()?;
    gaps.sort_by(f64::total_cmp);
    Ok(gaps[gaps.len() / 2])
}

/// The throughput of one queue pair over two links, of that over one of them.
pub(crate) fn aggregation(system: System) -> Result<f64, Error> {
    let mut speeds = Vec::new();
    for links in [1, 2] {
        let lab = Lab::with(Options { links, ..Options::default() })?;
        for link in 0..links {
            let limit = format!(
                "qdisc add dev eth{link} root tbf rate {MBIT}mbit burst 256k latency 50ms\n"
            );
            lab.host(1).tool("tc", &["-batch", "-"], &limit)?;
        }
        let transfer = begin(system, &lab, links, Words::WRITE)?;
        if links > 1 {
            transfer.wait_ready(hosts(&lab))?;
        }
        pass(MEASURED);
        let (before, at) = (lab.received_bytes_of(0)?.iter().sum::<u64>(), Instant::now());
        pass(MEASURED);
        let bytes = lab.received_bytes_of(0)?.iter().sum::<u64>() - before;
        speeds.push(bytes as f64 / at.elapsed().as_secs_f64());
        transfer.expect_alive()?;
    }
    Ok(speeds[1] / speeds[0])
}

/// Programs that know nothing of paths. Those that meet by rdma_cm come first.
const PROGRAMS: [Words; 6] = [
    Words {
        server: "rping -s -a {server} -V -S 9000",
        client: "rping -c -a {server} -V -S 9000",
        meeting: Meeting::Manager(7174),
    },
    Words::WRITE,
    Words {
        server: "ib_atomic_bw -R --run_infinitely",
        client: "ib_atomic_bw -R --run_infinitely {server}",
        meeting: Meeting::Manager(18515),
    },
    Words {
        server: "ib_write_bw --run_infinitely",
        client: "ib_write_bw --run_infinitely {server}",
        meeting: Meeting::ByHand(18515),
    },
    Words {
        server: "ib_read_bw --run_infinitely",
        client: "ib_read_bw --run_infinitely {server}",
        meeting: Meeting::ByHand(18515),
    },
    Words {
        server: "ib_send_bw --run_infinitely",
        client: "ib_send_bw --run_infinitely {server}",
        meeting: Meeting::ByHand(18515),
    },
];

/// How many unmodified programs go on when the link that they were connected by goes away, and of how many.
pub(crate) fn agnostic(system: System) -> Result<(usize, usize), Error> {
    let mut went_on = 0;
    for words in PROGRAMS {
        let lab = Lab::new()?;
        let transfer = begin(system, &lab, 2, words)?;
        if words.meeting != Meeting::ByHand(18515) || system != System::Apm {
            transfer.wait_ready(hosts(&lab))?;
        }
        lab.link_down(0, End::Both)?;
        let before = lab.received_bytes_of(0)?[1];
        if goes_on(&transfer, || Ok(lab.received_bytes_of(0)?[1] > before + (1 << 20)))? {
            went_on += 1;
        }
    }
    Ok((went_on, PROGRAMS.len()))
}

/// Whether `moved` becomes true while the program runs, and soon enough.
fn goes_on(transfer: &Over, moved: impl Fn() -> Result<bool, Error>) -> Result<bool, Error> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if moved()? {
            return Ok(true);
        }
        if transfer.expect_alive().is_err() {
            return Ok(false);
        }
        pass(Duration::from_millis(10));
    }
    Ok(false)
}

/// Between hosts of different subnets, with one interface each and four routed ways between: for how many
/// milliseconds nothing arrives when the way that carries the most falls silent, unless it is for ever.
pub(crate) fn routed(system: System) -> Result<Option<f64>, Error> {
    let fabric = Fabric::new(4)?;
    let sum = || Ok(fabric.carried()?.iter().sum::<u64>());
    let ends = [fabric.host(0), fabric.host(1)];
    let transfer = start(system, ends, 1, true, Words::WRITE, sum)?;
    if system != System::Apm {
        transfer.wait_ready(ends)?;
    }
    let before = fabric.carried()?;
    pass(Duration::from_secs(1));
    let after = fabric.carried()?;
    let way = (0..4).max_by_key(|way| after[*way] - before[*way]).unwrap_or(0);
    let mut last = (sum()?, Instant::now());
    let mut longest = Duration::ZERO;
    fabric.silence(way)?;
    let end = Instant::now() + AWAY;
    loop {
        let (bytes, now) = (sum()?, Instant::now());
        // Probes and acknowledgements are less.
        if bytes > last.0 + (8 << 10) {
            longest = longest.max(now - last.1);
            last = (bytes, now);
            if now > end {
                return Ok(transfer.expect_alive().is_ok().then_some(longest.as_secs_f64() * 1e3));
            }
        }
        if now - last.1 > PATIENCE || transfer.expect_alive().is_err() {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

/// For how many milliseconds nothing arrives when the interface that sends the most is taken away for good,
/// as a device that is unplugged, unless it is for ever.
pub(crate) fn unplugged(system: System) -> Result<Option<f64>, Error> {
    let lab = Arc::new(Lab::new()?);
    let transfer = begin(system, &lab, 2, Words::WRITE)?;
    transfer.wait_ready(hosts(&lab))?;
    let link = busiest(&lab, &transfer)?;
    gap_after(&lab, &transfer, || {
        lab.host(1).tool("ip", &["link", "del", &format!("eth{link}")], "")
    })
}

/// For how many milliseconds nothing arrives when the sender's host, with its only link, moves to another
/// subnet, unless it is for ever.
pub(crate) fn migration(system: System) -> Result<Option<f64>, Error> {
    let lab = Arc::new(Lab::with(Options { links: 1, ..Options::default() })?);
    let route = "route add 10.77.0.0/16 dev eth0\n";
    lab.host(0).tool("ip", &["-batch", "-"], route)?;
    lab.host(1).tool("ip", &["-batch", "-"], route)?;
    let transfer = begin(system, &lab, 1, Words::WRITE)?;
    gap_after(&lab, &transfer, || {
        let commands = "addr flush dev eth0\naddr add 10.77.1.2/24 dev eth0\n\
             route replace 10.77.0.0/16 dev eth0\nroute replace 10.0.0.0/24 dev eth0\n";
        lab.host(1).tool("ip", &["-batch", "-"], commands)
    })
}

/// The longest gap at host 0 after something was done, in milliseconds; `None` if the program ends or nothing
/// comes any more.
fn gap_after(
    lab: &Arc<Lab>,
    transfer: &Over,
    act: impl Fn() -> Result<(), Error>,
) -> Result<Option<f64>, Error> {
    let flow = Flow::watch(lab, 0);
    pass(Duration::from_millis(200));
    let at = Instant::now();
    act()?;
    // What was under way when it happened does not count.
    pass(AWAY);
    let before: u64 = lab.received_bytes_of(0)?.iter().sum();
    let went_on = goes_on(transfer, || {
        Ok(lab.received_bytes_of(0)?.iter().sum::<u64>() > before + (4 << 20))
    })?;
    let end = Instant::now();
    let samples = flow.finish()?;
    let gap = longest_gap(&samples, at - Duration::from_millis(2), end);
    Ok(went_on.then_some(gap.as_secs_f64() * 1e3))
}

/// What host 0 receives while the link that carries the most falls silent and is mended again.
pub(crate) fn curve(system: System) -> Result<Curve, Error> {
    let lab = Arc::new(Lab::new()?);
    let transfer = begin(system, &lab, 2, Words::WRITE)?;
    transfer.wait_ready(hosts(&lab))?;
    let link = busiest(&lab, &transfer)?;
    let flow = Flow::watch(&lab, 0);
    let start = Instant::now();
    pass(Duration::from_secs(1));
    let cut = Instant::now();
    lab.cut(link, Direction::Both)?;
    pass(Duration::from_secs(1));
    let healed = Instant::now();
    lab.heal(link)?;
    pass(Duration::from_secs(2));
    let samples = flow.finish()?;
    let step = |at: Instant| (at - start).as_secs_f64() / STEP.as_secs_f64();
    Ok(Curve {
        name: format!("{}: one link falls silent", system.name()),
        values: steps(&samples, start, STEP, |sample| sample.bytes),
        parts: Vec::new(),
        whole: None,
        events: vec![(step(cut), "silent".to_owned()), (step(healed), "mended".to_owned())],
    })
}

/// The time between two values of a curve, in seconds.
pub(crate) fn step_seconds() -> f64 {
    STEP.as_secs_f64()
}
