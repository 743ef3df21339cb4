//! Second back end: a clsact classifier and one HTB class per paced flow (`bpf/tc_htb.bpf.c`).
//!
//! It needs neither a cgroup nor the sender's socket, so it also paces forwarded traffic (virtual
//! machines, containers behind a bridge). HTB counts frames as the device sends them, so a rate is
//! converted only if that device is a tunnel's. Its limits against sock_ops:
//!
//! - A flowlet's end is the connection's (its FIN or RST), or a pause in its packets. The pause is
//!   longer than 5 ms plus the time of two full bursts at the present rate. If the last packet
//!   shows that its sender has more to send, it is longer than the least retransmission time-out.
//!   The sender's socket shows that exactly. For forwarded traffic, or on a kernel without type
//!   information, a packet without PSH does, and windows that are far apart may look like several
//!   flowlets.
//! - A receiver that lets nothing through, or is gone, shows only in that pause.
//! - Use counts bytes that enter the class: acknowledgements are not seen.
//! - A forwarded flow's cgroup and its application's own `SO_MAX_PACING_RATE` are not known.
//! - HTB is one queue with one lock: a multi-queue device loses its parallelism.
//! - Packets that wait in a class when the daemon is killed leave at the class's rate.
//! - A class has at least 10.5 Mbit/s for 200 ms after the watch of its flow has ended.
//! - IPv6 extension headers and fragments are not parsed: those packets are not paced.
//!
//! The filter is attached by netlink, not by a link that ends with its descriptor. When the daemon
//! is killed, filter and qdisc stay, and the program sends packets of a lapsed lease to the default
//! class (flowtune §6). A restart replaces the filter in one step and keeps the qdisc; running
//! flows appear with their next packets.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use indexmap::IndexMap;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, TC_EGRESS, TcHook, TcHookBuilder};
use nix::sched::{CloneFlags, unshare};
use rustc_hash::FxBuildHasher;

use super::htb_netlink::{ClassRate, HtbNetlink};
use super::ring::EventRing;
use super::slots::{
    MIN_BYTES_PER_S, ReportedConnection, SlotMaps, SlotPhase, SlotTable, push_free, ring_bytes,
    system,
};
use super::tunnels::Tunnels;
use super::{
    BackendConfig, BackendError, BackendKind, BackendStats, Conn, FlowEvent, FlowEventKind,
    PacingBackend, Usage,
};
use crate::clock;
use crate::instance_lock::InstanceLock;

include!(concat!(env!("OUT_DIR"), "/tc_htb.rs"));
use skel::TcHtbSkelBuilder;

const NAME: &str = "tc_htb";
/// Handle of our root qdisc ("RW"), which distinguishes it from an operator's.
pub(super) const QDISC: u32 = 0x5257_0000;
const DEFAULT_MINOR: u32 = 1;
/// Minor number of slot 0's class. Minor numbers have 16 bits, and the last one means "none".
const FIRST_MINOR: u32 = 0x10;
/// Most flows with a class of their own.
pub(crate) const MAX_SLOTS: u32 = 0xfffe - FIRST_MINOR;
/// Handle of our filter in the egress hook.
const FILTER_HANDLE: u32 = 1;
const FILTER_PRIORITY: u32 = 0x5257;

/// Rate of the default class, which the device limits, not HTB.
const UNLIMITED: ClassRate = ClassRate {
    bytes_per_s: 50_000_000_000,
    burst_ns: 1_000_000,
};
/// Time that a class may catch up on after its timer was late.
const BURST_NS: u64 = 4_000_000;
/// Time after the end of a watch for which a class has at least [`GROWING_BYTES_PER_S`].
///
/// The flow's demand is known to be too small then, and its rate grows in steps. HTB counts what a
/// class owes in time: a burst that entered at the first step would wait as long at every later
/// one.
const GROWING_NS: u64 = 200_000_000;
/// Rate at which the largest burst of a sender takes 50 ms.
const GROWING_BYTES_PER_S: u64 = 20 * SENDER_BURST_BYTES;
/// Queue of a paced class; TCP small queues keep local senders far below it.
const QUEUE_BYTES: u32 = 1 << 20;
const DEFAULT_QUEUE_BYTES: u32 = 16 << 20;

