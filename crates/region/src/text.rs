//! Names and sentences of a bounded length, as the region and its protocols hold them; texts for terminals and shells; sizes as people
//! write them.

/// The beginning of a text that fits into `most` bytes, ending at a character's border.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A foreign text, for a terminal or a log: characters that are not displayed as themselves, or that change how others are
/// displayed, such as control characters and those that change the direction of writing, become `?`.
pub fn printable(text: &str) -> String {
    // Outside of ASCII, exactly these are escaped.
    let shows = |c: char| if c.is_ascii() { !c.is_ascii_control() } else { c.escape_debug().len() == 1 };
    text.chars().map(|c| if shows(c) { c } else { '?' }).collect()
}

/// `text` as one word for a shell.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-,:=@+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
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
    fn a_shell_reads_back_what_was_quoted() {
        assert_eq!(quoted("/a/b-c.d"), "/a/b-c.d");
        assert_eq!(quoted("^tcp"), "'^tcp'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn what_would_change_the_display_is_replaced() {
        assert_eq!(printable("mpi_bench 'ü漢' \"\\`"), "mpi_bench 'ü漢' \"\\`");
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}c\u{200b}d\u{feff}"), "a?[2Jb?c?d?");
        assert_eq!(printable("a\nb"), "a?b");
    }

    #[test]
    fn a_character_is_kept_whole_or_not_at_all() {
        assert_eq!(cut("aüb", 9), "aüb");
        assert_eq!(cut("aüb", 2), "a");
        assert_eq!(padded::<4>("aü"), [b'a', 0xc3, 0xbc, 0]);
        assert_eq!(padded::<2>("aü"), [b'a', 0]);
        assert_eq!(padded::<2>("ab"), *b"ab");
    }
}
