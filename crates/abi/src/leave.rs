//! Sends what is owed to peers when the process ends.
//!
//! A program that exits right after its last completion may have an acknowledgement left that
//! waited for an answer. Hardware would have sent it long before.

use crate::guard;

extern "C" fn leave() {
    guard::run((), polypath_engine::leave);
}

/// The dynamic linker runs this at `exit()`, and when the library is unloaded.
// SAFETY: the section is a list of pointers to such functions.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = leave;