/// Frame of the usual MTU.
const USUAL_FRAME_BYTES: u64 = 1_514;

/// Pause that ends a flowlet at any rate.
pub(super) const GAP_NS: u64 = 5_000_000;
/// Pause that ends a flowlet although its sender has more to send: the least retransmission
/// time-out. A longer pause waits for no acknowledgement, however late a busy core handles those.
const STUCK_NS: u64 = 200_000_000;
/// Largest burst that a sender hands over at once.
const SENDER_BURST_BYTES: u64 = 65_536;
/// Interval of searches for pauses of running flowlets.
const SCAN_NS: u64 = 2_000_000;
/// Interval of searches of the whole table for slots to take back.
const SWEEP_NS: u64 = 50_000_000;
/// Time after a FIN or RST until the slot is taken back: the connection may still retransmit.
const LINGER_NS: u64 = 200_000_000;
/// Time after which a connection without a running flowlet gives its slot back,
const QUIET_NS: u64 = 60_000_000_000;
/// and the same when the table is seven eighths full.
const CROWDED_QUIET_NS: u64 = 1_000_000_000;

/// The back end.
#[derive(Debug)]
pub struct TcHtb {
    table: SlotTable,
    ring: EventRing,
    netlink: HtbNetlink,
    hook: TcHook,
    /// Slots by connection, as the program sees them.
    slots: MapHandle,
    flows: MapHandle,
    free: MapHandle,
    /// Rates of the slots that have a class.
    classes: IndexMap<u32, u64, FxBuildHasher>,
    /// Connections whose watch has ended, and the time until which their rates grow.
    growing: IndexMap<Conn, u64, FxBuildHasher>,
    /// Classes of an earlier daemon, and the time until which they drain.
    retired: Vec<u32>,
    retired_until_ns: u64,
    /// HTB is the device's root: from the first time that pacing is on.
    has_root: bool,
    device: String,
    /// Bytes that the device's tunnel adds to each frame below HTB.
    tunnel_bytes: u16,
    adopted: u64,
    next_scan_ns: u64,
    next_sweep_ns: u64,
    installed: bool,
    _lock: InstanceLock,
}

fn unavailable(reason: String) -> BackendError {
    BackendError::Unavailable {
        mechanism: NAME,
        reason,
    }
}

fn bpf(what: &'static str) -> impl Fn(libbpf_rs::Error) -> BackendError {
    move |error| BackendError::bpf(what, &error)
}

fn class_of(slot: u32) -> u32 {
    QDISC | (FIRST_MINOR + slot)
}

fn class_rate(bytes_per_s: u64) -> ClassRate {
    ClassRate {
        bytes_per_s,
        burst_ns: BURST_NS,
    }
}

/// Finds the offset of a member in a structure of the running kernel; 0 if the kernel does not
/// describe it.
fn kernel_offset(structure: &str, name: &str) -> u32 {
    let find = |btf: &Btf<'_>| {
        let found: Struct<'_> = btf.type_by_name(structure)?;
        found.iter().find_map(|member| match member.attr {
            MemberAttr::Normal { offset } if member.name.is_some_and(|member| member == name) => {
                Some(offset / 8)
            }
            _ => None,
        })
    };
    Btf::from_vmlinux()
        .ok()
        .and_then(|btf| find(&btf))
        .unwrap_or(0)
}

/// Locks the device: two daemons on one would undo each other.
fn lock_device(device: &str, ifindex: i32) -> Result<InstanceLock, BackendError> {
    InstanceLock::of(&format!("{NAME}-{ifindex}"))
        .map_err(system(format!("lock the device {device}")))?
        .ok_or_else(|| {
            unavailable(format!(
                "another daemon paces the device {device}; stop it first"
            ))
        })
}

/// Looks up the kernel's number of a device.
pub(super) fn index_of(device: &str) -> Result<i32, BackendError> {
    let index = nix::net::if_::if_nametoindex(device).map_err(|errno| {
        unavailable(format!(
            "there is no device {device} here ({errno}); ip link lists them"
        ))
    })?;
    i32::try_from(index).map_err(|_| unavailable(format!("{device} has no usable index")))
}

