//! `polypath path`: takes paths down and up by hand.

use crate::args::PathAction;
use crate::error::CliError;
use crate::text::count;
use polypath_ipc::{Client, Hello, IpcError, Status, port, socket, status::PathStatus};
use polypath_topology::{LOCAL, PathSelector, TCP, Table};
use std::io::Write as _;
use std::process::ExitCode;

/// Tells the broker to take paths down or up. The broker tells every process and remembers the rule
/// for later ones. Prints what the selector matched.
pub(crate) fn run(action: PathAction) -> Result<ExitCode, CliError> {
    let (selector, up, force) = match action {
        PathAction::Down { path, force } => (path, false, force),
        PathAction::Up { path } => (path, true, true),
    };
    let mut broker = own_broker("takes its paths down and up", "polypath path …")?;
    let status = broker.status()?;
    let known = status.broker.table.down.contains(&selector);
    if up && !known {
        let mut text = format!("nothing to do: {selector} was not taken down by hand\n");
        let down = &status.broker.table.down;
        if !down.is_empty() {
            let list: Vec<String> = down.iter().map(ToString::to_string).collect();
            text += &format!("taken down are: {}\n", list.join(", "));
        }
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if !up
        && !force
        && let Some(problem) = unknown(&selector, &status)
    {
        return Err(CliError::Refused(format!("{problem}; use --force to take it down anyway")));
    }
    broker.set_path(selector.clone(), up)?;
    let text = told(&selector, matching(&selector, &status), up);
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Connects to this user's broker. If only others have one here, the error says who does what by which
/// command: see [`not_here`].
pub(crate) fn own_broker(does: &str, command: &str) -> Result<Client, CliError> {
    match Client::connect(&Hello::of_this_process("")) {
        Err(IpcError::NoBroker) => {
            let said = not_here(socket::user_id(), &port::broker_users(), does, command);
            Err(said.map_or(CliError::Broker(IpcError::NoBroker), CliError::Refused))
        }
        broker => Ok(broker?),
    }
}

/// The error text if this user has no broker here, but others have one. `does` says what only the user of a
/// broker does, and `command` by which command.
fn not_here(me: u32, users: &[u32], does: &str, command: &str) -> Option<String> {
    let others: Vec<String> =
        users.iter().filter(|user| **user != me).map(|user| port::user_name(*user)).collect();
    let first = others.first()?;
    Some(format!(
        "user {} has no Polypath broker here, but {} has: only the user of a broker {does}, for example by \
         `sudo -u {first} {command}`",
        port::user_name(me),
        others.join(", ")
    ))
}

/// The number of paths of running programs that the selector matches.
fn matching(selector: &PathSelector, status: &Status) -> usize {
    let paths = status.processes.iter().flat_map(|process| &process.paths);
    let matches = |path: &&PathStatus| match selector {
        PathSelector::Interface(name) if name == TCP => path.kind == TCP,
        _ => selector.matches(&path.interface, path.local, path.remote),
    };
    paths.filter(matches).count()
}

fn told(selector: &PathSelector, matching: usize, up: bool) -> String {
    let what = count(matching as u64, "path");
    match (up, matching) {
        (false, 0) => format!(
            "{selector}: no path matches now; kept for later ones until `polypath path up {selector}`\n"
        ),
        (false, _) => {
            format!("{selector}: {what} taken down until `polypath path up {selector}`\n")
        }
        (true, 0) => format!("{selector}: no path matches now; later ones are used again\n"),
        (true, _) => format!("{selector}: {what} may be used again\n"),
    }
}

/// The reason why no path can match, as far as can be told; `None` if one may match now or later.
fn unknown(selector: &PathSelector, status: &Status) -> Option<String> {
    let table = &status.broker.table;
    match selector {
        // These are kinds of paths.
        PathSelector::Interface(name) if name == LOCAL || name == TCP => None,
        PathSelector::Interface(name) => table.port_by_name(name).is_none().then(|| {
            let known: Vec<&str> = table.ports.iter().map(|port| port.name.as_str()).collect();
            format!("interface `{name}` does not exist here (have: {})", known.join(", "))
        }),
        // The address may become a peer's later, so it is not treated as a mistake.
        PathSelector::Address(_) => None,
        PathSelector::Pair(local, _) => table.port_with_address(*local).is_none().then(|| {
            format!("no interface has the local address {local} (have: {})", local_addresses(table))
        }),
    }
}

fn local_addresses(table: &Table) -> String {
    let all = table.ports.iter().flat_map(|port| &port.addresses);
    all.map(|address| address.ip.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::example;

    fn selector(text: &str) -> PathSelector {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_matched_is_said() {
        let status = example();
        for (text, paths) in [("eth0", 1), ("10.0.0.2", 1), ("10.0.0.1-10.0.0.2", 1), ("eth1", 0)] {
            assert_eq!(matching(&selector(text), &status), paths, "{text}");
        }
        assert!(told(&selector("eth0"), 1, false).contains("1 path taken down"));
        assert!(told(&selector("eth0"), 2, true).contains("2 paths may be used again"));
        assert!(told(&selector("eth1"), 0, false).contains("no path matches now; kept for later"));
    }

    #[test]
    fn beside_another_users_broker_its_user_is_named() {
        let said = |users: &[u32]| not_here(0, users, "does it", "polypath path …");
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[0]), None, "it has just gone");
        let said = said(&[4_000_000_000]).unwrap();
        assert!(
            said.starts_with("user root has no Polypath broker here, but 4000000000 has"),
            "{said}"
        );
        assert!(said.contains("sudo -u 4000000000 polypath path"), "{said}");
    }

    #[test]
    fn an_interface_or_local_address_that_does_not_exist_is_a_mistake() {
        let status = example();
        let said = unknown(&selector("eht0"), &status).unwrap();
        assert!(said.contains("`eht0` does not exist here (have: eth0)"), "{said}");
        assert!(unknown(&selector("10.9.9.9-10.0.0.2"), &status).unwrap().contains("10.0.0.1"));
        for known in ["eth0", "local", "tcp", "10.9.9.9", "10.0.0.1-10.9.9.9"] {
            assert_eq!(unknown(&selector(known), &status), None);
        }
    }
}
