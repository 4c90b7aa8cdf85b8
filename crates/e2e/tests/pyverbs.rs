//! rdma-core's own test suite, unmodified, as Debian ships it (python3-pyverbs, and the tests in
//! rdma-core's documentation), on both kinds of device.
//!
//! Each test passes, or is skipped with the words in the table of `docs/pyverbs.md`. It is an error if
//! a test fails, if a skipped test is not in the table, if a test in the table passes, or if a row
//! matches no test.

use polypath_e2e::{Artifacts, Error, Lab};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The directory with the tests in Debian's rdma-core, compressed.
const SHIPPED: &str = "/usr/share/doc/rdma-core/tests";
/// Debian's Python, which has the modules.
const PYTHON: &str = "/usr/bin/python3";
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pyverbs.md");
/// The time limit; on an idle machine the suite takes ten seconds.
const LIMIT: Duration = Duration::from_secs(150);

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed,
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    /// The tests: `module.Class.test`, with `*` for any text.
    pattern: String,
    /// The words with which they skip.
    words: String,
    when: When,
}

/// The condition under which the tests of a row skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// Always, but not all versions of the suite have them.
    Later,
    /// If the machine lacks something.
    Machine,
    /// They fail in some versions of the suite, whatever the device is.
    Broken,
}

#[test]
fn the_suite_passes_on_roce_but_for_what_the_table_says() -> Result<(), Error> {
    check("roce", "roce0")
}

#[test]
fn the_suite_passes_on_mp_but_for_what_the_table_says() -> Result<(), Error> {
    check("mp", "mp0")
}

fn check(selection: &str, device: &str) -> Result<(), Error> {
    let page = read(Path::new(TABLE))?;
    let rows = rows(&page);
    let suite = unpack(selection)?;
    let _share = polypath_e2e::share(polypath_e2e::PATIENT);
    let lab = Lab::new()?;
    let script = suite.join("run_tests.py");
    let script = script.to_string_lossy();
    put_rdma_tool(&suite, device)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}:/usr/sbin:/sbin", suite.display());
    let program = [PYTHON, "-B", &script, "--dev", device, "--port", "1", "--gid", "1", "-v"];
    let program =
        lab.host(0).verbs(program).device(Some(selection)).env("PATH", path).env("NO_COLOR", "1");
    let finished = program.run(LIMIT)?;
    let output = finished.text();
    let outcomes = outcomes(&output).unwrap_or_else(|problem| panic!("{problem}\n{output}"));
    let problems = compare(&outcomes, &rows);
    assert!(problems.is_empty(), "{problems}\nThe suite wrote:\n{output}");
    let passed = |name: &&String| outcomes[*name] == Outcome::Passed;
    let result = format!("{} of {} pass", outcomes.keys().filter(passed).count(), outcomes.len());
    println!("{device}: {result}");
    let of_machine =
        |name: &&String| rows.iter().any(|r| r.when == When::Machine && matches(&r.pattern, name));
    if !outcomes.keys().filter(of_machine).any(|name| passed(&name)) {
        assert!(page.contains(&result), "{TABLE} has another number than {result}");
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|source| Error::Os { what: format!("reading {}", path.display()), source })
}

/// Uncompresses the shipped tests into a directory of the build.
fn unpack(name: &str) -> Result<PathBuf, Error> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pyverbs").join(name).join("tests");
    let shipped = Artifacts::get()?.path_of_system(SHIPPED);
    let script = "rm -rf \"$2\" && mkdir -p \"$2\" && cp \"$1\"/* \"$2\" && gunzip \"$2\"/*.gz";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&shipped)
        .arg(&target)
        .output()
        .map_err(|source| Error::Os { what: "starting sh".to_owned(), source })?;
    if output.status.success() {
        return Ok(target);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let problem = format!("{}: run `tools/packages test`\n{words}", shipped.display());
    Err(Error::Missing(problem))
}

/// Puts an `rdma` tool beside the suite. The suite asks it for the interface of a device.
fn put_rdma_tool(suite: &Path, device: &str) -> Result<(), Error> {
    let answer = format!(r#"[{{"ifname":"{device}","port":1,"netdev":"eth0"}}]"#);
    let script = format!("#!/bin/sh\necho '{answer}'\n");
    let tool = suite.join("rdma");
    let error = |source| Error::Os { what: format!("writing {}", tool.display()), source };
    std::fs::write(&tool, script).map_err(error)?;
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).map_err(error)
}

/// The rows of the page's tables that begin with a test's name in code.
fn rows(page: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(|c| c.trim().trim_matches('`')).collect();
        let [_, pattern, words, when, _, _] = cells[..] else {
            panic!("not a row of four cells: {line}");
        };
        let when = match when {
            "always" => When::Always,
            "later" => When::Later,
            "machine" => When::Machine,
            "broken" => When::Broken,
            other => panic!("the third cell is {other:?}: {line}"),
        };
        rows.push(Row { pattern: pattern.to_owned(), words: words.to_owned(), when });
    }
    assert!(!rows.is_empty(), "{TABLE} has no table");
    rows
}

/// Whether a name matches a pattern, in which `*` is any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|end| matches(tail, end)))
        }),
    }
}

/// The name of the test in the line that begins it: `method (tests.module.Class.method)`.
fn name_of(line: &str) -> Option<&str> {
    let (method, rest) = line.split_once(" (tests.")?;
    let (name, _) = rest.split_once(')')?;
    (method.starts_with("test_") && name.ends_with(method)).then_some(name)
}

