//! How queue pairs spread over the slaves of a bond, also over those that are enslaved while they send, and
//! what becomes of them when slaves are released.

use crate::cases;
use crate::stage::{ADDRESSES, CABLES, LIMIT, Mode, Stage};
use polypath_e2e::guest::Problem;
use std::fmt;
use std::time::Instant;

/// The port on which the server listens, of TCP or of rdma_cm.
const PORT: u16 = 18515;
/// So many bytes must come by each slave that counts.
const EACH: u64 = 4 << 20;
/// Queue pairs need not be equally fast: so many bytes in all are waited for.
const ALL: u64 = 48 * EACH;

/// A program over a bond, and how it spreads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    mode: Mode,
    /// What is told of it.
    pub(crate) what: &'static str,
    /// The devices of the server and of the client, which sends.
    devices: [&'static str; 2],
    queue_pairs: usize,
    /// Whether rdma_cm connects them: it gives each a flow label.
    rdma_cm: bool,
    /// Whether the address is that of a VLAN above the bond.
    vlan: bool,
    /// How many slaves the bond has, one stage after the other.
    slaves: &'static [usize],
}

pub(crate) const CASES: [Case; 6] = [
    Case {
        mode: Mode::Lacp,
        what: "plain queue pairs spread",
        devices: ["roce:bond0", "roce:bond0"],
        queue_pairs: 4,
        rdma_cm: false,
        vlan: false,
        slaves: &[4],
    },
    Case {
        mode: Mode::BalanceXor,
        what: "plain queue pairs of rdma_cm spread over slaves that come",
        devices: ["roce:bond0", "roce:bond0"],
        // There is another one, which carries nothing.
        queue_pairs: 8,
        rdma_cm: true,
        vlan: false,
        slaves: &[4, 2, 4],
    },
    Case {
        mode: Mode::BalanceXor,
        what: "plain queue pairs spread over slaves that come",
        devices: ["roce:bond0", "roce:bond0"],
        queue_pairs: 4,
        rdma_cm: false,
        vlan: false,
        slaves: &[2, 4, 2],
    },
    Case {
        mode: Mode::BalanceXor,
        what: "queue pairs with a plain peer spread over slaves that come",
        devices: ["roce:bond0", "bond0"],
        queue_pairs: 4,
        rdma_cm: false,
        vlan: false,
        slaves: &[2, 4, 1, 3],
    },
    Case {
        mode: Mode::BalanceXor,
        what: "one queue pair with a Polypath peer uses slaves that come",
        devices: ["bond0", "bond0"],
        queue_pairs: 1,
        rdma_cm: false,
        vlan: false,
        slaves: &[2, 4, 1, 3],
    },
    Case {
        mode: Mode::BalanceXor,
        what: "one queue pair of a VLAN above the bond uses slaves that come",
        devices: ["bond0", "bond0"],
        queue_pairs: 1,
        rdma_cm: true,
        vlan: true,
        slaves: &[2, 4, 2],
    },
];

/// Those of a sample.
pub(crate) const SAMPLE: [&str; 3] = [CASES[1].what, CASES[3].what, CASES[5].what];

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?} slaves, {}", self.mode, self.slaves, self.what)
    }
}

impl Case {
    fn program(&self, guest: usize) -> String {
        let (device, queue_pairs) = (self.devices[guest], self.queue_pairs);
        let how = if self.rdma_cm { "-R" } else { "" };
        format!(
            "program polypath run --device {device} -- stdbuf -oL \
             ib_write_bw -s 65536 -q {queue_pairs} -D 3600 -f 1 {how}"
        )
    }

    /// Runs the case. Returns the received bytes by slave, of each of its stages.
    pub(crate) fn run(&self, stage: &mut Stage) -> Result<Vec<Vec<u64>>, Problem> {
        stage.bond(self.mode, self.slaves[0])?;
        if self.vlan {
            stage.both("vlan_on")?;
        }
        stage.both("rm -f /tmp/program")?;
        stage.guest(0).server.start(&self.program(0))?;
        match self.rdma_cm {
            true => stage.wait_cm(0, PORT)?,
            false => stage.wait_tcp(0, PORT)?,
        }
        stage.guest(1).server.start(&format!("{} {}", self.program(1), ADDRESSES[0]))?;
        let went = self.watch(stage).map_err(|problem| cases::with_output(stage, &problem));
        cases::stop(stage)?;
        if self.vlan && went.is_ok() {
            stage.both("vlan_off")?;
        }
        went
    }

    fn watch(&self, stage: &mut Stage) -> Result<Vec<Vec<u64>>, Problem> {
        cases::progress(stage, "at the start", LIMIT)?;
        let mut shares = Vec::new();
        for slaves in self.slaves {
            stage.resize(*slaves)?;
            shares.push(all_carry(stage, *slaves)?);
        }
        Ok(shares)
    }
}

/// Waits until each of the first slaves has carried a share of the data.
fn all_carry(stage: &mut Stage, slaves: usize) -> Result<Vec<u64>, Problem> {
    let (start, before) = (Instant::now(), stage.received()?);
    loop {
        cases::progress(stage, "while its slaves were watched", LIMIT)?;
        let now = stage.received()?;
        let grown: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        if grown.iter().take(slaves).all(|bytes| *bytes >= EACH) {
            return Ok(grown.into_iter().take(CABLES).collect());
        }
        if start.elapsed() > LIMIT || grown.iter().sum::<u64>() > ALL {
            let paths = stage.run(1, "polypath status")?;
            let text = format!("of {slaves}, the slaves carried {grown:?} bytes\n{paths}");
            return Err(Problem::Failed(text));
        }
    }
}
