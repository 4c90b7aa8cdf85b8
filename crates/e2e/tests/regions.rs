//! Kinds of memory regions that no packaged program uses. `c/regions.c` says what must hold.

use polypath_e2e::{Error, Lab, compile_c};
use std::time::Duration;

fn regions_on(device: &str) -> Result<(), Error> {
    let program = compile_c("regions.c")?;
    let _share = polypath_e2e::share(polypath_e2e::PATIENT);
    let lab = Lab::new()?;
    let run = lab.host(0).verbs([&program]).device(Some(device)).run(Duration::from_secs(30))?;
    run.expect_success()?.expect_line("regions: ok").map(drop)
}

#[test]
fn every_kind_of_region_keeps_its_promise_on_roce() -> Result<(), Error> {
    regions_on("roce")
}

#[test]
fn every_kind_of_region_keeps_its_promise_on_mp() -> Result<(), Error> {
    regions_on("mp")
}
