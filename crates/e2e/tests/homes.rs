//! Queue pairs are at home on the member of a bond that is near their creator. The hosts' processors are told
//! to be on NUMA nodes of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use polypath_e2e::{End, Error, Host, Lab, PATIENT, Program, Scratch, compile_c, share, until};

const LIMIT: Duration = Duration::from_secs(60);
/// Fewer bytes than this by a link are probes and answers, not the program's data.
const DATA_LEAST: u64 = 16 << 20;
/// Where the members are.
const NODES: &str = "numa_node=eth0:0,numa_node=eth1:1";

/// A machine whose first two processors, of those that this process may use, are on nodes 0 and 1.
struct Machine {
    scratch: Scratch,
    processors: [String; 2],
}

/// The processors that this process may use.
fn processors() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap_or_default().trim().split(',');
    ranges
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            match (first.parse::<u32>(), last.parse::<u32>()) {
                (Ok(first), Ok(last)) => first..last + 1,
                _ => 0..0,
            }
        })
        .collect()
}

impl Machine {
    fn new() -> Result<Self, Error> {
        let scratch = Scratch::new("nodes")?;
        let [first, second, ..] = processors()[..] else {
            return Err(Error::Missing("a second processor".to_owned()));
        };
        let processors = [first, second].map(|number| number.to_string());
        for (node, cpus) in ["node0", "node1"].into_iter().zip(&processors) {
            let directory = scratch.path(node);
            let made = std::fs::create_dir(&directory);
            made.and_then(|()| std::fs::write(directory.join("cpulist"), cpus))
                .map_err(|source| Error::os("simulating NUMA nodes", source))?;
        }
        Ok(Self { scratch, processors })
    }

    /// A program on this machine, with a bond of these members whose queue pairs get homes by this rule.
    fn verbs(&self, host: &Host, members: &str, rule: &str, words: &[&str]) -> Program {
        let nodes = self.scratch.path("").to_string_lossy().into_owned();
        let enter = "mount --bind \"$0\" /sys/devices/system/node && exec \"$@\"";
        let program =
            host.verbs([&["unshare", "--mount", "sh", "-c", enter, &nodes], words].concat());
        let device = format!("bond:eth0+eth1,mode=balance-xor,affinity={rule}");
        program.device(Some(&device)).env("POLYPATH_MP", members)
    }
}

/// The homes of the queue pairs that a program creates in these steps. Checks that their numbers name them.
fn homes(members: &str, rule: &str, steps: &str) -> Result<Vec<u32>, Error> {
    let machine = Machine::new()?;
    let program = compile_c("homes.c")?;
    let lab = Lab::new()?;
    // The steps name processors by their place.
    let step = |step: &str| match step.split_at(1) {
        ("d", _) | (_, "-") => step.to_owned(),
        (what, "0") => format!("{what}{}", machine.processors[0]),
        (what, _) => format!("{what}{}", machine.processors[1]),
    };
    let steps: Vec<String> = steps.split(' ').map(step).collect();
    let words: Vec<&str> =
        [program.as_str()].into_iter().chain(steps.iter().map(String::as_str)).collect();
    let running = machine.verbs(lab.host(0), members, rule, &words).spawn()?;
    running.wait_line("done", LIMIT)?;
    // The number of a queue pair names its home for everyone.
    let status = lab.host(0).status()?;
    let lanes = status["processes"][0]["lanes"].as_array().cloned().unwrap_or_default();
    let named: BTreeMap<u64, String> = lanes
        .iter()
        .filter_map(|lane| Some((lane["slot"].as_u64()?, lane["home"].as_str()?.to_owned())))
        .collect();
    let mut all = Vec::new();
    for line in running.text().lines().filter(|line| line.contains("home")) {
        let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
        let numbers: [Option<u32>; 3] = std::array::from_fn(|_| numbers.next());
        let [Some(_), Some(home), Some(range)] = numbers else {
            return Err(Error::Missing(format!("homes in {line}")));
        };
        let expected = format!("eth{}", home - 1);
        assert_eq!(named.get(&u64::from(range)), Some(&expected), "{line}: {named:?}");
        all.push(home);
    }
    Ok(all)
}

#[test]
fn a_queue_pair_is_at_home_where_its_creator_or_its_queues_are() -> Result<(), Error> {
    let _share = share(PATIENT);
    for rule in ["numa", "cpu"] {
        let of = |steps| homes(NODES, rule, steps);
        assert_eq!(of("c0 p0 p0 c1 p1 p1 p1")?, [1, 1, 2, 2, 2], "{rule}");
        // Queues are not shared by nodes.
        assert_eq!(of("c0 p1 c1 p0 s0 p1 s- p1")?, [1, 2, 1, 2], "{rule}");
    }
    Ok(())
}

/// Those that are near are served in turn, also after some are gone.
#[test]
fn near_members_get_equally_many() -> Result<(), Error> {
    let _share = share(PATIENT);
    let both_near = "numa_node=eth0:0,numa_node=eth1:0";
    let all = homes(both_near, "numa", "c0 p0 p0 p0 p0 d1 d3 p0 p0 p0")?;
    assert_eq!(all, [1, 2, 1, 2, 2, 2, 1]);
    Ok(())
}

/// The data of a program goes by the member of its node, while that carries.
#[test]
fn data_leaves_by_the_home() -> Result<(), Error> {
    let _share = share(PATIENT);
    let machine = Machine::new()?;
    let lab = Lab::new()?;
    let second = machine.processors[1].as_str();
    let words = ["taskset", "-c", second, "ib_write_bw", "-q", "3", "--run_infinitely"];
    let server = lab.host(0).verbs(&words[3..]).device(Some("bond:eth0+eth1,mode=balance-xor"));
    let server = server.spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = [&words[..], &[meet.as_str()]].concat();
    let client = machine.verbs(lab.host(1), NODES, "cpu", &client).spawn()?;
    let by = |wanted: usize| {
        let mut before = lab.sent_bytes_of(1)?;
        until(&format!("data by eth{wanted} alone"), LIMIT, || {
            client.expect_alive()?;
            server.expect_alive()?;
            let sent = lab.sent_bytes_of(1)?;
            if sent[1 - wanted] - before[1 - wanted] > DATA_LEAST {
                // What was sent before the change counts, too. Begin anew.
                before.clone_from(&sent);
            }
            Ok((sent[wanted] - before[wanted] > 4 * DATA_LEAST).then_some(()))
        })
    };
    by(1)?;
    lab.link_down(1, End::Both)?;
    by(0)?;
    lab.link_up(1)?;
    by(1)
}
