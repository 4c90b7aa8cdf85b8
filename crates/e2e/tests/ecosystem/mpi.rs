//! MPI over UCX: one process on each of two hosts. Each implementation's own `mpirun` starts them, and
//! reaches the other host through a script instead of ssh.

use super::LIMIT;
use polypath_e2e::{
    Direction, Error, Lab, PATIENT, Running, Scratch, compile_c_with, pass, share, until,
};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Mpi {
    Open,
    Mpich,
}

/// Writes the program that takes the place of ssh. Its arguments are a host, which is always the other
/// one, and a command.
fn agent(lab: &Lab, scratch: &Scratch) -> Result<PathBuf, Error> {
    // The script gives the host another name.
    let script = format!(
        "#!/bin/sh\nshift\nexport TMPDIR=\"$(dirname \"$0\")\"\nexec nsenter --net={} unshare --uts \
         sh -c 'hostname other; exec sh -c \"$0\"' \"$*\"\n",
        lab.host(1).namespace_path()
    );
    let path = scratch.write("agent", script.as_bytes())?;
    lab.host(0).tool("chmod", &["755", &path.to_string_lossy()], "")?;
    Ok(path)
}

fn start(
    lab: &Lab,
    scratch: &Scratch,
    mpi: Mpi,
    device: Option<&str>,
    seconds: &str,
) -> Result<Running, Error> {
    let compiler = match mpi {
        Mpi::Open => "mpicc.openmpi",
        Mpi::Mpich => "mpicc.mpich",
    };
    let program = compile_c_with(compiler, "mpi.c")?;
    let agent = agent(lab, scratch)?.to_string_lossy().into_owned();
    let addresses = [lab.host(0).ipv4(1), lab.host(1).ipv4(1)];
    let words = match mpi {
        Mpi::Open => format!(
            // Open MPI 5 does not recognise this host by its address.
            "mpirun.openmpi --bind-to none --mca pml ucx --mca osc ucx --mca btl ^openib,ofi \
             -x UCX_TLS --host localhost:1,{}:1 -np 2 {program} {seconds}",
            addresses[1]
        ),
        Mpi::Mpich => format!(
            "mpiexec.hydra -iface eth1 -launcher rsh -launcher-exec {agent} -hosts {},{} -ppn 1 \
             -n 2 {program} {seconds}",
            addresses[0], addresses[1]
        ),
    };
    // Without TCP and shared memory, only our devices are left.
    let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
    let command = lab.host(0).verbs(words).device(device).env("UCX_TLS", "rc_v,ud_v,self");
    // Open MPI 4, and the launcher of Open MPI 5's processes, call the agent in this way.
    let command =
        command.env("OMPI_MCA_plm_rsh_agent", &agent).env("PRTE_MCA_plm_ssh_agent", &agent);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").spawn()
}

fn all_is_right(mpi: Mpi, device: Option<&str>) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let scratch = Scratch::new(&format!("{mpi:?}-{}", device.unwrap_or("mp")))?;
    let run = start(&lab, &scratch, mpi, device, "1")?.finish(LIMIT)?;
    run.expect_success()?.expect_line("rounds are right")?;
    Ok(())
}

fn a_silent_cut_is_not_noticed(mpi: Mpi) -> Result<(), Error> {
    const AWAY: Duration = Duration::from_secs(2);
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let scratch = Scratch::new(&format!("{mpi:?}-cut"))?;
    let run = start(&lab, &scratch, mpi, None, "10")?;
    run.wait_line("the first round is right", LIMIT)?;
    // UCX chooses an address of the device by itself, so the link that carries the most is cut.
    let before = lab.received_bytes()?;
    let carrier = until("traffic", LIMIT, || {
        let now = lab.received_bytes()?;
        let moved = |link: usize| now[0][link] - before[0][link];
        Ok((moved(0) + moved(1) > 5_000_000).then(|| usize::from(moved(1) > moved(0))))
    })?;
    lab.cut(carrier, Direction::Both)?;
    // All paths carry data, so the one that is lost need not be the main one, whose loss is a fail-over.
    until("a path to be given up", LIMIT, || {
        let paths = lab.host(0).paths()?;
        Ok(paths.iter().any(|path| path["state"] == "dead").then_some(()))
    })?;
    pass(AWAY);
    lab.heal(carrier)?;
    run.finish(2 * LIMIT)?.expect_success()?.expect_line("rounds are right")?;
    Ok(())
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn open_mpi_on_roce() -> Result<(), Error> {
    all_is_right(Mpi::Open, Some("roce"))
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn open_mpi_on_mp() -> Result<(), Error> {
    all_is_right(Mpi::Open, None)
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn mpich_on_roce() -> Result<(), Error> {
    all_is_right(Mpi::Mpich, Some("roce"))
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn mpich_on_mp() -> Result<(), Error> {
    all_is_right(Mpi::Mpich, None)
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_silent_cut_under_open_mpi() -> Result<(), Error> {
    a_silent_cut_is_not_noticed(Mpi::Open)
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_silent_cut_under_mpich() -> Result<(), Error> {
    a_silent_cut_is_not_noticed(Mpi::Mpich)
}
