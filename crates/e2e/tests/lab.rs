//! Tests of the lab itself: its wires, its events and its cleaning up.

use polypath_e2e::{Direction, End, Error, Lab, Options, Running, Wiring};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

/// A server that returns every datagram. Perl is on every Debian machine.
const SERVER: &str = r#"use IO::Socket::INET; $|=1;
my $s = IO::Socket::INET->new(LocalPort => 7777, Proto => 'udp') or die;
print "ready\n"; while ($s->recv(my $d, 16)) { print "got $d\n"; $s->send($d) }"#;

const CLIENT: &str = r#"use IO::Socket::INET; $|=1;
my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 7777, Proto => 'udp') or die;
my $w = $ARGV[1]; my $r = ''; my $d; vec($r, fileno($s), 1) = 1;
for my $i (1..$w) {
    $s->send("ping");
    my $came = select(my $x = $r, undef, undef, 0.05) && defined $s->recv($d, 16);
    if ($came && $d eq "ping") { print "passed\n"; exit 0 }
}
print "silence\n"; exit 1"#;

fn server(lab: &Lab) -> Result<Running, Error> {
    let server = lab.host(0).program(["perl", "-e", SERVER]).spawn()?;
    server.wait_line("ready", LIMIT)?;
    Ok(server)
}

/// Waits until datagrams pass again. After a silence the kernel looks for its neighbour once a second.
fn wait_passes(lab: &Lab, link: usize) -> Result<(), Error> {
    polypath_e2e::until("packets to pass", LIMIT, || Ok(passes(lab, link)?.then_some(())))
}

/// Whether a datagram and its answer pass from host 1 to host 0 over `link`.
fn passes(lab: &Lab, link: usize) -> Result<bool, Error> {
    let tries = "6";
    let address = lab.host(0).ipv4(link);
    let client = lab.host(1).program(["perl", "-e", CLIENT, &address, tries]).run(LIMIT)?;
    Ok(client.status.success())
}

/// Starts a program that shows every link event of a host, from the time when all links are up: the kernel
/// may tell up to a second late that a link has come up.
fn monitor(lab: &Lab, host: usize) -> Result<Running, Error> {
    polypath_e2e::until("the links to be up", LIMIT, || {
        let links = lab.host(host).program(["ip", "-o", "link", "show", "up"]).run(LIMIT)?.text();
        let mut wires = links.lines().filter(|line| line.contains(": eth")).peekable();
        Ok((wires.peek().is_some() && wires.all(|line| line.contains("state UP"))).then_some(()))
    })?;
    let monitor = lab.host(host).program(["ip", "monitor", "link"]).spawn()?;
    // The monitor does not say when it is ready, so the test makes events until one is seen.
    polypath_e2e::until("the monitor to hear", LIMIT, || {
        lab.host(host).tool("ip", &["link", "set", "lo", "alias", "x"], "")?;
        lab.host(host).tool("ip", &["link", "set", "lo", "alias", ""], "")?;
        Ok(monitor.text().contains("lo:").then_some(()))
    })?;
    Ok(monitor)
}

#[test]
fn both_links_carry_packets() -> Result<(), Error> {
    let lab = Lab::new()?;
    let _server = server(&lab)?;
    assert!(passes(&lab, 0)? && passes(&lab, 1)?);
    Ok(())
}

#[test]
fn a_silent_cut_stops_packets_without_an_event_and_heals() -> Result<(), Error> {
    let lab = Lab::new()?;
    let _server = server(&lab)?;
    let monitors = [monitor(&lab, 0)?, monitor(&lab, 1)?];
    lab.cut(0, Direction::Both)?;
    assert!(!passes(&lab, 0)?, "the cut link");
    assert!(passes(&lab, 1)?, "the other link");
    lab.heal(0)?;
    wait_passes(&lab, 0)?;
    for monitor in monitors {
        assert!(!monitor.text().contains("eth0"), "an event was seen: {}", monitor.text());
    }
    Ok(())
}