/// Returns true if the device's root is ours, of an earlier daemon. Any other root that someone
/// configured is an error, unless only observing: that leaves the root as it is.
fn has_own_root(
    netlink: &mut HtbNetlink,
    device: &str,
    observing: bool,
) -> Result<bool, BackendError> {
    let root = netlink
        .root()
        .map_err(system(format!("read the queue disciplines of {device}")))?;
    match root {
        Some(root) if root.kind == "htb" && root.handle == QDISC => Ok(true),
        // Handle 0 is the kernel's own default, which may be replaced.
        Some(root) if root.handle != 0 && !observing => Err(unavailable(format!(
            "{device} has a queue discipline that someone configured ({} {:x}:); remove it (tc qdisc del dev {device} root) or name another device",
            root.kind,
            root.handle >> 16
        ))),
        _ => Ok(false),
    }
}

/// Makes HTB the device's root, with its default class.
fn install_root(netlink: &mut HtbNetlink, device: &str) -> Result<(), BackendError> {
    netlink.add_root(QDISC, DEFAULT_MINOR).map_err(|error| {
        unavailable(format!("HTB cannot be installed on {device} ({error}); the kernel needs CONFIG_NET_SCH_HTB, the daemon CAP_NET_ADMIN"))
    })?;
    netlink
        .add_class(QDISC | DEFAULT_MINOR, UNLIMITED, DEFAULT_QUEUE_BYTES)
        .and_then(|()| netlink.flush())
        .map_err(system("add HTB's default class"))
}

