//! Tells all brokers of this network namespace which interfaces LACP lets carry traffic.
//!
//! A broker belongs to its user, who may stop it. So each has a thread of its own that waits for its answers,
//! and the protocol waits for none.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use polypath_ipc::lacp::LacpPort;
use polypath_ipc::{Client, Hello, port, socket};

use crate::log::log;

/// How often each broker is told, even if nothing changes, and brokers that have started since are looked
/// for.
const AGAIN: Duration = Duration::from_secs(1);

/// The largest number of brokers that are told.
const BROKERS_MAX: usize = 64;

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct News {
    /// The interfaces, and whether each may carry traffic.
    ports: Vec<LacpPort>,
    /// The users whose brokers have a thread.
    served: BTreeSet<u32>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is other news than this, or it is time to tell it again.
    fn wait(&self, told: &[LacpPort]) -> Vec<LacpPort> {
        let news = self.lock();
        let waited = self.changed.wait_timeout_while(news, AGAIN, |news| news.ports == told);
        waited.unwrap_or_else(PoisonError::into_inner).0.ports.clone()
    }
}

/// The threads that tell brokers. They end with the process.
#[derive(Debug)]
pub(super) struct Brokers(Arc<Shared>);

impl Brokers {
    /// Begins to look for brokers.
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        start("polypath-brokers", move || find(&own));
        Self(shared)
    }

    /// Lets every broker know.
    pub(super) fn tell(&self, ports: Vec<LacpPort>) {
        let mut news = self.0.lock();
        if news.ports != ports {
            news.ports = ports;
            self.0.changed.notify_all();
        }
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    if let Err(error) = &started {
        log!("starting a thread: {error}");
    }
    started.is_ok()
}

/// Gives each broker that may be told a thread. Root tells all users' brokers, others their own.
fn find(shared: &Arc<Shared>) {
    let me = socket::user_id();
    let mut told = Vec::new();
    loop {
        for user in port::broker_users().into_iter().filter(|user| me == 0 || *user == me) {
            let mut news = shared.lock();
            if news.served.len() == BROKERS_MAX || !news.served.insert(user) {
                continue;
            }
            drop(news);
            let own = shared.clone();
            if !start("polypath-broker", move || serve(user, &own)) {
                shared.lock().served.remove(&user);
            }
        }
        told = shared.wait(&told);
    }
}

/// Tells one broker until it ends. One that refuses, such as one of another version, does without.
fn serve(user: u32, shared: &Shared) {
    if let Ok(mut client) = Client::connect_to(user, &Hello::of_this_process("")) {
        let mut ports = shared.lock().ports.clone();
        while client.set_lacp(ports.clone()).is_ok() {
            ports = shared.wait(&ports);
        }
    }
    shared.lock().served.remove(&user);
}
