//! Automatic path migration between hosts with one interface each, over a fabric that chooses one of several
//! ways by the UDP source port: the alternate path is another port.

use std::time::Duration;

use polypath_e2e::{Error, Fabric, Host, PATIENT, Running, share, until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Fewer bytes than this by a way are questions and answers, not the program's data.
const DATA_LEAST: u64 = 4 << 20;
const WAYS: usize = 4;
/// How often a way may fall silent until there is a migration. Both directions of the alternate path avoid
/// the silent one of four ways in 9 of 16 cases, so all of these fail once in 20,000 times.
const ROUNDS: u32 = 12;

struct Programs {
    fabric: Fabric,
    programs: [Running; 2],
}

impl Programs {
    /// Starts an unmodified program that connects by rdma_cm. perftest's client connects twice, and is
    /// rejected if it is quicker than the server, which says nothing of migration.
    fn start() -> Result<Self, Error> {
        for _ in 0..5 {
            let fabric = Fabric::new(WAYS)?;
            let words = ["ib_write_bw", "-R", "--run_infinitely"];
            let meet = fabric.address(0);
            let run = |host: usize, words: &[&str]| {
                let program = fabric.host(host).verbs(words).device(Some("roce"));
                program.env("POLYPATH_APM", "on").spawn()
            };
            let server = run(0, &words)?;
            fabric.host(0).wait_cm_listen(&server, 18515, LIMIT)?;
            let client = run(1, &[&words[..], &[&meet]].concat())?;
            let this = Self { fabric, programs: [server, client] };
            match this.busiest() {
                Err(_) if this.programs[1].text().contains("RDMA_CM_EVENT_REJECTED") => {}
                at_work => return at_work.map(|_| this),
            }
        }
        Err(Error::Missing("the client was rejected five times".to_owned()))
    }

    fn alive(&self) -> Result<(), Error> {
        self.programs.iter().try_for_each(Running::expect_alive)
    }

    /// Waits until a way other than `but` carries data. Returns the one that carries most.
    fn data_by(&self, but: Option<usize>) -> Result<usize, Error> {
        let before = self.fabric.carried()?;
        until("data", LIMIT, || {
            self.alive()?;
            let now = self.fabric.carried()?;
            let more = |way: &usize| now[*way] - before[*way];
            let most = (0..WAYS).filter(|way| Some(*way) != but).max_by_key(more);
            Ok(most.filter(|way| more(way) > DATA_LEAST))
        })
    }

    fn busiest(&self) -> Result<usize, Error> {
        self.data_by(None)
    }

    /// The migration of the queue pair of each host that carries the data.
    fn migrations(&self) -> Result<[Value; 2], Error> {
        let of = |host: &Host| -> Result<Value, Error> {
            // A status that does not come in time says nothing.
            let mut qps = host.queue_pairs().unwrap_or_default();
            let carried = |qp: &Value| {
                let count = |counter: &str| qp["counters"][counter].as_u64().unwrap_or(0);
                count("sent_packets") + count("received_packets")
            };
            qps.sort_by_key(|qp| std::cmp::Reverse(carried(qp)));
            Ok(qps.first().map(|qp| qp["migration"].clone()).unwrap_or_default())
        };
        Ok([of(self.fabric.host(0))?, of(self.fabric.host(1))?])
    }

    /// Waits until both ends may migrate to another source port. Returns that port, and how often both have
    /// migrated.
    fn wait_armed(&self) -> Result<(u64, [u64; 2]), Error> {
        until("another source port in reserve", LIMIT, || {
            self.alive()?;
            let both = self.migrations()?;
            let port = both[1]["alternate_port"].as_u64();
            let armed = both.iter().all(|m| m["state"] == "ARMED");
            let agreed = both[0]["alternate_port"].as_u64() == port;
            let port = port.filter(|_| armed && agreed);
            Ok(port.map(|port| (port, both.map(|m| count(&m)))))
        })
    }
}

fn count(migration: &Value) -> u64 {
    migration["count"].as_u64().unwrap_or(0)
}

/// The way in use falls silent again and again, and the queue pairs migrate as soon as it is another one than
/// that of the port in reserve (else the path changes its port). Data goes on in any case.
#[test]
fn a_queue_pair_migrates_to_another_source_port_when_its_way_is_silent() -> Result<(), Error> {
    let _share = share(PATIENT);
    let programs = Programs::start()?;
    for round in 0..ROUNDS {
        let (port, before) = programs.wait_armed()?;
        let way = programs.busiest()?;
        programs.fabric.silence(way)?;
        let by = programs.data_by(Some(way))?;
        let migrated = programs.migrations()?;
        println!("round {round}: port {port}, way {way} silent, data by way {by}: {migrated:?}");
        if migrated.iter().zip(before).all(|(now, before)| count(now) > before) {
            // One end found out, and the other one followed.
            assert!(migrated.iter().any(|m| m["last_cause"] == "peer"), "{migrated:?}");
            programs.fabric.heal(way)?;
            // And yet another port is the next alternate path.
            assert_ne!(programs.wait_armed()?.0, port);
            return programs.alive();
        }
        programs.fabric.heal(way)?;
    }
    panic!("no migration, {:?}", programs.migrations()?);
}
