//! The home of a queue pair, under `affinity=cpu` and `affinity=numa`: an interface of its device that is
//! near the thread that created it.
//!
//! Each home has a lane of its own. So the number of a queue pair names its home, because the top byte is the
//! lane's slot; and threads that work on different NUMA nodes share neither a lane's lock nor its memory. The
//! lane's thread keeps to the processors of the home's node.
//!
//! Queues have a place, too: where their creator ran. A queue pair follows its queues, so that those of one
//! node are not shared with another, unless the program moves a queue pair itself
//! (`polypath_modify_qp_lag_port`).

use std::path::Path;
use std::sync::OnceLock;

use polypath_topology::{AffinityRule, DeviceSpec, InForce, Policy, Table};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the kernel tells which processors belong to which node (`sysfs-devices-node`).
const NODES: &str = "/sys/devices/system/node";

/// The NUMA nodes of processors.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// The node of each processor, by the processor's number.
    of: Vec<Option<u32>>,
}

impl Nodes {
    /// Those of this machine, read once. Without sysfs, no processor has a node.
    pub(crate) fn of_this_machine() -> &'static Self {
        static NODES_HERE: OnceLock<Nodes> = OnceLock::new();
        NODES_HERE.get_or_init(|| Self::read(Path::new(NODES)))
    }

    fn read(directory: &Path) -> Self {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        Self::of_lists(entries.filter_map(|entry| {
            let list = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((entry.file_name().into_string().ok()?, list))
        }))
    }

    /// Those of the lists of processors that the directories of nodes, with these names, have.
    fn of_lists(lists: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut nodes = Self::default();
        for (name, list) in lists {
            if let Some(node) = name.strip_prefix("node").and_then(|node| node.parse().ok()) {
                cpus(&list).for_each(|cpu| nodes.set(cpu, node));
            }
        }
        nodes
    }

    fn set(&mut self, cpu: usize, node: u32) {
        if self.of.len() <= cpu {
            self.of.resize(cpu + 1, None);
        }
        self.of[cpu] = Some(node);
    }

    fn of(&self, cpu: usize) -> Option<u32> {
        self.of.get(cpu).copied().flatten()
    }

    /// The processors of a node, in the order of their numbers.
    fn cpus(&self, node: u32) -> impl Iterator<Item = usize> {
        let all = self.of.iter().enumerate();
        all.filter(move |(_, of)| **of == Some(node)).map(|(cpu, _)| cpu)
    }

    /// Whether there is more than one.
    fn several(&self) -> bool {
        let mut all = self.of.iter().flatten();
        let first = all.next();
        all.any(|node| Some(node) != first)
    }
}

/// The processors of a list as sysfs has it, such as `0-3,8`. What is not understood counts as none.
fn cpus(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) if last < CpuSet::MAX_CPU => first..last + 1,
            _ => 0..0,
        }
    })
}

/// Where something was created: the number of its creator's processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creator(usize);

impl Creator {
    /// The calling thread.
    pub(crate) fn here() -> Self {
        Self(crate::thread::processor())
    }

    /// The processor of a queue pair that this thread creates with these queues, the one that decides first.
    /// The thread's own processor counts if it is on their node.
    pub(crate) fn following(self, queues: impl IntoIterator<Item = Self>, nodes: &Nodes) -> Self {
        let queue = queues.into_iter().next().unwrap_or(self);
        if nodes.of(queue.0) == nodes.of(self.0) { self } else { queue }
    }

    /// Its place among `n`, so that the processors of a node share them evenly.
    pub(crate) fn among(self, n: usize) -> usize {
        self.0 % n.max(1)
    }

    /// Its place among the processors of its node.
    fn rank(self, nodes: &Nodes) -> usize {
        let before = |node| nodes.cpus(node).take_while(|cpu| *cpu < self.0).count();
        nodes.of(self.0).map_or(self.0, before)
    }
}

/// An interface where queue pairs may be at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Its name. It outlives the interface, which may come back under it.
    pub(crate) name: String,
    node: Option<u32>,
    /// Whether it carries traffic now.
    carries: bool,
}

