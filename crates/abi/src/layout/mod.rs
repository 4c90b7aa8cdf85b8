//! The C structures of libibverbs, as in rdma-core 65 on a 64-bit machine.
//!
//! Between rdma-core 44 and 65, fields were only added to structures. So these serve programs that
//! were built against any of these versions. The newest fields are written only if the caller says
//! that it has room for them. The names are those of C on purpose. Sizes and offsets are asserted
//! here, and `tests/layout.rs` compares them with the installed headers.
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
