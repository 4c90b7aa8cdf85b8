//! Completions and man pages, made from the command line's own description.

use crate::args::Arguments;
use crate::error::CliError;
use clap::builder::PossibleValue;
use clap::{Arg, Command, CommandFactory as _};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Writes a completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "polypath", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `polypath.1`, `polypath-run.1` … into a directory.
pub(crate) fn man(directory: &Path) -> Result<ExitCode, CliError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CliError::File { path, source }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    for (name, page) in pages() {
        let path = directory.join(name + ".1");
        std::fs::write(&path, page).map_err(failed(&path))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The environment variables of programs and of the command, with their descriptions.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("POLYPATH_DEVICE", "Which devices a program sees, as --device."),
    (
        "POLYPATH_BUSY_POLL",
        "How long a lane\'s thread, or one that waits for a completion event, polls before it sleeps, in \
         microseconds from 0 to 1000; 100 by default.",
    ),
    (
        "POLYPATH_FAULT",
        "Faults to inject into packets of a program under test, as --fault of `polypath run`.",
    ),
    ("POLYPATH_PCAP", "The file that a program's packets are written to, as --pcap."),
    ("POLYPATH_SNAPLEN", "Bytes of each packet to keep in that file, as --snaplen."),
    (
        "POLYPATH_LANES",
        "Lanes of the process, 1 to 32; 1 by default. With more, a queue pair lives on the lane of the \
         CPU that made it.",
    ),
    (
        "POLYPATH_MP",
        "Settings of the mp device, key=value joined by commas: policy=active-backup|balance|affinity|\
         redundant|efficient, affinity=hash|round-robin|cpu|numa, cost=INTERFACE:N, \
         numa_node=INTERFACE:N, primary=INTERFACE, \
         primary_reselect=always|better|failure, updelay=MS, downdelay=MS, hold=SECONDS, \
         rendezvous=ADDRESS, ecn=on|off, ports=1 to 8, local=on|off, tcp=on|off|PORT.",
    ),
    (
        "POLYPATH_APM",
        "on: connections of rdma_cm migrate to an alternate path (APM), though the program does not ask for \
         it. Both ends need it, and another interface. balance or balance=SECONDS (1 to 3600, 10 if not \
         given): they are also spread evenly over the ports, at most once in that time. off or unset: only \
         those that ask.",
    ),
    (
        "POLYPATH_CONFIG",
        "The configuration file, an absolute path; see FILES. The broker reads it when it starts.",
    ),
    (
        "POLYPATH_LOG",
        "1: log everything that happens to standard error. Unset: log only settings without effect, and why \
         there are no devices. 0: log nothing.",
    ),
    (
        "POLYPATH_RDMA_CM",
        "Who serves librdmacm: polypath, kernel, or both (by source address). Unset: both where the kernel \
         has /dev/infiniband/rdma_cm and an RDMA device, else polypath.",
    ),
    ("POLYPATH_BROKER_BIN", "The program to start as broker; `polypath run` sets it to itself."),
    (
        "POLYPATH_LIBRARY",
        "Absolute path of libpolypath.so, for `polypath run` and `polypath doctor`.",
    ),
    ("XDG_CONFIG_HOME", "Where the configuration file is, see FILES."),
    ("XDG_STATE_HOME", "Where the broker's log goes, see FILES."),
];

const FILES: &[(&str, &str)] = &[
    ("PREFIX/lib/libpolypath.so", "The library that `polypath run` preloads."),
    (
        "$XDG_CONFIG_HOME/polypath/config.toml",
        "The configuration file, if POLYPATH_CONFIG names no other; see polypath-config(1). Without \
         XDG_CONFIG_HOME: ~/.config/polypath/config.toml. If there is none: /etc/polypath/config.toml.",
    ),
    (
        "$XDG_STATE_HOME/polypath/broker.log",
        "The log of a broker that was started by a program. Without XDG_STATE_HOME: \
         ~/.local/state/polypath/broker.log, else /tmp/polypath-UID/broker.log.",
    ),
    (
        "@polypath-UID",
        "The abstract Unix socket of user UID's broker, one in each network namespace.",
    ),
];

/// All pages by name.
fn pages() -> Vec<(String, String)> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, "polypath", &mut pages);
    pages
}

fn add_pages(command: &Command, name: &str, pages: &mut Vec<(String, String)>) {
    pages.push((name.to_owned(), page(command, name)));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, &format!("{name}-{}", sub.get_name()), pages);
    }
}

