//! Names and sentences of a bounded length, as the region and its protocols hold them.

/// The beginning of a text that fits into `most` bytes, ending at a character's border.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// As much of a text as fits into `N` bytes, padded with zeros; with `N` bytes of text there are none.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let kept = cut(text, N);
    bytes[..kept.len()].copy_from_slice(kept.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_kept_whole_or_not_at_all() {
        assert_eq!(cut("aüb", 9), "aüb");
        assert_eq!(cut("aüb", 2), "a");
        assert_eq!(padded::<4>("aü"), [b'a', 0xc3, 0xbc, 0]);
        assert_eq!(padded::<2>("aü"), [b'a', 0]);
        assert_eq!(padded::<2>("ab"), *b"ab");
    }
}
