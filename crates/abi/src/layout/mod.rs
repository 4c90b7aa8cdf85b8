//! The C structures of libibverbs, as rdma-core 65 has them on a 64-bit machine.
//!
//! Structures only grew between rdma-core 44 and 65, so this shape serves programs built against
//! any of them; what was added last is written only when the caller says that it has room for it.
//! Names are the C ones on purpose. Sizes and offsets are asserted here; `tests/layout.rs` compares
//! them with the installed headers.
#![allow(non_camel_case_types)]

mod attr;
mod device;
mod object;
mod work;

pub(crate) use attr::*;
pub(crate) use device::*;
pub(crate) use object::*;
pub(crate) use work::*;

/// `void *`.
pub(crate) type Pointer = *mut core::ffi::c_void;

/// Asserts sizes and offsets at compile time.
macro_rules! assert_layout {
    ($($type:ident $size:literal { $($field:ident $offset:literal),* $(,)? })*) => {
        const _: () = {
            $(
                assert!(core::mem::size_of::<$type>() == $size);
                $( assert!(core::mem::offset_of!($type, $field) == $offset); )*
            )*
        };
    };
}
use assert_layout;
