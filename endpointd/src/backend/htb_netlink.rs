//! HTB over rtnetlink: the few messages of the back end `tc_htb`, batched into few system calls.
//!
//! No crate speaks HTB's attributes, so they are written here: `struct tcmsg` and its attributes of
//! `linux/rtnetlink.h`, `struct tc_htb_glob` and `struct tc_htb_opt` of `linux/pkt_sched.h`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{MsgFlags, SockProtocol, recv, send};

use crate::netlink::{
    self, attribute, find_attribute, get_u16, get_u32, invalid, message_error, messages, put_u16,
    put_u32,
};

/// Parent of a device's root qdisc.
const ROOT: u32 = 0xffff_ffff;
/// Parent and handle of clsact, and its two hooks.
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;

const TCMSG: usize = 20;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;

/// HTB's version in `tc_htb_glob`.
const HTB_VERSION: u32 = 3;
/// Link layer with which the kernel computes from the rate and needs no table of ours.
const LINKLAYER_ETHERNET: u8 = 1;
/// Bytes that a class may send in its turn when several are ready.
const QUANTUM_BYTES: u32 = 65_536;
/// A tick of the packet scheduler.
const TICK_NS: u64 = 64;
/// Size at which a batch is sent; the socket's send buffer has room for three.
const BATCH_BYTES: usize = 65_536;

const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
const NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

/// The root qdisc of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RootQdisc {
    /// Kind, as `tc qdisc show` prints it.
    pub(super) kind: String,
    /// Handle; zero for one that the kernel made by itself.
    pub(super) handle: u32,
}

/// Rate and burst of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassRate {
    /// Wire bytes per second.
    pub(super) bytes_per_s: u64,
    /// Time that a class may catch up on after it was held up.
    pub(super) burst_ns: u64,
}

/// A netlink socket for the qdiscs of one device.
#[derive(Debug)]
pub(super) struct HtbNetlink {
    socket: OwnedFd,
    ifindex: i32,
    sequence: u32,
    batch: Vec<u8>,
    /// Offset of the batch's last message.
    last: usize,
    reply: Vec<u8>,
}

fn kind_attribute(out: &mut Vec<u8>, kind: &str) {
    attribute(out, TCA_KIND, |out| {
        out.extend_from_slice(kind.as_bytes());
        out.push(0);
    });
}

/// `struct tc_ratespec`; the rate's low 32 bits saturate, a larger one has its own attribute.
fn rate_spec(out: &mut Vec<u8>, bytes_per_s: u64) {
    out.extend_from_slice(&[0, LINKLAYER_ETHERNET]);
    put_u16(out, 0);
    put_u16(out, 0);
    put_u16(out, 0);
    put_u32(out, u32::try_from(bytes_per_s).unwrap_or(u32::MAX));
}

/// `TCA_OPTIONS` of a class: `struct tc_htb_opt`, and the 64-bit rates where needed.
fn class_options(out: &mut Vec<u8>, rate: ClassRate) {
    let ticks = u32::try_from((rate.burst_ns / TICK_NS).max(1)).unwrap_or(u32::MAX);
    attribute(out, TCA_OPTIONS, |out| {
        attribute(out, TCA_HTB_PARMS, |out| {
            rate_spec(out, rate.bytes_per_s);
            rate_spec(out, rate.bytes_per_s);
            // buffer, cbuffer, quantum, level, prio.
            put_u32(out, ticks);
            put_u32(out, ticks);
            put_u32(out, QUANTUM_BYTES);
            put_u32(out, 0);
            put_u32(out, 0);
        });
        if rate.bytes_per_s > u64::from(u32::MAX) {
            for kind in [TCA_HTB_RATE64, TCA_HTB_CEIL64] {
                attribute(out, kind, |out| {
                    out.extend_from_slice(&rate.bytes_per_s.to_ne_bytes());
                });
            }
        }
    });
}

impl HtbNetlink {
    /// Opens a socket in this thread's network namespace for the device `ifindex`.
    pub(super) fn new(ifindex: i32) -> io::Result<Self> {
        let socket = netlink::open(SockProtocol::NetlinkRoute)?;
        Ok(Self {
            socket,
            ifindex,
            sequence: 0,
            batch: Vec::new(),
            last: 0,
            reply: vec![0; 65_536],
        })
    }

