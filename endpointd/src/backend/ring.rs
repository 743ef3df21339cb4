//! The kernel's events: the ring buffer and the layout of its records (`bpf/flow.h`).

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use ratewright_topology::ecmp::FiveTuple;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::{BackendError, Conn, FlowEvent, FlowEventKind, FlowFacts, SlotIndex};

/// Protocol number of TCP.
const IPPROTO_TCP: u8 = 6;

/// `struct rw_event` of `bpf/flow.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RawEvent {
    /// CLOCK_MONOTONIC nanoseconds.
    pub at_ns: u64,
    /// Start, own maximum: the application's in bytes/s (`u64::MAX`: none). First paced:
    /// nanoseconds.
    pub value: u64,
    /// cgroup v2 id, 0 if unknown.
    pub cgroup_id: u64,
    /// The connection's slot.
    pub slot: u32,
    /// Use count of the slot.
    pub use_count: u32,
    /// Local address, IPv4 mapped.
    pub src_addr: [u8; 16],
    /// Remote address, IPv4 mapped.
    pub dst_addr: [u8; 16],
    /// Local port.
    pub src_port: u16,
    /// Remote port.
    pub dst_port: u16,
    /// `SO_MARK`.
    pub mark: u32,
    /// `enum rw_event_kind`.
    pub kind: u8,
    /// Six DSCP bits.
    pub dscp: u8,
    /// Padding.
    pub unused: [u8; 6],
}

const _: () = assert!(size_of::<RawEvent>() == 80);

/// Converts an address as the kernel wrote it; IPv4 is no longer mapped.
fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

impl RawEvent {
    /// Extracts the properties that policy matches on.
    pub fn facts(&self) -> FlowFacts {
        FlowFacts {
            tuple: FiveTuple {
                src: address(self.src_addr),
                dst: address(self.dst_addr),
                src_port: self.src_port,
                dst_port: self.dst_port,
                protocol: IPPROTO_TCP,
            },
            cgroup_id: self.cgroup_id,
            mark: self.mark,
            dscp: self.dscp,
            app_max_bytes_per_s: self.own_max(),
        }
    }

    fn own_max(&self) -> Option<u64> {
        (self.value != u64::MAX).then_some(self.value)
    }

    /// Returns the connection of the event.
    pub fn conn(&self) -> Conn {
        Conn {
            slot: SlotIndex(self.slot),
            use_count: self.use_count,
        }
    }

    /// Decodes the event; `None` for a kind that this version does not know.
    pub fn decode(&self) -> Option<FlowEvent> {
        let kind = match self.kind {
            1 => FlowEventKind::Start(self.facts()),
            2 => FlowEventKind::Idle,
            3 => FlowEventKind::Resume,
            4 => FlowEventKind::Close,
            5 => FlowEventKind::FirstPaced {
                latency_ns: self.value,
            },
            6 => FlowEventKind::Limited,
            7 => FlowEventKind::OwnMax(self.own_max()),
            _ => return None,
        };
        Some(FlowEvent {
            conn: self.conn(),
            at_ns: self.at_ns,
            kind,
        })
    }
}

/// Reader of a BPF ring buffer of `struct rw_event`.
pub struct EventRing {
    ring: RingBuffer<'static>,
    queue: Rc<RefCell<Vec<FlowEvent>>>,
    map: std::os::fd::OwnedFd,
}

impl std::fmt::Debug for EventRing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EventRing")
            .field("map", &self.map)
            .finish_non_exhaustive()
    }
}

