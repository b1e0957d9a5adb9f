//! Names and sentences of a bounded length, as the region and its protocols hold them; sizes as people write them.

/// The beginning of a text that fits into `most` bytes, ending at a character's border.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A size in bytes, with a binary suffix K, M, G or T, with or without `iB` or `B` behind; none if it is not one.
pub fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor_shift = match text[digits.len()..].trim_start().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << factor_shift)
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
