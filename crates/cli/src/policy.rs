//! `polypath mp policy` and `polypath qp policy`: how mp devices use their paths, while programs run.

use crate::args::{MpPolicy, PolicyChange, QpPolicy};
use crate::error::CliError;
use crate::path::own_broker;
use crate::text::count;
use polypath_ipc::Status;
use polypath_ipc::status::{PolicyStatus, ProcessStatus, QpStatus};
use polypath_topology::rules::Origin;
use polypath_topology::{RuleScope, interface_problem};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::ExitCode;

/// Sets the policy of peers, or shows what is in force.
pub(crate) fn mp(arguments: &MpPolicy) -> Result<ExitCode, CliError> {
    let scope = RuleScope {
        peer: arguments.peer,
        process: arguments.process,
        device: arguments.device.clone(),
        ..RuleScope::default()
    };
    run(&scope, arguments.change.as_ref(), "mp")
}

/// Sets the policy of one queue pair, or shows the one in force.
pub(crate) fn qp(arguments: &QpPolicy) -> Result<ExitCode, CliError> {
    let scope = RuleScope {
        queue_pair: Some(arguments.qpn),
        process: arguments.process,
        ..RuleScope::default()
    };
    run(&scope, arguments.change.as_ref(), "qp")
}

fn run(
    scope: &RuleScope,
    change: Option<&PolicyChange>,
    command: &str,
) -> Result<ExitCode, CliError> {
    let does = "changes how its programs use their paths";
    let mut broker = own_broker(does, &format!("polypath {command} policy …"))?;
    let before = broker.status()?;
    if let Some(problem) = unknown(scope, &before) {
        return Err(CliError::Refused(problem));
    }
    let text = match change {
        None => shown(scope, &before),
        Some(PolicyChange::Default) => {
            broker.set_rule(scope.clone(), None)?;
            told(scope, "no rule of a command any more", &broker.status()?)
        }
        Some(PolicyChange::To(settings)) => {
            broker.set_rule(scope.clone(), Some(settings.clone()))?;
            let status = broker.status()?;
            if let Some(problem) =
                interface_problem(settings, &status.broker.table, broker.selection())
            {
                eprintln!("polypath: {problem}");
            }
            told(scope, &settings.to_string(), &status)
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The problem with a process or queue pair that was named; `None` if it is there.
fn unknown(scope: &RuleScope, status: &Status) -> Option<String> {
    if let Some(pid) = scope.process
        && !status.processes.iter().any(|process| process.pid == pid)
        && !status.broker.clients.iter().any(|client| client.pid == pid)
    {
        let there: Vec<String> = status.processes.iter().map(name).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Some(format!("no process {pid} uses Polypath here (those that do: {there})"));
    }
    let qpn = scope.queue_pair?;
    let Some((_, qp)) = queue_pairs(scope, status).next() else {
        return Some(format!("there is no queue pair {qpn:#08x}: see `polypath status`"));
    };
    qp.policy.is_none().then(|| {
        let why = if qp.peer.is_empty() { "is not connected" } else { "has only one path" };
        format!(
            "queue pair {qpn:#08x} {why}: only connected queue pairs of an mp device have a policy"
        )
    })
}

fn name(process: &ProcessStatus) -> String {
    format!("{} (pid {})", process.program, process.pid)
}

/// The processes of a scope. The device is not asked for, because the broker knows what follows from it.
fn processes<'a>(
    scope: &RuleScope,
    status: &'a Status,
) -> impl Iterator<Item = &'a ProcessStatus> + use<'a> {
    let wanted = scope.process;
    status.processes.iter().filter(move |process| wanted.is_none_or(|pid| pid == process.pid))
}

/// The queue pair of a scope, with its process.
fn queue_pairs<'a>(
    scope: &RuleScope,
    status: &'a Status,
) -> impl Iterator<Item = (&'a ProcessStatus, &'a QpStatus)> + use<'a> {
    let wanted = scope.queue_pair;
    let of = |process: &'a ProcessStatus| process.qps.iter().map(move |qp| (process, qp));
    processes(scope, status).flat_map(of).filter(move |(_, qp)| wanted == Some(qp.qpn))
}

/// The peers of a process that are in the scope, and their policies.
fn peers(scope: &RuleScope, process: &ProcessStatus) -> Vec<(String, PolicyStatus)> {
    let mut found: Vec<(String, PolicyStatus)> = Vec::new();
    for peer in &process.peers {
        if scope.peer.is_none_or(|subnet| subnet.contains(peer.remote)) {
            let entry = (peer.remote.to_string(), peer.policy);
            if !found.contains(&entry) {
                found.push(entry);
            }
        }
    }
    found
}

fn words(policy: &PolicyStatus) -> String {
    format!("{} ({})", policy.choice, policy.origin)
}

