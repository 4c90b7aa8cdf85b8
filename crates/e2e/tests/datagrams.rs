//! Programs with UD queue pairs alone, on `mp` devices: a path dies under them.

use std::time::Duration;

use polypath_e2e::{Direction, End, Error, Lab, PATIENT, share, until};

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
