//! `polypath-mutations`: puts each fault of the lists into a copy of the cores and looks who finds it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use polypath_mutations::{AROUND, CRATES, Mutation, Unusable, lists};

const HELP: &str = "\
Puts deliberate faults, one at a time, into a copy of the protocol cores, and looks who finds each: the
simulator, within how many seeds, or else the cores' own tests.

Usage: polypath-mutations [cm | engine] [--seeds N] [--only TEXT] [--out FILE]

  cm           faults of the connection manager, instead of those of transport and path manager
  engine       faults of engine, C interface, broker and what they say to each other: these are given
               to the tests of their crate, and then to those of the crates that use it (as root)
  --seeds N    seeds to try before a fault counts as missed by the simulator (default 2000)
  --only TEXT  only faults whose title has this text
  --out FILE   write the table there as well

Run it in the root of the workspace. The copy is under target/mutations.
";

/// Whose tests judge the faults of a crate, in this order.
const JUDGES: [(&str, &[&str]); 4] = [
    ("ipc", &["polypath-ipc", "polypath-broker", "polypath-engine"]),
    ("engine", &["polypath-engine", "polypath-abi"]),
    ("abi", &["polypath-abi"]),
    ("broker", &["polypath-broker"]),
];
/// The longest that the seeds of one fault may take. A simulator that hangs has noticed something, too.
const SIMULATION_MAX: Duration = Duration::from_secs(300);
/// The longest that the cores' tests may take, building included.
const TESTS_MAX: Duration = Duration::from_secs(900);

/// Who found a fault.
enum Finder {
    Simulator {
        seeds: u64,
        what: String,
    },
    Tests {
        what: String,
    },
    Compiler {
        what: String,
    },
    /// Missed by the simulator, not given to the tests yet.
    Missed,
    Nobody,
}

/// What the simulator plays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Game {
    Verbs,
    Cm,
    /// Nothing: engine, C interface and broker have tests only.
    None,
}

impl Game {
    /// The one that what is wrong takes part in.
    fn of(mutation: &Mutation) -> Self {
        let is_of = |name: &str| {
            mutation.edits.iter().any(|e| e.file.starts_with(&format!("crates/{name}/")))
        };
        if is_of("cm") {
            Self::Cm
        } else if JUDGES.iter().any(|(name, _)| is_of(name)) {
            Self::None
        } else {
            Self::Verbs
        }
    }
}

