//! A running guest: what it is given, how it boots, and how it ends.

use super::port::Port;
use super::problem::Problem;
use super::qmp::Monitor;
use crate::{Finished, Lab, Running, Scratch, until};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The emulator. It is used without KVM, because not every machine has KVM and the tests do not need
/// its speed.
pub(super) const EMULATOR: &str = "qemu-system-x86_64";
/// The longest time that the guest may take to boot on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
/// The longest time that a command's answer may take beyond the command's own limit.
pub const ANSWER: Duration = Duration::from_secs(30);

/// What a guest is given.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// The image of its kernel.
    pub kernel: &'a Path,
    /// Its first file system.
    pub initramfs: &'a Path,
    /// Its memory in MiB.
    pub memory: u32,
    /// Arguments of the emulator that add devices, separated by spaces.
    pub devices: String,
    /// Words for its kernel's command line, which `/proc/cmdline` shows to its first program.
    pub words: String,
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    emulator: Running,
    _directory: Scratch,
    monitor: Monitor,
    /// The control port of short commands and of clients.
    pub client: Port,
    /// The control port of servers.
    pub server: Port,
}

impl Guest {
    /// Starts a guest in the namespace of a lab's switches. [`Guest::wait`] waits until it is up.
    ///
    /// # Errors
    /// If the emulator does not start.
    pub fn start(lab: &Lab, machine: &Machine<'_>) -> Result<Self, Problem> {
        let directory = Scratch::new("guest")?;
        let socket = |name: &str| directory.path(name).display().to_string();
        let mut line: Vec<String> = vec![EMULATOR.to_owned()];
        let mut add = |text: &str| line.extend(text.split(' ').map(str::to_owned));
        add("-machine q35 -accel tcg,thread=multi -cpu Nehalem -smp 1");
        add(&format!("-m {}", machine.memory));
        add("-display none -nodefaults -no-reboot -serial stdio -device virtio-serial-pci");
        add(&format!("-qmp unix:{},server=on,wait=off", socket("monitor")));
        for (number, name) in ["client", "server"].iter().enumerate() {
            add(&format!("-chardev socket,id={name},path={},server=on,wait=off", socket(name)));
            add(&format!("-device virtserialport,nr={},chardev={name},name={name}", number + 1));
        }
        add(&machine.devices);
        let Machine { kernel, initramfs, words, .. } = machine;
        add(&format!("-kernel {} -initrd {}", kernel.display(), initramfs.display()));
        line.push("-append".to_owned());
        line.push(format!(
            "console=ttyS0 quiet panic=-1 no_timer_check net.ifnames=0 mitigations=off {words}"
        ));
        let emulator = lab.in_switch(line).spawn()?;
        let connect = |name: &str| {
            let path = directory.path(name);
            until("the emulator to listen", ANSWER, || {
                emulator.expect_alive()?;
                Ok(UnixStream::connect(&path).ok())
            })
        };
        let (client, server) = (Port::new(connect("client")?), Port::new(connect("server")?));
        let monitor = Monitor::new(connect("monitor")?)?;
        Ok(Self { emulator, _directory: directory, monitor, client, server })
    }

    /// Waits until the guest takes commands.
    ///
    /// # Errors
    /// If it does not boot, with what it wrote to its console.
    pub fn wait(&mut self) -> Result<(), Problem> {
        for port in [&mut self.client, &mut self.server] {
            if let Err(problem) = port.finish(BOOT) {
                let console = self.emulator.text();
                return Err(Problem::Failed(format!(
                    "the guest did not start: {problem}\n{console}"
                )));
            }
        }
        Ok(())
    }

    /// Runs a short command that must succeed, and returns its output.
    ///
    /// # Errors
    /// If it fails, or takes longer than [`ANSWER`].
    pub fn run(&mut self, command: &str) -> Result<String, Problem> {
        self.client.run(command, ANSWER)?.success(command)
    }

    /// Plugs in the cable of a network device of the emulator, or pulls it out: the guest sees the carrier
    /// come or go.
    ///
    /// # Errors
    /// If the emulator refuses.
    pub fn set_link(&mut self, device: &str, up: bool) -> Result<(), Problem> {
        let arguments = serde_json::json!({ "name": device, "up": up });
        self.monitor.execute("set_link", &arguments)
    }

    /// What the kernel has written to its console.
    pub fn console(&self) -> String {
        self.emulator.text()
    }

    /// Ends the guest at once.
    ///
    /// # Errors
    /// If the emulator does not end.
    pub fn stop(self) -> Result<(), Problem> {
        self.emulator.signal(libc::SIGTERM);
        let _: Finished = self.emulator.finish(ANSWER)?;
        Ok(())
    }
}
