//! The end of the process: what is owed to peers is sent.
//!
//! A program that exits right after its last completion has an acknowledgement outstanding that
//! waited for its answer; hardware would have sent it long before.

use crate::guard;

extern "C" fn leave() {
    guard::run((), polypath_engine::leave);
}

/// Run by the dynamic linker at `exit()` and when the library is unloaded.
// SAFETY: the section is a list of pointers to such functions.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = leave;