    /// Appends a message on a qdisc, class or filter to the batch.
    fn push(
        &mut self,
        kind: u16,
        flags: u16,
        handle: u32,
        parent: u32,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        self.sequence = self.sequence.wrapping_add(1);
        let start = self.batch.len();
        self.last = start;
        let out = &mut self.batch;
        put_u32(out, 0);
        put_u16(out, kind);
        put_u16(out, flags | libc::NLM_F_REQUEST as u16);
        put_u32(out, self.sequence);
        put_u32(out, 0);
        // struct tcmsg: family and padding, ifindex, handle, parent, info.
        put_u32(out, 0);
        put_u32(out, self.ifindex.cast_unsigned());
        put_u32(out, handle);
        put_u32(out, parent);
        put_u32(out, 0);
        fill(out);
        let length = u32::try_from(out.len() - start).expect("a message of a few hundred bytes");
        out[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Returns true if messages wait.
    pub(super) fn pending(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Sends the batch. Returns the first error of the kernel, after all messages were tried.
    /// Removing an absent object is no error.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        // Errors are always reported; an acknowledgement is only asked of the last.
        let flags = self.last + 6;
        let acknowledged = get_u16(&self.batch, flags).ok_or_else(|| invalid("empty batch"))?
            | libc::NLM_F_ACK as u16;
        self.batch[flags..flags + 2].copy_from_slice(&acknowledged.to_ne_bytes());
        let sent = send(self.socket.as_raw_fd(), &self.batch, MsgFlags::empty());
        // Cleared even if it was not sent: a batch that the kernel refuses once would be refused
        // again.
        self.batch.clear();
        sent?;
        let mut first = Ok(());
        loop {
            let received = recv(self.socket.as_raw_fd(), &mut self.reply, MsgFlags::empty())?;
            for (kind, sequence, payload) in messages(&self.reply[..received]) {
                if i32::from(kind) != libc::NLMSG_ERROR {
                    continue;
                }
                match message_error(payload) {
                    Some(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                    Some(error) if first.is_ok() => first = Err(error),
                    _ => {}
                }
                // Messages are answered in order: the last one's answer ends the batch.
                if sequence == self.sequence {
                    return first;
                }
            }
        }
    }

    fn flush_if_large(&mut self) -> io::Result<()> {
        if self.batch.len() >= BATCH_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Requests all objects of a kind on the device, and calls `each` with handle, parent and
    /// attributes.
    fn dump(
        &mut self,
        kind: u16,
        parent: u32,
        mut each: impl FnMut(u32, u32, &[u8]),
    ) -> io::Result<()> {
        // Answers to a waiting batch would mix with those to the dump.
        self.flush()?;
        self.push(kind, libc::NLM_F_DUMP as u16, 0, parent, |_| {});
        let sent = send(self.socket.as_raw_fd(), &self.batch, MsgFlags::empty());
        self.batch.clear();
        sent?;
        loop {
            let waiting = MsgFlags::empty();
            let answers = netlink::answers(&self.socket, &mut self.reply, self.sequence, waiting)?;
            for (kind, payload) in answers {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        return message_error(payload).map_or(Ok(()), Err);
                    }
                    _ => {}
                }
                let ours = get_u32(payload, 4) == Some(self.ifindex.cast_unsigned());
                if let (true, Some(handle), Some(parent), Some(attributes)) = (
                    ours,
                    get_u32(payload, 8),
                    get_u32(payload, 12),
                    payload.get(TCMSG..),
                ) {
                    each(handle, parent, attributes);
                }
            }
        }
    }

    /// Reads the device's root qdisc, if it has one.
    pub(super) fn root(&mut self) -> io::Result<Option<RootQdisc>> {
        let mut found = None;
        self.dump(libc::RTM_GETQDISC, 0, |handle, parent, attributes| {
            if parent == ROOT {
                let kind = find_attribute(attributes, TCA_KIND).unwrap_or_default();
                let kind = String::from_utf8_lossy(kind)
                    .trim_end_matches('\0')
                    .to_owned();
                found = Some(RootQdisc { kind, handle });
            }
        })?;
        Ok(found)
    }

    /// Returns true if the device has clsact.
    pub(super) fn has_clsact(&mut self) -> io::Result<bool> {
        let mut found = false;
        self.dump(libc::RTM_GETQDISC, 0, |_, parent, _| {
            found |= parent == CLSACT;
        })?;
        Ok(found)
    }

    /// Makes HTB with `handle` the root qdisc; unclassified packets go to `default_minor`.
    pub(super) fn add_root(&mut self, handle: u32, default_minor: u32) -> io::Result<()> {
        self.push(libc::RTM_NEWQDISC, CREATE, handle, ROOT, |out| {
            kind_attribute(out, "htb");
            attribute(out, TCA_OPTIONS, |out| {
                attribute(out, TCA_HTB_INIT, |out| {
                    // version, rate2quantum, defcls, debug, direct_pkts.
                    for word in [HTB_VERSION, 10, default_minor, 0, 0] {
                        put_u32(out, word);
                    }
                });
            });
        });
        self.flush()
    }

    /// Removes the root qdisc with all its classes.
    pub(super) fn delete_root(&mut self, handle: u32) -> io::Result<()> {
        self.push(libc::RTM_DELQDISC, 0, handle, ROOT, |_| {});
        self.flush()
    }

    /// Queues the addition of a class under the root qdisc, whose queue holds `queue_bytes`.
    pub(super) fn add_class(
        &mut self,
        class: u32,
        rate: ClassRate,
        queue_bytes: u32,
    ) -> io::Result<()> {
        self.push(
            libc::RTM_NEWTCLASS,
            CREATE,
            class,
            class & 0xffff_0000,
            |out| {
                kind_attribute(out, "htb");
                class_options(out, rate);
            },
        );
        self.push(libc::RTM_NEWQDISC, NEW, 0, class, |out| {
            kind_attribute(out, "bfifo");
            attribute(out, TCA_OPTIONS, |out| put_u32(out, queue_bytes));
        });
        self.flush_if_large()
    }

    /// Queues a class's change of rate.
    pub(super) fn change_class(&mut self, class: u32, rate: ClassRate) -> io::Result<()> {
        self.push(libc::RTM_NEWTCLASS, 0, class, class & 0xffff_0000, |out| {
            kind_attribute(out, "htb");
            class_options(out, rate);
        });
        self.flush_if_large()
    }

    /// Queues the removal of a class; packets in it are dropped.
    pub(super) fn delete_class(&mut self, class: u32) -> io::Result<()> {
        self.push(libc::RTM_DELTCLASS, 0, class, 0, |_| {});
        self.flush_if_large()
    }

    /// Reads the classes of the qdisc `handle`.
    pub(super) fn classes(&mut self, handle: u32) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        self.dump(libc::RTM_GETTCLASS, 0, |class, _, _| {
            if class & 0xffff_0000 == handle {
                found.push(class);
            }
        })?;
        Ok(found)
    }

    /// Removes clsact from the device if no filter is left on it.
    pub(super) fn delete_clsact_if_empty(&mut self) -> io::Result<()> {
        let mut filters = 0usize;
        for hook in [CLSACT_INGRESS, CLSACT_EGRESS] {
            match self.dump(libc::RTM_GETTFILTER, hook, |_, _, _| filters += 1) {
                // No clsact.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                    return Ok(());
                }
                other => other?,
            }
        }
        if filters == 0 {
            self.push(libc::RTM_DELQDISC, 0, CLSACT_HANDLE, CLSACT, |_| {});
            self.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_their_length_is_not() {
        let mut out = Vec::new();
        kind_attribute(&mut out, "htb");
        attribute(&mut out, 9, |out| out.extend_from_slice(b"abcde"));
        assert_eq!(out.len(), 8 + 12);
        assert_eq!(find_attribute(&out, TCA_KIND), Some(b"htb\0".as_slice()));
        assert_eq!(find_attribute(&out, 9), Some(b"abcde".as_slice()));
        assert_eq!(find_attribute(&out, 7), None);
    }

    #[test]
    fn class_options_have_the_kernels_sizes() {
        let options = |bytes_per_s| {
            let mut out = Vec::new();
            class_options(
                &mut out,
                ClassRate {
                    bytes_per_s,
                    burst_ns: 1_000_000,
                },
            );
            find_attribute(&out, TCA_OPTIONS)
                .expect("just written")
                .to_vec()
        };
        let slow = options(1_000_000);
        let parms = find_attribute(&slow, TCA_HTB_PARMS).expect("always there");
        // sizeof(struct tc_htb_opt).
        assert_eq!(parms.len(), 44);
        assert_eq!(get_u32(parms, 8), Some(1_000_000));
        assert_eq!(get_u32(parms, 24), Some(15_625));
        assert_eq!(find_attribute(&slow, TCA_HTB_RATE64), None);

        let fast = options(10_000_000_000);
        let parms = find_attribute(&fast, TCA_HTB_PARMS).expect("always there");
        assert_eq!(get_u32(parms, 8), Some(u32::MAX));
        assert_eq!(
            find_attribute(&fast, TCA_HTB_RATE64),
            Some(10_000_000_000u64.to_ne_bytes().as_slice())
        );
    }
}
