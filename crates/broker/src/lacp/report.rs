//! The states of a bond: in the form of `/proc/net/bonding` (drivers/net/bonding/bond_procfs.c), and for
//! brokers.

use std::fmt::Write as _;

use polypath_ipc::lacp::{LacpEnd, LacpPort};
use polypath_lacp::{
    Actor, AdSelect, ChurnState, LacpRate, Mac, PortInfo, PortState, PortStatus, Selected,
};

/// The states. `names` are those of the ports, in the order in which they were added.
pub(super) fn report(actor: &Actor, names: &[String]) -> String {
    let (config, ports) = (actor.config(), actor.status());
    let up = |up: bool| if up { "up" } else { "down" };
    let on = |on: bool| if on { "on" } else { "off" };
    let rate = match config.lacp_rate {
        LacpRate::Slow => "slow",
        LacpRate::Fast => "fast",
    };
    let select = match config.ad_select {
        AdSelect::Stable => "stable",
        AdSelect::Bandwidth => "bandwidth",
        AdSelect::Count => "count",
    };
    let mut text = String::from("Bonding Mode: IEEE 802.3ad Dynamic link aggregation\n");
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "MII Status: {}\n\n802.3ad info\nLACP active: {}\nLACP rate: {rate}\nMin links: {}\n\
         Aggregator selection policy (ad_select): {select}\nSystem priority: {}\n\
         System MAC address: {}\n",
        up(actor.carrier()),
        on(config.lacp_active),
        config.min_links,
        config.ad_actor_sys_prio,
        address(config.ad_actor_system),
    );
    let active = actor.active_aggregator();
    let of_active = |port: &&PortStatus| active.is_some() && port.aggregator == active;
    if let (Some(id), Some(first)) = (active, ports.iter().find(of_active)) {
        let _ = write!(
            text,
            "Active Aggregator Info:\n\tAggregator ID: {id}\n\tNumber of ports: {}\n\tActor Key: {}\n\
             \tPartner Key: {}\n\tPartner Mac Address: {}\n",
            ports.iter().filter(of_active).count(),
            first.actor.key,
            first.partner.key,
            address(first.partner.system),
        );
    }
    for port in &ports {
        let name = usize::from(port.port).checked_sub(1).and_then(|at| names.get(at));
        let speed = match port.speed_mbps {
            0 => "Unknown".to_owned(),
            mbps => format!("{mbps} Mbps"),
        };
        let aggregator = port.aggregator.map_or_else(|| "N/A".to_owned(), |id| id.to_string());
        let _ = write!(
            text,
            "\nSlave Interface: {}\nMII Status: {}\nSpeed: {speed}\nDuplex: {}\n\
             Permanent HW addr: {}\nAggregator ID: {aggregator}{}\nActor Churn State: {}\n\
             Partner Churn State: {}\nActor Churned Count: {}\nPartner Churned Count: {}\n\
             details actor lacp pdu:\n{}details partner lacp pdu:\n{}",
            name.map_or("?", String::as_str),
            up(port.enabled),
            if port.full_duplex { "full" } else { "half" },
            address(port.mac),
            if port.selected == Selected::Standby { " (standby)" } else { "" },
            churn(port.actor_churn),
            churn(port.partner_churn),
            port.counters.actor_churned,
            port.counters.partner_churned,
            details(&port.actor, "port key"),
            details(&port.partner, "oper key"),
        );
    }
    text
}

/// A port as brokers are told of it. The interface is not known here.
pub(super) fn told(port: &PortStatus) -> LacpPort {
    let end = |info: &PortInfo| LacpEnd {
        system_priority: info.system_priority,
        system: info.system,
        key: info.key,
        port_priority: info.port_priority,
        port: info.port,
        state: info.state.0,
    };
    LacpPort {
        distributing: port.actor.state.has(PortState::DISTRIBUTING),
        aggregator: port.aggregator,
        selected: port.selected.to_string(),
        receive: port.receive.to_string(),
        mux: port.mux.to_string(),
        actor_churn: port.actor_churn.to_string(),
        partner_churn: port.partner_churn.to_string(),
        actor: end(&port.actor),
        partner: end(&port.partner),
        ..LacpPort::default()
    }
}

fn churn(state: ChurnState) -> &'static str {
    match state {
        ChurnState::Monitor => "monitoring",
        ChurnState::None => "none",
        ChurnState::Churned => "churned",
    }
}

fn details(info: &PortInfo, key: &str) -> String {
    format!(
        "    system priority: {}\n    system mac address: {}\n    {key}: {}\n    port priority: {}\n    \
         port number: {}\n    port state: {}\n",
        info.system_priority,
        address(info.system),
        info.key,
        info.port_priority,
        info.port,
        info.state.0,
    )
}

fn address(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polypath_lacp::Config;

    use super::*;

    #[test]
    fn two_actors_see_each_other_as_proc_net_bonding_would_show_it() {
        let mut ends = [1, 2].map(|n| {
            let mut actor =
                Actor::new(Config { lacp_rate: LacpRate::Fast, ..Config::new([2, 0, 0, 0, 0, n]) })
                    .unwrap();
            for port in 1..=2 {
                let number = actor.add_port([2, 0, 0, 0, port, n]).unwrap();
                actor.link_changed(Duration::ZERO, number, true, 10_000, true);
            }
            actor
        });
        for ms in (0..5000).step_by(100) {
            let now = Duration::from_millis(ms);
            for from in 0..2 {
                ends[from].handle_timeout(now);
                while let Some((port, frame)) = ends[from].poll_transmit(now) {
                    ends[1 - from].handle_frame(now, port, &frame).unwrap();
                }
            }
        }
        let names = ["eth0".to_owned(), "eth1".to_owned()];
        let text = report(&ends[0], &names);
        let begins = "Bonding Mode: IEEE 802.3ad Dynamic link aggregation\nMII Status: up\n\n802.3ad info\n\
                      LACP active: on\nLACP rate: fast\nMin links: 0\n";
        assert!(text.starts_with(begins), "{text}");
        for line in [
            "\tNumber of ports: 2",
            "\tPartner Mac Address: 02:00:00:00:00:02",
            "\tActor Key: 15",
            "Slave Interface: eth1",
            "Speed: 10000 Mbps",
            "Permanent HW addr: 02:00:00:00:02:01",
            "Actor Churn State: none",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        assert_eq!(text.matches("    port state: 63").count(), 4, "{text}");
        let ports = ends[0].status();
        let told = told(&ports[1]);
        assert!(told.distributing && told.aggregator == ends[0].active_aggregator());
        let states = [&told.selected, &told.receive, &told.mux, &told.actor_churn];
        assert_eq!(states, ["selected", "current", "collecting distributing", "none"]);
        assert_eq!((told.actor.port, told.partner.system[5], told.partner.state), (2, 2, 63));
    }
}
