//! The simplest memory: an array of bytes under one key, for tests, models and simulations.

use core::ops::Range;

use polypath_types::{Access, FlushScope, Sge};

use crate::memory::{AtomicOp, Fault, Memory, RemoteAccess, RemoteKey, Segment};

/// A range of an array of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatSegment {
    /// The index of its first byte.
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
}

impl FlatSegment {
    /// The range, if the array has that many bytes.
    ///
    /// # Errors
    /// [`Fault::Range`] if it has not.
    pub fn within(bytes: &[u8], addr: u64, len: u32) -> Result<Self, Fault> {
        match addr.checked_add(u64::from(len)) {
            Some(end) if end <= bytes.len() as u64 => Ok(Self { addr, len }),
            _ => Err(Fault::Range),
        }
    }

    /// The indexes of its first `len` bytes.
    ///
    /// # Panics
    /// If an index does not fit `usize`; [`FlatSegment::within`] never returns such a segment.
    pub fn indexes(&self, len: usize) -> Range<usize> {
        let at = usize::try_from(self.addr).expect("the index of a byte in memory");
        at..at + len
    }
}

impl Segment for FlatSegment {
    fn len(&self) -> u32 {
        self.len
    }

    fn span(&self) -> Range<u64> {
        self.addr..self.addr + u64::from(self.len)
    }

    fn part(self, skip: u32, len: u32) -> Self {
        Self { addr: self.addr + u64::from(skip), len }
    }
}

/// An array of bytes as registered memory: addresses are indexes, and one key gives every right.
#[derive(Debug)]
pub struct FlatMemory<'a> {
    /// The bytes.
    pub bytes: &'a mut [u8],
    /// The local and remote key of all the bytes.
    pub key: u32,
    /// The number of atomics executed.
    pub atomics: &'a mut u64,
}

impl FlatMemory<'_> {
    fn find(&self, key: u32, addr: u64, len: u32) -> Result<FlatSegment, Fault> {
        if key != self.key {
            return Err(Fault::Key);
        }
        FlatSegment::within(self.bytes, addr, len)
    }
}

impl Memory for FlatMemory<'_> {
    type Segment = FlatSegment;

    fn resolve(&mut self, _pd: u32, sge: Sge, _rights: Access) -> Result<FlatSegment, Fault> {
        self.find(sge.lkey, sge.addr, sge.len)
    }

    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<FlatSegment, Fault> {
        self.find(access.key.rkey, access.va, access.len)
    }

    fn store(&mut self, segment: FlatSegment, data: &[u8]) -> Result<(), Fault> {
        self.bytes[segment.indexes(data.len())].copy_from_slice(data);
        Ok(())
    }

    fn load(&mut self, segment: FlatSegment, out: &mut [u8]) -> Result<(), Fault> {
        out.copy_from_slice(&self.bytes[segment.indexes(out.len())]);
        Ok(())
    }

    fn atomic(&mut self, segment: FlatSegment, op: AtomicOp) -> Result<u64, Fault> {
        let mut word = [0; 8];
        self.load(segment, &mut word)?;
        let before = u64::from_ne_bytes(word);
        self.store(segment, &op.apply(before).to_ne_bytes())?;
        *self.atomics += 1;
        Ok(before)
    }

    fn atomic_write(&mut self, segment: FlatSegment, value: u64) -> Result<(), Fault> {
        self.store(segment, &value.to_ne_bytes())
    }

    fn flush(&mut self, key: RemoteKey, scope: FlushScope, _rights: Access) -> Result<(), Fault> {
        let (va, len) = match scope {
            FlushScope::Range { va, len } => (va, len),
            FlushScope::Region => (0, 0),
        };
        self.find(key.rkey, va, len).map(drop)
    }

    fn invalidate(&mut self, _key: RemoteKey) -> Result<(), Fault> {
        Err(Fault::Key)
    }

    fn bind_mw(&mut self, _mw: u32, _key: RemoteKey) -> Result<(), Fault> {
        Err(Fault::Key)
    }
}
