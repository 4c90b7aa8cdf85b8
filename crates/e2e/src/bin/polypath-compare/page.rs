//! The page with the table and the plots.

use crate::cells::{self, Failure};
use crate::systems::System;
use polypath_e2e::Error;
use std::fs;
use std::path::Path;

/// The figures of one system.
#[derive(Debug)]
pub(crate) struct Row {
    system: System,
    link_down_ms: f64,
    silence_ms: f64,
    aggregation: f64,
    agnostic: (usize, usize),
    routed_ms: Option<f64>,
    unplugged_ms: Option<f64>,
    migration_ms: Option<f64>,
}

impl Row {
    /// Runs all that it takes.
    pub(crate) fn measure(system: System) -> Result<Self, Error> {
        Ok(Self {
            system,
            link_down_ms: cells::blackout(system, Failure::LinkDown)?,
            silence_ms: cells::blackout(system, Failure::Silence)?,
            aggregation: cells::aggregation(system)?,
            agnostic: cells::agnostic(system)?,
            routed_ms: cells::routed(system)?,
            unplugged_ms: cells::unplugged(system)?,
            migration_ms: cells::migration(system)?,
        })
    }

    /// Its line of the table.
    pub(crate) fn line(&self) -> String {
        let gap = |ms: Option<f64>| ms.map_or_else(|| "no".to_owned(), |ms| format!("{ms:.0} ms"));
        let (went_on, of) = self.agnostic;
        format!(
            "| {} | {:.1} ms | {:.1} ms | {:.2} | {went_on} of {of} | {} | {} | {} |",
            self.system.name(),
            self.link_down_ms,
            self.silence_ms,
            self.aggregation,
            gap(self.routed_ms),
            gap(self.unplugged_ms),
            gap(self.migration_ms)
        )
    }
}

/// What precedes the figures.
const HEAD: &str = include_str!("head.md");

/// What the columns mean.
const COLUMNS: &str = include_str!("columns.md");

/// The whole page. Pictures of the bonds are copied to `pictures`.
pub(crate) fn page(rows: &[Row], bonds: Option<&Path>, pictures: &Path) -> Result<String, Error> {
    let mut text = HEAD.to_owned();
    text += "| | fail-over, carrier | fail-over, silence | aggregation | agnostic | routed \
             | several devices | migration |\n|---|--:|--:|--:|--:|--:|--:|--:|\n";
    for row in rows {
        text += &row.line();
        text.push('\n');
    }
    text += COLUMNS;
    let Some(bonds) = bonds else { return Ok(text) };
    let figures = bonds.join("figures.md");
    let read = |e| Error::os(format!("reading {}", figures.display()), e);
    text += BONDS;
    text += &fs::read_to_string(&figures).map_err(read)?;
    for mode in ["active-backup", "balance-xor", "802.3ad"] {
        let name = format!("{mode}.svg");
        let copy = |e| Error::os(format!("copying {name}"), e);
        fs::copy(bonds.join(&name), pictures.join(&name)).map_err(copy)?;
        text += &format!("\n![received bytes over {mode}](compare/{name})\n");
    }
    Ok(text)
}

/// What precedes the figures of the guests.
const BONDS: &str = include_str!("bonds.md");
