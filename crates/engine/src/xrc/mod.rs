//! XRC domains: the shared receive queues that requests to the targets of a domain may name
//! (IBTA annex A14).
//!
//! A domain that is named by a file is shared by all contexts of a device *in this engine* that
//! open it with that file. It is not shared with other engines, nor with other processes, whose
//! memory we cannot write. Their queues are unknown here, and a request that names one is rejected
//! as IBTA specifies it for queues outside of the domain. Queue numbers are random, so that none is
//! mistaken for another one.

pub(crate) mod domain;
mod handles;
pub(crate) mod target;
pub(crate) mod target_state;

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use polypath_verbs::{Error, Result, XrcDomain, XrcdRequest};

use crate::context_inner::ContextInner;
use crate::cq::Cq;
use crate::drive::{Drive, are_same};
use crate::notify::lock;
use crate::srq::{MemberOf, Srq};

use domain::{Domain, Domains};

/// A handle to a domain.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) domain: Arc<Domain>,
    /// The lanes of its engine.
    lanes: Arc<dyn Drive>,
    /// The number of objects that were created with it: shared receive queues and targets.
    users: AtomicU32,
    me: Weak<Self>,
}

impl Xrcd {
    /// Implements `ibv_open_xrcd`. `domains` are those of the engine that are named by files.
    pub(crate) fn open(
        domains: &Domains,
        context: &ContextInner,
        request: &XrcdRequest,
    ) -> Result<Arc<Self>> {
        let domain = match request.file {
            None => Arc::default(),
            Some((device, inode)) => {
                let file = (context.info.name.clone(), device, inode);
                let mut all = lock(domains);
                all.retain(|_, domain| domain.strong_count() > 0);
                match all.get(&file).and_then(Weak::upgrade) {
                    Some(_) if request.exclusive => {
                        return Err(Error::invalid("O_EXCL, and the XRC domain is there already"));
                    }
                    Some(domain) => domain,
                    None if !request.create => {
                        return Err(Error::new(
                            libc::EAGAIN,
                            "no O_CREAT, and this engine has no XRC domain of that file",
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
        let lanes = context.lanes.clone();
        Ok(Arc::new_cyclic(|me| Self { domain, lanes, users: AtomicU32::new(0), me: me.clone() }))
    }

    /// The handle behind the trait, if it belongs to the engine with these lanes.
    pub(crate) fn find(domain: &dyn XrcDomain, lanes: &Arc<dyn Drive>) -> Result<Arc<Self>> {
        domain
            .as_any()
            .downcast_ref::<Self>()
            .filter(|xrcd| are_same(&xrcd.lanes, lanes))
            .and_then(|xrcd| xrcd.me.upgrade())
            .ok_or_else(|| Error::invalid("the XRC domain belongs to another device"))
    }

    /// Adds an object that is created with the handle.
    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes an object that is gone.
    pub(crate) fn remove_user(&self) {
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

/// The domain and the completion queue of an XRC shared receive queue.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) xrcd: Arc<Xrcd>,
    pub(crate) cq: Arc<Cq>,
}

impl Membership {
    /// Makes a shared receive queue a member of the domain.
    pub(crate) fn begin(
        self,
        context: &Arc<ContextInner>,
        make: impl FnOnce(u32, Self) -> Result<Arc<Srq>>,
    ) -> Result<Arc<Srq>> {
        let (domain, cq, xrcd) = (self.xrcd.domain.clone(), self.cq.clone(), self.xrcd.clone());
        let srq = domain.add_srq(context, &cq, |number| make(number, self))?;
        cq.add_user();
        xrcd.add_user();
        Ok(srq)
    }
}

impl MemberOf for Membership {
    fn end(&self, number: u32) {
        if self.xrcd.domain.remove_srq(number) {
            self.cq.remove_user();
            self.xrcd.remove_user();
        }
    }
}

#[cfg(test)]
mod tests {
    use polypath_verbs::{
        CompletionQueue, Context, CqRequest, QpRequest, QpType, QueuePair, RecvWr,
        SharedReceiveQueue, SrqAttr, SrqRequest, XrcSrq,
    };

    use super::*;
    use crate::context::OpenDevice;
    use crate::fuzz::Rig;

    /// A request for the domain of the file with this inode. Every test uses its own.
    fn of_file(inode: u64) -> XrcdRequest {
        XrcdRequest { file: Some((1, inode)), create: true, exclusive: false }
    }

    fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
        result.unwrap_err().errno
    }

    fn domain(xrcd: &Arc<dyn XrcDomain>) -> Arc<Domain> {
        xrcd.as_any().downcast_ref::<Xrcd>().unwrap().domain.clone()
    }

    fn cq(context: &OpenDevice) -> Arc<dyn CompletionQueue> {
        let request = CqRequest { cqe: 16, channel: None, token: 1, ignore_overrun: false };
        context.create_cq(&request).unwrap()
    }

    fn srq(
        context: &OpenDevice,
        domain: &Arc<dyn XrcDomain>,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Arc<dyn SharedReceiveQueue> {
        let pd = context.alloc_pd().unwrap();
        let xrc = Some(XrcSrq { domain: domain.clone(), cq: cq.clone() });
        let attr = SrqAttr { max_wr: 4, max_sge: 1, limit: 0 };
        context.create_srq(&SrqRequest { pd, attr, xrc, token: 2 }).unwrap()
    }

    fn target(context: &OpenDevice, domain: &Arc<dyn XrcDomain>, token: u64) -> Arc<dyn QueuePair> {
        let request = QpRequest {
            pd: None,
            qp_type: QpType::XrcRecv,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: Some(domain.clone()),
            sq_sig_all: false,
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
            token,
        };
        context.create_qp(&request).unwrap()
    }

    #[test]
    fn a_file_stands_for_one_domain_of_all_contexts() {
        let rig = Rig::new();
        let (a, b) = (rig.context(), rig.another_context());
        let there = XrcdRequest { create: false, ..of_file(1) };
        assert_eq!(errno(a.open_xrcd(&there)), libc::EAGAIN);
        let first = a.open_xrcd(&of_file(1)).unwrap();
        let second = b.open_xrcd(&there).unwrap();
        assert!(Arc::ptr_eq(&domain(&first), &domain(&second)));
        let only = XrcdRequest { exclusive: true, ..of_file(1) };
        assert_eq!(errno(b.open_xrcd(&only)), libc::EINVAL);
        let own = a.open_xrcd(&XrcdRequest::default()).unwrap();
        let other = a.open_xrcd(&XrcdRequest::default()).unwrap();
        assert!(!Arc::ptr_eq(&domain(&own), &domain(&other)));
        drop((first, second));
        assert_eq!(errno(a.open_xrcd(&there)), libc::EAGAIN, "it went with its last handle");
        b.open_xrcd(&only).unwrap();
    }

    #[test]
    fn a_handle_is_busy_while_anything_made_with_it_is_there() {
        let rig = Rig::new();
        let context = rig.context();
        let first = context.open_xrcd(&of_file(2)).unwrap();
        let second = context.open_xrcd(&of_file(2)).unwrap();
        let cq = cq(context);
        let srq = srq(context, &first, &cq);
        let target = target(context, &first, 3);
        second.close().unwrap();
        assert_eq!(errno(first.close()), libc::EBUSY);
        assert_eq!(errno(cq.destroy()), libc::EBUSY);
        srq.destroy().unwrap();
        srq.destroy().unwrap(); // It gives back once what it held.
        assert_eq!(errno(first.close()), libc::EBUSY);
        target.destroy().unwrap();
        first.close().unwrap();
        cq.destroy().unwrap();
    }

    #[test]
    fn a_target_lives_until_its_last_handle_is_destroyed() {
        let rig = Rig::new();
        let (a, b) = (rig.context(), rig.another_context());
        let (first, second) =
            (a.open_xrcd(&of_file(3)).unwrap(), b.open_xrcd(&of_file(3)).unwrap());
        let made = target(a, &first, 4);
        let qpn = made.number();
        let private = a.open_xrcd(&XrcdRequest::default()).unwrap();
        assert_eq!(errno(a.open_qp(private.as_ref(), qpn, 5)), libc::EINVAL);
        let opened = b.open_qp(second.as_ref(), qpn, 5).unwrap();
        assert_eq!(errno(second.close()), libc::EBUSY);
        made.destroy().unwrap();
        assert_eq!(errno(made.destroy()), libc::EINVAL);
        first.close().unwrap();
        assert_eq!(opened.number(), qpn);
        opened.query().unwrap();
        opened.destroy().unwrap();
        assert_eq!(errno(b.open_qp(second.as_ref(), qpn, 5)), libc::EINVAL);
        second.close().unwrap();
    }

    #[test]
    fn receives_are_found_by_the_number_of_their_queue_until_it_is_destroyed() {
        let rig = Rig::new();
        let (a, b) = (rig.context(), rig.another_context());
        let (first, second) =
            (a.open_xrcd(&of_file(4)).unwrap(), b.open_xrcd(&of_file(4)).unwrap());
        let (one, two) = (srq(a, &first, &cq(a)), srq(&b, &second, &cq(&b)));
        assert!(one.number() != two.number());
        assert!([&one, &two].iter().all(|s| (1..1 << 24).contains(&s.number())));
        for (srq, wr_id) in [(&one, 1), (&two, 2)] {
            srq.post_recv(&[RecvWr { wr_id, ..RecvWr::default() }]).unwrap();
        }
        let domain = domain(&first);
        assert_eq!(domain.take(two.number()).map(|wr| wr.wr_id), Some(2));
        assert_eq!(domain.take(two.number()), None);
        let (pd, owner) = domain.pd_of(two.number()).unwrap();
        let (other_pd, other) = domain.pd_of(one.number()).unwrap();
        // Protection domains of different contexts are never confused.
        assert!(pd != other_pd && !Arc::ptr_eq(&owner, &other));
        assert!(Arc::ptr_eq(&domain.context_of(pd).unwrap(), &owner));
        one.destroy().unwrap();
        assert!(domain.take(one.number()).is_none() && domain.pd_of(one.number()).is_none());
        two.destroy().unwrap();
    }
}
