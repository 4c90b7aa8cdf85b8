//! Rules of how mp devices use their paths: commands and the configuration file set them, and each process is
//! told.

use std::convert::Infallible;

use polypath_config::Location;
use polypath_ipc::message::Reply;
use polypath_ipc::status::ConfigStatus;
use polypath_telemetry::Event;
use polypath_topology::{Bonding, RuleScope};

use super::Broker;
use super::requests::{Answer, Refusal, reply};
use crate::log::log;
use crate::rules::{self, RefusedRule};

impl Broker {
    /// Sets a rule by a command, or takes it back.
    pub(super) fn set_rule(&mut self, mut scope: RuleScope, settings: Option<&Bonding>) -> Answer {
        self.find_process(&mut scope)?;
        let said = settings.map_or_else(|| "default".to_owned(), ToString::to_string);
        let text = scope.to_string();
        let changed = self.host.change_rules(|all| rules::set(all, scope, settings));
        let changed = changed.map_err(|error| {
            let errno = match error {
                RefusedRule::Wrong(_) => libc::EINVAL,
                RefusedRule::TooMany | RefusedRule::TooLong => libc::ENOSPC,
            };
            Refusal::new(errno, error.to_string())
        })?;
        if changed {
            log!("{text}: {said}");
            self.happened(Event::RuleChanged { scope: text, settings: said });
            self.push_table();
        }
        reply(Reply::Done)
    }

    /// Reads the configuration file. If it has a mistake, what was in force stays.
    ///
    /// # Errors
    /// The mistake, as text.
    pub(super) fn read_config(&mut self) -> Result<(), String> {
        let location = Location::find();
        let path = location.path.display().to_string();
        let followed = self.follow(&location, &path);
        let error = followed.clone().err().unwrap_or_default();
        self.config = ConfigStatus { path, error };
        followed
    }

    fn follow(&mut self, location: &Location, path: &str) -> Result<(), String> {
        let of_file = polypath_config::load(location).map_err(|error| error.to_string())?;
        let settings = match of_file.len() {
            1 => "1 rule".to_owned(),
            count => format!("{count} rules"),
        };
        let changed = self.host.change_rules(|all| rules::replace_file(all, of_file));
        if changed.map_err(|error| format!("{path}: {error}"))? {
            let scope = format!("configuration file {path}");
            log!("{scope}: {settings}");
            self.happened(Event::RuleChanged { scope, settings });
            self.push_table();
        }
        Ok(())
    }

    /// Reads the configuration file again because a command says so.
    pub(super) fn reload_config(&mut self) -> Answer {
        self.read_config().map_err(|error| {
            log!("the configuration file is not followed: {error}");
            Refusal::new(libc::EINVAL, error)
        })?;
        reply(Reply::Done)
    }

    /// Checks that the process of a rule is there, and finds that of a queue pair.
    fn find_process(&self, scope: &mut RuleScope) -> Result<(), Refusal> {
        let gone = |what: String| {
            let text = format!("{what} uses Polypath here: see `polypath status`");
            Err(Refusal::new(libc::ESRCH, text))
        };
        if let Some(qpn) = scope.queue_pair {
            let slot = u8::try_from(qpn >> 16).ok();
            let owner = slot.and_then(|slot| self.slots.owners().get(&slot)).map(|owner| owner.pid);
            let Some(owner) = owner else {
                return gone(format!("no process with queue pair {qpn:#08x}"));
            };
            match scope.process.replace(owner) {
                Some(pid) if pid != owner => {
                    let text = format!(
                        "queue pair {qpn:#08x} is of process {owner}, not {pid}: leave out --process"
                    );
                    return Err(Refusal::new(libc::ESRCH, text));
                }
                _ => return Ok(()),
            }
        }
        match scope.process {
            Some(pid) if !self.has_process(pid) => gone(format!("no process {pid}")),
            _ => Ok(()),
        }
    }

    /// Whether a process uses this broker.
    pub(super) fn has_process(&self, pid: u32) -> bool {
        let connected = self.connections.values().any(|c| c.is_user() && c.pid == pid);
        connected || self.orphans.contains_key(&pid)
    }

    /// Forgets the rules of a process, unless it still uses this broker.
    pub(super) fn forget_rules_of(&mut self, pid: u32) {
        if self.has_process(pid)
            || !self.host.table().rules.iter().any(|r| r.scope.process == Some(pid))
        {
            return;
        }
        let Ok(changed) = self.host.change_rules(|all| {
            rules::forget_process(all, pid);
            Ok::<(), Infallible>(())
        });
        if changed {
            self.push_table();
        }
    }
}
