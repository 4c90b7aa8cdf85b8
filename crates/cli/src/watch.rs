//! `polypath watch`: shows what happens, one line for each event, as it happens.

use crate::args::Watch as Arguments;
use crate::error::CliError;
use crate::json::{FORMAT, User};
use crate::text::moment;
use polypath_ipc::message::{Push, Told};
use polypath_ipc::{Client, EventStream, Hello, IpcError, port, socket};
use polypath_telemetry::{Event, Level, Occurrence, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The interval at which it checks whether a broker has been started.
const LOOK: Duration = Duration::from_millis(100);

/// Writes events until it is interrupted, or nobody reads its output.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let user = match &arguments.user {
        Some(user) => port::user_number(user)
            .ok_or_else(|| CliError::Usage(format!("there is no user `{user}`")))?,
        None => socket::user_id(),
    };
    let (mut past, mut told) = (arguments.past, false);
    loop {
        match Client::connect_to(user, &Hello::of_this_process("")) {
            Ok(client) => {
                let stream = client.watch(past)?;
                if told {
                    eprintln!("polypath: a broker of user {} is there", port::user_name(user));
                    told = false;
                }
                follow(stream, arguments, user)?;
            }
            Err(IpcError::NoBroker) => {}
            // That broker was about to end.
            Err(IpcError::Closed) if user == socket::user_id() => {}
            Err(error) => return Err(error.into()),
        }
        if !told {
            eprintln!(
                "polypath: no broker of user {} runs in this network namespace; waiting for one",
                port::user_name(user)
            );
            told = true;
        }
        // Events that the next broker collects before it is found are new, so they are shown too.
        past = true;
        std::thread::sleep(LOOK);
    }
}

/// Writes the events of one broker until that ends.
fn follow(mut stream: EventStream, arguments: &Arguments, user: u32) -> Result<(), CliError> {
    loop {
        let (lost, events) = match stream.wait_event() {
            Ok(Push::Events { lost, events }) => (lost, events),
            Ok(Push::Goodbye) | Err(IpcError::Closed) => return Ok(()),
            Ok(
                Push::Table(_)
                | Push::StatusRequest { .. }
                | Push::Channel { .. }
                | Push::Stream { .. }
                | Push::Path(_)
                | Push::Depart { .. },
            ) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut text = String::new();
        if lost > 0 {
            text += &line(&missed(lost), None, arguments, user);
        }
        for told in &events {
            if arguments.pid.is_none_or(|pid| pid == told.pid) {
                text += &line(told, Some(told.number), arguments, user);
            }
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
}

/// The event that is written in place of those that this program was too slow to read.
fn missed(count: u64) -> Told {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at_unix_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    let occurrence = Occurrence { at_unix_us, event: Event::EventsLost { count } };
    Told { number: 0, pid: 0, program: String::new(), occurrence }
}

fn line(told: &Told, number: Option<u64>, arguments: &Arguments, user: u32) -> String {
    if arguments.json {
        let object = Object::new(told, number, user);
        // Only maps with keys other than text could fail, and there are none.
        return serde_json::to_string(&object).unwrap_or_default() + "\n";
    }
    let Told { pid, program, occurrence: Occurrence { at_unix_us, event }, .. } = told;
    let who = match pid {
        0 => "host".to_owned(),
        pid => format!("{program}[{pid}]"),
    };
    let level = match event.kind().level {
        Level::Note => String::new(),
        level => format!("{level}: "),
    };
    format!("{}  {who}  {level}{event}\n", moment(*at_unix_us))
}

/// An event as `--json` writes it. docs/events.md describes it.
#[derive(Debug, Serialize)]
struct Object {
    format: u32,
    user: User,
    /// The broker's number of the event; `null` for what this program reports itself.
    number: Option<u64>,
    at_unix_us: u64,
    /// `null` if it happened to the host.
    pid: Option<u32>,
    program: String,
    kind: &'static str,
    level: String,
    text: String,
    fields: BTreeMap<&'static str, serde_json::Value>,
}

impl Object {
    fn new(told: &Told, number: Option<u64>, user: u32) -> Self {
        let event = &told.occurrence.event;
        let value = |value| match value {
            Value::Nothing => serde_json::Value::Null,
            Value::Number(number) => number.into(),
            Value::Text(text) => text.into(),
        };
        let fields = event.fields().into_iter().map(|(name, field)| (name, value(field)));
        Self {
            format: FORMAT,
            user: User::of(user),
            number,
            at_unix_us: told.occurrence.at_unix_us,
            pid: (told.pid != 0).then_some(told.pid),
            program: told.program.clone(),
            kind: event.kind().name,
            level: event.kind().level.to_string(),
            text: event.to_string(),
            fields: fields.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_telemetry::{InterfaceName, PathName, Reason};

    const PAGE: &str = include_str!("../../../docs/events.md");

    fn told() -> Told {
        let to = PathName {
            local: [10, 0, 1, 1].into(),
            remote: [10, 0, 1, 2].into(),
            interface: InterfaceName::new("eth1"),
        };
        let (peer, reason) = ([10, 0, 0, 2].into(), Reason::LinkDown);
        let event = Event::FailOver { peer, from: None, to, reason };
        let occurrence = Occurrence { at_unix_us: 1_700_000_000_123_456, event };
        Told { number: 7, pid: 8, program: "rping".into(), occurrence }
    }

    #[test]
    fn a_line_says_when_who_and_what() {
        let said = line(&told(), Some(7), &Arguments::default(), 0);
        assert_eq!(
            said,
            "2023-11-14 22:13:20.123Z  rping[8]  warning: traffic to 10.0.0.2 moves from no path to \
             10.0.1.1>10.0.1.2@eth1: local link down\n"
        );
    }

    #[test]
    fn an_object_of_the_json_has_every_key_and_the_page_describes_it() {
        let arguments = Arguments { json: true, ..Arguments::default() };
        let said = line(&told(), Some(7), &arguments, 0);
        let object: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(object["kind"], "failover");
        assert_eq!(object["fields"]["reason"], "link_down");
        assert_eq!(object["fields"]["from"], serde_json::Value::Null);
        for key in object.as_object().unwrap().keys() {
            assert!(PAGE.contains(&format!("| `{key}` |")), "`{key}` in docs/events.md");
        }
        let mine = line(&missed(3), None, &arguments, 0);
        let object: serde_json::Value = serde_json::from_str(&mine).unwrap();
        assert_eq!(
            (&object["number"], &object["pid"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
        assert_eq!(object["fields"]["count"], 3);
    }
}
