//! Names of endpoints: the nodes and services of `fi_getinfo` and `fi_av_insertsvc`.
//!
//! A node is a system of the region, the host or a VM, by its host name or one of its addresses. A service is a name that an
//! endpoint there was given when it was opened ([`isthmus_region::objects::endpoint`]). The program gets a [`Name`] for
//! them, which is looked up when an endpoint uses it first: a server may start after its client.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

use isthmus_region::address::SystemId;
use isthmus_region::member::Member;
use isthmus_region::objects::endpoint::{self, MAX_SERVICE};
use isthmus_transport::{Address, Name};

use crate::core::{Core, log};

/// The name for a node (without one, this process's own) and a service (without one, none in particular), or what is wrong
/// with them. A `numeric` node must be an address.
pub(crate) fn name(
    member: &Member,
    node: Option<&str>,
    service: Option<&str>,
    numeric: bool,
) -> Result<Name, String> {
    let system = match node {
        None => member.system(),
        Some(node) => system_of(member, node, numeric)
            .ok_or_else(|| format!("node '{node}', which is no host or VM of the region"))?,
    };
    let service = service.unwrap_or_default();
    Name::new(system, service)
        .ok_or_else(|| format!("service '{service}', which is longer than {MAX_SERVICE} bytes"))
}

/// The endpoint that has a name now.
pub(crate) fn find(core: Option<&Core>, member: &Member, name: &Name) -> Option<Address> {
    match endpoint::find(member, name.system, name.service()) {
        Ok(found) => found,
        Err(e) => {
            log!(core, INFO, AV, "cannot look up {name}: {}", isthmus_region::error::with_causes(&e));
            None
        }
    }
}

/// The system that a node names; this process's own if several could be meant.
fn system_of(member: &Member, node: &str, numeric: bool) -> Option<SystemId> {
    let own = member.system();
    let mut peers = member.region().peers();
    peers.retain(|p| p.life.state == isthmus_region::life::State::Active);
    peers.sort_by_key(|p| p.system != own);
    let given: Vec<IpAddr> = match node.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) if numeric => return None,
        Err(_) => {
            if node.eq_ignore_ascii_case("localhost") {
                return Some(own);
            }
            if let Some(peer) = peers.iter().find(|p| is_same_host(&p.name, node)) {
                return Some(peer.system);
            }
            addresses(node)
        }
    };
    if given.is_empty() {
        return None;
    }
    if given.iter().any(is_own) {
        return Some(own);
    }
    // This system may know the addresses of other peers by their names, as it does of a run's VMs.
    let others = peers.iter().filter(|p| p.system != own && !p.name.is_empty());
    let mut meant = others.filter(|p| addresses(&p.name).iter().any(|a| given.contains(a)));
    meant.next().map(|p| p.system)
}

/// Whether two host names are the same, or one is the other's first part.
fn is_same_host(one: &str, other: &str) -> bool {
    let is_part = |short: &str, long: &str| {
        !short.is_empty() && long.split_once('.').is_some_and(|(first, _)| first.eq_ignore_ascii_case(short))
    };
    (!one.is_empty() && one.eq_ignore_ascii_case(other)) || is_part(one, other) || is_part(other, one)
}

/// The addresses of a host, as far as this system knows them.
fn addresses(host: &str) -> Vec<IpAddr> {
    (host, 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect()).unwrap_or_default()
}

/// Whether an address is this system's own; no other can be bound.
fn is_own(address: &IpAddr) -> bool {
    UdpSocket::bind((*address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_the_same_with_and_without_their_domain() {
        assert!(is_same_host("vm1", "VM1") && is_same_host("vm1", "vm1.cluster") && is_same_host("a.b", "a"));
        assert!(!is_same_host("vm1", "vm11") && !is_same_host("vm1.a", "vm1.b") && !is_same_host("", ".a"));
        assert!(!is_same_host("", ""));
    }

    #[test]
    fn own_addresses_are_known() {
        assert!(is_own(&IpAddr::from([127, 0, 0, 1])) && is_own(&IpAddr::from([0, 0, 0, 0])));
        assert!(!is_own(&IpAddr::from([192, 0, 2, 1])), "an address for documentation");
    }
}
