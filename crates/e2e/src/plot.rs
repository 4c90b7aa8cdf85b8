//! Plots of throughput over time, as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
/// The space for axes and names: left, top, right, bottom.
const MARGINS: [f64; 4] = [48.0, 34.0, 12.0, 34.0];
/// Colours that are told apart on white and by people who do not see all of them (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
/// The colour of a curve that has parts, which have the others.
const SUM: &str = "#000000";

/// The space for the name of a part.
const LEGEND: f64 = 52.0;

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What it is of.
    pub name: String,
    /// The value of each step, of any unit.
    pub values: Vec<u64>,
    /// What these values are the sum of: each part's name and values.
    pub parts: Vec<(String, Vec<u64>)>,
    /// The value that is drawn as 1. If `None`, it is the median of the values in the steps before the first
    /// event.
    pub whole: Option<u64>,
    /// The steps at which something happened, with a word for it.
    pub events: Vec<(f64, String)>,
}

/// Draws curves below each other, with a common axis of time. `step` is the time between two values, in
/// seconds.
pub fn svg(title: &str, step: f64, curves: &[Curve]) -> String {
    let total = HEIGHT * curves.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>{}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{total}\" fill=\"white\"/>\n",
        escaped(title)
    );
    let steps = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(1).max(2);
    for (number, curve) in curves.iter().enumerate() {
        let colour = if curve.parts.is_empty() { COLOURS[number % COLOURS.len()] } else { SUM };
        draw(&mut text, curve, steps, step, HEIGHT * number as f64, colour);
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, curve: &Curve, steps: usize, step: f64, top: f64, colour: &str) {
    let [left, above, right, below] = MARGINS;
    let (width, height) = (WIDTH - left - right, HEIGHT - above - below);
    let whole = curve.whole.unwrap_or_else(|| usual(curve)).max(1);
    // One and a half of what is usual has room.
    let most = 1.5;
    let x = |at: f64| left + width * at / (steps - 1) as f64;
    let y = |value: f64| top + above + height * (1.0 - value.min(most) / most);
    let name = escaped(&curve.name);
    writeln!(text, "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{name}</text>", top + 14.0)
        .ok();
    for (value, label) in [(0.0, "0"), (0.5, "0.5"), (1.0, "1"), (1.5, "1.5")] {
        let at = y(value);
        writeln!(
            text,
            "<path d=\"M{left} {at:.1}h{width}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 6.0,
            at + 4.0
        )
        .ok();
    }
    let seconds = (steps - 1) as f64 * step;
    let mut second = 0.0;
    while second <= seconds {
        let at = x(second / step);
        let base = top + HEIGHT - below + 16.0;
        writeln!(text, "<text x=\"{at:.1}\" y=\"{base}\" text-anchor=\"middle\">{second} s</text>")
            .ok();
        second += if seconds > 12.0 { 2.0 } else { 1.0 };
    }
    for (at, word) in &curve.events {
        let at = x(*at);
        writeln!(
            text,
            "<path d=\"M{at:.1} {:.1}v{height}\" stroke=\"#888\" stroke-dasharray=\"3 3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">{}</text>",
            top + above,
            at + 3.0,
            top + above - 4.0,
            escaped(word)
        )
        .ok();
    }
    let mut trace = |values: &[u64], colour: &str, stroke: f64| {
        let mut line = String::new();
        for (number, value) in values.iter().enumerate() {
            let verb = if number == 0 { 'M' } else { 'L' };
            let height = y(*value as f64 / whole as f64);
            write!(line, "{verb}{:.1} {height:.1}", x(number as f64)).ok();
        }
        writeln!(
            text,
            "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{stroke}\"/>"
        )
        .ok();
    };
    for ((_, values), colour) in curve.parts.iter().zip(COLOURS.iter().cycle()) {
        trace(values, colour, 1.0);
    }
    trace(&curve.values, colour, 1.5);
    for (number, (name, _)) in curve.parts.iter().enumerate() {
        let at = WIDTH - right - LEGEND * (curve.parts.len() - number) as f64;
        writeln!(
            text,
            "<text x=\"{at}\" y=\"{}\" fill=\"{}\">{}</text>",
            top + 14.0,
            COLOURS[number % COLOURS.len()],
            escaped(name)
        )
        .ok();
    }
}

/// The median before the first event.
fn usual(curve: &Curve) -> u64 {
    let first = curve.events.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    let calm = curve.values.iter().enumerate().filter(|(number, _)| ((number + 1) as f64) < first);
    let mut calm: Vec<u64> = calm.map(|(_, value)| *value).collect();
    calm.sort_unstable();
    calm.get(calm.len() / 2).copied().unwrap_or(0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_relative_to_what_it_was_before_the_first_event() {
        let curve = Curve {
            name: "a<b".to_owned(),
            values: vec![9, 10, 11, 0, 0, 20],
            parts: Vec::new(),
            whole: None,
            events: vec![(4.5, "back".to_owned()), (3.0, "cut".to_owned())],
        };
        assert_eq!(usual(&curve), 10, "of 9 and 10, which ended before step 3");
        let text = svg("t", 1.0, std::slice::from_ref(&curve));
        assert!(
            text.contains("a&lt;b") && text.contains(">cut<") && text.contains(">5 s<"),
            "{text}"
        );
        let quiet = Curve { values: Vec::new(), events: Vec::new(), ..curve };
        assert!(svg("t", 1.0, &[quiet]).ends_with("</svg>\n"));
    }

    #[test]
    fn parts_are_drawn_on_the_scale_of_their_sum() {
        let part = |name: &str, values: &[u64]| (name.to_owned(), values.to_vec());
        let curve = Curve {
            name: "sum".to_owned(),
            values: vec![4, 4],
            parts: vec![part("first", &[4, 2]), part("second", &[0, 2])],
            whole: Some(4),
            events: Vec::new(),
        };
        let text = svg("t", 1.0, &[curve]);
        // 1 is two thirds of the height above the axis.
        let [left, above, right, below] = MARGINS;
        let y = |value: f64| above + (HEIGHT - above - below) * (1.0 - value / 1.5);
        let line =
            |from, to| format!("M{left:.1} {:.1}L{:.1} {:.1}", y(from), WIDTH - right, y(to));
        for (from, to) in [(1.0, 1.0), (1.0, 0.5), (0.0, 0.5)] {
            assert!(text.contains(&line(from, to)), "{from} to {to}: {text}");
        }
        assert!(text.contains(">first<") && text.contains(">second<"), "{text}");
    }
}