struct Options {
    seeds: u64,
    only: Option<String>,
    game: Game,
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, Unusable> {
    let mut options = Options { seeds: 2000, only: None, game: Game::Verbs, out: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if matches!(arg.as_str(), "--help" | "-h") {
            print!("{HELP}");
            std::process::exit(0);
        }
        if let Some(game) = match arg.as_str() {
            "cm" => Some(Game::Cm),
            "engine" => Some(Game::None),
            _ => None,
        } {
            options.game = game;
            continue;
        }
        let value =
            args.next().ok_or_else(|| Unusable(format!("{arg} wants a value\n\n{HELP}")))?;
        match arg.as_str() {
            "--seeds" => {
                let wrong = |_| Unusable(format!("--seeds wants a number, not {value}"));
                options.seeds = value.parse().map_err(wrong)?;
            }
            "--only" => options.only = Some(value),
            "--out" => options.out = Some(value.into()),
            _ => return Err(Unusable(format!("unknown argument {arg}\n\n{HELP}"))),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), Unusable> {
    let root = Path::new(".");
    let all = lists(root)?;
    let chosen: Vec<&Mutation> = all
        .iter()
        .filter(|m| options.only.as_ref().is_none_or(|text| m.title.contains(text.as_str())))
        .filter(|m| Game::of(m) == options.game)
        .collect();
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let base = std::path::absolute(target.join("mutations"))
        .map_err(|e| Unusable(format!("{}: {e}", target.display())))?;
    let lab = Lab { tree: base.join("tree"), target: base.join("build") };
    lab.fill(root, options.game)?;
    if options.game == Game::None {
        return judge_by_tests(root, &lab, &chosen, options);
    }
    // What is not broken must pass, or nothing of all this means anything.
    say(format_args!("the cores as they are"));
    match lab.simulate(options.game, options.seeds)? {
        Finder::Missed => {}
        other => return Err(Unusable(format!("without any fault: {}", row("none", &other)))),
    }
    let mut rows = Vec::new();
    for mutation in &chosen {
        rows.push((
            *mutation,
            lab.with(root, mutation, || lab.simulate(options.game, options.seeds))?,
        ));
        note(&rows, options)?;
    }
    // Tests take long to build: only for what the simulator misses.
    for at in 0..rows.len() {
        if matches!(rows[at].1, Finder::Missed) {
            rows[at].1 = lab.with(root, rows[at].0, || lab.test(options.game))?;
            say(format_args!("{}", row(&rows[at].0.title, &rows[at].1)));
            save(&rows, options)?;
        }
    }
    say(format_args!("\n{}", report(&rows, options)));
    Ok(())
}

/// What has no simulator.
fn judge_by_tests(
    root: &Path,
    lab: &Lab,
    chosen: &[&Mutation],
    options: &Options,
) -> Result<(), Unusable> {
    say(format_args!("the crates as they are"));
    for (_, packages) in JUDGES {
        let found = lab.test_packages(&packages[..1])?;
        if !matches!(found, Finder::Nobody) {
            return Err(Unusable(format!("without any fault: {}", row("none", &found))));
        }
    }
    let mut rows = Vec::new();
    for &mutation in chosen {
        let of = |name: &str| {
            mutation.edits.iter().any(|e| e.file.starts_with(&format!("crates/{name}/")))
        };
        let judges: Vec<&str> = JUDGES
            .iter()
            .filter(|(name, _)| of(name))
            .flat_map(|(_, p)| p.iter().copied())
            .collect();
        let found = lab.with(root, mutation, || lab.test_packages(&judges))?;
        rows.push((mutation, found));
        note(&rows, options)?;
    }
    say(format_args!("\n{}", report(&rows, options)));
    Ok(())
}

/// Prints a line. That nobody reads any more does not end a run of hours.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints the latest row, and writes all to the file asked for: a run takes long and may be interrupted.
fn note(rows: &[(&Mutation, Finder)], options: &Options) -> Result<(), Unusable> {
    if let Some((mutation, found)) = rows.last() {
        say(format_args!("{}", row(&mutation.title, found)));
    }
    save(rows, options)
}

fn save(rows: &[(&Mutation, Finder)], options: &Options) -> Result<(), Unusable> {
    if let Some(out) = &options.out {
        fs::write(out, report(rows, options))
            .map_err(|e| Unusable(format!("{}: {e}", out.display())))?;
    }
    Ok(())
}

fn row(title: &str, found: &Finder) -> String {
    match found {
        Finder::Simulator { seeds, what } => {
            format!("| {title} | simulator | {seeds} | {what} |")
        }
        Finder::Tests { what } => format!("| {title} | tests | – | {what} |"),
        Finder::Compiler { what } => format!("| {title} | compiler | – | {what} |"),
        Finder::Missed => format!("| {title} | not the simulator; tests not tried | – | |"),
        Finder::Nobody => format!("| {title} | **nobody** | – | |"),
    }
}

/// The table of faults that have tests only.
fn report_of_tests(rows: &[(&Mutation, Finder)]) -> String {
    let nobody = rows.iter().filter(|(_, f)| matches!(f, Finder::Nobody)).count();
    let mut text = format!(
        "# Deliberate faults of engine, C interface, broker and ipc, and who finds them\n\n\
         Made by `polypath-mutations engine`. Each fault of `crates/mutations/list/engine.txt` is put into \
         a\ncopy of the crates alone; then the tests of its crate run, and those of the crates that use it, \
         until\none fails.\n\n\
         {} faults, {nobody} of them found by nobody.\n\n\
         | fault | found by | seeds | what failed first |\n|---|---|---|---|\n",
        rows.len(),
    );
    for (mutation, found) in rows {
        text += &row(&mutation.title, found);
        text.push('\n');
    }
    text
}

fn report(rows: &[(&Mutation, Finder)], options: &Options) -> String {
    if options.game == Game::None {
        return report_of_tests(rows);
    }
    let count = |f: fn(&Finder) -> bool| rows.iter().filter(|(_, found)| f(found)).count();
    let simulator = count(|f| matches!(f, Finder::Simulator { .. }));
    let tests = count(|f| matches!(f, Finder::Tests { .. }));
    let untried = count(|f| matches!(f, Finder::Missed));
    let untried_text = if untried == 0 {
        String::new()
    } else {
        format!(
            " The run was ended early: {untried} more were missed by the simulator and not given \
             to the tests."
        )
    };
    let mut needed: Vec<u64> = rows
        .iter()
        .filter_map(
            |(_, f)| if let Finder::Simulator { seeds, .. } = f { Some(*seeds) } else { None },
        )
        .collect();
    needed.sort_unstable();
    let median = needed.get(needed.len() / 2).copied().unwrap_or(0);
    let most = needed.last().copied().unwrap_or(0);
    let mut text = format!(
        "# Deliberate faults{}, and who finds them\n\n\
         Made by `make mutations`. Each fault of `crates/mutations/list` is put into a copy of the \
         cores alone;\nthen the simulator runs seeds from 0 on until one fails, {} at most. What \
         it misses is given to the\ncores' own tests. *Seeds* is the number of the first seed that \
         failed, plus one.\n\n\
         {} faults: {simulator} found by the simulator (median {median} seeds, at most {most}), \
         {tests} only by tests, {} by nobody.{untried_text}\n\n\
         | fault | found by | seeds | what was noticed first |\n|---|---|---|---|\n",
        if options.game == Game::Cm { " of the connection manager" } else { "" },
        options.seeds,
        rows.len(),
        rows.len() - simulator - tests - untried,
    );
    for (mutation, found) in rows {
        text += &row(&mutation.title, found);
        text.push('\n');
    }
    text
}

/// A copy of the cores, and where it is built.
struct Lab {
    tree: PathBuf,
    target: PathBuf,
}

impl Lab {
    /// Copies the cores; files that are the same keep their time, so that little is built again.
    fn fill(&self, root: &Path, game: Game) -> Result<(), Unusable> {
        for file in ["Cargo.lock", "rustfmt.toml"] {
            copy(&root.join(file), &self.tree.join(file))?;
        }
        // Of e2e there are only the C programs.
        let (from, to) = (root.join("Cargo.toml"), self.tree.join("Cargo.toml"));
        let say = |e: std::io::Error| Unusable(format!("copying {}: {e}", from.display()));
        let manifest = fs::read_to_string(&from).map_err(say)?;
        let without = "[workspace]\nexclude = [\"crates/e2e\"]\n";
        fs::write(to, manifest.replacen("[workspace]\n", without, 1)).map_err(say)?;
        let around = if game == Game::None { AROUND } else { &[] };
        for name in CRATES.iter().chain(around) {
            let folder = Path::new("crates").join(name);
            copy(&root.join(&folder), &self.tree.join(&folder))?;
        }
        // Tests of the wire format compare with the documentation and the dissector, and one of the
        // documentation with programs that it quotes.
        for folder in ["docs", "tools", "model", "crates/e2e/c"] {
            copy(&root.join(folder), &self.tree.join(folder))?;
        }
        Ok(())
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command
            .args(args)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Does something while the fault is in the copy.
    fn with(
        &self,
        root: &Path,
        mutation: &Mutation,
        look: impl FnOnce() -> Result<Finder, Unusable>,
    ) -> Result<Finder, Unusable> {
        mutation.check(root)?;
        mutation.apply(&self.tree)?;
        let found = look();
        mutation
            .edits
            .iter()
            .try_for_each(|e| copy(&root.join(&e.file), &self.tree.join(&e.file)))?;
        found
    }

    /// Builds the simulator and runs seeds of a game until one fails.
    fn simulate(&self, game: Game, seeds: u64) -> Result<Finder, Unusable> {
        let build =
            run_for(self.cargo(&["build", "--release", "-p", "polypath-sim"]), TESTS_MAX, |_| {
                false
            })?;
        if !build.success {
            let what = build.lines.into_iter().find(|l| l.starts_with("error")).unwrap_or_default();
            return Ok(Finder::Compiler { what: cell(&what) });
        }
        let program = self.target.join("release/polypath-sim");
        let mut simulator = Command::new(&program);
        // A failure is wanted at once, not made smaller first.
        let help = Command::new(&program).arg("--help").output();
        if help.is_ok_and(|h| String::from_utf8_lossy(&h.stdout).contains("--whole")) {
            simulator.arg("--whole");
        }
        simulator
            .args((game == Game::Cm).then_some("cm"))
            .args(["--seed", "0", "--count", &seeds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let is_failure = |line: &str| line.starts_with("seed ") || line.contains("panicked at");
        let run = run_for(simulator, SIMULATION_MAX, is_failure)?;
        if let Some(at) = run.lines.iter().position(|l| is_failure(l)) {
            let line = &run.lines[at];
            let seed = line.strip_prefix("seed ").and_then(|l| l.split(' ').next()?.parse().ok());
            let what = match seed {
                Some(_) => line.split_once(": ").map_or(line.as_str(), |(_, what)| what),
                None => line,
            };
            return Ok(Finder::Simulator { seeds: seed.unwrap_or(0u64) + 1, what: cell(what) });
        }
        if run.late {
            return Ok(Finder::Simulator { seeds, what: "a run does not end".into() });
        }
        if !run.success {
            return Ok(Finder::Simulator { seeds, what: "it fails without a word".into() });
        }
        Ok(Finder::Missed)
    }

    /// Runs the cores' own tests until one fails.
    fn test(&self, game: Game) -> Result<Finder, Unusable> {
        let mut args = vec!["test", "--release"];
        let cores: &[&str] =
            if game == Game::Cm { &["cm"] } else { &["wire", "transport", "paths", "lane"] };
        cores.iter().for_each(|c| args.extend(["-p", package(c)]));
        args.push("--no-fail-fast");
        let found = self.run_tests(&args)?;
        if !matches!(found, Finder::Nobody) || game == Game::Cm {
            return Ok(found);
        }
        // The model checker has a workspace of its own.
        self.run_tests(&["test", "--manifest-path", "model/Cargo.toml"])
    }

    /// Runs the tests of packages, one after the other, until one fails.
    fn test_packages(&self, packages: &[&str]) -> Result<Finder, Unusable> {
        for package in packages {
            match self.run_tests(&["test", "--release", "-p", package, "--no-fail-fast"])? {
                Finder::Nobody => {}
                found => return Ok(found),
            }
        }
        Ok(Finder::Nobody)
    }

    fn run_tests(&self, args: &[&str]) -> Result<Finder, Unusable> {
        let tests = run_for(self.cargo(args), TESTS_MAX, |line| line.ends_with("... FAILED"))?;
        let failed = tests.lines.iter().find(|l| l.ends_with("... FAILED"));
        let refused =
            tests.lines.iter().find(|l| l.starts_with("error[") || l.starts_with("error: could"));
        if let (None, Some(line)) = (failed, refused) {
            return Ok(Finder::Compiler { what: cell(line) });
        }
        Ok(match failed {
            Some(line) => {
                let name = line.trim_start_matches("test ").trim_end_matches(" ... FAILED");
                Finder::Tests { what: format!("`{name}`") }
            }
            None if tests.late => Finder::Tests { what: "a test does not end".into() },
            None if !tests.success => Finder::Tests { what: "a test ends badly".into() },
            None => Finder::Nobody,
        })
    }
}

fn package(name: &str) -> &'static str {
    match name {
        "wire" => "polypath-wire",
        "transport" => "polypath-transport",
        "cm" => "polypath-cm",
        "lane" => "polypath-lane",
        _ => "polypath-paths",
    }
}

/// A message as a cell of a table: one line, not too long.
fn cell(text: &str) -> String {
    const LONGEST: usize = 90;
    let line: String = text.lines().next().unwrap_or("").replace('|', "/");
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// Copies a file or folder, leaving alone what is the same already.
fn copy(from: &Path, to: &Path) -> Result<(), Unusable> {
    let say = |e: std::io::Error| Unusable(format!("copying {}: {e}", from.display()));
    if from.is_dir() {
        fs::create_dir_all(to).map_err(say)?;
        for entry in fs::read_dir(from).map_err(say)? {
            let entry = entry.map_err(say)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let new = fs::read(from).map_err(say)?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(say)?;
    }
    fs::write(to, new).map_err(say)
}

struct Ended {
    lines: Vec<String>,
    success: bool,
    late: bool,
}

/// Runs a command until it ends, a line says enough, or it takes too long.
fn run_for(
    mut command: Command,
    longest: Duration,
    enough: impl Fn(&str) -> bool,
) -> Result<Ended, Unusable> {
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| Unusable(format!("{command:?}: {e}")))?;
    let (sender, lines) = mpsc::channel();
    let follow = |pipe: Option<Box<dyn Read + Send>>| {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(pipe?).lines() {
                sender.send(line.ok()?).ok()?;
            }
            Some(())
        })
    };
    let out = follow(child.stdout.take().map(|p| Box::new(p) as _));
    let err = follow(child.stderr.take().map(|p| Box::new(p) as _));
    drop(sender);
    let mut ended = Ended { lines: Vec::new(), success: false, late: false };
    loop {
        let left = longest.saturating_sub(start.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                let stop = enough(&line);
                ended.lines.push(line);
                if stop {
                    stop_child(&mut child);
                    break;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                ended.late = true;
                stop_child(&mut child);
                break;
            }
        }
    }
    ended.success = child.wait().is_ok_and(|status| status.success());
    drop(lines);
    drop((out, err));
    Ok(ended)
}

/// It may have ended by itself: then there is nothing to stop.
fn stop_child(child: &mut Child) {
    let _ = child.kill();
}
