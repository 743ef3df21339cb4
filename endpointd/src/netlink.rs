//! Netlink messages and attributes (`linux/netlink.h`), as far as no crate speaks them.
//!
//! Readers are total: what is too short or does not fit ends the walk.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

/// Bytes of a message's header.
pub(crate) const NLMSG_HEADER: usize = 16;

/// Opens a netlink socket in this thread's network namespace.
pub(crate) fn open(protocol: SockProtocol) -> io::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        protocol,
    )?;
    // Port 0: the kernel chooses one that is unique.
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(socket)
}

pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_ne_bytes());
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_ne_bytes());
}

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)?
        .try_into()
        .ok()
        .map(u16::from_ne_bytes)
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)?
        .try_into()
        .ok()
        .map(u32::from_ne_bytes)
}

/// Appends an attribute whose payload `fill` writes.
pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_u16(out, 0);
    put_u16(out, kind);
    fill(out);
    // The length excludes the padding (`NLA_ALIGN`), so it is taken first.
    let length = u16::try_from(out.len() - start).expect("an attribute of a few bytes");
    out[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Finds the attribute `kind` among `attributes`.
pub(crate) fn find_attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(get_u16(attributes, 0)?);
        let found = get_u16(attributes, 2)?;
        let payload = attributes.get(4..length)?;
        if found == kind {
            return Some(payload);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Splits the messages of a netlink datagram: type, sequence, payload.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(get_u32(bytes, 0)?).ok()?;
        let kind = get_u16(bytes, 4)?;
        let sequence = get_u32(bytes, 8)?;
        let payload = bytes.get(NLMSG_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, sequence, payload))
    })
}

/// Receives a datagram, and iterates over its answers to one request: type, payload. An answer to
/// an earlier, aborted request may still be in the socket.
pub(crate) fn answers<'a>(
    socket: &OwnedFd,
    buffer: &'a mut [u8],
    request: u32,
    flags: MsgFlags,
) -> io::Result<impl Iterator<Item = (u16, &'a [u8])> + use<'a>> {
    let length = recv(socket.as_raw_fd(), buffer, flags)?;
    let answers = messages(&buffer[..length]).filter(move |(_, sequence, _)| *sequence == request);
    Ok(answers.map(|(kind, _, payload)| (kind, payload)))
}

/// Bytes of `struct ifinfomsg`.
const LINK_MESSAGE: usize = 16;
/// `RTEXT_FILTER_SKIP_STATS`.
const WITHOUT_STATISTICS: u32 = 1 << 3;

/// Socket for requests that the kernel answers within the system call.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// Opens a socket in this thread's network namespace.
    pub(crate) fn open(protocol: SockProtocol) -> io::Result<Self> {
        Ok(Self {
            socket: open(protocol)?,
            sequence: 0,
            buffer: vec![0; 16_384],
        })
    }

    /// Sends one request and passes the payload of each answer to `take`.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        body: &[u8],
        mut take: impl FnMut(&[u8]) -> Option<()>,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = NLMSG_HEADER + body.len();
        let mut out = Vec::with_capacity(length);
        put_u32(&mut out, length as u32);
        put_u16(&mut out, kind);
        // The acknowledgement marks the end also where there is no answer.
        put_u16(&mut out, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16);
        put_u32(&mut out, self.sequence);
        put_u32(&mut out, 0);
        out.extend_from_slice(body);
        send(self.socket.as_raw_fd(), &out, MsgFlags::empty())?;
        loop {
            // There is nothing to wait for.
            let at_once = MsgFlags::MSG_DONTWAIT;
            for (kind, payload) in answers(&self.socket, &mut self.buffer, self.sequence, at_once)?
            {
                if i32::from(kind) == libc::NLMSG_ERROR {
                    return message_error(payload).map_or(Ok(()), Err);
                }
                // An answer that cannot be read counts as none.
                let _ = take(payload);
            }
        }
    }

    /// Passes the attributes of the device of this number to `take`. A device may go at any moment:
    /// then there are none.
    pub(crate) fn ask_device(&mut self, index: u32, mut take: impl FnMut(&[u8])) {
        let mut body = Vec::with_capacity(LINK_MESSAGE + 8);
        // struct ifinfomsg: family and type, index, flags, change.
        for word in [0, index, 0, 0] {
            put_u32(&mut body, word);
        }
        attribute(&mut body, libc::IFLA_EXT_MASK, |out| {
            put_u32(out, WITHOUT_STATISTICS);
        });
        let _ = self.ask(libc::RTM_GETLINK, &body, |link| {
            take(link.get(LINK_MESSAGE..)?);
            Some(())
        });
    }
}

/// Finds the kind among a device's attributes, as `ip link add … type` spells it; empty for a
/// network card.
pub(crate) fn device_kind(attributes: &[u8]) -> &str {
    let info = find_attribute(attributes, libc::IFLA_LINKINFO).unwrap_or_default();
    let kind = find_attribute(info, libc::IFLA_INFO_KIND).unwrap_or_default();
    let kind = kind.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(kind).unwrap_or_default()
}

/// Decodes an `NLMSG_ERROR` payload; `None` for an acknowledgement.
pub(crate) fn message_error(payload: &[u8]) -> Option<io::Error> {
    match get_u32(payload, 0).map(u32::cast_signed) {
        Some(0) => None,
        Some(code) => Some(io::Error::from_raw_os_error(-code)),
        None => Some(invalid("short netlink error")),
    }
}

/// Reads a native 64-bit number.
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..at + 8)?
        .try_into()
        .ok()
        .map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_datagram_ends_the_messages() {
        let mut bytes = Vec::new();
        put_u32(&mut bytes, 20);
        put_u16(&mut bytes, 2);
        put_u16(&mut bytes, 0);
        put_u32(&mut bytes, 7);
        put_u32(&mut bytes, 0);
        put_u32(&mut bytes, (-libc::ENOENT).cast_unsigned());
        let whole: Vec<_> = messages(&bytes)
            .map(|(kind, sequence, _)| (kind, sequence))
            .collect();
        assert_eq!(whole, [(2, 7)]);
        let (_, _, payload) = messages(&bytes).next().expect("one message");
        assert_eq!(
            message_error(payload).and_then(|error| error.raw_os_error()),
            Some(libc::ENOENT)
        );
        assert_eq!(messages(&bytes[..19]).count(), 0);
    }
}
