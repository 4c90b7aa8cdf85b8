//! Converts the place of the made-up files back into the paths that they represent.
//!
//! A place is recognised by its form, not by what this process has created, because another process
//! may start a program in one of our directories.

use core::ffi::{CStr, c_char};

/// The number of digits in a directory's name, see [`super::tree`].
const DIGITS: usize = 16;

/// The number of bytes that one of our places has before the path that it represents; 0 for every
/// other path.
pub(super) fn prefix(path: &[u8]) -> usize {
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

/// The same for a C string.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn hidden(path: *const c_char) -> usize {
    // SAFETY: the caller promises a C string that nobody changes during the call.
    prefix(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Converts a path back in place.
///
/// # Safety
/// `path` is null or a C string that may be changed.
pub(crate) unsafe fn show(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: the caller promises it, and the path only becomes shorter.
    unsafe {
        let length = CStr::from_ptr(path).to_bytes().len();
        let shown = show_bytes(path, length);
        if shown < length {
            *path.add(shown) = 0;
        }
    }
}

/// Converts a path of this length without a NUL back in place. Returns its new length.
///
/// # Safety
/// The caller may change `length` bytes at `path`.
pub(crate) unsafe fn show_bytes(path: *mut c_char, length: usize) -> usize {
    if path.is_null() {
        return length;
    }
    // SAFETY: it is not null, so the caller lets us change `length` bytes.
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
        // SAFETY: this is the function's own C string.
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
