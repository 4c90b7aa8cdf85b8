//! Throughput over time while links fail and are mended, by Polypath, TCP and MPTCP: how fast each recovers,
//! and what each link carries.
//!
//! Hosts are network namespaces with links of limited rates; the traffic is that of unmodified programs. The
//! page has a table and a plot for each scene.

mod carrier;
mod figures;
mod page;
mod run;
mod scene;

use carrier::Carrier;
use page::Section;
use polypath_e2e::{Error, say};
use scene::Scene;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: polypath-recovery --out PAGE [--only SCENE]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut out, mut scenes) = (None, Scene::ALL.to_vec());
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        match (argument.as_str(), value) {
            ("--out", Some(path)) => out = Some(PathBuf::from(path)),
            ("--only", Some(name)) if scenes.iter().any(|scene| scene.name() == name) => {
                scenes.retain(|scene| scene.name() == name);
            }
            _ => {
                let names = Scene::ALL.map(Scene::name).join(", ");
                eprintln!("{argument}: not known, or without its value\n{USAGE}\nscenes: {names}");
                return ExitCode::from(2);
            }
        }
    }
    let Some(out) = out else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match all(&out, &scenes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all(out: &Path, scenes: &[Scene]) -> Result<(), Error> {
    let mut sections = Vec::new();
    for &scene in scenes {
        let mut section = Section { scene, rows: Vec::new() };
        for carrier in Carrier::ALL.into_iter().filter(|carrier| carrier.plays(scene)) {
            let measured = match carrier.missing() {
                Some(reason) => Err(reason),
                None => run::run(scene, carrier).map_err(|error| error.to_string()),
            };
            section.rows.push((carrier, measured));
            say!("{}: {}", scene.name(), section.lines().last().cloned().unwrap_or_default());
        }
        sections.push(section);
    }
    page::write(out, &sections)
}
