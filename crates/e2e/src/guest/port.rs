//! A control port of a guest: a shell in it that runs one command at a time.

use super::problem::Problem;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The line that ends a command's output, before its status.
const STATUS: &str = "@@status ";
/// The line before a command's output, before its number.
const BEGIN: &str = "@@begin ";

/// How a command in the guest ended.
#[derive(Debug)]
pub struct Answer {
    /// Its exit status, or 128 and the number of the signal that ended it.
    pub status: i32,
    /// What it wrote.
    pub text: String,
}

impl Answer {
    /// The output of a command that succeeded.
    ///
    /// # Errors
    /// With its status and output, if it did not.
    pub fn success(self, command: &str) -> Result<String, Problem> {
        match self.status {
            0 => Ok(self.text),
            status => {
                Err(Problem::Failed(format!("{command}: exit status {status}\n{}", self.text)))
            }
        }
    }
}

/// One of the guest's control ports: a shell that runs one command at a time.
#[derive(Debug)]
pub struct Port {
    stream: UnixStream,
    pending: Vec<u8>,
    text: String,
    /// The number of the current command.
    number: u32,
    /// Whether its output has begun. What comes before is the rest of an earlier command that was given up.
    begun: bool,
    /// The status of a command that ended while something else was waited for.
    ended: Option<i32>,
}

impl Port {
    /// The control port of a new guest. The guest's start counts as command 0.
    pub(super) fn new(stream: UnixStream) -> Self {
        let text = String::new();
        Self { stream, pending: Vec::new(), text, number: 0, begun: false, ended: None }
    }

    /// Starts a command.
    ///
    /// # Errors
    /// If the guest does not listen.
    pub fn start(&mut self, command: &str) -> Result<(), Problem> {
        self.text.clear();
        self.ended = None;
        self.number += 1;
        self.begun = false;
        let line = format!("{} {}\n", self.number, command.replace('\n', " "));
        self.stream.write_all(line.as_bytes()).map_err(|e| Problem::os("telling the guest", e))
    }

    /// Starts a command and waits for its end.
    ///
    /// # Errors
    /// If it does not end within `limit`. Its status is not looked at.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Answer, Problem> {
        self.start(command)?;
        self.finish(limit)
    }

    /// Waits until the command has written a line with `text`.
    ///
    /// # Errors
    /// If it does not within `limit`, or ends before.
    pub fn wait_line(&mut self, text: &str, limit: Duration) -> Result<(), Problem> {
        let deadline = Instant::now() + limit;
        loop {
            let line = self.line(deadline, text)?;
            if let Some(status) = status_of(&line) {
                self.ended = Some(status);
                let what = format!("the guest's program ended without writing {text:?}");
                return Err(Problem::Failed(format!("{what}\n{}", self.text)));
            }
            if line.contains(text) {
                return Ok(());
            }
        }
    }

    /// Waits for the end of the command.
    ///
    /// # Errors
    /// If it does not end within `limit`.
    pub fn finish(&mut self, limit: Duration) -> Result<Answer, Problem> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.ended.take() {
                break status;
            }
            let line = self.line(deadline, "the end of a command in the guest")?;
            self.ended = status_of(&line);
        };
        Ok(Answer { status, text: std::mem::take(&mut self.text) })
    }

    /// Reads the next line. All lines of a command but the last are kept as its output.
    fn line(&mut self, deadline: Instant, what: &str) -> Result<String, Problem> {
        loop {
            if let Some(end) = self.pending.iter().position(|&b| b == b'\n') {
                let bytes: Vec<u8> = self.pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                if !self.begun {
                    self.begun = line == format!("{BEGIN}{}", self.number);
                    continue;
                }
                if !line.starts_with(STATUS) && !line.is_empty() {
                    self.text += &line;
                    self.text.push('\n');
                }
                return Ok(line);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = &self.text;
                return Err(Problem::Failed(format!("waited in vain for {what}\n{text}")));
            }
            let broken = |e| Problem::os("listening to the guest", e);
            self.stream.set_read_timeout(Some(left)).map_err(broken)?;
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Problem::Failed("the guest has ended".to_owned())),
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => return Err(broken(e)),
            }
        }
    }
}

/// The status in the line that ends a command's output, if it is one.
fn status_of(line: &str) -> Option<i32> {
    Some(line.strip_prefix(STATUS)?.trim().parse().unwrap_or(-1))
}
