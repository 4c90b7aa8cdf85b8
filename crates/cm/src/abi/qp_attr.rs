//! Queue pair attributes: `struct ib_uverbs_qp_attr` and `struct ib_uverbs_ah_attr`.

use super::Writer;

/// Size of `struct ib_uverbs_ah_attr`.
pub(crate) const AH_ATTR_LEN: usize = 32;
/// Size of `struct ib_uverbs_qp_attr`.
pub(crate) const QP_ATTR_LEN: usize = 144;

/// Bits of `qp_attr_mask` (`enum ibv_qp_attr_mask`).
pub(crate) mod mask {
    pub(crate) const STATE: u32 = 1 << 0;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}

/// An address vector with its global route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AhAttr {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    pub(crate) static_rate: u8,
    pub(crate) port_num: u8,
}

impl AhAttr {
    pub(crate) fn write(&self, w: &mut Writer, at: usize) {
        w.put(at, &self.dgid);
        w.put_u32(at + 16, self.flow_label);
        w.put_u8(at + 20, self.sgid_index);
        w.put_u8(at + 21, self.hop_limit);
        w.put_u8(at + 22, self.traffic_class);
        w.put_u8(at + 26, self.sl);
        w.put_u8(at + 28, self.static_rate);
        w.put_u8(at + 29, 1); // is_global: RoCE always is
        w.put_u8(at + 30, self.port_num);
    }
}

/// The attributes that the connection manager sets; the rest of the structure is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QpAttr {
    pub(crate) mask: u32,
    pub(crate) state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) access_flags: u32,
    pub(crate) ah_attr: Option<AhAttr>,
    pub(crate) path_mig_state: u32,
    pub(crate) alt_ah_attr: Option<AhAttr>,
    pub(crate) alt_pkey_index: u16,
    pub(crate) alt_timeout: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
}

impl QpAttr {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(QP_ATTR_LEN);
        w.put_u32(0, self.mask);
        w.put_u32(4, self.state);
        w.put_u32(12, self.path_mtu);
        w.put_u32(20, self.qkey);
        w.put_u32(24, self.rq_psn);
        w.put_u32(28, self.sq_psn);
        w.put_u32(32, self.dest_qp_num);
        w.put_u32(36, self.access_flags);
        if let Some(ah) = &self.ah_attr {
            ah.write(&mut w, 40);
        }
        w.put_u32(16, self.path_mig_state);
        if let Some(ah) = &self.alt_ah_attr {
            ah.write(&mut w, 72);
            w.put_u16(126, self.alt_pkey_index);
            w.put_u8(137, ah.port_num);
            w.put_u8(138, self.alt_timeout);
        }
        w.put_u8(130, self.max_rd_atomic);
        w.put_u8(131, self.max_dest_rd_atomic);
        w.put_u8(132, self.min_rnr_timer);
        w.put_u8(133, self.port_num);
        w.put_u8(134, self.timeout);
        w.put_u8(135, self.retry_cnt);
        w.put_u8(136, self.rnr_retry);
        w.into_bytes()
    }
}
