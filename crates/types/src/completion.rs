//! How work requests end.

/// `enum ibv_wc_status`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    RemAbortErr = 16,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// `enum ibv_wc_opcode`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// One completion (`struct ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier of the work request that ended.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Why, for people: the number of the transport's cause; 0 when successful.
    pub vendor_err: u32,
    /// Bytes received or read (UD: with the 40 bytes of the GRH).
    pub byte_len: u32,
    /// Immediate data in wire order.
    pub imm: Option<[u8; 4]>,
    /// The key that the peer asked to invalidate and that was.
    pub invalidated_rkey: Option<u32>,
    /// Local queue pair.
    pub qpn: u32,
    /// Remote queue pair (UD).
    pub src_qpn: u32,
    /// The header that is in the first 40 bytes (UD).
    pub grh: Option<NetworkHeader>,
    /// The sender asked for a solicited event (or it is an error).
    pub solicited: bool,
}

/// The network header of a received datagram (IBTA A17.4.5.1: part of the remote address information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// In the last 20 of the 40 bytes.
    Ipv4,
    /// In all 40 bytes.
    Ipv6,
}

impl NetworkHeader {
    /// Tells it from the 40 bytes; those before an IPv4 header are zero.
    pub fn of(header: &[u8; 40]) -> Self {
        if header[0] >> 4 == 6 { Self::Ipv6 } else { Self::Ipv4 }
    }
}

/// Which completion queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CqSide {
    Send,
    Recv,
}
