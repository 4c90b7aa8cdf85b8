//! Automatic path migration on multi-path devices: a view of the path set, which moves the traffic.

use std::time::Duration;

use polypath_e2e::{End, Error, Lab, PATIENT, Running, compile_c, share, until};

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until both programs have printed their line.
fn expect(programs: &[Running; 2], wanted: &[String; 2]) -> Result<(), Error> {
    until(&format!("{wanted:?}"), LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        let seen = |host: usize| {
            let mut lines = programs[host].lines_from(0).into_iter();
            lines.any(|line| line.text == wanted[host])
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
    let program = compile_c("view.c")?;
    for policy in ["balance", "active-backup"] {
        let lab = Lab::new()?;
        let settings = format!("policy={policy}");
        let address = |host: usize, link: usize| lab.host(host).ipv4(link);
        let run = |host: usize, role: &str| {
            let meet = address(0, 0);
            let words = [&program, role, &meet, &address(host, 1), &address(1 - host, 1)];
            let program = lab.host(host).verbs(words).device(Some("mp"));
            program.env("POLYPATH_MP", &settings).spawn()
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
        expect(&programs, &lines("armed", 0, 1, "ARMED"))?;
        lab.link_down(0, End::Both)?;
        // There is no other path, so the alternate one is what the program loaded.
        expect(&programs, &lines("migrated", 1, 1, "MIGRATED"))?;
        expect(&programs, &lines("asked", 1, 1, "REARM"))?;
        lab.link_up(0)?;
        let [server, client] = programs;
        let client = client.finish(LIMIT)?.expect_success()?.text();
        let server = server.finish(LIMIT)?.expect_success()?.text();
        // The client asked for the second migration, and the server stayed where it was.
        for (text, last) in [
            (&server, &lines("done", 1, 0, "ARMED")[0]),
            (&client, &lines("armed", 1, 0, "ARMED")[1]),
            (&client, &lines("done", 0, 1, "MIGRATED")[1]),
        ] {
            assert!(text.contains(last), "{policy}: {last} in {text}");
        }
        assert_eq!(client.matches("view: migrated").count(), 2, "{client}");
        assert_eq!(server.matches("view: migrated").count(), 1, "{server}");
    }
    Ok(())
}
