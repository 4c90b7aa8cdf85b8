//! Creates and opens queue pairs.

use core::cell::UnsafeCell;
use core::mem::zeroed;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use polypath_verbs::{Error, QpRequest, QpType, QueuePair, Result};

use crate::context::{EventObject, Tie, checked, new_token, of};
use crate::convert::{capacities, qp_type};
use crate::draft::Builder;
use crate::guard::{self, null_argument};
use crate::layout::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_xrcd,
};
use crate::pd::{CPd, PdTie, pd_of};
use crate::qp::{CQp, qp_of};
use crate::{cq, qp_ex, srq, xrc};

/// Creates a queue pair and writes its actual sizes back.
///
/// # Safety
/// `context` is ours, and `pd` too unless `init` is an XRC target's. `xrcd` and what `init` points
/// to are null or objects of any provider.
unsafe fn make(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    init: &mut ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut ibv_qp> {
    let kind = qp_type(init.qp_type)?;
    let token = new_token();
    // SAFETY: the caller promises it. Fields that a kind of queue pair does not have are not read.
    unsafe {
        let has_pd = kind != QpType::XrcRecv;
        let completions = |cq, wanted: bool| match wanted {
            true => cq::argument(cq).map(|cq| Some(cq.inner().clone())),
            false => Ok(None),
        };
        let shared = if kind.is_xrc() { None } else { srq::argument(init.srq)? };
        let inner = of(context).inner().create_qp(&QpRequest {
            pd: has_pd.then(|| pd_of(pd).number()),
            qp_type: kind,
            send_cq: completions(init.send_cq, has_pd)?,
            recv_cq: completions(init.recv_cq, !kind.is_xrc())?,
            srq: shared.map(|shared| shared.inner().clone()),
            xrcd: match kind {
                QpType::XrcRecv => Some(xrc::argument(xrcd)?.inner().clone()),
                _ => None,
            },
            sq_sig_all: init.sq_sig_all != 0,
            max_send_wr: init.cap.max_send_wr,
            max_recv_wr: init.cap.max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_recv_sge: init.cap.max_recv_sge,
            max_inline: init.cap.max_inline_data,
            token,
        })?;
        init.cap = capacities(&inner.query()?);
        Ok(wrap(context, pd, init, kind, extended, inner, token))
    }
}

/// Creates the C structure of a queue pair.
///
/// # Safety
/// `context` is ours, and `pd` too if `kind` has one.
unsafe fn wrap(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    kind: QpType,
    extended: bool,
    inner: Arc<dyn QueuePair>,
    token: u64,
) -> *mut ibv_qp {
    // SAFETY: the caller promises it. Zeroes are valid for the structure.
    unsafe {
        let domain = (kind != QpType::XrcRecv).then(|| pd_of(pd));
        let mut public: ibv_qp_ex = zeroed();
        public.base.context = context;
        public.base.qp_context = init.qp_context;
        public.base.pd = pd;
        public.base.send_cq = init.send_cq;
        public.base.recv_cq = init.recv_cq;
        public.base.srq = init.srq;
        public.base.handle = inner.number();
        public.base.qp_num = inner.number();
        public.base.qp_type = init.qp_type;
        qp_ex::fill(&mut public);
        let qp = Box::into_raw(Box::new(CQp {
            public: UnsafeCell::new(public),
            spare: [qp_ex::refusal(); 16],
            inner,
            token,
            async_given: AtomicU32::new(0),
            qp_type: kind,
            pd: domain.map(CPd::number),
            _pd: domain.map(PdTie::new),
            init: *init,
            extended,
            builder: Builder::default(),
            tie: Tie::new(of(context)),
        }));
        of(context).live().insert(token, EventObject::Qp(qp.cast()));
        qp.cast()
    }
}

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` is one of ours; `init` is null or readable and writable.
pub(crate) unsafe extern "C-unwind" fn create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    guard::pointer("ibv_create_qp", || {
        // SAFETY: the trampoline passes only our domains, which begin with their context. `init` is
        // null, or belongs to the program and may be read and written. Its objects may be null.
        unsafe {
            let init = init.as_mut().ok_or_else(|| null_argument("qp_init_attr"))?;
            if qp_type(init.qp_type)? == QpType::XrcRecv {
                return Err(Error::invalid("XRC targets are made by ibv_create_qp_ex"));
            }
            make((*pd).context, pd, core::ptr::null_mut(), init, false)
        }
    })
}

/// The bits of `enum ibv_qp_create_send_ops_flags` that each type of queue pair supports.
fn send_operations(kind: QpType) -> u64 {
    const WRITES: u64 = 0b11;
    const SENDS: u64 = 0b1100;
    const READ_AND_ATOMICS: u64 = 0b111_0000;
    const LOCAL_INV: u64 = 1 << 7;
    const BIND_MW: u64 = 1 << 8;
    const SEND_WITH_INV: u64 = 1 << 9;
    const FLUSH: u64 = 1 << 11;
    const ATOMIC_WRITE: u64 = 1 << 12;
    match kind {
        QpType::Rc | QpType::XrcSend => {
            let local = LOCAL_INV | BIND_MW;
            WRITES | SENDS | READ_AND_ATOMICS | local | SEND_WITH_INV | FLUSH | ATOMIC_WRITE
        }
        QpType::XrcRecv => 0,
        // UC has no packet for "invalidate" (IBTA 9.2.1, table 38).
        QpType::Uc => WRITES | SENDS | LOCAL_INV | BIND_MW,
        QpType::Ud => SENDS,
    }
}

/// `ibv_create_qp_ex`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const MASK_PD: u32 = 1;
    const MASK_XRCD: u32 = 1 << 1;
    const MASK_CREATE_FLAGS: u32 = 1 << 2;
    const MASK_SEND_OPS: u32 = 1 << 6;
    const KNOWN: u32 = (1 << 7) - 1;
    guard::pointer("ibv_create_qp_ex", || {
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires, and
        // null or attributes that may be read and written. Their objects are present if the mask
        // says so.
        unsafe {
            checked(context)?;
            let attr = attr.as_mut().ok_or_else(|| null_argument("qp_init_attr_ex"))?;
            if attr.comp_mask & !KNOWN != 0 {
                return Err(Error::invalid("ibv_qp_init_attr_ex has an unknown comp_mask"));
            }
            let possible = MASK_PD | MASK_XRCD | MASK_CREATE_FLAGS | MASK_SEND_OPS;
            if attr.comp_mask & !possible != 0 {
                return guard::unsupported("TSO, indirection tables and RX hash are not supported");
            }
            let is_target = qp_type(attr.qp_type)? == QpType::XrcRecv;
            if is_target && attr.comp_mask & MASK_XRCD == 0 {
                return Err(Error::invalid("an XRC target needs an XRC domain"));
            }
            if !is_target && (attr.comp_mask & MASK_PD == 0 || attr.pd.is_null()) {
                return Err(Error::invalid("a queue pair needs a protection domain"));
            }
            if attr.comp_mask & MASK_CREATE_FLAGS != 0 && attr.create_flags != 0 {
                return guard::unsupported("create_flags are not supported");
            }
            let extended = attr.comp_mask & MASK_SEND_OPS != 0;
            if extended && attr.send_ops_flags & !send_operations(qp_type(attr.qp_type)?) != 0 {
                return guard::unsupported("send_ops_flags ask for what this queue pair can't do");
            }
            // The extended structure begins with the fields of the plain one, but without its
            // padding. So the fields are copied.
            let mut init = ibv_qp_init_attr {
                qp_context: attr.qp_context,
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                srq: attr.srq,
                cap: attr.cap,
                qp_type: attr.qp_type,
                sq_sig_all: attr.sq_sig_all,
            };
            // A target has no protection domain, but shows the one that it was created with,
            // because librdmacm reads it there.
            let has_pd = attr.comp_mask & MASK_PD != 0;
            let pd = if has_pd { attr.pd } else { core::ptr::null_mut() };
            let qp = make(context, pd, attr.xrcd, &mut init, extended)?;
            attr.cap = init.cap;
            Ok(qp)
        }
    })
}

/// The function in `ibv_open_qp`'s slot. It returns another handle to an XRC target of this
/// process.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn open_qp(
    context: *mut ibv_context,
    attr: *const ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NUM: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const CONTEXT: u32 = 1 << 2;
    const TYPE: u32 = 1 << 3;
    const NEEDED: u32 = NUM | XRCD | TYPE;
    guard::pointer("ibv_open_qp", || {
        // SAFETY: the caller promises it. The attributes are read as their mask says.
        unsafe {
            let owner = checked(context)?;
            let attr = attr.as_ref().ok_or_else(|| null_argument("qp_open_attr"))?;
            if attr.comp_mask & !(NEEDED | CONTEXT) != 0 {
                return guard::unsupported("ibv_qp_open_attr has an unknown comp_mask");
            }
            if attr.comp_mask & NEEDED != NEEDED {
                return Err(Error::invalid("ibv_open_qp needs a number, an XRC domain and a type"));
            }
            if qp_type(attr.qp_type)? != QpType::XrcRecv {
                return Err(Error::invalid("only XRC targets can be opened"));
            }
            let domain = xrc::argument(attr.xrcd)?.inner();
            let token = new_token();
            let inner = owner.inner().open_qp(domain.as_ref(), attr.qp_num, token)?;
            let mut init: ibv_qp_init_attr = zeroed();
            init.qp_type = attr.qp_type;
            if attr.comp_mask & CONTEXT != 0 {
                init.qp_context = attr.qp_context;
            }
            let now = inner.query()?;
            init.cap = capacities(&now);
            let no_pd = core::ptr::null_mut();
            let qp = wrap(context, no_pd, &init, QpType::XrcRecv, false, inner, token);
            qp_of(qp).show_state(now.state);
            Ok(qp)
        }
    })
}

#[cfg(test)]
mod tests {
    use libc::c_int;

    use super::*;
    use crate::double::Kit;
    use crate::ours::Ours;
    use crate::qp::{destroy_qp, qp_to_qp_ex};

    /// `IBV_QPT_*`.
    const RC: c_int = 2;
    const UC: c_int = 3;
    const UD: c_int = 4;

    /// Creates an extended queue pair. Returns the errno, or 0.
    fn make_for(kit: &Kit, qp_type: c_int, operations: u64) -> c_int {
        // SAFETY: objects of ours, each freed once; zero is valid for every field.
        unsafe {
            let mut init: ibv_qp_init_attr_ex = zeroed();
            (init.qp_type, init.send_cq, init.recv_cq) = (qp_type, kit.cq, kit.cq);
            (init.pd, init.comp_mask, init.send_ops_flags) = (kit.pd, 1 | 1 << 6, operations);
            let qp = create_qp_ex(kit.context, &mut init);
            if qp.is_null() {
                return *libc::__errno_location();
            }
            assert_eq!(qp_to_qp_ex(Ours::new(qp)), qp.cast());
            destroy_qp(qp)
        }
    }

    #[test]
    fn a_queue_pair_is_made_only_for_operations_that_it_has() {
        const SEND_WITH_INV: u64 = 1 << 9;
        const TSO: u64 = 1 << 10;
        const READ: u64 = 1 << 4;
        const FLUSH: u64 = 1 << 11;
        const ATOMIC_WRITE: u64 = 1 << 12;
        let kit = Kit::new(1);
        assert_eq!(make_for(&kit, RC, SEND_WITH_INV | READ | FLUSH | ATOMIC_WRITE), 0);
        assert_eq!(make_for(&kit, UC, 0b1111), 0);
        assert_eq!(make_for(&kit, UD, 0b1100), 0);
        let missing =
            [(UC, SEND_WITH_INV), (UC, READ), (UC, FLUSH), (UC, ATOMIC_WRITE), (UD, 1), (RC, TSO)];
        for (qp_type, operation) in missing {
            assert_eq!(make_for(&kit, qp_type, operation), libc::EOPNOTSUPP, "{qp_type}");
        }
    }
}