#[test]
fn a_cut_in_one_direction_lets_the_other_pass() -> Result<(), Error> {
    let lab = Lab::new()?;
    let server = server(&lab)?;
    assert!(passes(&lab, 0)?, "addresses are resolved while both directions work");
    let before = server.text().lines().count();
    lab.cut(0, Direction::From(0))?;
    assert!(!passes(&lab, 0)?, "the answer must not come");
    assert!(server.text().lines().count() > before, "the question must arrive");
    Ok(())
}

#[test]
fn a_pulled_cable_is_seen_at_its_end_only() -> Result<(), Error> {
    let lab = Lab::new()?;
    let monitors = [monitor(&lab, 0)?, monitor(&lab, 1)?];
    lab.link_down(0, End::Of(1))?;
    monitors[1].wait_line("NO-CARRIER", LIMIT)?;
    assert!(!monitors[0].text().contains("eth0"));
    lab.heal(0)?;
    monitors[1].wait_line("LOWER_UP", LIMIT)?;
    Ok(())
}

#[test]
fn addresses_go_and_come_back() -> Result<(), Error> {
    let lab = Lab::new()?;
    let _server = server(&lab)?;
    lab.host(0).remove_addresses(1)?;
    assert!(!passes(&lab, 1)?);
    lab.host(0).add_addresses(1)?;
    wait_passes(&lab, 1)
}

#[test]
fn labs_side_by_side_do_not_meet() -> Result<(), Error> {
    let (one, two) = (Lab::new()?, Lab::new()?);
    let _server = server(&one)?;
    assert!(passes(&one, 0)?);
    assert!(!passes(&two, 0)?);
    Ok(())
}

#[test]
fn a_direct_wire_carries_packets_and_shows_link_down_at_both_ends() -> Result<(), Error> {
    let lab = Lab::with(Options { wiring: Wiring::Direct, links: 1, ..Options::default() })?;
    let _server = server(&lab)?;
    assert!(passes(&lab, 0)?);
    let monitor = monitor(&lab, 1)?;
    lab.link_down(0, End::Of(0))?;
    monitor.wait_line("NO-CARRIER", LIMIT)?;
    Ok(())
}

#[test]
fn dropping_a_lab_ends_what_runs_in_it() -> Result<(), Error> {
    let lab = Lab::new()?;
    let daemon = "setsid sh -c 'echo $$; exec sleep 1000' &";
    let shell = lab.host(0).program(["sh", "-c", daemon]).spawn()?;
    let line = shell.wait_line("", LIMIT)?;
    let process = format!("/proc/{}", line.text.trim());
    assert!(std::path::Path::new(&process).exists());
    drop(lab);
    polypath_e2e::until("the daemon to be gone", LIMIT, || {
        Ok((!std::path::Path::new(&process).exists()).then_some(()))
    })
}

/// A process that opens the tap is one more host of the link, and gets what the switch floods.
#[test]
fn a_tap_is_a_port_of_the_switch() -> Result<(), Error> {
    // Opens the tap (TUNSETIFF, IFF_TAP | IFF_NO_PI) and waits for a frame.
    const READER: &str = r#"use Fcntl; $|=1; sysopen(my $t, "/dev/net/tun", O_RDWR) or die $!;
ioctl($t, 0x400454ca, my $r = pack("a16 S x22", "guest", 0x1002)) or die $!;
print "open\n"; sysread($t, my $f, 9000) or die $!; print "frame\n";"#;
    let lab = Lab::with(Options { links: 1, ..Options::default() })?;
    lab.add_tap(0, "guest")?;
    let reader = lab.in_switch(["perl", "-e", READER]).spawn()?;
    reader.wait_line("open", LIMIT)?;
    // No host has the address, so the ARP request for it goes to all ports.
    let absent = "10.0.0.3";
    let asker = lab.host(0).program(["perl", "-e", CLIENT, absent, "1000"]).spawn()?;
    reader.wait_line("frame", LIMIT)?;
    drop(asker);
    Ok(())
}
