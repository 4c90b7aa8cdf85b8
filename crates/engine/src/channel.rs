//! Completion channels.

use std::any::Any;
use std::io;
use std::os::fd::RawFd;

use polypath_verbs::CompletionChannel;

use crate::notify::NoticeQueue;

/// A completion channel: the tokens of completion queues that have an event.
#[derive(Debug)]
pub(crate) struct Channel {
    notices: NoticeQueue<u64>,
}

impl Channel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { notices: NoticeQueue::new()? })
    }

    pub(crate) fn notify(&self, token: u64) {
        self.notices.push(token);
    }

    /// Drops the undelivered events of a completion queue that is gone.
    pub(crate) fn forget(&self, token: u64) {
        self.notices.forget(|t| *t == token);
    }
}

impl CompletionChannel for Channel {
    fn fd(&self) -> RawFd {
        self.notices.fd()
    }
    fn take(&self) -> Option<u64> {
        self.notices.take()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
