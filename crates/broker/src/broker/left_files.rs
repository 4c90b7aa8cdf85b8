//! CM files of programs whose broker was killed: what is written down of this broker's, and what becomes of
//! those that another one has left.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use polypath_cm::{ClientId, FileId, KeptId};
use polypath_ipc::message::Reply;

use super::departures::refusal_of;
use super::requests::{Answer, Refusal, reply};
use super::{Broker, FILE, token};
use crate::files::LeftFile;
use crate::handover::Handover;
use crate::ledger::{KeptAnswer, Ledger};
use crate::log::log;
use crate::slots::NOBODY;
use crate::sys::epoll::Interest;
use crate::sys::process::now;

/// An empty ledger; `None` if there is no memory for it. Then the ids are lost if the broker is killed.
pub(super) fn new_ledger() -> Option<Ledger> {
    Ledger::new().inspect_err(|error| log!("making a ledger of rdma_cm ids: {error}")).ok()
}

/// Writes down what is known of an id, with as many of the events that wait as there is room for.
fn write(ledger: &mut Ledger, mut kept: KeptId) -> io::Result<()> {
    loop {
        let written = ledger.write(&kept);
        match &written {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
            _ => return written,
        }
        let Some(fewer) = kept.with_fewer_events() else { return written };
        kept = fewer;
    }
}

impl Broker {
    /// Writes down which ids have changed.
    pub(super) fn write_down(&mut self) {
        for id in self.cm.take_changed_ids() {
            let Some(ledger) = &mut self.ledger else { continue };
            let written = self.cm.kept_id(id).map(|kept| write(ledger, kept));
            if let Some(Err(error)) = &written {
                log!("rdma_cm id {id} is lost if the broker is killed: {error}");
            }
            if !matches!(written, Some(Ok(()))) {
                ledger.erase(id);
            }
        }
    }

    /// Writes down the answer to a command, which its process may not get.
    pub(super) fn write_answer(&mut self, pid: u32, number: u64, answer: &Result<Vec<u8>, i32>) {
        if pid == 0 {
            return; // Processes of other pid namespaces can't be told apart, and their ids are lost anyway.
        }
        let answer = KeptAnswer { pid, number, answer: answer.clone() };
        if let Some(ledger) = &mut self.ledger
            && let Err(error) = ledger.write_answer(&answer)
        {
            log!("an answer to process {pid} is lost if the broker is killed: {error}");
        }
    }

    /// Forgets what was written down of a process, unless it still uses this broker.
    pub(super) fn forget_answer(&mut self, pid: u32) {
        if self.has_process(pid) {
            return;
        }
        self.left_answers.remove(&pid);
        if let Some(ledger) = &mut self.ledger {
            ledger.erase_answer(pid);
        }
    }

    /// Keeps the files that a killed broker has left, until their processes connect or end.
    pub(super) fn keep_left_files(&mut self, handover: &mut Handover) {
        let mut ids: BTreeMap<FileId, Vec<KeptId>> = BTreeMap::new();
        if let Some(ledger) = handover.ledger.take() {
            for id in ledger.read() {
                ids.entry(id.file()).or_default().push(id);
            }
            for left in ledger.answers() {
                self.write_answer(left.pid, left.number, &left.answer);
                self.left_answers.insert(left.pid, left);
            }
        }
        for (file, (pid, socket)) in std::mem::take(&mut handover.files) {
            let token = token(FILE, file.0.into());
            if let Err(error) = self.epoll.add(socket.as_fd(), token, Interest::HangUp) {
                log!("watching a CM file of process {pid}: {error}");
                continue;
            }
            let ids = ids.remove(&file).unwrap_or_default();
            if let Some(ledger) = &mut self.ledger {
                ids.iter().for_each(|id| drop(ledger.write(id)));
            }
            self.files.leave(file, LeftFile { pid, socket, ids });
        }
    }

    /// Gives a process a CM file back that it had at a broker that was killed.
    pub(super) fn resume_cm_file(&mut self, id: u64, file: u64) -> Answer {
        let pid = self.pid_of(id);
        let number = u32::try_from(file).ok().map(FileId);
        let left = number.and_then(|file| Some((file, self.files.take_left(file, Some(pid))?)));
        let Some((file, LeftFile { socket, ids, .. })) = left else {
            let text = format!("CM file {file} was not left by a broker that was killed");
            return Err(Refusal::new(libc::EBADF, text));
        };
        self.forget_orphan(pid);
        let _ = self.epoll.remove(socket.as_fd());
        let put = self.files.put(file, (id, pid), socket).and_then(|()| self.begin_file(file, id));
        if let Err(error) = put {
            self.end_ids(file, ids);
            return Err(Refusal::of("going on with a CM file", &error));
        }
        match self.cm.restore_file(now(), file, ids, &mut self.host) {
            Ok(()) => reply(Reply::Done),
            Err(why) => {
                self.close_file(file);
                Err(refusal_of(why))
            }
        }
    }

    /// Ends a file that was left, because its process has closed it. Returns false if there is none.
    pub(super) fn end_left(&mut self, file: FileId) -> bool {
        let Some(LeftFile { pid, socket, ids }) = self.files.take_left(file, None) else {
            return false;
        };
        let _ = self.epoll.remove(socket.as_fd());
        drop(socket);
        self.end_ids(file, ids);
        self.forget_orphan(pid);
        true
    }

    /// Ends connections of a file as if it was closed, so that their peers hear of it.
    fn end_ids(&mut self, file: FileId, ids: Vec<KeptId>) {
        self.cm.open_file(file, ClientId(NOBODY));
        let _ = self.cm.restore_file(now(), file, ids, &mut self.host);
        self.cm.close_file(now(), file, &mut self.host);
    }
}
