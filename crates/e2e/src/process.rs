//! Programs in the lab: they are started, watched line by line, and waited for with a limit.

use crate::ns::Namespace;
use crate::threads::threads;
use crate::wait::Patience;
use crate::{Artifacts, Error, pty, until};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The largest number of bytes of output kept per program. Further output is dropped, and the kept
/// output says so.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// How often the clock is looked at while a line is waited for.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which output may still arrive after a program has ended.
const DRAIN: Duration = Duration::from_secs(10);

/// A program that can be started on a host.
#[derive(Debug)]
pub struct Program {
    namespace: Namespace,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    device: Option<String>,
    verbs: bool,
    typed: bool,
    long: bool,
}

impl Program {
    pub(crate) fn new<S: AsRef<OsStr>>(
        namespace: Namespace,
        arguments: impl IntoIterator<Item = S>,
        verbs: bool,
    ) -> Self {
        let arguments = arguments.into_iter().map(|a| a.as_ref().to_owned()).collect();
        let (environment, device) = (Vec::new(), None);
        Self { namespace, arguments, environment, device, verbs, typed: false, long: false }
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Chooses the device, as `polypath run --device` does. `None` means the default, `mp0`.
    #[must_use]
    pub fn device(mut self, device: Option<&str>) -> Self {
        self.device = device.map(str::to_owned);
        self
    }

    /// Gives it a terminal as input, too, on which nobody types.
    #[must_use]
    pub fn typed(mut self, typed: bool) -> Self {
        self.typed = typed;
        self
    }

    /// Gives it a pipe and no terminal, because it writes more at once than the 4095 bytes that a terminal
    /// takes. Twice in many runs the rest did not come by a terminal within ten seconds.
    #[must_use]
    pub fn writes_much(mut self) -> Self {
        self.long = true;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If the terminal or the process can't be made, or the `polypath` command was not built.
    pub fn spawn(self) -> Result<Running, Error> {
        let name = self.to_string();
        let mut command = if self.verbs {
            let artifacts = Artifacts::get()?;
            let mut command = artifacts.of_system(&artifacts.command);
            command.arg("run");
            if let Some(device) = &self.device {
                command.arg("--device").arg(device);
            }
            command.arg("--").args(&self.arguments);
            command
        } else {
            let (program, rest) = self
                .arguments
                .split_first()
                .ok_or_else(|| Error::Missing("a program needs at least a name".to_owned()))?;
            let mut command = Command::new(program);
            command.args(rest);
            command
        };
        let (ours, theirs) = match self.long {
            true => {
                std::io::pipe().map(|(ours, theirs)| (OwnedFd::from(ours).into(), theirs.into()))
            }
            false => pty::open(),
        }
        .map_err(|e| Error::os("opening a terminal", e))?;
        let second = theirs.try_clone().map_err(|e| Error::os("opening a terminal", e))?;
        // The file of whoever runs the tests must not count.
        command.env("POLYPATH_CONFIG", "/dev/null");
        command.envs(self.environment.iter().map(|(n, v)| (n, v)));
        let input = match self.typed {
            true => theirs.try_clone().map_err(|e| Error::os("opening a terminal", e))?.into(),
            false => Stdio::piped(),
        };
        command.stdin(input).stdout(theirs).stderr(second);
        self.namespace.enter(&mut command, &[]);
        let child = command.spawn().map_err(|e| Error::os(format!("starting {name}"), e))?;
        drop(command);
        let output = Arc::new(Output::default());
        let writer = Arc::clone(&output);
        std::thread::spawn(move || writer.fill_from(ours));
        Ok(Running {
            name,
            namespace: self.namespace,
            child: Mutex::new(child),
            output,
            started: Instant::now(),
        })
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// The errors of [`Program::spawn`] and [`Running::finish`].
    pub fn run(self, limit: Duration) -> Result<Finished, Error> {
        self.spawn()?.finish(limit)
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<_> = self.arguments.iter().map(|a| a.to_string_lossy()).collect();
        f.write_str(&words.join(" "))
    }
}

/// One line of output and the time when it came.
#[derive(Clone, Debug)]
pub struct Line {
    /// The time when its last byte was read.
    pub at: Instant,
    /// Its text without the line end.
    pub text: String,
}

#[derive(Debug, Default)]
struct Output {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutputState {
    lines: Vec<Line>,
    partial: Vec<u8>,
    bytes: usize,
    ended: bool,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, OutputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill_from(&self, mut source: impl Read) {
        let mut buffer = [0; 4096];
        let mut closed = false;
        loop {
            match source.read(&mut buffer) {
                Ok(count @ 1..) => {
                    self.lock().append(&buffer[..count]);
                    self.changed.notify_all();
                    closed = false;
                }
                // A terminal whose other end is closed returns EIO, and at times does so before the last
                // that was written: the kernel looks for data first, and whether the end is closed then.
                // After the end is closed nothing is added, so a second EIO means that all has been read.
                Err(_) if !closed => closed = true,
                Ok(0) | Err(_) => break,
            }
        }
        self.lock().finish();
        self.changed.notify_all();
    }
}

impl OutputState {
    fn append(&mut self, data: &[u8]) {
        if self.bytes + data.len() > OUTPUT_BYTES_MAX {
            if self.bytes <= OUTPUT_BYTES_MAX {
                self.bytes = OUTPUT_BYTES_MAX + 1;
                self.push_line(b"[output limit reached, the rest is dropped]".to_vec());
            }
            return;
        }
        self.bytes += data.len();
        for &byte in data {
            match byte {
                b'\n' | b'\r' if self.partial.is_empty() => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.partial);
                    self.push_line(line);
                }
                byte => self.partial.push(byte),
            }
        }
    }

    fn push_line(&mut self, bytes: Vec<u8>) {
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        self.lines.push(Line { at: Instant::now(), text });
    }

    fn finish(&mut self) {
        if !self.partial.is_empty() {
            let line = std::mem::take(&mut self.partial);
            self.push_line(line);
        }
        self.ended = true;
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            text.push_str(&line.text);
            text.push('\n');
        }
        text.push_str(&String::from_utf8_lossy(&self.partial));
        text
    }
}

/// A running program. It is killed when dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    namespace: Namespace,
    child: Mutex<Child>,
    output: Arc<Output>,
    started: Instant,
}

