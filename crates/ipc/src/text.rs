//! Texts of bounded length.

/// Truncates a text that is longer than `max` bytes, between two characters.
pub(crate) fn cut_to(text: &mut String, max: usize) {
    if text.len() > max {
        let end = (0..=max).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(end);
    }
}