impl Home {
    /// Keeps the calling thread to the processors of its node, of those that the thread may use. Without any
    /// of these, and on a machine with one node, the thread stays where it is.
    pub(crate) fn keep_near(&self, nodes: &Nodes) {
        let (Some(node), true) = (self.node, nodes.several()) else { return };
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut near = CpuSet::new();
        let cpus = nodes.cpus(node).filter(|cpu| allowed.is_set(*cpu));
        cpus.for_each(|cpu| near.set(cpu));
        if near.count() > 0 {
            // A thread that runs elsewhere is only slower.
            let _ = sched_setaffinity(None, &near);
        }
    }
}

/// The rule by which new queue pairs get a home; `None` if they get none. Their peers are not known yet, so
/// the rule for some peers counts, too.
pub(crate) fn rule(in_force: &InForce) -> Option<AffinityRule> {
    let of_peers = in_force.peers.iter().map(|(_, choice, _)| *choice);
    let mut all = std::iter::once(in_force.policy.0).chain(of_peers);
    all.find_map(|choice| {
        choice.affinity.filter(|rule| choice.policy == Policy::Affinity && rule.gives_home())
    })
}

/// The interfaces of a device where queue pairs may be at home: its members, or the ports of the kernel's
/// bond below it.
pub(crate) fn of_device(spec: &DeviceSpec, table: &Table, in_force: &InForce) -> Vec<Home> {
    let ports = spec.links().into_iter().filter_map(|ifindex| table.port(ifindex));
    ports
        .map(|port| {
            let set = in_force.settings.numa_nodes.iter().find(|(name, _)| *name == port.name);
            let barred = port.slave.is_some_and(|slave| !slave.usable) || port.lacp == Some(false);
            Home {
                name: port.name.clone(),
                node: set.map(|(_, node)| u32::from(*node)).or(port.numa_node),
                carries: port.link_up && !barred,
            }
        })
        .collect()
}

