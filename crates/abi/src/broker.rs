//! The process's connection to the broker for what the engine does not handle: the CM device, and
//! the table of interfaces for the made-up files.
//!
//! If the broker is killed, another one takes its place and keeps the open CM files. Programs may do nothing
//! but wait for events meanwhile, so a thread waits for the end of the connection and makes another one.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polypath_ipc::{Client, Hello, IpcError};

use crate::guard;
use crate::lock::Lock;

/// How long the broker's successor is waited for, and the pause between two attempts.
const SUCCESSION: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// The connection. It is made at its first use, and again in a child and after the broker was gone.
pub(crate) static CLIENT: Lock<Option<Link>> = Lock::new(None);

/// What goes on at another broker.
pub(crate) struct GoesOn {
    /// Whether there is anything now.
    pub(crate) is_any: fn() -> bool,
    /// Goes on with it.
    pub(crate) resume: fn(&mut Client),
}

static GOES_ON: OnceLock<GoesOn> = OnceLock::new();

/// Lets this go on if the broker is killed.
pub(crate) fn keep(what: GoesOn) {
    GOES_ON.get_or_init(|| what);
    if let Some(link) = CLIENT.lock().as_mut() {
        link.watch();
    }
}

/// What goes on, if there is anything.
fn goes_on() -> Option<&'static GoesOn> {
    GOES_ON.get().filter(|what| (what.is_any)())
}

/// A connection, which is at its end when this is dropped, even if a thread waits for that.
pub(crate) struct Link {
    client: Client,
    owner: u32,
    /// Tells that the thread that waits for the end waits no more.
    watched: Option<Receiver<()>>,
}

impl Link {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, owner: std::process::id(), watched: None }
    }

    /// Lets a thread wait for the end of the connection.
    pub(crate) fn watch(&mut self) {
        if self.watched.is_some() {
            return;
        }
        let Ok(end) = self.client.hang_up() else { return };
        let (over, watched) = sync_channel(1);
        let body = move || {
            end.wait();
            drop(end);
            let _ = over.send(());
            guard::run((), renew);
        };
        if polypath_engine::spawn("polypath-cm-end", body).is_ok() {
            self.watched = Some(watched);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // In a child, the connection is its parent's.
        if self.owner == std::process::id() {
            self.client.end();
            if let Some(watched) = self.watched.take() {
                // The thread has a copy of the descriptor. A checkpoint must find none.
                let _ = watched.recv();
            }
        }
    }
}

impl Deref for Link {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// A number for a command that no other one of this process has, nor of a process that had its id before.
pub(crate) fn next_command() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static COMMANDS: AtomicU64 = AtomicU64::new(0);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    FIRST.get_or_init(now).wrapping_add(COMMANDS.fetch_add(1, Ordering::Relaxed))
}

/// Asks the broker something. If `again` is set, the request may be sent on another connection if
/// this one turns out to be unusable.
pub(crate) fn ask<T>(
    again: bool,
    question: impl Fn(&mut Client) -> Result<T, IpcError>,
) -> Result<T, IpcError> {
    let mut client = CLIENT.lock();
    client.take_if(|open| open.is_over());
    if let Some(open) = client.as_mut() {
        match question(open) {
            Err(IpcError::Refused { errno, text }) => {
                return Err(IpcError::Refused { errno, text });
            }
            Err(IpcError::Forked) => *client = None,
            Err(error) if !again => {
                *client = None;
                return Err(error);
            }
            Err(_) => *client = None,
            Ok(answer) => return Ok(answer),
        }
        if !again {
            return Err(IpcError::Closed);
        }
    }
    question(client.insert(go_on()?))
}

/// Makes another connection if this one is at its end and anything goes on. It starts no broker: one that was
/// ended on purpose has left nothing that goes on.
fn renew() {
    let mut client = CLIENT.lock();
    if client.take_if(|open| open.is_over()).is_some() {
        *client = goes_on().and_then(succeed);
    }
}

/// Another connection, by which what goes on does.
fn go_on() -> Result<Link, IpcError> {
    match goes_on().and_then(succeed) {
        Some(link) => Ok(link),
        None => connect().map(Link::new),
    }
}

/// Goes on at the broker that has taken the place of one that was killed; `None` if there is none.
fn succeed(what: &GoesOn) -> Option<Link> {
    let (until, hello) = (Instant::now() + SUCCESSION, hello());
    while Instant::now() < until {
        match Client::connect(&hello) {
            Ok(client) => {
                let mut link = Link::new(client);
                (what.resume)(&mut link);
                link.watch();
                return Some(link);
            }
            Err(IpcError::Version { .. } | IpcError::Refused { .. }) => return None,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    None
}

/// Another connection.
pub(crate) fn connect() -> Result<Client, IpcError> {
    Client::connect_or_start(&hello())
}

fn hello() -> Hello {
    let selection = std::env::var("POLYPATH_DEVICE").unwrap_or_default();
    Hello::of_this_process(&selection)
}