impl TcHtb {
    /// Installs qdisc and filter on the device of `cfg`, or adopts those of an earlier daemon.
    ///
    /// # Errors
    /// When the device is not named or not there, has a queue discipline of the operator's, or the
    /// kernel lacks HTB, clsact or BPF classifiers.
    pub fn open(cfg: &BackendConfig) -> Result<Self, BackendError> {
        let device = cfg.device.as_deref().ok_or_else(|| {
            unavailable(
                "no device is named; set pacing.device to the one that faces the network"
                    .to_owned(),
            )
        })?;
        if cfg.max_flows > MAX_SLOTS {
            return Err(unavailable(format!(
                "a qdisc has {MAX_SLOTS} classes for flows; set pacing.max_flows to at most that (it is {})",
                cfg.max_flows
            )));
        }
        let ifindex = index_of(device)?;
        let lock = lock_device(device, ifindex)?;

        let mut netlink = HtbNetlink::new(ifindex).map_err(system("open a netlink socket"))?;
        let tunnel_bytes = Tunnels::open(cfg.tunnel_bytes)
            .map_err(system("open a socket that tells devices"))?
            .bytes_of_device(ifindex.cast_unsigned());
        let adopting = has_own_root(&mut netlink, device, cfg.observe)?;

        let mut storage = MaybeUninit::uninit();
        let mut open = TcHtbSkelBuilder::default()
            .open(&mut storage)
            .map_err(bpf("open the classifier program"))?;
        let rodata = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
            unavailable("the program's constants are missing; this build is broken".to_owned())
        })?;
        rodata.rw_min_flowlet_bytes = cfg.min_flowlet_bytes.max(1);
        rodata.rw_gap_ns = GAP_NS;
        rodata.rw_stuck_ns = STUCK_NS;
        rodata.rw_qdisc_handle = QDISC;
        rodata.rw_first_minor = FIRST_MINOR;
        rodata.rw_burst_ns = BURST_NS;
        rodata.rw_write_seq_offset = kernel_offset("tcp_sock", "write_seq");
        rodata.rw_srtt_us_offset = kernel_offset("tcp_sock", "srtt_us");
        rodata.rw_max_pacing_rate_offset = kernel_offset("sock", "sk_max_pacing_rate");
        let size = |result: libbpf_rs::Result<()>| result.map_err(bpf("size a map"));
        size(open.maps.th_slots.set_max_entries(cfg.max_flows))?;
        size(open.maps.th_flows.set_max_entries(cfg.max_flows))?;
        size(open.maps.th_rates.set_max_entries(cfg.max_flows))?;
        size(open.maps.th_states.set_max_entries(cfg.max_flows))?;
        size(open.maps.th_free.set_max_entries(cfg.max_flows))?;
        size(
            open.maps
                .th_events
                .set_max_entries(ring_bytes(cfg.max_flows)),
        )?;
        let skel = open.load().map_err(|error| {
            unavailable(format!("the kernel refused the program ({error:#}); Linux 5.17 or newer and root are needed"))
        })?;
        let maps = SlotMaps {
            rates: skel.maps.th_rates.as_fd(),
            states: skel.maps.th_states.as_fd(),
            counters: skel.maps.th_counts.as_fd(),
        };
        let table = SlotTable::new(&maps, cfg.max_flows)?;
        let handle = |map: &libbpf_rs::Map<'_>| MapHandle::try_from(map).map_err(bpf("open a map"));
        let free = handle(&skel.maps.th_free)?;
        table.free_all(&free)?;
        table.observe(cfg.observe);

        let retired = if adopting {
            let classes = netlink
                .classes(QDISC)
                .map_err(system("read the classes of an earlier daemon"))?;
            classes
                .into_iter()
                .filter(|class| *class != QDISC | DEFAULT_MINOR)
                .collect()
        } else {
            if !cfg.observe {
                install_root(&mut netlink, device)?;
            }
            Vec::new()
        };
        let has_root = adopting || !cfg.observe;

        let mut builder = TcHookBuilder::new(skel.progs.rw_tc_htb.as_fd());
        builder
            .ifindex(ifindex)
            // In one step: no packet passes between the old filter and the new one.
            .replace(true)
            .handle(FILTER_HANDLE)
            .priority(FILTER_PRIORITY);
        let mut hook = builder.hook(TC_EGRESS);
        let there = netlink
            .has_clsact()
            .map_err(system(format!("read the queue disciplines of {device}")))?;
        let created = if there { Ok(hook) } else { hook.create() };
        let attached = created.and_then(|mut hook| hook.attach());
        let hook = match attached {
            Ok(hook) => hook,
            Err(error) => {
                if has_root && !adopting {
                    // Nothing of ours may stay behind; the attach error is the one to report.
                    let _ = netlink.delete_root(QDISC);
                }
                return Err(unavailable(format!(
                    "the classifier cannot be attached to {device} ({error:#}); the kernel needs CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"
                )));
            }
        };
        // The old program is gone: packets in its classes drain at once, then the classes go.
        let adopted = u64::try_from(retired.len()).unwrap_or(u64::MAX);
        for class in &retired {
            netlink
                .change_class(*class, UNLIMITED)
                .map_err(system("release the classes of an earlier daemon"))?;
        }
        netlink
            .flush()
            .map_err(system("release the classes of an earlier daemon"))?;

        Ok(Self {
            ring: EventRing::new(&skel.maps.th_events)?,
            slots: handle(&skel.maps.th_slots)?,
            flows: handle(&skel.maps.th_flows)?,
            free,
            table,
            netlink,
            hook,
            classes: IndexMap::default(),
            growing: IndexMap::default(),
            retired,
            retired_until_ns: clock::now_ns() + LINGER_NS,
            has_root,
            device: device.to_owned(),
            tunnel_bytes,
            adopted,
            next_scan_ns: 0,
            next_sweep_ns: 0,
            installed: true,
            _lock: lock,
        })
    }

    /// Installs the back end on the loopback device of a new network namespace, which ends with it,
    /// to learn if this kernel can run it.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with the reason.
    pub fn probe() -> Result<(), BackendError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(unavailable(
                "needs root (CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN)".to_owned(),
            ));
        }
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| system("make a network namespace to try in")(errno.into()))?;
            let config = BackendConfig {
                instance: "probe".to_owned(),
                max_flows: 1,
                min_flowlet_bytes: 1,
                cgroup: None,
                device: Some("lo".to_owned()),
                take_over: false,
                network_namespaces: Vec::new(),
                tunnel_bytes: 0,
                observe: false,
            };
            Self::open(&config)?.shut_down()
        })
        .join()
        .unwrap_or_else(|_| {
            Err(unavailable(
                "the trial panicked; this is a defect".to_owned(),
            ))
        })
    }

    /// Returns the rate at which HTB counts frames of the slot's largest size, if below it their
    /// tunnel makes them `wire_bytes_per_s`.
    fn device_bytes_per_s(&self, slot: u32, wire_bytes_per_s: u64) -> u64 {
        let frame = match self.table.state(slot).frame_bytes {
            0 => USUAL_FRAME_BYTES,
            bytes => u64::from(bytes),
        };
        wire_bytes_per_s.saturating_mul(frame) / (frame + u64::from(self.tunnel_bytes))
    }

    /// Ends running flowlets whose packets pause.
    fn scan(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) {
        let paused: Vec<(u32, ReportedConnection, u64)> = self
            .table
            .connections()
            .filter(|(_, connection)| connection.active)
            .filter_map(|(slot, connection)| {
                let state = self.table.state(slot);
                let pause = if state.continues { STUCK_NS } else { GAP_NS };
                // Bursts at the present rate are this far apart: only a longer gap is a pause.
                let gap = pause
                    + connection.wire_bytes_per_s.map_or(0, |rate| {
                        (2 * SENDER_BURST_BYTES).saturating_mul(1_000_000_000) / rate.max(1)
                    });
                (state.last_ns.saturating_add(gap) < now_ns).then_some((
                    slot,
                    connection,
                    state.last_ns,
                ))
            })
            .collect();
        for (slot, connection, last_ns) in paused {
            if self
                .table
                // The program may see a packet at this moment: then the flowlet runs on.
                .exchange_phase(slot, SlotPhase::Active, SlotPhase::Resting)
            {
                let idle = connection.event(slot, last_ns, FlowEventKind::Idle);
                self.table.apply(idle, out);
            }
        }
    }

    /// Lets packets in a slot's class leave at once, because the rate is over. Packets wait only in
    /// the class of a flow that its rate has limited.
    fn release_class(&mut self, slot: u32) -> Result<(), BackendError> {
        let limited = self.table.state(slot).limited_ns != 0;
        let Some(rate) = self.classes.get_mut(&slot).filter(|_| limited) else {
            return Ok(());
        };
        *rate = UNLIMITED.bytes_per_s;
        self.netlink
            .change_class(class_of(slot), UNLIMITED)
            .map_err(system("release a flow's class"))
    }

    /// Returns what the class of `conn` gets for its rate.
    fn class_bytes_per_s(&self, conn: Conn, wire_bytes_per_s: u64) -> u64 {
        let slot = conn.slot.0;
        let of_rate = self.device_bytes_per_s(slot, wire_bytes_per_s);
        let least = if self.table.is_watched(conn) {
            // The flow is not held, and uses no class. What still waits there leaves at the rate
            // that it came for: TCP sends nothing again that waits in its own host.
            self.classes.get(&slot).copied().unwrap_or(0)
        } else if self.growing.contains_key(&conn) {
            GROWING_BYTES_PER_S
        } else {
            0
        };
        of_rate.max(least)
    }

    /// Gives the class of a flow, if it has one, what its rate asks for by now.
    fn adapt_class(&mut self, conn: Conn) -> Result<(), BackendError> {
        let slot = conn.slot.0;
        let rate = self.table.connection(slot).and_then(|connection| {
            let is_same = connection.use_count == conn.use_count;
            connection.wire_bytes_per_s.filter(|_| is_same)
        });
        let Some(rate) = rate else { return Ok(()) };
        if !self.classes.contains_key(&slot) {
            return Ok(());
        }
        let of_class = self.class_bytes_per_s(conn, rate);
        self.change_class(slot, of_class)
    }

    /// Changes the class of a slot with the next `flush`, unless it has this rate.
    fn change_class(&mut self, slot: u32, of_class: u64) -> Result<(), BackendError> {
        if self.classes.insert(slot, of_class) == Some(of_class) {
            return Ok(());
        }
        self.netlink
            .change_class(class_of(slot), class_rate(of_class))
            .map_err(system("change a flow's class"))
    }

    /// Ends the growth of those whose time is over.
    fn end_growth(&mut self, now_ns: u64) -> Result<(), BackendError> {
        let grown = |_: &Conn, until_ns: &mut u64| *until_ns <= now_ns;
        let over: Vec<Conn> = self
            .growing
            .extract_if(.., grown)
            .map(|(conn, _)| conn)
            .collect();
        over.into_iter().try_for_each(|conn| self.adapt_class(conn))
    }

    /// Takes back the slots of connections that are over or have been quiet for long.
    fn sweep(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) -> Result<(), BackendError> {
        for slot in self.table.forget_lapsed(now_ns) {
            self.release_class(slot)?;
        }
        // A free list that runs dry turns away new flows, so quiet connections give way earlier.
        let crowded = self.table.stats().connections > u64::from(self.table.slots()) / 8 * 7;
        let quiet_ns = if crowded { CROWDED_QUIET_NS } else { QUIET_NS };
        for slot in 0..self.table.slots() {
            let state = self.table.state(slot);
            let limit_ns = match state.phase {
                SlotPhase::Free | SlotPhase::Active => continue,
                SlotPhase::Closing => LINGER_NS,
                SlotPhase::Quiet | SlotPhase::Resting => quiet_ns,
            };
            if state.last_ns.saturating_add(limit_ns) < now_ns {
                self.reclaim(slot, state.phase, now_ns, out)?;
            }
        }
        if !self.retired.is_empty() && now_ns >= self.retired_until_ns {
            for class in std::mem::take(&mut self.retired) {
                self.netlink
                    .delete_class(class)
                    .map_err(system("remove a class of an earlier daemon"))?;
            }
        }
        Ok(())
    }

    fn reclaim(
        &mut self,
        slot: u32,
        phase: SlotPhase,
        now_ns: u64,
        out: &mut Vec<FlowEvent>,
    ) -> Result<(), BackendError> {
        // A packet may have come since: then the connection keeps its slot.
        if !self.table.exchange_phase(slot, phase, SlotPhase::Free) {
            return Ok(());
        }
        // `struct th_flow` begins with the connection's key.
        let flow = self
            .flows
            .lookup(&slot.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("read a slot's connection"))?;
        let key_bytes = usize::try_from(self.slots.key_size()).unwrap_or(0);
        if let Some(key) = flow.as_deref().and_then(|flow| flow.get(..key_bytes)) {
            // The key may be gone already, which is as good.
            let _ = self.slots.delete(key);
        }
        if let Some(connection) = self.table.connection(slot) {
            let close = connection.event(slot, now_ns, FlowEventKind::Close);
            self.table.apply(close, out);
        }
        if self.classes.swap_remove(&slot).is_some() {
            self.netlink
                .delete_class(class_of(slot))
                .map_err(system("remove a flow's class"))?;
        }
        self.table.count_released();
        // Last: from here on the program may give the slot to another connection.
        push_free(&self.free, slot)
    }
}

