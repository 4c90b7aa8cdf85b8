//! Measures throughput against one TCP stream, and latency against raw UDP, on one veth pair with MTU
//! 9000.

use crate::report::{Floor, Measurement, Report, median};
use crate::udp::Style;
use polypath_e2e::{Error, Finished, Lab, Options, Program, Wiring, twice};
use std::time::Duration;

/// The number of turns of each side in a throughput measurement.
const TURNS: usize = 5;
/// The length of one turn of a throughput measurement, in seconds.
const TURN_S: &str = "4";
/// The number of turns of a latency measurement, which is noisier and faster.
const LATENCY_TURNS: usize = 11;
const STYLES: [Style; 2] = [Style::Unconnected, Style::Connected];
const LIMIT: Duration = Duration::from_secs(60);

/// Measures throughput and latency.
pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    for (device, links) in [("roce", 1), ("mp", 2)] {
        let lab = Lab::with(Options { links, wiring: Wiring::Direct, ..Options::default() })?;
        let (mut ours, mut tcp) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            ours.push(perftest(
                &lab,
                device,
                &["ib_write_bw", "-s", "1048576", "-D", TURN_S, "-f", "1", "--report_gbits"],
                3,
            )?);
            tcp.push(twice(|| iperf(&lab))?);
        }
        report.add(Measurement {
            name: format!("{device}: RC write 1 MiB, Gbit/s"),
            ours: median(&ours),
            ours_all: ours,
            other: Some(("TCP".to_owned(), median(&tcp))),
            other_all: tcp,
            floor: if device == "roce" { Floor::AtLeast(1.0) } else { Floor::None },
            bound: if device == "roce" { Floor::AtLeast(0.5) } else { Floor::None },
        });
        let (mut ours, mut udp) = (Vec::new(), [Vec::new(), Vec::new()]);
        for _ in 0..LATENCY_TURNS {
            // Column 4 of perftest's latency table is t_typical, the median.
            ours.push(perftest(&lab, device, &["ib_send_lat", "-s", "64", "-n", "20000"], 4)?);
            for (style, all) in STYLES.into_iter().zip(&mut udp) {
                all.push(twice(|| udp_ping_pong(&lab, style))?);
            }
        }
        for (style, udp) in STYLES.into_iter().zip(udp) {
            let floor = match (device, style) {
                ("roce", Style::Unconnected) => Floor::AtMost(1.5),
                _ => Floor::None,
            };
            report.add(Measurement {
                name: format!("{device}: RC send 64 B, half round trip, µs"),
                ours: median(&ours),
                ours_all: ours.clone(),
                other: Some((format!("UDP, {}", style.word()), median(&udp))),
                other_all: udp,
                floor,
                bound: Floor::None,
            });
        }
    }
    measure_tcp_path(report)
}

/// Measures a path over TCP, where UDP is blocked.
fn measure_tcp_path(report: &mut Report) -> Result<(), Error> {
    let lab = Lab::with(Options { links: 1, wiring: Wiring::Direct, ..Options::default() })?;
    for host in 0..2 {
        let of = "src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport 4791";
        let words = format!("xfrm policy add {of} dir in action block");
        let words: Vec<&str> = words.split(' ').collect();
        lab.host(host).tool("ip", &words, "")?;
    }
    let (mut ours, mut tcp) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let words = ["ib_write_bw", "-s", "1048576", "-D", TURN_S, "-f", "1", "--report_gbits"];
        ours.push(twice(|| result(&run_pair_with(&lab, "mp", Some("tcp=on"), &words)?, 3))?);
        tcp.push(twice(|| iperf(&lab))?);
    }
    report.add(Measurement {
        name: "mp over TCP, UDP blocked: RC write 1 MiB, Gbit/s".to_owned(),
        ours: median(&ours),
        ours_all: ours,
        other: Some(("TCP".to_owned(), median(&tcp))),
        other_all: tcp,
        floor: Floor::None,
        bound: Floor::None,
    });
    Ok(())
}

/// Runs a perftest program between the hosts, and returns the client's output.
pub(crate) fn run_pair(lab: &Lab, device: &str, words: &[&str]) -> Result<Finished, Error> {
    run_pair_with(lab, device, None, words)
}

/// The same with settings of mp.
fn run_pair_with(
    lab: &Lab,
    device: &str,
    settings: Option<&str>,
    words: &[&str],
) -> Result<Finished, Error> {
    let with = |program: Program| match settings {
        Some(settings) => program.env("POLYPATH_MP", settings),
        None => program,
    };
    let server = with(lab.host(0).verbs(words).device(Some(device))).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = words.iter().copied().chain([meet.as_str()]);
    let client = with(lab.host(1).verbs(client).device(Some(device)));
    let client = client.run(LIMIT).and_then(Finished::expect_success);
    let client = client.map_err(|error| error.with_server(&server.doing()))?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(client)
}

/// Runs a perftest program between the hosts, and returns a column of its table.
fn perftest(lab: &Lab, device: &str, words: &[&str], column: usize) -> Result<f64, Error> {
    twice(|| result(&run_pair(lab, device, words)?, column))
}

/// A column of the table of a perftest client.
fn result(client: &Finished, column: usize) -> Result<f64, Error> {
    let rows = client.lines.iter().skip_while(|line| !line.text.contains("#iterations")).skip(1);
    let mut cells = rows.filter_map(|row| row.text.split_whitespace().nth(column)?.parse().ok());
    cells.next().ok_or_else(|| no_result(client))
}

/// Measures one TCP stream: Gbit/s as received.
fn iperf(lab: &Lab) -> Result<f64, Error> {
    let server = lab.host(0).program(["iperf3", "-s", "-1"]).spawn()?;
    server.wait_tcp_listen(5201, LIMIT)?;
    let client = ["iperf3", "-J", "-c", &lab.host(0).ipv4(0), "-t", TURN_S];
    let client = lab.host(1).program(client).run(LIMIT)?.expect_success()?;
    let value: serde_json::Value =
        serde_json::from_str(&client.text()).map_err(|_| no_result(&client))?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 1e9).ok_or_else(|| no_result(&client))
}

/// Measures half a round trip of 64 bytes over polled UDP sockets, in microseconds.
fn udp_ping_pong(lab: &Lab, style: Style) -> Result<f64, Error> {
    let own = std::env::current_exe()
        .map_err(|source| Error::Os { what: "finding myself".to_owned(), source })?;
    let own = own.to_string_lossy();
    let server = lab.host(0).program([&*own, "udp-server", style.word(), "7777"]).spawn()?;
    server.wait_line("ready", LIMIT)?;
    let client = [&*own, "udp-client", style.word(), &lab.host(0).ipv4(0), "7777"];
    let client = lab.host(1).program(client).run(LIMIT)?.expect_success()?;
    client.text().trim().parse().map_err(|_| no_result(&client))
}

fn no_result(finished: &Finished) -> Error {
    Error::Missing(format!("no result in\n{}", finished.text()))
}
