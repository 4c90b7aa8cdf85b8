//! Writing and reading a frozen queue pair: integers in network byte order, and lists preceded by
//! their length.

use super::error::ThawError;

/// Bytes being written.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    /// Writes bytes whose number the reader knows.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes the number of elements that follow.
    pub(crate) fn count(&mut self, count: usize) {
        // Queues, windows and messages are bounded far below that.
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Writes the number of bytes, then the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Writes a value that may be absent.
    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Bytes being read. No value is trusted.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The queue pair's protection domain where it was frozen, and here.
    pds: Option<(u32, u32)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, pds: None }
    }

    /// The error for a wrong value at the reader's position.
    pub(crate) fn wrong(&self, what: &'static str) -> ThawError {
        ThawError::Value { at: self.at, what }
    }

    /// Returns an error unless `holds`.
    pub(crate) fn ensure(&self, holds: bool, what: &'static str) -> Result<(), ThawError> {
        if holds { Ok(()) } else { Err(self.wrong(what)) }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn raw(&mut self, len: usize) -> Result<&'a [u8], ThawError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(ThawError::Truncated)?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ThawError> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ThawError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ThawError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ThawError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ThawError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, ThawError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong("a flag is 0 or 1")),
        }
    }

    /// From now on, protection domain `there` is read as `here`.
    pub(super) fn rename_pd(&mut self, there: u32, here: u32) {
        self.pds = Some((there, here));
    }

    /// Reads a protection domain and returns its number here.
    pub(crate) fn pd(&mut self) -> Result<u32, ThawError> {
        let pd = self.u32()?;
        Ok(self.pds.filter(|(there, _)| *there == pd).map_or(pd, |(_, here)| here))
    }

    /// Reads a number that is at most `most`.
    pub(crate) fn at_most(&mut self, most: u32, what: &'static str) -> Result<u32, ThawError> {
        let value = self.u32()?;
        self.ensure(value <= most, what)?;
        Ok(value)
    }

    /// Reads the length of a list that has at most `most` elements.
    pub(crate) fn count(&mut self, most: usize, what: &'static str) -> Result<usize, ThawError> {
        let count = self.u32()? as usize;
        self.ensure(count <= most, what)?;
        Ok(count)
    }

    /// Reads a number of bytes, at most `most`, then the bytes.
    pub(crate) fn bytes(&mut self, most: usize, what: &'static str) -> Result<&'a [u8], ThawError> {
        let len = self.count(most, what)?;
        self.raw(len)
    }

    /// Reads a value that may be absent.
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ThawError>,
    ) -> Result<Option<T>, ThawError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }
}