/// Chooses the home of a new queue pair: one on the creator's node if there is one, else one of which no node
/// is known, else any. Of equally near ones, those that carry traffic now count. `queue_pairs` is how many
/// are at home somewhere.
pub(crate) fn choose<'a>(
    rule: AffinityRule,
    homes: &'a [Home],
    creator: Creator,
    nodes: &Nodes,
    queue_pairs: impl Fn(&Home) -> usize,
) -> Option<&'a Home> {
    let node = nodes.of(creator.0);
    let distance = |home: &Home| {
        let away = match home.node {
            Some(_) if home.node == node => 0,
            None => 1,
            Some(_) => 2,
        };
        (away, !home.carries)
    };
    let least = homes.iter().map(distance).min()?;
    let near: Vec<&Home> = homes.iter().filter(|home| distance(home) == least).collect();
    match rule {
        AffinityRule::Cpu => near.get(creator.rank(nodes) % near.len()).copied(),
        _ => near.into_iter().min_by_key(|home| queue_pairs(home)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Two nodes with two processors each, in turn.
    fn two_nodes() -> Nodes {
        let mut nodes = Nodes::default();
        (0..4).for_each(|cpu| nodes.set(cpu, u32::from(cpu % 2 == 1)));
        nodes
    }

    fn home(name: &str, node: Option<u32>) -> Home {
        Home { name: name.to_owned(), node, carries: true }
    }

    /// The homes of queue pairs that threads on these processors create one after another.
    fn chosen(rule: AffinityRule, homes: &[Home], nodes: &Nodes, cpus: &[usize]) -> Vec<String> {
        let mut loads: HashMap<String, usize> = HashMap::new();
        let mut names = Vec::new();
        for cpu in cpus {
            let load = |home: &Home| loads.get(&home.name).copied().unwrap_or(0);
            let home = choose(rule, homes, Creator(*cpu), nodes, load).unwrap();
            names.push(home.name.clone());
            *loads.entry(home.name.clone()).or_default() += 1;
        }
        names
    }

    #[test]
    fn a_queue_pair_is_at_home_on_the_node_of_its_creator() {
        let homes = [home("a0", Some(0)), home("b0", Some(1)), home("a1", Some(0))];
        for rule in [AffinityRule::Cpu, AffinityRule::Numa] {
            let names = chosen(rule, &homes, &two_nodes(), &[1, 3, 1]);
            assert_eq!(names, ["b0", "b0", "b0"], "{rule}");
        }
        // Of two near ones: in turn, or each processor's own.
        let turns = chosen(AffinityRule::Numa, &homes, &two_nodes(), &[0, 0, 2, 0]);
        assert_eq!(turns, ["a0", "a1", "a0", "a1"]);
        let own = chosen(AffinityRule::Cpu, &homes, &two_nodes(), &[0, 2, 2, 0]);
        assert_eq!(own, ["a0", "a1", "a1", "a0"]);
    }

    #[test]
    fn without_a_near_one_any_that_carries_will_do() {
        let far = [home("b0", Some(1)), home("b1", Some(1))];
        assert_eq!(chosen(AffinityRule::Numa, &far, &two_nodes(), &[0, 0]), ["b0", "b1"]);
        let unknown = [home("b0", Some(1)), home("veth", None)];
        assert_eq!(chosen(AffinityRule::Numa, &unknown, &two_nodes(), &[0, 0]), ["veth"; 2]);
        let down = |home: Home| Home { carries: false, ..home };
        let near = [down(home("a0", Some(0))), home("a1", Some(0)), home("b0", Some(1))];
        assert_eq!(chosen(AffinityRule::Cpu, &near, &two_nodes(), &[0, 2]), ["a1"; 2]);
        // It comes back, and queue pairs of the node with it.
        let only = [down(home("a0", Some(0))), home("b0", Some(1))];
        assert_eq!(chosen(AffinityRule::Cpu, &only, &two_nodes(), &[0]), ["a0"]);
        let none = |_: &Home| 0;
        assert_eq!(choose(AffinityRule::Numa, &[], Creator(0), &two_nodes(), none), None);
        // A machine that tells no nodes: processors in turn.
        let members = [home("a", None), home("b", None)];
        let names = chosen(AffinityRule::Cpu, &members, &Nodes::default(), &[0, 1, 2]);
        assert_eq!(names, ["a", "b", "a"]);
    }

    #[test]
    fn a_queue_pair_follows_its_queues_to_their_node() {
        let nodes = two_nodes();
        let cpu = |thread, queues: &[usize]| {
            Creator(thread).following(queues.iter().copied().map(Creator), &nodes).0
        };
        assert_eq!(cpu(0, &[]), 0);
        assert_eq!(cpu(0, &[1]), 1, "the queue is on the other node");
        assert_eq!(cpu(0, &[2, 1]), 0, "both are on the thread's node");
        assert_eq!(cpu(2, &[3, 0]), 3);
    }

    #[test]
    fn the_nodes_of_processors_are_as_sysfs_lists_them() {
        let lists =
            [("node0", "0-1,4\n"), ("node1", "2-3,5-5\n"), ("node7", "\n"), ("power", "6\n")];
        let lists = lists.map(|(name, list)| (name.to_owned(), list.to_owned()));
        let nodes = Nodes::of_lists(lists);
        let all: Vec<Option<u32>> = (0..7).map(|cpu| nodes.of(cpu)).collect();
        let (a, b) = (Some(0), Some(1));
        assert_eq!(all, [a, a, b, b, a, b, None]);
        assert_eq!(nodes.cpus(0).collect::<Vec<_>>(), [0, 1, 4]);
        assert!(nodes.several() && !Nodes::default().several());
        let ranks: Vec<usize> = (0..7).map(|cpu| Creator(cpu).rank(&nodes)).collect();
        assert_eq!(ranks, [0, 1, 0, 1, 2, 2, 6]);
        for odd in ["x", "1-", "3-1", "0-99999999999", "0-18446744073709551615", ""] {
            assert_eq!(cpus(odd).count(), 0, "{odd}");
        }
    }
}
