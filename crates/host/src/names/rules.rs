//! What the operator has settled about named objects: how many bytes, who may make them, and what becomes of those of a VM that is gone.

/// The rules of a registry. By default there are none.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Most bytes of each user's objects; root is exempt.
    pub quota: Option<u64>,
    /// Most bytes of the objects that were made in each VM, by whomever; those of the host are exempt.
    pub quota_vm: Option<u64>,
    /// Who may make objects.
    pub makers: Makers,
    /// Whether objects end that were made in a VM which is gone, once no process has them open.
    pub remove_orphans: bool,
}

/// Who may make objects. What is empty allows all.
#[derive(Debug, Clone, Default)]
pub struct Makers {
    /// Users, besides root, who are to be among these or among the groups.
    pub users: Vec<u32>,
    /// Groups: the one that a process runs with.
    pub groups: Vec<u32>,
    /// VMs, of whose processes a maker is to be one.
    pub vms: Vec<String>,
    /// Whether processes of the host are among these.
    pub host: bool,
}

impl Makers {
    /// Whether a user may make objects in a VM; `None`: on the host.
    pub(super) fn are(&self, user: (u32, u32), vm: Option<&str>) -> bool {
        let anyone = self.users.is_empty() && self.groups.is_empty();
        let is_user = anyone || user.0 == 0 || self.users.contains(&user.0) || self.groups.contains(&user.1);
        let anywhere = self.vms.is_empty() && !self.host;
        let is_place = match vm {
            Some(vm) => self.vms.iter().any(|name| name == vm),
            None => self.host || user.0 == 0,
        };
        is_user && (anywhere || is_place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makers_are_the_users_and_places_that_are_named() {
        let all = Makers::default();
        assert!(all.are((5, 5), None) && all.are((5, 5), Some("a")));
        let users = Makers { users: vec![5], groups: vec![7], ..Makers::default() };
        for (user, may) in [((5, 1), true), ((1, 7), true), ((0, 0), true), ((1, 5), false)] {
            assert_eq!((users.are(user, None), users.are(user, Some("a"))), (may, may), "{user:?}");
        }
        let places = Makers { vms: vec!["a".into()], ..Makers::default() };
        assert!(places.are((5, 5), Some("a")) && places.are((0, 0), None));
        assert!(!places.are((0, 0), Some("b")) && !places.are((5, 5), None));
        let both = Makers { host: true, ..users };
        assert!(both.are((5, 1), None) && !both.are((5, 1), Some("a")) && !both.are((1, 1), None));
    }
}
