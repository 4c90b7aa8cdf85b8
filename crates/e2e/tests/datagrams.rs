//! Programs with UD queue pairs alone, on `mp` devices: a path dies under them.

use std::time::Duration;

use polypath_e2e::{Direction, End, Error, Lab, PATIENT, Running, compile_c, share, until};

const LIMIT: Duration = Duration::from_secs(60);
const MP: Option<&str> = Some("mp");
/// What says that a link carries the program's data, and not probes alone.
const DATA: u64 = 16 << 20;

/// `ib_send_bw -c UD` goes on by the other link, and ends well. The link is mended in between, because the
/// two ends also talk by TCP over it.
fn survives(
    break_link: impl Fn(&Lab) -> Result<(), Error>,
    mend: impl Fn(&Lab) -> Result<(), Error>,
) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let common = ["ib_send_bw", "-c", "UD", "-F", "-D", "15"];
    let server = lab.host(0).verbs(common).device(MP).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let to = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(common.into_iter().chain([&to[..]])).device(MP).spawn()?;
    let both = |what: &str, done: &dyn Fn() -> Result<bool, Error>| {
        until(what, LIMIT, || {
            server.expect_alive()?;
            client.expect_alive()?;
            Ok(done()?.then_some(()))
        })
    };
    let carried = |link: usize| Ok::<u64, Error>(lab.received_bytes_of(0)?[link]);
    both("two paths", &|| Ok(lab.host(1).live_paths() == 2))?;
    let before = carried(0)?;
    both("data by the first link", &|| Ok(carried(0)? > before + DATA))?;
    break_link(&lab)?;
    let before = carried(1)?;
    both("data by the second link", &|| Ok(carried(1)? > before + DATA))?;
    mend(&lab)?;
    client.finish(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(())
}

#[test]
fn datagrams_leave_a_link_that_is_down() -> Result<(), Error> {
    survives(|lab| lab.link_down(0, End::Of(1)), |lab| lab.link_up(0))
}

#[test]
fn datagrams_leave_a_link_that_is_silent() -> Result<(), Error> {
    survives(|lab| lab.cut(0, Direction::Both), |lab| lab.heal(0))
}

/// `ibv_ud_pingpong` stands still for ever after a datagram that is lost, and ends too early after one that
/// comes twice. Its address handles are of the link that dies.
#[test]
fn datagrams_by_two_paths_come_once_and_are_not_lost_with_a_path() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let common = ["ibv_ud_pingpong", "-d", "mp0", "-g", "1", "-n", "100000"];
    let run = |host: usize, server: &[&str]| {
        let words = common.iter().chain(server);
        lab.host(host).verbs(words).env("POLYPATH_MP", "policy=redundant").spawn()
    };
    let server = run(0, &[])?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let client = run(1, &[&lab.host(0).ipv4(1)])?;
    until("datagrams by two paths", LIMIT, || {
        client.expect_alive()?;
        let status = lab.host(1).status()?;
        let copies = status.pointer("/processes/0/drops/datagram_copies");
        Ok((copies.and_then(serde_json::Value::as_u64) > Some(1000)).then_some(()))
    })?;
    lab.cut(0, Direction::Both)?;
    client.finish(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(())
}

/// A member of a group and a sender to it.
fn group(lab: &Lab) -> Result<[Running; 2], Error> {
    let program = compile_c("groups.c")?;
    let run = |host, what| lab.host(host).verbs([&*program, what]).device(MP).spawn();
    Ok([run(0, "hear")?, run(1, "send")?])
}

/// Members of a group have heard a few hundred messages more.
fn heard_more(member: &Running) -> Result<(), Error> {
    let before = member.lines_from(0).len();
    until("messages to the group", LIMIT, || {
        member.expect_alive()?;
        Ok((member.lines_from(before).len() >= 4).then_some(()))
    })
}

/// A member hears a sender whose first link goes down. If `later`, the member has its second link only later.
fn groups_survive(later: bool) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    if later {
        lab.host(0).remove_addresses(1)?;
    }
    let [member, _sender] = group(&lab)?;
    heard_more(&member)?;
    if later {
        lab.host(0).add_addresses(1)?;
    }
    lab.link_down(0, End::Of(1))?;
    heard_more(&member)?;
    lab.link_up(0)?;
    heard_more(&member)
}

#[test]
fn datagrams_to_a_group_leave_a_link_that_is_down() -> Result<(), Error> {
    groups_survive(false)
}

#[test]
fn members_of_a_group_hear_by_links_that_come_later() -> Result<(), Error> {
    groups_survive(true)
}

/// Both links of a host lead to the same network, so whatever is sent to a group comes to it by both.
#[test]
fn members_of_a_group_with_two_links_to_one_network_hear_each_message_once() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    for command in [
        "link add j0 type veth peer name j1",
        "link set j0 mtu 9000 master sw0 up",
        "link set j1 mtu 9000 master sw1 up",
    ] {
        let command = ["ip"].into_iter().chain(command.split(' '));
        lab.in_switch(command).run(LIMIT)?.expect_success()?;
    }
    let [member, _sender] = group(&lab)?;
    heard_more(&member)?;
    let status = lab.host(0).status()?;
    let copies =
        status.pointer("/processes/0/drops/group_copies").and_then(serde_json::Value::as_u64);
    assert!(copies.is_some_and(|copies| copies >= 100), "the member got one of each: {status}");
    Ok(())
}
