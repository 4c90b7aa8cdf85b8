//! XRC domains: which shared receive queues the targets of a domain may be asked for (IBTA annex A14).
//!
//! A domain that a file stands for is shared by all contexts of a device *in this process* that open
//! it with that file. It does not reach into other processes, whose memory is not ours to write: the
//! queues of another process are unknown here, and who names one is refused as IBTA has it for any
//! queue outside of the domain. Queue numbers are random, so that none is taken for another's.
//!
//! Everything is done under the domain's lock: once a queue has been taken out of it, no lane is
//! still busy with it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use polypath_transport::{Completion, RecvWr};
use polypath_verbs::{Error, QueuePair, Result, XrcDomain, XrcdRequest};

use crate::context::Shared;
use crate::cq::Cq;
use crate::notify::lock;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::target::Handles;

/// Most XRC shared receive queues of one domain.
const MAX_SRQ_PER_DOMAIN: usize = 1 << 16;

/// A file that stands for a domain: the device's name, device number and inode.
type File = (String, u64, u64);

/// The domains of a process that files stand for.
pub(crate) type Domains = Mutex<HashMap<File, Weak<Domain>>>;

/// A shared receive queue in its domain.
#[derive(Debug)]
struct Member {
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    context: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Members {
    srqs: HashMap<u32, Member>,
    /// Bit n: a target is on lane n, so that lane may feed the completion queues of the members.
    lanes: u64,
    targets: HashMap<u32, (Weak<Qp>, Arc<Handles>)>,
}

/// A domain.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    members: Mutex<Members>,
}

impl Domain {
    /// Adds the shared receive queue that `make` makes with a number that is free.
    fn add_srq(
        &self,
        context: &Arc<Shared>,
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

    /// False: it is not there (any more).
    fn remove_srq(&self, number: u32) -> bool {
        lock(&self.members).srqs.remove(&number).is_some()
    }

    /// A target on `lane` belongs to the domain.
    pub(crate) fn add_target(&self, target: &Arc<Qp>, handles: &Arc<Handles>, lane: usize) {
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
    pub(crate) fn target(&self, qpn: u32) -> Option<(Arc<Qp>, Arc<Handles>)> {
        let members = lock(&self.members);
        let (target, handles) = members.targets.get(&qpn)?;
        Some((target.upgrade()?, handles.clone()))
    }

    /// The protection domain of a member, and the context that it belongs to.
    pub(crate) fn pd_of(&self, srqn: u32) -> Option<(u32, Arc<Shared>)> {
        let members = lock(&self.members);
        let member = members.srqs.get(&srqn)?;
        Some((member.srq.pd, member.context.clone()))
    }

    /// The context of a protection domain that some member belongs to.
    pub(crate) fn context_of(&self, pd: u32) -> Option<Arc<Shared>> {
        let members = lock(&self.members);
        members.srqs.values().find(|m| m.srq.pd == pd).map(|m| m.context.clone())
    }

    /// The next receive of a member.
    pub(crate) fn take(&self, srqn: u32) -> Option<RecvWr> {
        lock(&self.members).srqs.get(&srqn)?.srq.take()
    }

    /// Hands a completion to `push` with the completion queue that it belongs to; nothing happens if
    /// the member is gone.
    pub(crate) fn complete(
        &self,
        srqn: u32,
        completion: Completion,
        push: impl FnOnce(&Arc<Cq>, Completion),
    ) {
        if let Some(member) = lock(&self.members).srqs.get(&srqn) {
            push(&member.cq, completion);
        }
    }
}

/// A handle to a domain.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) domain: Arc<Domain>,
    /// What was made with it: shared receive queues and targets.
    users: AtomicU32,
    me: Weak<Self>,
}

impl Xrcd {
    pub(crate) fn open(context: &Shared, request: &XrcdRequest) -> Result<Arc<Self>> {
        let domain = match request.file {
            None => Arc::default(),
            Some((device, inode)) => {
                let file = (context.info.name.clone(), device, inode);
                let mut all = lock(&context.process.xrc_domains);
                all.retain(|_, domain| domain.strong_count() > 0);
                match all.get(&file).and_then(Weak::upgrade) {
                    Some(_) if request.exclusive => {
                        return Err(Error::invalid("O_EXCL, and the XRC domain is there already"));
                    }
                    Some(domain) => domain,
                    None if !request.create => {
                        return Err(Error::new(
                            libc::EAGAIN,
                            "no O_CREAT, and this process has no XRC domain of that file",
                        ));
                    }
                    None => {
                        let domain = Arc::default();
                        all.insert(file, Arc::downgrade(&domain));
                        domain
                    }
                }
            }
        };
        Ok(Arc::new_cyclic(|me| Self { domain, users: AtomicU32::new(0), me: me.clone() }))
    }

    /// The handle behind the trait, if it is one of ours.
    pub(crate) fn find(domain: &dyn XrcDomain) -> Result<Arc<Self>> {
        domain
            .as_any()
            .downcast_ref::<Self>()
            .and_then(|xrcd| xrcd.me.upgrade())
            .ok_or_else(|| Error::invalid("the XRC domain belongs to another device"))
    }

    /// Something is made with the handle.
    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// It is gone.
    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl XrcDomain for Xrcd {
    fn close(&self) -> Result<()> {
        match self.users.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => Err(Error::busy(format!(
                "{n} shared receive queues and queue pairs still use the XRC domain"
            ))),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What a shared receive queue of XRC holds on to.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) xrcd: Arc<Xrcd>,
    pub(crate) cq: Arc<Cq>,
}

impl Membership {
    /// Makes a shared receive queue a member of the domain.
    pub(crate) fn begin(
        self,
        context: &Arc<Shared>,
        make: impl FnOnce(u32, Self) -> Result<Arc<Srq>>,
    ) -> Result<Arc<Srq>> {
        let (domain, cq, xrcd) = (self.xrcd.domain.clone(), self.cq.clone(), self.xrcd.clone());
        let srq = domain.add_srq(context, &cq, |number| make(number, self))?;
        cq.hold();
        xrcd.hold();
        Ok(srq)
    }

    /// The shared receive queue is destroyed: nobody takes from it after this.
    pub(crate) fn end(&self, number: u32) {
        if self.xrcd.domain.remove_srq(number) {
            self.cq.release_user();
            self.xrcd.release();
        }
    }
}
