//! A device that implements no verb: each of them fails with `EOPNOTSUPP` and names what the device
//! lacks.

use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;

use polypath_verbs::{
    Access, AhAttr, AsyncEvent, Context, CqRequest, DeviceAttr, Error, GidEntry, MrRequest, MwBind,
    PagesRequest, PortAttr, QpRequest, QpType, Result, SrqAttr, SrqRequest, ThawRequest, XrcDomain,
    XrcdRequest,
};

#[derive(Debug)]
struct Bare;

impl Context for Bare {
    fn attributes(&self) -> DeviceAttr {
        unreachable!("nobody asks")
    }
    fn query_port(&self, _port: u8) -> Result<PortAttr> {
        Err(Error::invalid("the device has no port"))
    }
    fn gid(&self, _port: u8, _index: u32) -> Result<Option<GidEntry>> {
        Ok(None)
    }
    fn gid_table(&self) -> Vec<GidEntry> {
        Vec::new()
    }
    fn async_fd(&self) -> RawFd {
        -1
    }
    fn take_async_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn clock_ns(&self) -> u64 {
        0
    }
}

#[derive(Debug)]
struct Domain;

impl XrcDomain for Domain {
    fn close(&self) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[track_caller]
fn lacks<T: Debug>(result: Result<T>, what: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.errno, 95, "EOPNOTSUPP");
    assert_eq!(error.reason, format!("this device has no {what}"));
}

#[test]
fn a_verb_that_a_device_does_not_implement_is_not_supported() {
    let device: Arc<dyn Context> = Arc::new(Bare);
    let access = Access::empty();
    let region = MrRequest { pd: 1, addr: 0, len: 0, iova: 0, access };
    lacks(device.alloc_pd(), "protection domains");
    lacks(device.dealloc_pd(1), "protection domains");
    // SAFETY: the device touches no memory, and the range is empty.
    #[allow(unsafe_code)]
    let registered = unsafe { device.reg_mr(&region) };
    lacks(registered, "memory regions");
    // SAFETY: as above.
    #[allow(unsafe_code)]
    let registered = unsafe { device.reg_mr_with_key(&region, 0x100) };
    lacks(registered, "memory regions with given keys");
    let request = PagesRequest {
        pd: 1,
        pages: &[],
        page_size: 4096,
        offset: 0,
        len: 0,
        iova: 0,
        access,
        key: None,
    };
    // SAFETY: as above.
    #[allow(unsafe_code)]
    let registered = unsafe { device.reg_pages(&request) };
    lacks(registered, "memory regions of page lists");
    lacks(device.reg_dmabuf_mr(&region, -1, 0), "regions of DMA-BUFs");
    lacks(device.alloc_null_mr(1), "null memory region");
    lacks(device.alloc_dm(8, 0), "memory of its own");
    lacks(device.import_pd(1), "protection domains to import");
    lacks(device.import_mr(1, 1), "memory regions to import");
    lacks(device.import_dm(1), "memory of its own");
    lacks(device.alloc_mw(1, 1), "memory windows");
    lacks(device.dealloc_mw(1), "memory windows");
    let bind = MwBind { region: 1, addr: 0, len: 0, access };
    lacks(device.stage_bind(1, 1, 1, 1, &bind), "memory windows");
    device.unstage_bind(1, 1, 1);
    lacks(device.create_ah(1, &AhAttr::default()), "address handles");
    lacks(device.create_channel(), "completion channels");
    let request = CqRequest { cqe: 1, channel: None, token: 0, ignore_overrun: false };
    lacks(device.create_cq(&request), "completion queues");
    let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
    lacks(
        device.create_srq(&SrqRequest { pd: 1, attr, xrc: None, token: 0 }),
        "shared receive queues",
    );
    lacks(device.open_xrcd(&XrcdRequest::default()), "XRC");
    lacks(device.open_qp(&Domain, 1, 0), "XRC");
    let request = QpRequest {
        pd: Some(1),
        qp_type: QpType::Rc,
        send_cq: None,
        recv_cq: None,
        srq: None,
        xrcd: None,
        sq_sig_all: false,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        token: 0,
    };
    lacks(device.create_qp(&request), "queue pairs");
    lacks(device.create_qp_with_number(&request, 2), "queue pairs with given numbers");
    let thaw = ThawRequest { pd: 1, send_cq: None, recv_cq: None, srq: None, token: 0 };
    lacks(device.thaw_qp(&thaw, b""), "queue pairs that can be frozen");
    device.close();
}