impl Running {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// The time when it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Everything it has written so far.
    pub fn text(&self) -> String {
        self.output.lock().text()
    }

    /// What its threads do now, and everything it has written so far.
    pub fn doing(&self) -> String {
        format!("{}\n{}", threads(self.id()), self.text())
    }

    /// The lines it has written, from number `from` on.
    pub fn lines_from(&self, from: usize) -> Vec<Line> {
        self.output.lock().lines.get(from..).unwrap_or_default().to_vec()
    }

    /// Waits for the first line that contains `text`.
    ///
    /// # Errors
    /// If it does not come within `limit`, or the program ends before.
    pub fn wait_line(&self, text: &str, limit: Duration) -> Result<Line, Error> {
        let mut patience = Patience::new(limit);
        let mut seen = 0;
        let mut state = self.output.lock();
        loop {
            if let Some(line) = state.lines[seen..].iter().find(|l| l.text.contains(text)) {
                return Ok(line.clone());
            }
            seen = state.lines.len();
            if state.ended {
                let problem = format!("ended without writing {text:?}");
                return Err(self.problem(problem, state.text()));
            }
            let left = patience.left();
            if left.is_zero() {
                let context = format!("\n{}", state.text());
                let what = format!("{text:?} from {}", self.name);
                return Err(Error::Timeout { what, limit, context });
            }
            let wait = self.output.changed.wait_timeout(state, left.min(LOOK));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a program in the same namespace listens on a TCP port.
    ///
    /// # Errors
    /// If none does within `limit`, or the program ends before.
    pub fn wait_tcp_listen(&self, port: u16, limit: Duration) -> Result<(), Error> {
        let what = format!("{} to listen on TCP port {port}", self.name);
        until(&what, limit, || {
            let tables = [self.namespace.proc_net("tcp")?, self.namespace.proc_net("tcp6")?];
            if tables.iter().any(|table| listens(table, port)) {
                return Ok(Some(()));
            }
            self.expect_alive()?;
            Ok(None)
        })
        .map_err(|error| self.with_output(error))
    }

    /// Fails if the program has ended.
    ///
    /// # Errors
    /// With its output.
    pub fn expect_alive(&self) -> Result<(), Error> {
        match self.try_status()? {
            None => Ok(()),
            Some(status) => Err(self.problem(format!("ended early, {status}"), self.text())),
        }
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// If the system can't tell.
    pub fn try_status(&self) -> Result<Option<ExitStatus>, Error> {
        self.child().try_wait().map_err(|e| Error::os(format!("waiting for {}", self.name), e))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill has no memory preconditions; the child is not reaped while we hold it.
        unsafe { libc::kill(self.id() as i32, signal) };
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the output so far, and with what its threads do, when it has not ended within
    /// `limit`; it is killed.
    pub fn finish(self, limit: Duration) -> Result<Finished, Error> {
        let what = format!("{} to end", self.name);
        let status = until(&what, limit, || self.try_status());
        let status = match status {
            Ok(status) => status,
            Err(error) => return Err(self.with_output(error).with_threads(self.id())),
        };
        let took = self.started.elapsed();
        let deadline = Instant::now() + DRAIN;
        let mut state = self.output.lock();
        while !state.ended && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = self.output.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        let lines = state.lines.clone();
        drop(state);
        Ok(Finished { name: self.name.clone(), status, lines, took })
    }

    fn problem(&self, problem: String, output: String) -> Error {
        Error::Program { program: self.name.clone(), problem, output }
    }

    fn with_output(&self, error: Error) -> Error {
        match error {
            Error::Timeout { what, limit, .. } => {
                Error::Timeout { what, limit, context: format!("\n{}", self.text()) }
            }
            other => other,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = self.child();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            // Killing fails only if the process has ended, which is the aim.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a `/proc/net/tcp` table shows a listener on `port`.
fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(1).is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some(LISTEN)
    })
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    name: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Its output.
    pub lines: Vec<Line>,
    /// The time for which it ran.
    pub took: Duration,
}

impl Finished {
    /// Everything it wrote.
    pub fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |text, line| text + &line.text + "\n")
    }

    /// Fails unless it exited with status 0, or as rping does at times when all is done.
    ///
    /// # Errors
    /// With its output.
    pub fn expect_success(self) -> Result<Self, Error> {
        if self.ended_in_rpings_race() { Ok(self) } else { self.expect_code(0) }
    }

    /// Whether it is an rping that its peer has left, and whose main thread closed the event channel before
    /// the thread that reads it did so again. On any adapter it then exits with status 255.
    fn ended_in_rpings_race(&self) -> bool {
        let said = |text: &str| self.lines.iter().any(|line| line.text.contains(text));
        self.name.starts_with("rping ")
            && self.status.code() == Some(255)
            && said("DISCONNECT EVENT")
            && said("rdma_get_cm_event: Bad file descriptor")
    }

    /// Fails unless it exited with this status.
    ///
    /// # Errors
    /// With its output.
    fn expect_code(self, code: i32) -> Result<Self, Error> {
        match (self.status.code(), self.status.signal()) {
            (Some(actual), _) if actual == code => Ok(self),
            (Some(actual), _) => Err(self.problem(format!("exit status {actual}, wanted {code}"))),
            (None, signal) => {
                Err(self.problem(format!("killed by signal {}", signal.unwrap_or(0))))
            }
        }
    }

    /// Fails unless a line contains `text`.
    ///
    /// # Errors
    /// With its output.
    pub fn expect_line(self, text: &str) -> Result<Self, Error> {
        match self.lines.iter().any(|line| line.text.contains(text)) {
            true => Ok(self),
            false => Err(self.problem(format!("did not write {text:?}"))),
        }
    }

    /// Fails if any line contains `text`.
    ///
    /// # Errors
    /// With its output.
    pub fn expect_no_line(self, text: &str) -> Result<Self, Error> {
        match self.lines.iter().any(|line| line.text.contains(text)) {
            false => Ok(self),
            true => Err(self.problem(format!("wrote {text:?}"))),
        }
    }

    fn problem(&self, problem: String) -> Error {
        Error::Program { program: self.name.clone(), problem, output: self.text() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_found_by_port_and_state() {
        let table = "  sl  local_address rem_address   st\n\
             0: 00000000:4855 00000000:0000 0A 00000000:00000000\n\
             1: 00000000:1234 00000000:0000 01 00000000:00000000\n";
        assert!(listens(table, 18517));
        assert!(!listens(table, 0x1234), "a connection is no listener");
        assert!(!listens(table, 7));
    }

    #[test]
    fn what_comes_after_the_first_eio_of_a_closed_terminal_is_read_too() {
        struct Terminal(Vec<Option<&'static [u8]>>);
        impl Read for Terminal {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                match self.0.pop().flatten() {
                    Some(mut data) => data.read(buffer),
                    None => Err(std::io::Error::from_raw_os_error(libc::EIO)),
                }
            }
        }
        let output = Output::default();
        output.fill_from(Terminal(vec![Some(b"ond\n"), None, Some(b"first\nsec")]));
        let state = output.lock();
        assert_eq!(state.text(), "first\nsecond\n");
        assert!(state.ended);
    }

    #[test]
    fn output_is_cut_into_lines_at_either_line_end() {
        let mut state = OutputState::default();
        state.append(b"one\r\ntw");
        state.append(b"o\nthree");
        assert_eq!(state.lines.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        state.finish();
        assert_eq!(state.lines.len(), 3);
    }

    #[test]
    fn output_beyond_the_limit_is_dropped_and_said() {
        let mut state = OutputState { bytes: OUTPUT_BYTES_MAX, ..OutputState::default() };
        state.append(b"more\n");
        state.append(b"more\n");
        assert_eq!(state.lines.len(), 1);
    }
}
