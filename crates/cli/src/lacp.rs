//! The interfaces on which `polypath lacp` speaks, as `polypath status` shows them.

use polypath_ipc::lacp::{LacpEnd, LacpPort};

use crate::text::{Columns, mac};

/// A table of them; empty if there are none.
pub(crate) fn render(all: &[LacpPort]) -> String {
    let heading = ["LACP", "AGGREGATOR", "STATE", "PARTNER", "ACTOR KEY", "PARTNER KEY", "CHURN"];
    let mut ports = Columns::new(heading);
    for port in all {
        let aggregator = match port.aggregator {
            None => "-".to_owned(),
            Some(id) if port.selected == "selected" => id.to_string(),
            Some(id) => format!("{id} ({})", port.selected),
        };
        let state =
            format!("{} (actor {}, partner {})", port.mux, port.actor.state, port.partner.state);
        let LacpEnd { system, key, .. } = port.partner;
        ports.row([
            port.interface.clone(),
            aggregator,
            state,
            mac(system),
            port.actor.key.to_string(),
            key.to_string(),
            format!("{}, {}", port.actor_churn, port.partner_churn),
        ]);
    }
    if ports.is_empty() { String::new() } else { ports.render("  ") }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An interface that distributes.
    pub(crate) fn example() -> LacpPort {
        let actor = LacpEnd {
            system_priority: 65535,
            system: [2, 0, 0, 0, 0, 10],
            key: 15,
            port_priority: 255,
            port: 1,
            state: 63,
        };
        LacpPort {
            ifindex: 2,
            interface: "eth0".to_owned(),
            distributing: true,
            aggregator: Some(1),
            selected: "selected".to_owned(),
            receive: "current".to_owned(),
            mux: "collecting distributing".to_owned(),
            actor_churn: "none".to_owned(),
            partner_churn: "none".to_owned(),
            actor,
            partner: LacpEnd { system: [2, 0, 0, 0, 0, 11], key: 9, state: 61, ..actor },
        }
    }

    #[test]
    fn the_states_are_those_of_proc_net_bonding() {
        assert_eq!(render(&[]), "");
        let standby = LacpPort { selected: "standby".to_owned(), ..example() };
        let text = render(&[example(), standby, LacpPort::default()]);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().skip(1).map(words).collect();
        let state =
            "collecting distributing (actor 63, partner 61) 02:00:00:00:00:0b 15 9 none, none";
        assert_eq!(lines[0], format!("eth0 1 {state}"));
        assert_eq!(lines[1], format!("eth0 1 (standby) {state}"));
        assert_eq!(lines.len(), 3);
    }
}
