//! Automatic path migration on multi-path devices: a view of the path set, which moves the traffic.

use std::path::Path;
use std::time::Duration;

use polypath_e2e::{End, Error, Lab, PATIENT, Running, compile_c, share, until};

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until both programs have printed a line that begins like this, the `nth` such line of each.
fn expect(programs: &[Running; 2], begins: [&str; 2], nth: usize) -> Result<(), Error> {
    let wanted = format!("line {nth} that begins with {begins:?}");
    until(&wanted, LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        let seen = |host: usize| {
            let lines = programs[host].lines_from(0).into_iter();
            lines.filter(|line| line.text.starts_with(begins[host])).nth(nth).is_some()
        };
        Ok((0..2).all(seen).then_some(()))
    })
    .map_err(|error| {
        Error::Missing(format!("{error}: {}\n{}", programs[0].text(), programs[1].text()))
    })
}

/// A program of its own loads an alternate path, is told of each migration, sees it in its queue pair's
/// attributes, asks again, and migrates by itself.
#[test]
fn a_program_follows_its_path_set_and_moves_its_queue_pair() -> Result<(), Error> {
    let _share = share(PATIENT);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/view.c");
    let program = compile_c(&source)?.to_string_lossy().into_owned();
    for policy in ["balance", "active-backup"] {
        let lab = Lab::new()?;
        let device = format!("mp:policy={policy}");
        let address = |host: usize, link: usize| lab.host(host).ipv4(link);
        let run = |host: usize, role: &str| {
            let meet = address(0, 0);
            let words = [&program, role, &meet, &address(host, 1), &address(1 - host, 1)];
            lab.host(host).verbs(words).device(Some(&device)).spawn()
        };
        let server = run(0, "-s")?;
        lab.host(0).wait_cm_listen(&server, 7473, LIMIT)?;
        let programs = [server, run(1, "-c")?];
        // A path as both ends print it.
        let path = |host: usize, link: usize| {
            format!("{}>{}", address(host, link), address(1 - host, link))
        };
        let lines = |what: &str, primary: usize, alternate: usize, state: &str| {
            [0, 1].map(|host| {
                let (primary, alternate) = (path(host, primary), path(host, alternate));
                format!("view: {what}: primary {primary} alternate {alternate} state {state}")
            })
        };
        let expect = |lines: &[String; 2], nth| {
            expect(&programs, [lines[0].as_str(), lines[1].as_str()], nth)
        };
        expect(&lines("armed", 0, 1, "ARMED"), 0)?;
        lab.link_down(0, End::Both)?;
        // There is no other path, so the alternate one is what the program loaded.
        expect(&lines("migrated", 1, 1, "MIGRATED"), 0)?;
        expect(&lines("asked", 1, 1, "REARM"), 0)?;
        lab.link_up(0)?;
        expect(&lines("armed", 1, 0, "ARMED"), 0)?;
        let [server, client] = programs;
        let client = client.finish(LIMIT)?.expect_success()?.text();
        let asked = &lines("migrated", 0, 1, "MIGRATED")[1];
        assert!(client.contains(asked), "{policy}: {asked} in {client}");
        server.finish(LIMIT)?;
    }
    Ok(())
}
