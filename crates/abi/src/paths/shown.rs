//! The place of the made-up files turned back into the paths that they stand for.
//!
//! A place is told by its form, not by what this process has made: a program may be started in a
//! directory of ours by another one.

use core::ffi::{CStr, c_char};

/// Digits of a directory's name, see [`super::tree`].
const DIGITS: usize = 16;

/// How many bytes a place of ours has before the path that it stands for; 0 for every other path.
fn prefix(path: &[u8]) -> usize {
    if path.first() != Some(&b'/') {
        return 0;
    }
    let owner = b"/polypath-";
    let Some(at) = path.windows(owner.len()).position(|part| part == owner) else { return 0 };
    let rest = &path[at + owner.len()..];
    let user = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let Some(name) = rest[user..].strip_prefix(b"/files-") else { return 0 };
    let digits = name.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let ends = matches!(name.get(digits), None | Some(b'/' | 0));
    if user == 0 || digits != DIGITS || !ends {
        return 0;
    }
    path.len() - name.len() + digits
}

/// The same of a C string.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn hidden(path: *const c_char) -> usize {
    // SAFETY: a C string, by the promise of the caller, that nobody changes during the call.
    prefix(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Turns a path back, in its place.
///
/// # Safety
/// `path` is null or a C string that may be changed.
pub(crate) unsafe fn show(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: the caller's promise; the path becomes shorter.
    unsafe {
        let length = CStr::from_ptr(path).to_bytes().len();
        let shown = show_bytes(path, length);
        if shown < length {
            *path.add(shown) = 0;
        }
    }
}

/// Turns a path of this length without a NUL back, in its place; gives its length then.
///
/// # Safety
/// `path` has `length` bytes that may be changed.
pub(crate) unsafe fn show_bytes(path: *mut c_char, length: usize) -> usize {
    if path.is_null() {
        return length;
    }
    // SAFETY: not null, so `length` bytes that the caller lets us change.
    let bytes = unsafe { core::slice::from_raw_parts_mut(path.cast::<u8>(), length) };
    let hidden = prefix(bytes);
    if hidden == 0 {
        return length;
    }
    if hidden == length {
        bytes[0] = b'/';
        return 1;
    }
    bytes.copy_within(hidden.., 0);
    length - hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
        let mut bytes = path.as_bytes().to_vec();
        bytes.push(0);
        // SAFETY: a C string of this function's own.
        unsafe {
            show(bytes.as_mut_ptr().cast());
            CStr::from_ptr(bytes.as_ptr().cast()).to_str().unwrap().to_owned()
        }
    }

    #[test]
    fn a_place_of_ours_is_shown_as_what_it_stands_for() {
        let root = "/tmp/polypath-1000/files-0123456789abcdef";
        assert_eq!(shown(&format!("{root}/sys/class/infiniband")), "/sys/class/infiniband");
        assert_eq!(shown(root), "/");
    }

    #[test]
    fn other_places_are_shown_as_they_are() {
        for other in [
            "",
            "/",
            "/sys/class/infiniband",
            "/tmp/polypath-0/broker.log",
            "/tmp/polypath-x/files-0123456789abcdef/a",
            "/tmp/polypath-0/files-0123456789abcde/a",
            "/tmp/polypath-0/files-0123456789abcdef0/a",
            "tmp/polypath-0/files-0123456789abcdef/a",
        ] {
            assert_eq!(shown(other), other);
        }
    }
}