impl EventRing {
    /// Reads the ring buffer `map`.
    ///
    /// # Errors
    /// When the ring buffer cannot be mapped.
    pub fn new(map: &dyn MapCore) -> Result<Self, BackendError> {
        let queue = Rc::new(RefCell::new(Vec::new()));
        // libbpf calls back while it borrows the ring, so the events go into a queue that both
        // share.
        let sink = Rc::clone(&queue);
        let failed = |error| BackendError::bpf("map the event ring buffer", &error);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |bytes| {
                // A pinned ring may hold records of an earlier daemon's program: unknown kinds are
                // skipped.
                if let Ok((raw, _)) = RawEvent::read_from_prefix(bytes)
                    && let Some(event) = raw.decode()
                {
                    sink.borrow_mut().push(event);
                }
                0
            })
            .map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        let map = map
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| BackendError::System {
                what: "duplicate the event ring buffer's descriptor".to_owned(),
                source,
            })?;
        Ok(Self { ring, queue, map })
    }

    /// Returns a descriptor that is readable while events wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Hands all waiting events to `take`, oldest first.
    ///
    /// # Errors
    /// When libbpf cannot consume the ring.
    pub fn drain(&self, take: impl FnMut(FlowEvent)) -> Result<(), BackendError> {
        let consumed = self.ring.consume_raw();
        // Before the error is returned: events that were consumed are gone from the ring.
        self.queue.borrow_mut().drain(..).for_each(take);
        if consumed < 0 {
            return Err(BackendError::System {
                what: "read the event ring buffer".to_owned(),
                source: std::io::Error::from_raw_os_error(-consumed),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawEvent {
        let mut v4 = [0u8; 16];
        v4[10..12].fill(0xff);
        v4[12..].copy_from_slice(&[10, 0, 0, 1]);
        let mut v6 = [0u8; 16];
        v6[0] = 0xfd;
        v6[15] = 9;
        RawEvent {
            at_ns: 5,
            value: u64::MAX,
            cgroup_id: 77,
            slot: 3,
            use_count: 2,
            src_addr: v4,
            dst_addr: v6,
            src_port: 40_000,
            dst_port: 80,
            mark: 9,
            kind: 1,
            dscp: 46,
            unused: [0; 6],
        }
    }

    #[test]
    fn start_carries_facts_with_mapped_addresses_normalised() {
        let event = raw().decode().expect("known kind");
        assert_eq!(
            event.conn,
            Conn {
                slot: SlotIndex(3),
                use_count: 2
            }
        );
        let FlowEventKind::Start(facts) = event.kind else {
            panic!("kind 1 is a start")
        };
        assert_eq!(
            facts.tuple.src,
            "10.0.0.1".parse::<IpAddr>().expect("literal")
        );
        assert_eq!(
            facts.tuple.dst,
            "fd00::9".parse::<IpAddr>().expect("literal")
        );
        assert_eq!(
            (
                facts.tuple.src_port,
                facts.tuple.dst_port,
                facts.tuple.protocol
            ),
            (40_000, 80, 6)
        );
        assert_eq!((facts.cgroup_id, facts.mark, facts.dscp), (77, 9, 46));
        assert_eq!(facts.app_max_bytes_per_s, None);
    }

    #[test]
    fn an_application_maximum_is_a_demand_limit() {
        assert_eq!(
            RawEvent {
                value: 1_000,
                ..raw()
            }
            .facts()
            .app_max_bytes_per_s,
            Some(1_000)
        );
    }

    #[test]
    fn other_kinds_decode_and_unknown_ones_are_dropped() {
        let kind = |kind| {
            RawEvent {
                kind,
                value: 12,
                ..raw()
            }
            .decode()
            .map(|event| event.kind)
        };
        assert_eq!(kind(2), Some(FlowEventKind::Idle));
        assert_eq!(kind(3), Some(FlowEventKind::Resume));
        assert_eq!(kind(4), Some(FlowEventKind::Close));
        assert_eq!(kind(5), Some(FlowEventKind::FirstPaced { latency_ns: 12 }));
        assert_eq!(kind(6), Some(FlowEventKind::Limited));
        assert_eq!(kind(7), Some(FlowEventKind::OwnMax(Some(12))));
        assert_eq!(kind(0), None);
        assert_eq!(kind(99), None);
    }
}
