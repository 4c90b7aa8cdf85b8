//! The bytes of the rdma_cm character device, ABI 4 (`rdma/rdma_user_cm.h`), in host byte order.

pub(crate) mod address;
pub(crate) mod command;
pub(crate) mod event;
pub(crate) mod path;
pub(crate) mod qp_attr;

use crate::errno;

/// Size of `struct rdma_ucm_cmd_hdr`.
pub(crate) const HEADER_LEN: usize = 8;

/// Size of the private data field of `struct rdma_ucm_conn_param` and similar structures.
pub(crate) const PRIVATE_DATA_LEN: usize = 256;

/// The commands, numbered as in the header file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    CreateId,
    DestroyId,
    BindIp,
    ResolveIp,
    ResolveRoute,
    QueryRoute,
    Connect,
    Listen,
    Accept,
    Reject,
    Disconnect,
    InitQpAttr,
    GetEvent,
    GetOption,
    SetOption,
    Notify,
    JoinIpMcast,
    LeaveMcast,
    MigrateId,
    Query,
    Bind,
    ResolveAddr,
    JoinMcast,
    ResolveIbService,
    WriteCmEvent,
}

const CODES: [Code; 25] = [
    Code::CreateId,
    Code::DestroyId,
    Code::BindIp,
    Code::ResolveIp,
    Code::ResolveRoute,
    Code::QueryRoute,
    Code::Connect,
    Code::Listen,
    Code::Accept,
    Code::Reject,
    Code::Disconnect,
    Code::InitQpAttr,
    Code::GetEvent,
    Code::GetOption,
    Code::SetOption,
    Code::Notify,
    Code::JoinIpMcast,
    Code::LeaveMcast,
    Code::MigrateId,
    Code::Query,
    Code::Bind,
    Code::ResolveAddr,
    Code::JoinMcast,
    Code::ResolveIbService,
    Code::WriteCmEvent,
];

/// One write to the device, split into its parts.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) code: Code,
    /// The command's structure.
    pub(crate) payload: Reader<'a>,
    /// The bytes after the structure. The host adds them.
    pub(crate) extra: &'a [u8],
    /// The number of bytes that the application has room for in the response.
    pub(crate) out_len: usize,
}

impl<'a> Frame<'a> {
    /// Splits one write into its parts.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, i32> {
        let header = Reader::new(bytes);
        let code = header.u32(0)?;
        let in_len = usize::from(header.u16(4)?);
        let out_len = usize::from(header.u16(6)?);
        let code = *usize::try_from(code).ok().and_then(|c| CODES.get(c)).ok_or(errno::EINVAL)?;
        let body = bytes.get(HEADER_LEN..).ok_or(errno::EINVAL)?;
        let (payload, extra) = body.split_at_checked(in_len).ok_or(errno::EINVAL)?;
        Ok(Self { code, payload: Reader::new(payload), extra, out_len })
    }
}

/// Reads the fields of a structure at fixed offsets; an offset beyond its end is EINVAL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], i32> {
        let bytes = self.bytes(at, N)?;
        <[u8; N]>::try_from(bytes).map_err(|_| errno::EINVAL)
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Result<&'a [u8], i32> {
        at.checked_add(len).and_then(|end| self.0.get(at..end)).ok_or(errno::EINVAL)
    }

    pub(crate) fn u8(&self, at: usize) -> Result<u8, i32> {
        self.0.get(at).copied().ok_or(errno::EINVAL)
    }

    pub(crate) fn u16(&self, at: usize) -> Result<u16, i32> {
        self.array(at).map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&self, at: usize) -> Result<u32, i32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&self, at: usize) -> Result<u64, i32> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// The rest of the structure from an offset on.
    pub(crate) fn tail(&self, at: usize) -> Result<Self, i32> {
        self.0.get(at..).map(Self).ok_or(errno::EINVAL)
    }
}

/// Builds a structure of a fixed size, zero where nothing is written.
#[derive(Clone, Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len])
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn put_u8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    pub(crate) fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_ne_bytes());
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_ne_bytes());
    }

    pub(crate) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A response that is one `u32`: an id, or the number of events reported.
pub(crate) fn u32_response(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_claims_more_than_was_written_is_refused() {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&9u16.to_ne_bytes());
        assert_eq!(Frame::parse(&bytes).unwrap_err(), errno::EINVAL);
        bytes[4..6].copy_from_slice(&8u16.to_ne_bytes());
        assert_eq!(Frame::parse(&bytes).unwrap().code, Code::CreateId);
    }

    #[test]
    fn short_headers_and_unknown_commands_are_refused() {
        for len in 0..HEADER_LEN {
            assert_eq!(Frame::parse(&vec![0; len]).unwrap_err(), errno::EINVAL);
        }
        let mut bytes = vec![0; HEADER_LEN];
        bytes[0] = 25;
        assert_eq!(Frame::parse(&bytes).unwrap_err(), errno::EINVAL);
    }

    #[test]
    fn command_numbers_are_those_of_the_header_file() {
        assert_eq!(CODES[12], Code::GetEvent);
        assert_eq!(CODES[18], Code::MigrateId);
        assert_eq!(CODES[22], Code::JoinMcast);
        assert_eq!(CODES[24], Code::WriteCmEvent);
    }
}
