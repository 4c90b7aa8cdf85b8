//! Completions: how work requests end.

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
    /// The identifier of the work request.
    pub wr_id: u64,
    /// The status with which it ended.
    pub status: WcStatus,
    /// Its operation.
    pub opcode: WcOpcode,
    /// The number of the transport's reason for an error, for people; 0 for a success.
    pub vendor_err: u32,
    /// The number of bytes received or read. For UD it includes the 40 bytes of the GRH.
    pub byte_len: u32,
    /// Immediate data in wire order.
    pub imm: Option<[u8; 4]>,
    /// The key that was made invalid because the peer asked for it.
    pub invalidated_rkey: Option<u32>,
    /// Local queue pair number, 24 bits.
    pub qpn: u32,
    /// Remote queue pair number, 24 bits (UD).
    pub src_qpn: u32,
    /// The kind of header in the first 40 bytes of the buffer (UD).
    pub grh: Option<NetworkHeader>,
    /// Whether the sender asked for a solicited event, or the completion is an error.
    pub solicited: bool,
}

/// The network header of a received datagram (IBTA A17.4.5.1: part of the remote address information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// IPv4: the header is in the last 20 of the 40 bytes.
    Ipv4,
    /// IPv6: the header takes all 40 bytes.
    Ipv6,
}

impl NetworkHeader {
    /// Finds the kind from the 40 bytes. Those before an IPv4 header are zero.
    pub fn of(header: &[u8; 40]) -> Self {
        if header[0] >> 4 == 6 { Self::Ipv6 } else { Self::Ipv4 }
    }
}

/// The send or the receive completion queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CqSide {
    Send,
    Recv,
}
