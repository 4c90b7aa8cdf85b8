//! The page with tables and plots.

use crate::carrier::Carrier;
use crate::figures::{Figures, STEP};
use crate::run::Seen;
use crate::scene::Scene;
use polypath_e2e::{Curve, Error, pictures_of, steps, svg, write_page};
use std::path::Path;
use std::time::Instant;

/// What precedes the scenes.
const HEAD: &str = include_str!("head.md");

/// What was measured of a scene, or why it was not.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) scene: Scene,
    pub(crate) rows: Vec<(Carrier, Result<Seen, String>)>,
}

impl Section {
    /// The lines of its table.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |(carrier, seen): &(Carrier, Result<Seen, String>)| {
            let cells = match seen {
                Ok(seen) => cells(&Figures::of(self.scene, seen)),
                Err(reason) => format!("not measured: {} | | | | |", reason.replace('\n', " ")),
            };
            format!("| {} | {cells} |", carrier.name())
        };
        self.rows.iter().map(line).collect()
    }

    fn text(&self) -> String {
        let rates: Vec<String> = self.scene.rates().iter().map(u64::to_string).collect();
        let mut text =
            format!("\n## {}\n\nMbit/s: {}.\n\n", self.scene.title(), rates.join(" and "));
        text += "| | before | shares of links, % | longest gap | link away | back after | last second |\n\
                 |---|--:|--:|--:|--:|--:|--:|\n";
        for line in self.lines() {
            text += &line;
            text.push('\n');
        }
        let (title, name) = (self.scene.title(), self.scene.name());
        text + &format!("\n![{title}](recovery/{name}.svg)\n")
    }

    /// Its plot. The sum of the links' rates is drawn as 1.
    fn plot(&self) -> String {
        let rates = self.scene.rates();
        let whole = rates.iter().sum::<u64>() as f64 * 1e6 / 8.0 * STEP.as_secs_f64();
        let curve = |carrier: Carrier, seen: &Seen| {
            let of = |link: usize| steps(&seen.samples, seen.begun, STEP, |s| s.by_link[link]);
            let step = |at: Instant| (at - seen.begun).as_secs_f64() / STEP.as_secs_f64();
            Curve {
                name: carrier.name().to_owned(),
                values: steps(&seen.samples, seen.begun, STEP, |sample| sample.bytes),
                parts: (0..rates.len()).map(|link| (format!("link {link}"), of(link))).collect(),
                whole: Some(whole as u64),
                events: vec![
                    (step(seen.failed), format!("{} {}", seen.victim, self.scene.failure())),
                    (step(seen.mended), "mended".to_owned()),
                ],
            }
        };
        let measured =
            self.rows.iter().filter_map(|(carrier, seen)| Some((carrier, seen.as_ref().ok()?)));
        let curves: Vec<Curve> = measured.map(|(carrier, seen)| curve(*carrier, seen)).collect();
        svg(self.scene.title(), STEP.as_secs_f64(), &curves)
    }
}

fn cells(figures: &Figures) -> String {
    let shares: Vec<String> =
        figures.shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
    let ms = |time: Option<std::time::Duration>, none: &str| {
        time.map_or_else(|| none.to_owned(), |time| format!("{:.0} ms", time.as_secs_f64() * 1e3))
    };
    format!(
        "{:.2} | {} | {} | {:.2} | {} | {:.2}",
        figures.before,
        shares.join(" : "),
        ms(figures.gap, "all of it"),
        figures.away,
        ms(figures.back, "not in 4 s"),
        figures.last
    )
}

/// Writes the page, and the plots into a directory beside it.
pub(crate) fn write(out: &Path, sections: &[Section]) -> Result<(), Error> {
    let pictures = pictures_of(out)?;
    let mut text = HEAD.to_owned();
    for section in sections {
        write_page(&pictures.join(format!("{}.svg", section.scene.name())), &section.plot())?;
        text += &section.text();
    }
    write_page(out, &text)
}