/// The outcome of each test in unittest's verbose output. Output of the test itself may stand before
/// its outcome, so the outcome is the last one before the next test. The number of outcomes is compared
/// with the summary at the end.
fn outcomes(output: &str) -> Result<BTreeMap<String, Outcome>, String> {
    let mut outcomes = BTreeMap::new();
    let mut current: Option<(&str, Option<Outcome>)> = None;
    let mut finish = |test: Option<(&str, Option<Outcome>)>| match test {
        Some((name, Some(outcome))) => match outcomes.insert(name.to_owned(), outcome) {
            None => Ok(()),
            Some(_) => Err(format!("{name} ran twice")),
        },
        Some((name, None)) => Err(format!("no outcome of {name}")),
        None => Ok(()),
    };
    let mut lines = output.lines();
    for line in lines.by_ref().take_while(|l| !l.starts_with("=====") && !l.starts_with("-----")) {
        if let Some(name) = name_of(line) {
            finish(current.replace((name, None)))?;
        }
        let end = line.rsplit_once(" ... ").map_or(line, |(_, end)| end);
        let outcome = match end {
            "ok" => Some(Outcome::Passed),
            "FAIL" | "ERROR" => Some(Outcome::Failed),
            _ => end
                .strip_prefix("skipped ")
                .map(|words| Outcome::Skipped(words.trim_matches(['\'', '"']).to_owned())),
        };
        if let (Some((_, known)), Some(outcome)) = (&mut current, outcome) {
            *known = Some(outcome);
        }
    }
    finish(current)?;
    let ran: Option<usize> =
        lines.find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
    match ran {
        Some(ran) if ran == outcomes.len() => Ok(outcomes),
        Some(ran) => Err(format!("{ran} tests ran, the outcomes of {} were seen", outcomes.len())),
        None => Err("the suite did not come to its end".to_owned()),
    }
}

/// The differences between outcomes and table, a line for each.
fn compare(outcomes: &BTreeMap<String, Outcome>, rows: &[Row]) -> String {
    let mut problems = String::new();
    for (name, outcome) in outcomes {
        let row = rows.iter().find(|row| matches(&row.pattern, name));
        let problem = match (outcome, row) {
            (Outcome::Failed, Some(Row { when: When::Broken, .. })) => continue,
            (Outcome::Failed, _) => "failed".to_owned(),
            (Outcome::Skipped(words), None) => format!("skipped, not in the table: {words}"),
            (Outcome::Skipped(words), Some(row)) if !words.contains(&row.words) => {
                format!("skipped for another reason than the table's: {words}")
            }
            (Outcome::Passed, Some(row)) if matches!(row.when, When::Always | When::Later) => {
                format!("passes, but the table has it as {}", row.pattern)
            }
            _ => continue,
        };
        writeln!(problems, "{name}: {problem}").ok();
    }
    let expected = rows.iter().filter(|row| matches!(row.when, When::Always | When::Machine));
    for row in expected.filter(|row| !outcomes.keys().any(|n| matches(&row.pattern, n))) {
        writeln!(problems, "{}: in the table, but there is no such test", row.pattern).ok();
    }
    problems
}

const EXAMPLE: &str = "\
test_a (tests.test_x.X.test_a)
What it is for. ... ok
test_b (tests.test_x.X.test_b) ... skipped 'Not supported'
test_c (tests.test_x.X.test_c) ... chatter
ok
test_d (tests.test_y.Y.test_d) ... FAIL

======================================================================
FAIL: test_d (tests.test_y.Y.test_d)
----------------------------------------------------------------------
Ran 4 tests in 0.1s
";

#[test]
fn outcomes_are_read_with_and_without_a_description_or_chatter() {
    let outcomes = outcomes(EXAMPLE).unwrap();
    let expected = [
        ("test_x.X.test_a", Outcome::Passed),
        ("test_x.X.test_b", Outcome::Skipped("Not supported".to_owned())),
        ("test_x.X.test_c", Outcome::Passed),
        ("test_y.Y.test_d", Outcome::Failed),
    ];
    assert_eq!(outcomes, expected.map(|(n, o)| (n.to_owned(), o)).into());
}

#[test]
fn an_output_that_ends_early_or_lacks_a_test_is_no_result() {
    assert!(outcomes(&EXAMPLE.replace("Ran 4", "Ran 5")).is_err());
    assert!(outcomes(EXAMPLE.split("Ran").next().unwrap()).is_err());
    assert!(outcomes(&EXAMPLE.replace("... skipped 'Not supported'", "")).is_err());
}

#[test]
fn every_difference_from_the_table_is_a_problem() {
    let outcomes = outcomes(&EXAMPLE.replace("FAIL\n\n", "ok\n\n")).unwrap();
    let problems = |table: &str| compare(&outcomes, &rows(table)).lines().count();
    assert_eq!(problems("| `test_x.X.test_b` | `Not supp` | always | why |"), 0);
    assert_eq!(problems("| `test_x.X.test_b` | `other` | always | why |"), 1, "another reason");
    assert_eq!(problems("| `test_x.X.*` | `Not supp` | always | why |"), 2, "two pass");
    assert_eq!(problems("| `test_x.X.*` | `Not supp` | machine | why |"), 0);
    assert_eq!(problems("| `test_z.*` | `Not supp` | machine | why |"), 2, "unlisted, and no such");
    assert_eq!(problems("| `test_z.*` | `Not supp` | later | why |"), 1, "unlisted");
    assert_eq!(problems("| `test_x.*` | `Not supp` | later | why |"), 2, "two pass");
}
