//! Structures of programs that lie at any address.
//!
//! A C library reads them wherever they are, as the processor allows it. So programs keep work requests and
//! their elements in packed structures, behind headers of any length (libiscsi's iSER does).

use core::mem::align_of;

/// A structure of the program at any address. Its fields are read by value: there can be no reference to one.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub(crate) struct Anywhere<T: Copy>(pub(crate) T);

const _: () = assert!(align_of::<Anywhere<u64>>() == 1);

impl<T: Copy> Anywhere<T> {
    /// The structure at `at`.
    ///
    /// # Safety
    /// It can be read as long as the result is used.
    pub(crate) unsafe fn of<'a>(at: *const T) -> &'a Self {
        // SAFETY: the caller promises it; it needs no alignment, and has the layout of its only field.
        unsafe { &*at.cast() }
    }
}

/// The elements of an array of the program at any address.
///
/// # Safety
/// `array` is null or has `count` elements that can be read as long as the result is used.
pub(crate) unsafe fn elements<'a, T: Copy>(array: *const T, count: usize) -> &'a [Anywhere<T>] {
    if array.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller promises it; elements need no alignment.
    unsafe { core::slice::from_raw_parts(array.cast(), count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_read_at_odd_addresses() {
        let mut bytes = [0u8; 17];
        bytes[1..9].copy_from_slice(&7u64.to_ne_bytes());
        bytes[9..].copy_from_slice(&9u64.to_ne_bytes());
        let odd = bytes[1..].as_ptr().cast::<u64>();
        // SAFETY: two numbers begin there.
        let (one, both) = unsafe { (Anywhere::of(odd), elements(odd, 2)) };
        assert_eq!({ one.0 }, 7);
        assert_eq!(both.iter().map(|number| number.0).collect::<Vec<_>>(), [7, 9]);
        // SAFETY: it is null.
        assert!(unsafe { elements::<u64>(core::ptr::null(), 3) }.is_empty());
    }
}
