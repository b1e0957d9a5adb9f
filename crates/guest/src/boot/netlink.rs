//! Addresses and link states by rtnetlink (rtnetlink(7)), since the host's root may have no `ip` program.

use super::{Result, cannot};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::fs;
use std::net::Ipv4Addr;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const IFF_UP: u32 = 0x1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const AF_INET: u8 = 2;

/// A connection to the kernel's routing tables.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
        Ok(Netlink { socket: socket.map_err(cannot("open a netlink socket"))?, sequence: 0 })
    }

    /// Switches an interface on.
    pub(super) fn up(&mut self, interface: &str) -> Result<()> {
        let body = link_up(index(interface)?);
        self.request(RTM_NEWLINK, 0, &body).map_err(cannot(format!("switch the interface {interface} on")))
    }

    /// Gives an interface an address.
    pub(super) fn address(&mut self, interface: &str, address: Ipv4Addr, prefix: u8) -> Result<()> {
        let body = new_address(index(interface)?, address, prefix);
        self.request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body)
            .map_err(cannot(format!("give {interface} the address {address}/{prefix}")))
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> rustix::io::Result<()> {
        self.sequence += 1;
        let message = message(kind, flags | NLM_F_REQUEST | NLM_F_ACK, self.sequence, body);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, &message, SendFlags::empty(), &kernel)?;
        let mut answer = [0; 4096];
        loop {
            let (_, count) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
            if let Some(code) = acknowledgement(&answer[..count.min(answer.len())], self.sequence) {
                return match code {
                    0 => Ok(()),
                    code => Err(Errno::from_raw_os_error(code.saturating_neg())),
                };
            }
        }
    }
}

fn index(interface: &str) -> Result<u32> {
    let path = format!("/sys/class/net/{interface}/ifindex");
    let text = fs::read_to_string(&path).map_err(cannot(format!("find the interface {interface}")))?;
    text.trim().parse().map_err(|error| cannot(format!("read {path}"))(std::io::Error::other(error)))
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + body.len()).expect("messages here are below 100 bytes");
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
    out.extend_from_slice(body);
    out
}

/// `struct ifinfomsg`: family, type, index, flags, and which flags to change.
fn link_up(index: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [index, IFF_UP, IFF_UP] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index; then attributes.
fn new_address(index: u32, address: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut body = vec![AF_INET, prefix, 0, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    let host_bits = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    let broadcast = Ipv4Addr::from_bits(address.to_bits() | host_bits);
    for (kind, value) in [(IFA_LOCAL, address), (IFA_ADDRESS, address), (IFA_BROADCAST, broadcast)] {
        body.extend_from_slice(&8u16.to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(&value.octets());
    }
    body
}

/// The code in an acknowledgement of request `sequence`: 0, or a negative error number.
fn acknowledgement(answer: &[u8], sequence: u32) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let answered = u32::from_ne_bytes(answer.get(8..12)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR && answered == sequence).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_message_has_the_documented_layout() {
        let body = new_address(3, Ipv4Addr::new(10, 1, 2, 3), 24);
        assert_eq!(body[..4], [AF_INET, 24, 0, 0]);
        assert_eq!(body[8..16], [8, 0, 2, 0, 10, 1, 2, 3]);
        assert_eq!(body[28..32], [10, 1, 2, 255]);
        let message = message(RTM_NEWADDR, 5, 7, &body);
        assert_eq!(message.len(), 48);
        assert_eq!(message[0], 48);
    }

    #[test]
    fn only_the_answer_to_this_request_counts() {
        let mut answer = message(NLMSG_ERROR, 0, 7, &(-17i32).to_ne_bytes());
        answer.extend_from_slice(&[0; 16]);
        assert_eq!(acknowledgement(&answer, 7), Some(-17));
        assert_eq!(acknowledgement(&answer, 8), None);
        assert_eq!(acknowledgement(&answer[..10], 7), None);
    }
}
