//! Finds the changes between two tables of interfaces, as events.

use polypath_telemetry::{Event, InterfaceName};
use polypath_topology::Port;

/// The interfaces, links and addresses that appeared and disappeared.
pub(crate) fn between(before: &[Port], after: &[Port]) -> Vec<Event> {
    let find = |ports: &[Port], ifindex| ports.iter().position(|port| port.ifindex == ifindex);
    let mut events = Vec::new();
    for port in before {
        if find(after, port.ifindex).is_none() {
            events.push(Event::InterfaceRemoved { interface: name(port) });
        }
    }
    for port in after {
        match find(before, port.ifindex).and_then(|at| before.get(at)) {
            None => {
                events.push(Event::InterfaceAdded { interface: name(port) });
                if port.link_up {
                    events.push(Event::LinkUp { interface: name(port) });
                }
                addresses(None, port, &mut events);
            }
            Some(old) => {
                if old.link_up != port.link_up {
                    let interface = name(port);
                    events.push(match port.link_up {
                        true => Event::LinkUp { interface },
                        false => Event::LinkDown { interface },
                    });
                }
                addresses(Some(old), port, &mut events);
            }
        }
    }
    events
}

fn name(port: &Port) -> InterfaceName {
    InterfaceName::new(&port.name)
}

/// Adds the addresses that became usable, and those that no longer are.
fn addresses(old: Option<&Port>, new: &Port, events: &mut Vec<Event>) {
    let usable = |port: &Port| -> Vec<_> {
        port.addresses.iter().filter(|a| !a.tentative).map(|a| a.ip).collect()
    };
    let (before, after) = (old.map(usable).unwrap_or_default(), usable(new));
    let interface = name(new);
    for &address in before.iter().filter(|ip| !after.contains(ip)) {
        events.push(Event::AddressRemoved { interface, address });
    }
    for &address in after.iter().filter(|ip| !before.contains(ip)) {
        events.push(Event::AddressAdded { interface, address });
    }
}

#[cfg(test)]
mod tests {
    use polypath_topology::Address;

    use super::*;

    fn port(ifindex: u32, link_up: bool, ips: &[[u8; 4]]) -> Port {
        let address = |ip: &[u8; 4]| Address {
            ip: (*ip).into(),
            prefix_len: 24,
            link_local: false,
            tentative: ip[3] == 99,
        };
        let addresses = ips.iter().map(address).collect();
        Port { link_up, addresses, ..Port::ethernet(ifindex, &format!("eth{ifindex}")) }
    }

    fn said(before: &[Port], after: &[Port]) -> Vec<String> {
        between(before, after).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_came_and_went_is_told() {
        let one = port(1, true, &[[10, 0, 0, 1]]);
        assert_eq!(said(std::slice::from_ref(&one), std::slice::from_ref(&one)), [""; 0]);
        assert_eq!(
            said(&[], std::slice::from_ref(&one)),
            ["interface eth1 is there", "link eth1 is up", "interface eth1 has address 10.0.0.1"]
        );
        assert_eq!(said(std::slice::from_ref(&one), &[]), ["interface eth1 is gone"]);
        assert_eq!(
            said(&[one], &[port(1, false, &[[10, 0, 0, 2], [10, 0, 0, 99]])]),
            [
                "link eth1 is down",
                "interface eth1 no longer has address 10.0.0.1",
                "interface eth1 has address 10.0.0.2"
            ]
        );
    }
}
