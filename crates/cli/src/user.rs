//! Users and groups as people write them: a name of `/etc/passwd` or `/etc/group`, or a number.

use std::collections::HashMap;

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

/// The names of all users in `/etc/passwd`, by their numbers.
pub(crate) fn names() -> HashMap<u32, String> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    named(&passwd)
}

/// Of two users with one number the first counts.
fn named(passwd: &str) -> HashMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    passwd.lines().rev().filter_map(user).collect()
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
        let known = named("root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nann:x:1001:1001:::\nbad\n");
        assert_eq!((known.len(), known[&0].as_str(), known[&1001].as_str()), (2, "root", "ann"));
        assert_eq!(find("root:x:0:\nisthmus:x:998:ann,joe\n", "isthmus"), Some(998));
    }
}