impl PacingBackend for TcHtb {
    fn kind(&self) -> BackendKind {
        BackendKind::TcHtb
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.ring.fd()
    }

    fn poll_events(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) -> Result<(), BackendError> {
        let from = out.len();
        let drained = self.ring.drain(|event| self.table.apply(event, out));
        for event in &out[from..] {
            match event.kind {
                FlowEventKind::Start(_) => {
                    let slot = event.conn.slot.0;
                    self.table.set_tunnel_bytes(slot, self.tunnel_bytes);
                }
                FlowEventKind::Limited => {
                    self.growing.insert(event.conn, now_ns + GROWING_NS);
                    self.adapt_class(event.conn)?;
                }
                _ => {}
            }
        }
        self.table.resync(now_ns, out);
        if now_ns >= self.next_scan_ns {
            self.next_scan_ns = now_ns + SCAN_NS;
            self.scan(now_ns, out);
            self.end_growth(now_ns)?;
        }
        if now_ns >= self.next_sweep_ns {
            self.next_sweep_ns = now_ns + SWEEP_NS;
            self.sweep(now_ns, out)?;
        }
        self.flush().and(drained)
    }

    fn next_poll_ns(&self) -> Option<u64> {
        if self.netlink.pending() {
            return Some(0);
        }
        let scan = self.table.any_active().then_some(self.next_scan_ns);
        let occupied = self.table.stats().connections != 0 || !self.retired.is_empty();
        let sweep = occupied.then_some(self.next_sweep_ns);
        scan.into_iter().chain(sweep).min()
    }

