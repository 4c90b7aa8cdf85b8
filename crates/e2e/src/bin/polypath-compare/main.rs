//! Automatic path migration, bonding and multi-path side by side, each cell of the table a run.
//!
//! Hosts are network namespaces; the traffic is that of unmodified programs. The page has the result, with
//! what `polypath-bonds` measured over bonds of the Linux kernel, if it did.

mod cells;
mod page;
mod systems;

use page::Row;
use polypath_e2e::{Error, pictures_of, svg, write_page};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use systems::System;

const USAGE: &str = "usage: polypath-compare --out PAGE [--bonds DIRECTORY]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut out, mut bonds) = (None, None);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--out", Some(path)) => out = Some(PathBuf::from(path)),
            ("--bonds", Some(path)) => bonds = Some(PathBuf::from(path)),
            _ => {
                eprintln!("{argument}: not known, or without its value\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let Some(out) = out else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&out, bonds.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            polypath_e2e::say!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &Path, bonds: Option<&Path>) -> Result<(), Error> {
    let mut rows = Vec::new();
    let mut curves = Vec::new();
    for system in System::ALL {
        let row = Row::measure(system)?;
        polypath_e2e::say!("{}", row.line());
        rows.push(row);
        curves.push(cells::curve(system)?);
    }
    let pictures = pictures_of(out)?;
    let plot = svg("received bytes while a link is silent", cells::step_seconds(), &curves);
    write_page(&pictures.join("silence.svg"), &plot)?;
    let text = page::page(&rows, bonds, &pictures)?;
    write_page(out, &text)
}