fn page(command: &Command, name: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let upper = name.to_uppercase();
    let mut page = format!(
        ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n.TH {upper} 1 \"\" \"polypath {version}\"\n"
    );
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    section(&mut page, "NAME", &format!("{} \\- {}\n", text(name), text(&about)));
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    section(&mut page, "SYNOPSIS", &format!("{}\n", text(usage)));
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let description = long.strip_prefix(&about).unwrap_or(&long).trim();
    if !description.is_empty() {
        section(&mut page, "DESCRIPTION", &paragraphs(description));
    }
    let options: String =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).map(option).collect();
    if !options.is_empty() {
        section(&mut page, "OPTIONS", &options);
    }
    let subs: String = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            entry(&format!("{name}-{}(1)", sub.get_name()), &about)
        })
        .collect();
    if !subs.is_empty() {
        section(&mut page, "COMMANDS", &subs);
    }
    let top = name == "polypath";
    let mut status = None;
    let extra = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut notes = String::new();
    for block in extra.split("\n\n") {
        if let Some(examples) = block.strip_prefix("Examples:\n") {
            section(&mut page, "EXAMPLES", &format!(".nf\n{}\n.fi\n", text(examples)));
        } else if let Some(rest) = block.strip_prefix("Exit status:") {
            status = Some(rest.trim().to_owned());
        } else if !block.is_empty() {
            notes += &paragraphs(block);
        }
    }
    if !notes.is_empty() {
        section(&mut page, "NOTES", &notes);
    }
    let usual = "0 for success, 1 for an error, 2 for a wrong command line.";
    let status = status.unwrap_or_else(|| usual.to_owned());
    section(&mut page, "EXIT STATUS", &paragraphs(&status));
    let list = |entries: &[(&str, &str)]| -> String {
        entries.iter().map(|(name, what)| entry(name, what)).collect()
    };
    if top || name == "polypath-run" {
        section(&mut page, "ENVIRONMENT", &list(ENVIRONMENT));
    }
    if top || matches!(name, "polypath-run" | "polypath-broker") {
        section(&mut page, "FILES", &list(FILES));
    }
    let see = if top { "" } else { "polypath(1), " };
    let others = "ibv_devices(1), ibv_devinfo(1), rping(1), rdma_cm(7), rdma(8)";
    section(&mut page, "SEE ALSO", &format!("{see}{}\n", text(others)));
    page
}

fn option(arg: &Arg) -> String {
    // The form is that of the help: `-d, --device <DEVICE>`, `--watch[=<MS>]`.
    let mut head = String::new();
    if let (Some(short), Some(_)) = (arg.get_short(), arg.get_long()) {
        head = format!("-{short}, ");
    }
    head += &arg.to_string();
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut what = help.map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    if !values.is_empty() && arg.get_action().takes_values() {
        let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
        what += &format!(" [possible values: {}]", names.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        what += &format!(" [default: {}]", defaults.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        what += &format!(" [environment: {}]", variable.to_string_lossy());
    }
    entry(&head, &what)
}

fn section(page: &mut String, name: &str, body: &str) {
    *page += &format!(".SH \"{name}\"\n{body}");
}

fn entry(head: &str, what: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", text(head), text(what))
}

fn paragraphs(body: &str) -> String {
    body.split("\n\n").map(|part| format!(".PP\n{}\n", text(part))).collect()
}

/// Escapes the characters that roff would interpret.
fn text(plain: &str) -> String {
    let escaped = plain.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\*(Aq");
    let lines = escaped.split('\n').map(|line| match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(name: &str) -> String {
        let all = pages();
        all.into_iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("{name}")).1
    }

    #[test]
    fn pages_have_the_sections_that_readers_look_for() {
        let top = page_of("polypath");
        for section in ["NAME", "SYNOPSIS", "COMMANDS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT"] {
            assert!(top.contains(&format!(".SH \"{section}\"")), "{section}");
        }
        for (name, page) in pages() {
            for section in ["NAME", "SYNOPSIS", "EXIT STATUS", "SEE ALSO"] {
                assert!(page.contains(&format!(".SH \"{section}\"")), "{section} in {name}");
            }
        }
        assert!(page_of("polypath-run").contains(".SH \"FILES\""));
        assert!(page_of("polypath-path-down").contains("LOCAL\\-REMOTE"));
    }

    #[test]
    fn every_variable_is_in_the_page_and_the_list_of_known_ones() {
        for name in polypath_ipc::settings::VARIABLES {
            assert!(ENVIRONMENT.iter().any(|(known, _)| known == name), "{name}");
        }
        for (name, _) in ENVIRONMENT.iter().filter(|(name, _)| name.starts_with("POLYPATH_")) {
            assert!(polypath_ipc::settings::VARIABLES.contains(name), "{name}");
        }
    }

    #[test]
    fn an_optional_value_is_shown_as_optional() {
        let page = page_of("polypath-status");
        assert!(page.contains("\\-\\-watch[=<MS>]"), "{page}");
    }

    #[test]
    fn examples_keep_their_lines() {
        let page = page_of("polypath-run");
        let (_, rest) = page.split_once(".nf\n").unwrap();
        let (examples, _) = rest.split_once(".fi\n").unwrap();
        assert!(examples.lines().count() >= 6, "{examples}");
        assert_eq!(text(".so \\x it's"), "\\&.so \\ex it\\*(Aqs");
    }
}
