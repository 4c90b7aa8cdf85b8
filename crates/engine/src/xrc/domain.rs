//! The members of an XRC domain: its shared receive queues and targets.
//!
//! All work is done under the domain's lock: once a queue was removed from the domain, no lane uses
//! it any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use polypath_transport::RecvWr;
use polypath_verbs::{Error, QueuePair, Result};

use crate::context_inner::ContextInner;
use crate::cq::Cq;
use crate::notify::lock;
use crate::srq::Srq;
use crate::xrc::handles::Handles;

/// The largest number of XRC shared receive queues in one domain.
const MAX_SRQ_PER_DOMAIN: usize = 1 << 16;

/// A file that names a domain: the device's name, the file's device number and inode.
pub(crate) type DomainFile = (String, u64, u64);

/// The domains of an engine that are named by files.
pub(crate) type Domains = Mutex<HashMap<DomainFile, Weak<Domain>>>;

/// A shared receive queue in its domain.
#[derive(Debug)]
struct Member {
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    context: Arc<ContextInner>,
}

#[derive(Debug, Default)]
struct Members {
    srqs: HashMap<u32, Member>,
    /// Bit n is set if a target is on lane n, so that this lane may feed the completion queues of
    /// the members.
    lanes: u64,
    targets: HashMap<u32, (Weak<dyn QueuePair>, Arc<Handles>)>,
}

/// An XRC domain.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    members: Mutex<Members>,
}

impl Domain {
    /// Adds the shared receive queue that `make` creates with a free number.
    pub(crate) fn add_srq(
        &self,
        context: &Arc<ContextInner>,
        cq: &Arc<Cq>,
        make: impl FnOnce(u32) -> Result<Arc<Srq>>,
    ) -> Result<Arc<Srq>> {
        let mut members = lock(&self.members);
        if members.srqs.len() >= MAX_SRQ_PER_DOMAIN {
            return Err(Error::no_memory("too many shared receive queues in one XRC domain"));
        }
        let number = loop {
            let number = getrandom::u32()
                .map_err(|e| Error::new(libc::EIO, format!("no randomness for a number: {e}")))?
                & 0xff_ffff;
            if number != 0 && !members.srqs.contains_key(&number) {
                break number;
            }
        };
        let srq = make(number)?;
        cq.feed(members.lanes);
        let member = Member { srq: srq.clone(), cq: cq.clone(), context: context.clone() };
        members.srqs.insert(number, member);
        Ok(srq)
    }

    /// Removes a shared receive queue. Returns false if it is not in the domain.
    pub(crate) fn remove_srq(&self, number: u32) -> bool {
        lock(&self.members).srqs.remove(&number).is_some()
    }

    /// Adds a target on `lane` to the domain.
    pub(crate) fn add_target(
        &self,
        target: &Arc<dyn QueuePair>,
        handles: &Arc<Handles>,
        lane: usize,
    ) {
        let mut members = lock(&self.members);
        members.lanes |= 1 << lane;
        for member in members.srqs.values() {
            member.cq.feed(1 << lane);
        }
        members.targets.insert(target.number(), (Arc::downgrade(target), handles.clone()));
    }

    pub(crate) fn remove_target(&self, qpn: u32) {
        lock(&self.members).targets.remove(&qpn);
    }

    /// The target with that number.
    pub(crate) fn target(&self, qpn: u32) -> Option<(Arc<dyn QueuePair>, Arc<Handles>)> {
        let members = lock(&self.members);
        let (target, handles) = members.targets.get(&qpn)?;
        Some((target.upgrade()?, handles.clone()))
    }

    /// The protection domain of a member, and the context of that domain.
    pub(crate) fn pd_of(&self, srqn: u32) -> Option<(u32, Arc<ContextInner>)> {
        let members = lock(&self.members);
        let member = members.srqs.get(&srqn)?;
        Some((member.srq.pd, member.context.clone()))
    }

    /// The context of a protection domain that some member has.
    pub(crate) fn context_of(&self, pd: u32) -> Option<Arc<ContextInner>> {
        let members = lock(&self.members);
        members.srqs.values().find(|m| m.srq.pd == pd).map(|m| m.context.clone())
    }

    /// Takes the next receive of a member.
    pub(crate) fn take(&self, srqn: u32) -> Option<RecvWr> {
        lock(&self.members).srqs.get(&srqn)?.srq.take()
    }

    /// Calls `push` with the completion queue of a member. Nothing happens if the member is gone.
    pub(crate) fn complete(&self, srqn: u32, push: impl FnOnce(&Arc<Cq>)) {
        if let Some(member) = lock(&self.members).srqs.get(&srqn) {
            push(&member.cq);
        }
    }
}