/// The policies of a process's peers, naming at most `most` of each, and of queue pairs that have their own,
/// as lines of `polypath status`.
pub(crate) fn policies(process: &ProcessStatus, most: usize) -> String {
    let mut peers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for peer in &process.peers {
        let list = peers.entry(words(&peer.policy)).or_default();
        let remote = peer.remote.to_string();
        if !list.contains(&remote) {
            list.push(remote);
        }
    }
    let mut text = String::new();
    for (policy, list) in peers {
        let mut shown = list[..list.len().min(most)].join(", ");
        if list.len() > most {
            shown += &format!(" and {} others", list.len() - most);
        }
        text += &format!("  policy {policy}: {shown}\n");
    }
    for qp in &process.qps {
        if let Some(policy) = qp.policy.filter(|policy| policy.own) {
            text += &format!("  policy {}: queue pair {:#08x}\n", words(&policy), qp.qpn);
        }
    }
    text
}

/// What is in force in a scope, and the rules that it follows from.
fn shown(scope: &RuleScope, status: &Status) -> String {
    let mut text = String::new();
    if scope.queue_pair.is_some() {
        for (process, qp) in queue_pairs(scope, status) {
            let Some(policy) = qp.policy else { continue };
            let whose = if policy.own { "its own" } else { "that of its peer" };
            let (words, name) = (words(&policy), name(process));
            text +=
                &format!("queue pair {:#08x} of {name} to {}: {words}, {whose}\n", qp.qpn, qp.peer);
        }
        return text;
    }
    for process in processes(scope, status) {
        let peers = peers(scope, process);
        for (remote, policy) in &peers {
            text += &format!("{}, peer {remote}: {}\n", name(process), words(policy));
        }
        let here = |qp: &&QpStatus| peers.iter().any(|(remote, _)| *remote == qp.peer);
        for qp in process.qps.iter().filter(here) {
            if let Some(policy) = qp.policy.filter(|policy| policy.own) {
                let words = words(&policy);
                text += &format!("{}, queue pair {:#08x}: {words}\n", name(process), qp.qpn);
            }
        }
    }
    if text.is_empty() {
        text += "no program uses an mp device to such a peer now\n";
    }
    for rule in &status.broker.table.rules {
        let origin = Origin::from(rule.source);
        text += &format!("rule ({origin}): {}: {}\n", rule.scope, rule.settings);
    }
    text
}

/// What a change did.
fn told(scope: &RuleScope, settings: &str, status: &Status) -> String {
    let mut text = format!("{scope}: {settings}\n");
    if scope.queue_pair.is_some() {
        return text + &shown(scope, status);
    }
    let mut kinds: BTreeSet<String> = BTreeSet::new();
    let mut following = 0;
    for process in processes(scope, status) {
        for (_, policy) in peers(scope, process) {
            following += 1;
            kinds.insert(words(&policy));
        }
    }
    let kinds: Vec<String> = kinds.into_iter().collect();
    text += &match following {
        0 => "no program uses an mp device to such a peer now; later ones follow it\n".to_owned(),
        peers => format!("in force for {}: {}\n", count(peers, "peer"), kinds.join(", ")),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::example;

    fn scope(qpn: Option<u32>, process: Option<u32>) -> RuleScope {
        RuleScope { queue_pair: qpn, process, ..RuleScope::default() }
    }

    #[test]
    fn what_is_in_force_is_shown_with_its_reason() {
        let status = example();
        let text = shown(&scope(None, None), &status);
        for part in [
            "rping (pid 8), peer 10.0.0.2: balance (POLYPATH_MP)\n",
            "rping (pid 8), queue pair 0x012345: affinity,affinity=hash (command)\n",
            "rule (command): queue pair 0x012345, process 8: affinity\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let other =
            RuleScope { peer: Some("10.0.1.0/24".parse().unwrap()), ..RuleScope::default() };
        assert!(shown(&other, &status).starts_with("no program uses an mp device to such a peer"));
        let one = shown(&scope(Some(0x01_2345), None), &status);
        let says = "queue pair 0x012345 of rping (pid 8) to 10.0.0.2: affinity,affinity=hash (command), its \
                    own\n";
        assert_eq!(one, says);
    }

    #[test]
    fn a_change_says_what_is_in_force_after_it() {
        let text = told(&scope(None, Some(8)), "balance", &example());
        assert_eq!(text, "process 8: balance\nin force for 1 peer: balance (POLYPATH_MP)\n");
        let nobody = told(&scope(None, Some(9)), "balance", &example());
        assert!(nobody.contains("later ones follow it"), "{nobody}");
    }

    #[test]
    fn a_process_or_queue_pair_that_is_not_there_is_a_mistake() {
        let status = example();
        assert_eq!(unknown(&scope(Some(0x01_2345), Some(8)), &status), None);
        assert_eq!(unknown(&scope(None, None), &status), None);
        let said = unknown(&scope(None, Some(77)), &status).unwrap();
        assert!(said.contains("those that do: rping (pid 8)"), "{said}");
        let said = unknown(&scope(Some(5), None), &status).unwrap();
        assert!(said.contains("no queue pair 0x000005"), "{said}");
        let mut plain = example();
        plain.processes[0].qps[0].policy = None;
        let said = unknown(&scope(Some(0x01_2345), None), &plain).unwrap();
        assert!(said.contains("has only one path"), "{said}");
    }
}
