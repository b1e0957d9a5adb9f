//! Users and groups as people write them: a name of `/etc/passwd` or `/etc/group`, or a number.

/// Reads a user's name or number and returns the number.
pub(crate) fn parse(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").map_err(|e| format!("/etc/passwd: {e}"))?;
    find(&passwd, text).ok_or_else(|| format!("no user `{text}` in /etc/passwd; give the user's number"))
}

/// Reads a group's name or number and returns the number.
pub(crate) fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(gid) = text.parse() {
        return Ok(gid);
    }
    let group = std::fs::read_to_string("/etc/group").map_err(|e| format!("/etc/group: {e}"))?;
    find(&group, text).ok_or_else(|| format!("no group `{text}` in /etc/group; give the group's number"))
}

/// The number of `name`, which stands in the third field of both files.
fn find(file: &str, name: &str) -> Option<u32> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_users() {
        assert_eq!(parse("1000"), Ok(1000));
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\n";
        assert_eq!(find(passwd, "ann"), Some(1001));
        assert_eq!(find(passwd, "an"), None);
        assert_eq!(find("root:x:0:\nisthmus:x:998:ann,joe\n", "isthmus"), Some(998));
    }
}
