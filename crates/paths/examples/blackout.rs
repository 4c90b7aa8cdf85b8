//! Distribution of the blackout at cuts, in virtual time: `cargo run -p polypath-paths --example
//! blackout [cuts]`. A sketch of what the network allows; the benchmark on real links decides.

#[path = "../tests/scenarios/net/mod.rs"]
mod net;

use std::time::Duration;

use net::{MS, Net};

fn main() {
    let cuts: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200);
    println!("{cuts} cuts each; time without acknowledgement at the sender, ms");
    println!("{:30} {:>7} {:>7} {:>7} {:>7}", "", "min", "median", "99 %", "max");
    type Cut = fn(&mut Net);
    let kinds: [(&str, Cut); 4] = [
        ("silent, both directions", |n| n.cut(0, true)),
        ("silent, towards the peer", |n| n.links[0].cut[0] = true),
        ("silent, from the peer", |n| n.links[0].cut[1] = true),
        ("link down", |n| n.link_up(0, false)),
    ];
    for (name, cut) in kinds {
        for busy in [false, true] {
            let mut gaps: Vec<Duration> = (0..cuts).map(|seed| one(seed, cut, busy)).collect();
            gaps.sort_unstable();
            let at =
                |part: f64| gaps[((gaps.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
            let name = if busy { format!("{name}, busy CPUs") } else { name.into() };
            let (a, b, c, d) = (at(0.0), at(0.5), at(0.99), at(1.0));
            println!("{name:30} {a:7.2} {b:7.2} {c:7.2} {d:7.2}");
        }
    }
}

/// `busy`: both processes are kept from running for up to 10 ms, again and again.
fn one(seed: u64, cut: fn(&mut Net), busy: bool) -> Duration {
    let mut net = Net::new(seed, 2);
    net.connect();
    net.run(50 * MS);
    net.start_traffic();
    let lead = net.rng.time(20 * MS);
    net.run(100 * MS + lead);
    net.reset_gaps();
    cut(&mut net);
    for _ in 0..40 {
        if busy {
            let (host, time) = (net.rng.below(2) as usize, net.rng.time(10 * MS));
            net.pause(host, time);
        }
        let time = net.rng.time(10 * MS);
        net.run(time);
    }
    net.hosts[0].worst_gap
}
