//! The names in keys: the upper 24 bits, which are random or given.

use std::hash::Hasher;

use polypath_verbs::{Error, Result};

const EADDRINUSE: i32 = 98;

/// The part of a key that names its object.
pub(super) const fn name_of(key: u32) -> u32 {
    key >> 8
}

/// The key of an object with this name, and this part of the key that the program chooses.
pub(super) const fn key_of(name: u32, variant: u8) -> u32 {
    name << 8 | variant as u32
}

/// A free name, and a first key with it.
pub(super) fn free_name(is_taken: impl Fn(u32) -> bool) -> Result<(u32, u32)> {
    loop {
        let key = getrandom::u32()
            .map_err(|e| Error::new(5, format!("no randomness for a memory key: {e}")))?;
        // Name 0 is not used, because careless programs pass key 0.
        let name = name_of(key);
        if name != 0 && !is_taken(name) {
            return Ok((name, key));
        }
    }
}

/// Rejects a key with name 0, because careless programs pass key 0.
pub(super) fn refuse_nameless(key: u32) -> Result<()> {
    if name_of(key) == 0 {
        return Err(Error::invalid(format!("{key:#x} can't be a key: keys begin at 0x100")));
    }
    Ok(())
}

/// The name of a given key. The name must be free.
pub(super) fn given_name(key: u32, is_taken: impl Fn(u32) -> bool) -> Result<(u32, u32)> {
    let name = name_of(key);
    if is_taken(name) {
        let text = format!("another region or window has the key {key:#x}, but for the last byte");
        return Err(Error::new(EADDRINUSE, text));
    }
    Ok((name, key))
}

/// A hasher for names. They are already random, so it only moves them to the bits that the map
/// uses.
#[derive(Default)]
pub(super) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u32(u32::from(*b));
        }
    }
    fn write_u32(&mut self, v: u32) {
        self.0 = (self.0 ^ u64::from(v)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