    /// A flow's first rate makes its class at once; a later change is sent with others by the next
    /// `flush`.
    fn set_rate(&mut self, conn: Conn, rate_bps: u64, expires_ns: u64) -> Result<(), BackendError> {
        let bytes_per_s = rate_bps / 8;
        let slot = conn.slot.0;
        if bytes_per_s == 0 || !self.table.is_current(conn) {
            // A current connection loses its rate; a stale handle changes nothing.
            self.table.set_rate(conn, 0, 0);
            return Ok(());
        }
        let bytes_per_s = bytes_per_s.max(MIN_BYTES_PER_S);
        let of_class = self.class_bytes_per_s(conn, bytes_per_s);
        if self.classes.contains_key(&slot) {
            self.change_class(slot, of_class)?;
        } else {
            let class = class_of(slot);
            let there = self.retired.iter().position(|retired| *retired == class);
            let made = match there {
                // An earlier daemon left this class.
                Some(position) => {
                    self.retired.swap_remove(position);
                    // Packets may still wait in it: deleting and adding it would drop them.
                    self.netlink.change_class(class, class_rate(of_class))
                }
                None => self
                    .netlink
                    .add_class(class, class_rate(of_class), QUEUE_BYTES),
            };
            // Not kept as present if it fails: the flow's next rate tries to add it again.
            made.and_then(|()| self.netlink.flush())
                .map_err(system("add a flow's class"))?;
            self.classes.insert(slot, of_class);
        }
        // The class first: the program sends packets there as soon as it sees the rate.
        self.table.set_rate(conn, bytes_per_s, expires_ns);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BackendError> {
        self.netlink.flush().map_err(system("change HTB classes"))
    }

    fn renew(&mut self, expires_ns: u64) -> Result<(), BackendError> {
        self.table.renew(clock::now_ns(), expires_ns);
        Ok(())
    }

    fn observe(&mut self, observing: bool) -> Result<(), BackendError> {
        if !observing && !self.has_root {
            has_own_root(&mut self.netlink, &self.device, false)?;
            install_root(&mut self.netlink, &self.device)?;
            self.has_root = true;
        }
        self.table.observe(observing);
        // A root that is there stays: its default class limits nothing, and removing it would drop
        // what waits in it.
        self.clear_all()
    }

    fn clear(&mut self, conn: Conn) -> Result<(), BackendError> {
        if self.table.clear(conn) {
            self.release_class(conn.slot.0)?;
        }
        Ok(())
    }

    fn clear_all(&mut self) -> Result<(), BackendError> {
        self.table.clear_all();
        let slots: Vec<u32> = self.classes.keys().copied().collect();
        for slot in slots {
            self.release_class(slot)?;
        }
        self.flush()
    }

    fn usage(&mut self, _now_ns: u64, out: &mut Vec<Usage>) {
        let from = out.len();
        self.table.usage(out);
        // The egress hook sees no acknowledgements.
        for usage in &mut out[from..] {
            usage.acked_bytes = usage.sent_bytes;
        }
    }

    fn watch(&mut self, conn: Conn) {
        self.table.watch(conn);
    }

    fn stats(&self) -> BackendStats {
        BackendStats {
            adopted: self.adopted,
            ..self.table.stats()
        }
    }

    fn shut_down(&mut self) -> Result<(), BackendError> {
        if !std::mem::take(&mut self.installed) {
            return Ok(());
        }
        self.table.clear_all();
        // Without rates, the program sends packets to the default class from here on. The root's
        // removal drops what still waits in a class; TCP repeats it.
        let flushed = self.flush();
        let detached = self.hook.detach().map_err(bpf("detach the classifier"));
        let root = if std::mem::take(&mut self.has_root) {
            self.netlink
                .delete_root(QDISC)
                .map_err(system("remove HTB"))
        } else {
            Ok(())
        };
        // Another program may use clsact: it only goes once it is empty.
        let clsact = self
            .netlink
            .delete_clsact_if_empty()
            .map_err(system("remove clsact"));
        flushed.and(detached).and(root).and(clsact)
    }
}
