//! Sizes as people write them: `512M`, `1G`, `65536`.

/// Reads a size in bytes, with a binary suffix K, M, G or T, with or without `iB` or `B` behind.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let bytes = isthmus_region::text::size(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("`{text}` is not a size: write for instance 512M or 1G"))
}

/// Reads a size that may be 0.
pub(crate) fn parse_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse(text) }
}

/// Reads the size of a region, which is a power of two.
pub(crate) fn parse_region(text: &str) -> Result<u64, String> {
    let bytes = parse(text)?;
    if bytes.is_power_of_two() && bytes >= 1 << 20 {
        return Ok(bytes);
    }
    let next = bytes.max(1 << 20).checked_next_power_of_two().unwrap_or(1 << 63) >> 20;
    Err(format!("a region's size is a power of two, and 1M at least: {next}M for instance"))
}

/// The size of the huge pages that a region lies in, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HugePages(pub(crate) Option<u64>);

/// Reads the size of huge pages, or `no`.
pub(crate) fn parse_huge_pages(text: &str) -> Result<HugePages, String> {
    if text.eq_ignore_ascii_case("no") {
        return Ok(HugePages(None));
    }
    let pages = parse(text).ok().filter(|bytes| bytes.is_power_of_two());
    let bytes = pages.ok_or_else(|| format!("`{text}` is no size of huge pages: write 2M, 1G or no"))?;
    Ok(HugePages(Some(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("1g"), Ok(1 << 30));
        assert_eq!(parse("4 KiB"), Ok(4096));
        assert_eq!(parse("7"), Ok(7));
        for bad in ["", "M", "1.5G", "1X", "0", "-1", "99999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zero_is_a_size_where_it_may_be() {
        assert_eq!((parse_or_none("0"), parse_or_none("1M")), (Ok(0), Ok(1 << 20)));
        assert!(parse_or_none("no").is_err());
    }

    #[test]
    fn the_size_of_a_region_is_a_power_of_two() {
        assert_eq!(parse_region("128M"), Ok(128 << 20));
        assert!(parse_region("100M").unwrap_err().ends_with("128M for instance"));
        assert!(parse_region("4K").is_err() && parse_region("x").is_err());
    }

    #[test]
    fn huge_pages_have_a_size_or_are_none() {
        assert_eq!(parse_huge_pages("2M"), Ok(HugePages(Some(2 << 20))));
        assert_eq!(parse_huge_pages("no"), Ok(HugePages(None)));
        for bad in ["", "yes", "3M", "0"] {
            assert!(parse_huge_pages(bad).is_err(), "{bad}");
        }
    }
}
