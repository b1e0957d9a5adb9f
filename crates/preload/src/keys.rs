//! Which keys are ours: `ISTHMUS_SYSV_KEYS`.
//!
//! `all` (the default), `none`, or a list of keys, of ranges `LOW-HIGH` (both included), and of `private` for `IPC_PRIVATE`; numbers as
//! in C, decimal or with 0x.

use std::sync::OnceLock;

use isthmus_region::signals::Blocked;
use isthmus_sysv::ipc;

use crate::here;

#[derive(Debug, PartialEq, Eq)]
enum Keys {
    All,
    None,
    Some { ranges: Vec<(u32, u32)>, private: bool },
}

impl Keys {
    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "" | "all" => return Some(Self::All),
            "none" => return Some(Self::None),
            _ => {}
        }
        let (mut ranges, mut private) = (Vec::new(), false);
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            if word == "private" {
                private = true;
                continue;
            }
            let (low, high) = word.split_once('-').unwrap_or((word, word));
            ranges.push((number(low)?, number(high)?));
        }
        Some(Self::Some { ranges, private })
    }

    fn has(&self, key: i32) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Some { private, .. } if key == ipc::PRIVATE => *private,
            Self::Some { ranges, .. } => {
                let key = key.cast_unsigned();
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&key))
            }
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    if let Some(keys) = KEYS.get() {
        return keys;
    }
    let _blocked = Blocked::new();
    KEYS.get_or_init(|| {
        let text = std::env::var("ISTHMUS_SYSV_KEYS").unwrap_or_default();
        Keys::parse(&text).unwrap_or_else(|| {
            here::say(here::About::Settings, &format!(
                "ISTHMUS_SYSV_KEYS={text} is no list of keys; all keys are taken. It is 'all', 'none', or as '0x1000-0x1fff,42,private'"
            ));
            Keys::All
        })
    })
}

/// Whether objects with this key are in the region.
pub(crate) fn is_ours(key: i32) -> bool {
    keys().has(key)
}

/// Whether an id is one of ours.
pub(crate) fn is_our_id(id: i32) -> bool {
    ipc::is_ours(id) && *keys() != Keys::None
}

/// Whether any key is ours.
pub(crate) fn any() -> bool {
    *keys() != Keys::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_keys_and_ranges() {
        let keys = Keys::parse("0x10-0x1f, 42,private").unwrap();
        assert!(keys.has(0x10) && keys.has(0x1f) && keys.has(42) && keys.has(0));
        assert!(!keys.has(0x20) && !keys.has(-1));
        assert!(!Keys::parse("7").unwrap().has(0));
        assert!(Keys::parse("0xffffffff").unwrap().has(-1));
        assert_eq!((Keys::parse("all"), Keys::parse("none")), (Some(Keys::All), Some(Keys::None)));
        assert_eq!(Keys::parse("12,x"), None);
    }
}
