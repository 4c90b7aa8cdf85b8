//! The other side: Linux with rxe in a virtual machine. Commands run in it through its control ports.

use crate::Problem;
use polypath_e2e::{Finished, Lab, Running, until};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The emulator. It is used without KVM, because not every machine has KVM and the tests do not need
/// its speed.
pub(crate) const EMULATOR: &str = "qemu-system-x86_64";
/// The guest's addresses on the lab's first link, beside those of its hosts.
pub(crate) const IPV4: &str = "10.0.0.3";
pub(crate) const IPV6: &str = "fd00::3";
/// The longest time that the guest may take to boot on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
/// The longest time that a command's answer may take beyond the command's own limit.
const ANSWER: Duration = Duration::from_secs(30);
/// The line that ends a command's output, before its status.
const STATUS: &str = "@@status ";
/// The line before a command's output, before its number.
const BEGIN: &str = "@@begin ";

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    emulator: Running,
    directory: PathBuf,
    /// The control port of short commands and of clients.
    pub(crate) client: Port,
    /// The control port of servers.
    pub(crate) server: Port,
}

impl Guest {
    /// Boots the guest, joined to the lab's first link.
    pub(crate) fn boot(lab: &Lab, kernel: &Path, initramfs: &Path) -> Result<Self, Problem> {
        const TAP: &str = "guest";
        lab.add_tap(0, TAP)?;
        let directory =
            std::env::temp_dir().join(format!("polypath-interop-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|e| Problem::os("making a directory", e))?;
        let socket = |name: &str| directory.join(name).display().to_string();
        let mut line: Vec<String> = vec![EMULATOR.to_owned()];
        let mut add = |text: &str| line.extend(text.split(' ').map(str::to_owned));
        add("-machine q35 -accel tcg,thread=multi -cpu Nehalem -smp 1 -m 768");
        add("-display none -nodefaults -no-reboot -serial stdio -device virtio-serial-pci");
        for (number, name) in ["client", "server"].iter().enumerate() {
            add(&format!("-chardev socket,id={name},path={},server=on,wait=off", socket(name)));
            add(&format!("-device virtserialport,nr={},chardev={name},name={name}", number + 1));
        }
        add(&format!("-netdev tap,id=net,ifname={TAP},script=no,downscript=no"));
        // Without offloads, the guest sends packets as a wire would carry them.
        add("-device virtio-net-pci,netdev=net,mac=52:54:00:00:00:03,host_mtu=9000,romfile=,\
             csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off");
        add(&format!("-kernel {} -initrd {}", kernel.display(), initramfs.display()));
        line.push("-append".to_owned());
        line.push(format!(
            "console=ttyS0 quiet panic=-1 no_timer_check net.ifnames=0 mitigations=off \
             polypath.ipv4={IPV4} polypath.ipv6={IPV6}"
        ));
        let emulator = lab.in_switch(line).spawn()?;
        let connect = |name: &str| -> Result<Port, Problem> {
            let path = directory.join(name);
            let stream = until("the emulator to listen", ANSWER, || {
                emulator.expect_alive()?;
                Ok(UnixStream::connect(&path).ok())
            })?;
            Ok(Port::new(stream))
        };
        let (client, server) = (connect("client")?, connect("server")?);
        let mut guest = Self { emulator, directory, client, server };
        for port in [true, false] {
            let port = if port { &mut guest.client } else { &mut guest.server };
            if let Err(problem) = port.finish(BOOT) {
                let console = guest.emulator.text();
                return Err(Problem::Failed(format!(
                    "the guest did not start: {problem}\n{console}"
                )));
            }
        }
        Ok(guest)
    }

    /// Runs a short command that must succeed, and returns its output.
    pub(crate) fn run(&mut self, command: &str) -> Result<String, Problem> {
        self.client.run(command, ANSWER)?.success(command)
    }

    /// What the kernel has written to its console.
    pub(crate) fn console(&self) -> String {
        self.emulator.text()
    }

    /// Ends the guest at once.
    pub(crate) fn stop(self) -> Result<(), Problem> {
        self.emulator.signal(libc::SIGTERM);
        let Self { emulator, directory, .. } = self;
        let _: Finished = emulator.finish(ANSWER)?;
        let _ = std::fs::remove_dir_all(directory);
        Ok(())
    }
}

/// How a command in the guest ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) text: String,
}

impl Answer {
    /// The output of a command that succeeded.
    pub(crate) fn success(self, command: &str) -> Result<String, Problem> {
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
pub(crate) struct Port {
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
    fn new(stream: UnixStream) -> Self {
        let text = String::new();
        Self { stream, pending: Vec::new(), text, number: 0, begun: false, ended: None }
    }

    /// Starts a command.
    pub(crate) fn start(&mut self, command: &str) -> Result<(), Problem> {
        self.text.clear();
        self.ended = None;
        self.number += 1;
        self.begun = false;
        let line = format!("{} {}\n", self.number, command.replace('\n', " "));
        self.stream.write_all(line.as_bytes()).map_err(|e| Problem::os("telling the guest", e))
    }

    /// Starts a command and waits for its end.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<Answer, Problem> {
        self.start(command)?;
        self.finish(limit)
    }

    /// Waits until the command has written a line with `text`.
    pub(crate) fn wait_line(&mut self, text: &str, limit: Duration) -> Result<(), Problem> {
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
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<Answer, Problem> {
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
