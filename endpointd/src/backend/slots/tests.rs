//! Slot table and flow table against a model of the program that shares their memory: what it
//! reports comes late, crosses what the daemon does, or gets lost.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;
use ratewright_proto::FlowId;
use ratewright_topology::ecmp::FiveTuple;

use super::*;
use crate::backend::FlowFacts;
use crate::flows::{Destinations, FlowAction, FlowTable, NetworkView, PacingState};
use crate::policy::Policy;

/// Fewer slots than sockets, so that sockets follow each other on a slot.
const SLOTS: u32 = 2;
const SOCKETS: usize = 3;
const MS: u64 = 1_000_000;
/// The program reports a pause once in this time (`RW_FLAP_NS`).
const FLAP_NS: u64 = MS;
const GAP_NS: u64 = 3 * MS;
const FOREVER_NS: u64 = u64::MAX / 2;

fn conn(slot: u32, use_count: u32) -> Conn {
    Conn {
        slot: SlotIndex(slot),
        use_count,
    }
}

fn start() -> FlowEventKind {
    FlowEventKind::Start(FlowFacts {
        tuple: FiveTuple {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            src_port: 1,
            dst_port: 2,
            protocol: 6,
        },
        cgroup_id: 0,
        mark: 0,
        dscp: 0,
        app_max_bytes_per_s: None,
    })
}

/// Files in place of the BPF arrays.
struct SharedFiles([File; 3]);

impl SharedFiles {
    fn new() -> Self {
        let slots = index(SLOTS);
        Self(
            [RATE_BYTES * slots, STATE_BYTES * slots, COUNTER_BYTES].map(|bytes| {
                let file = tempfile::tempfile().unwrap();
                file.set_len(bytes as u64).unwrap();
                file
            }),
        )
    }

    fn table(&self) -> SlotTable {
        let [rates, states, counters] = self.0.each_ref().map(AsFd::as_fd);
        let maps = SlotMaps {
            rates,
            states,
            counters,
        };
        SlotTable::new(&maps, SLOTS).unwrap()
    }
}

/// A socket as the program keeps it (`struct so_sock`).
#[derive(Debug, Clone, Copy)]
struct Socket {
    slot: Option<u32>,
    use_count: u32,
    clears: u32,
    phase: SlotPhase,
    rest_ns: u64,
    idle_ns: u64,
    /// The start of its slot's present user found room in the ring.
    started: bool,
}

/// The program's side of some sockets, as in `sock_ops.bpf.c`.
struct Program {
    /// The program's own mapping of the shared memory.
    memory: SlotTable,
    sockets: [Socket; SOCKETS],
    free: VecDeque<u32>,
    ring: Vec<FlowEvent>,
    /// Events that find the ring full.
    to_lose: u32,
    now_ns: u64,
}

impl Program {
    fn new(files: &SharedFiles) -> Self {
        let socket = Socket {
            slot: None,
            use_count: 0,
            clears: 0,
            phase: SlotPhase::Quiet,
            rest_ns: 0,
            idle_ns: 0,
            started: false,
        };
        Self {
            memory: files.table(),
            sockets: [socket; SOCKETS],
            free: (0..SLOTS).collect(),
            ring: Vec::new(),
            to_lose: 0,
            now_ns: 10 * MS,
        }
    }

    fn emit(&mut self, socket: usize, kind: FlowEventKind) -> bool {
        let Socket {
            slot, use_count, ..
        } = self.sockets[socket];
        if self.to_lose > 0 {
            self.to_lose -= 1;
            let lost = self.memory.counters.u64_at(0, COUNTER_EVENTS_LOST);
            lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.ring.push(FlowEvent {
            conn: conn(slot.unwrap(), use_count),
            at_ns: self.now_ns,
            kind,
        });
        true
    }

    fn set_phase(&mut self, socket: usize, phase: SlotPhase) {
        self.sockets[socket].phase = phase;
        self.memory
            .set_phase(self.sockets[socket].slot.unwrap(), phase);
    }

    fn set_last(&self, slot: u32) {
        let base = index(slot) * STATE_BYTES;
        let last = self.memory.states.u64_at(base, STATE_LAST);
        last.store(self.now_ns, Ordering::Relaxed);
    }

    fn clears(&self, slot: u32) -> u32 {
        let base = index(slot) * RATE_BYTES;
        let clears = self.memory.rates.u32_at(base, RATE_CLEARS);
        clears.load(Ordering::Relaxed)
    }

    fn take_slot(&mut self, socket: usize) -> Option<u32> {
        let slot = self.free.pop_front()?;
        let base = index(slot) * STATE_BYTES;
        let uses = self.memory.states.u32_at(base, STATE_USES);
        self.sockets[socket].use_count = uses.fetch_add(1, Ordering::Relaxed);
        self.sockets[socket].slot = Some(slot);
        self.set_phase(socket, SlotPhase::Quiet);
        Some(slot)
    }

    /// A callback that sees a backlog of more than the minimum.
    fn send(&mut self, socket: usize) {
        let Socket {
            slot,
            clears,
            phase,
            rest_ns,
            idle_ns,
            ..
        } = self.sockets[socket];
        if let Some(slot) = slot {
            if phase == SlotPhase::Active {
                return self.set_last(slot);
            }
            if phase == SlotPhase::Resting {
                if self.clears(slot) == clears {
                    let untold = rest_ns != idle_ns && self.now_ns - rest_ns < FLAP_NS;
                    if untold || self.emit(socket, FlowEventKind::Resume) {
                        self.set_phase(socket, SlotPhase::Active);
                    }
                    return;
                }
                self.set_phase(socket, SlotPhase::Quiet);
            }
        }
        let Some(slot) = slot.or_else(|| self.take_slot(socket)) else {
            return;
        };
        self.set_last(slot);
        if self.emit(socket, start()) {
            self.sockets[socket].clears = self.clears(slot);
            self.sockets[socket].idle_ns = 0;
            self.sockets[socket].started = true;
            self.set_phase(socket, SlotPhase::Active);
        }
    }

    /// A callback that sees that all was acknowledged.
    fn rest(&mut self, socket: usize) {
        if self.sockets[socket].phase != SlotPhase::Active {
            return;
        }
        self.set_last(self.sockets[socket].slot.unwrap());
        self.set_phase(socket, SlotPhase::Resting);
        self.sockets[socket].rest_ns = self.now_ns;
        if self.now_ns - self.sockets[socket].idle_ns >= FLAP_NS {
            self.sockets[socket].idle_ns = self.now_ns;
            self.emit(socket, FlowEventKind::Idle);
        }
    }

    fn close(&mut self, socket: usize) {
        let Some(slot) = self.sockets[socket].slot else {
            return;
        };
        self.set_phase(socket, SlotPhase::Free);
        self.set_last(slot);
        self.emit(socket, FlowEventKind::Close);
        self.free.push_back(slot);
        self.sockets[socket].slot = None;
        self.sockets[socket].phase = SlotPhase::Quiet;
        self.sockets[socket].started = false;
    }

    /// The connections whose start was reported, by slot, and whether they have a backlog.
    fn reported(&self) -> BTreeMap<u32, (Conn, bool)> {
        let started = self.sockets.iter().filter(|socket| socket.started);
        let entries = started.map(|socket| {
            let slot = socket.slot.unwrap();
            let active = socket.phase == SlotPhase::Active;
            (slot, (conn(slot, socket.use_count), active))
        });
        entries.collect()
    }
}

/// Reads the ring and the slots, as the back end does.
fn polled(table: &mut SlotTable, program: &mut Program) -> Vec<FlowEvent> {
    let mut out = Vec::new();
    for event in program.ring.drain(..) {
        table.apply(event, &mut out);
    }
    table.resync(program.now_ns, &mut out);
    table.report_omitted_idles(program.now_ns, &mut out);
    out
}

/// The daemon: slot table, flow table, and the flowlets that the allocator knows.
struct Daemon {
    slots: SlotTable,
    flows: FlowTable,
    heard: BTreeMap<u32, (Conn, bool)>,
    known: BTreeMap<u32, FlowId>,
}

impl Daemon {
    fn new(files: &SharedFiles) -> Self {
        let mut flows = FlowTable::new(SLOTS, GAP_NS, Policy::default());
        let network = NetworkView {
            own_host: 1,
            destinations: Destinations::new([(2, &"10.0.0.2/32".parse().unwrap())]),
            ..NetworkView::default()
        };
        flows.on_established(Arc::new(network), PacingState::Pace);
        Self {
            slots: files.table(),
            flows,
            heard: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Takes what is new. Each connection's events are a start, pauses and resumes in turn, and a
    /// close.
    fn poll(&mut self, program: &mut Program) {
        for event in polled(&mut self.slots, program) {
            let FlowEvent { conn, ref kind, .. } = event;
            let slot = conn.slot.0;
            let before = match kind {
                FlowEventKind::Start(_) => {
                    let before = self.heard.insert(slot, (conn, true));
                    assert!(before.is_none_or(|(user, _)| user == conn), "{event:?}");
                    before
                }
                FlowEventKind::Close => self.heard.remove(&slot),
                _ => {
                    let active = *kind == FlowEventKind::Resume;
                    let before = self.heard.insert(slot, (conn, active));
                    assert_eq!(before, Some((conn, !active)), "{event:?}");
                    before
                }
            };
            assert!(before.is_none_or(|(user, _)| user == conn), "{event:?}");
            self.flows.on_event(event);
        }
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.flows.poll_action() {
            match action {
                FlowAction::Start(record) => {
                    let flow = record.flow();
                    self.known.insert(flow.slot(), flow);
                }
                FlowAction::End(flow) => assert_eq!(self.known.remove(&flow.slot()), Some(flow)),
                FlowAction::SetRate {
                    conn,
                    rate_bps,
                    expires_ns,
                    ..
                } => {
                    self.slots.set_rate(conn, rate_bps / 8, expires_ns);
                }
                FlowAction::Clear(conn) => {
                    self.slots.clear(conn);
                }
                FlowAction::ClearAll => self.slots.clear_all(),
                FlowAction::Renew { .. } | FlowAction::Watch(_) | FlowAction::Observe(_) => {}
            }
        }
    }

    fn on_timeout(&mut self, now_ns: u64) {
        self.flows.on_timeout(now_ns);
        self.act();
    }

    /// The connections that have a rate in the shared memory.
    fn rated(&self, now_ns: u64) -> Vec<Conn> {
        let rated = (0..SLOTS).filter(|&slot| rate_holds(&self.slots.rates, slot, now_ns));
        let owner = |slot| {
            let base = index(slot) * RATE_BYTES;
            let use_count = self.slots.rates.u32_at(base, RATE_USE_COUNT);
            conn(slot, use_count.load(Ordering::Relaxed))
        };
        rated.map(owner).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Rest(usize),
    Close(usize),
    Lose(u32),
    Advance(u64),
    Poll,
    Timeout,
    Rate { slot: u32, bps: u64 },
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..SOCKETS).prop_map(Step::Send),
        6 => (0..SOCKETS).prop_map(Step::Rest),
        2 => (0..SOCKETS).prop_map(Step::Close),
        1 => (1..4_u32).prop_map(Step::Lose),
        6 => prop_oneof![1..FLAP_NS, 1..2 * GAP_NS].prop_map(Step::Advance),
        6 => Just(Step::Poll),
        2 => Just(Step::Timeout),
        4 => (0..SLOTS, prop_oneof![Just(0), Just(1_000_000_000)])
            .prop_map(|(slot, bps)| Step::Rate { slot, bps }),
        1 => Just(Step::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever crossed or got lost: some milliseconds after the sockets' last change, the
    /// allocator knows the flowlets that have a backlog, and no other connection has a rate.
    #[test]
    fn the_tables_agree_with_the_kernel_once_it_is_quiet(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let files = SharedFiles::new();
        let mut program = Program::new(&files);
        let mut daemon = Daemon::new(&files);
        daemon.act();
        for step in steps {
            match step {
                Step::Send(socket) => program.send(socket),
                Step::Rest(socket) => program.rest(socket),
                Step::Close(socket) => program.close(socket),
                Step::Lose(events) => program.to_lose = events,
                Step::Advance(by_ns) => program.now_ns += by_ns,
                Step::Poll => daemon.poll(&mut program),
                Step::Timeout => daemon.on_timeout(program.now_ns),
                Step::Rate { slot, bps } => {
                    if let Some(&flow) = daemon.known.get(&slot) {
                        daemon.flows.on_rate(program.now_ns, flow, bps, FOREVER_NS);
                        daemon.act();
                    }
                }
                Step::Release => {
                    daemon.flows.set_pacing_state(PacingState::Release);
                    daemon.flows.set_pacing_state(PacingState::Pace);
                    daemon.act();
                }
            }
        }
        for _ in 0..20 {
            program.now_ns += MS;
            daemon.poll(&mut program);
            daemon.on_timeout(program.now_ns);
        }
        let reported = program.reported();
        prop_assert_eq!(&daemon.heard, &reported);
        let running = reported.iter().filter(|(_, (_, active))| *active);
        prop_assert!(daemon.known.keys().eq(running.clone().map(|(slot, _)| slot)));
        let rated = daemon.rated(program.now_ns);
        prop_assert_eq!(rated.len(), daemon.flows.paced_count(program.now_ns));
        for conn in rated {
            prop_assert!(running.clone().any(|(_, (user, _))| *user == conn), "{:?}", conn);
        }
    }
}

/// Applies `events` of the connection with `use_count` on slot 0; returns what comes of them.
fn applied(table: &mut SlotTable, use_count: u32, events: &[FlowEventKind]) -> Vec<FlowEventKind> {
    let mut out = Vec::new();
    for kind in events {
        let event = FlowEvent {
            conn: conn(0, use_count),
            at_ns: 0,
            kind: kind.clone(),
        };
        table.apply(event, &mut out);
    }
    out.into_iter().map(|event| event.kind).collect()
}

#[test]
fn events_of_one_connection_pass_in_order_and_its_repetitions_do_not() {
    let mut table = SharedFiles::new().table();
    let events = [
        start(),
        FlowEventKind::FirstPaced { latency_ns: 9 },
        FlowEventKind::Idle,
        FlowEventKind::Resume,
        FlowEventKind::Limited,
        FlowEventKind::OwnMax(Some(5)),
        FlowEventKind::Close,
    ];
    assert_eq!(applied(&mut table, 0, &events), events);
    assert_eq!(applied(&mut table, 0, &events[1..]), []);
    let twice = [
        start(),
        FlowEventKind::Resume,
        FlowEventKind::Idle,
        FlowEventKind::Idle,
    ];
    assert_eq!(
        applied(&mut table, 1, &twice),
        [start(), FlowEventKind::Idle]
    );
}

#[test]
fn a_start_on_a_used_slot_closes_the_connection_whose_close_was_lost() {
    let mut table = SharedFiles::new().table();
    applied(&mut table, 0, &[start()]);
    assert_eq!(
        applied(&mut table, 1, &[start()]),
        [FlowEventKind::Close, start()]
    );
    assert_eq!(
        applied(&mut table, 0, &[FlowEventKind::Idle, FlowEventKind::Close]),
        []
    );
}

#[test]
fn slots_beyond_the_table_are_ignored() {
    let mut table = SharedFiles::new().table();
    let mut out = Vec::new();
    for slot in [SLOTS, u32::MAX] {
        let event = FlowEvent {
            conn: conn(slot, 0),
            at_ns: 0,
            kind: start(),
        };
        table.apply(event, &mut out);
    }
    assert_eq!(out, []);
}

/// Socket 0 with a reported flowlet on slot 0.
fn running() -> (Program, SlotTable) {
    let files = SharedFiles::new();
    let mut program = Program::new(&files);
    let mut table = files.table();
    program.send(0);
    polled(&mut table, &mut program);
    (program, table)
}

#[test]
fn after_a_loss_the_slots_show_what_was_missed_and_what_comes_late_is_not_repeated() {
    for missed in [FlowEventKind::Idle, FlowEventKind::Close] {
        let (mut program, mut table) = running();
        program.to_lose = 1;
        match missed {
            FlowEventKind::Idle => program.rest(0),
            _ => program.close(0),
        }
        program.now_ns += UNREPORTED_NS + 1;
        let events = polled(&mut table, &mut program);
        let kinds: Vec<_> = events.into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, std::slice::from_ref(&missed));
        assert_eq!(applied(&mut table, 0, &[missed]), []);
        program.now_ns += IDLE_CHECK_NS;
        assert_eq!(polled(&mut table, &mut program), []);
    }
}

/// A pause that another event's loss brings to light may be over a moment later, without a report.
#[test]
fn a_loss_makes_no_end_of_a_pause_whose_end_is_not_reported() {
    let (mut program, mut table) = running();
    program.rest(0);
    program.now_ns += 1;
    program.send(0);
    program.now_ns += 1;
    program.rest(0);
    program.to_lose = 1;
    program.send(1);
    polled(&mut table, &mut program);
    program.now_ns += 1;
    program.send(0);
    program.now_ns += 10 * MS;
    polled(&mut table, &mut program);
    assert!(table.connection(0).unwrap().active);
}

/// Neither the end nor the next start finds room in the ring.
#[test]
fn an_end_shows_although_the_next_start_is_lost_too() {
    let (mut program, mut table) = running();
    table.clear(conn(0, 0));
    program.to_lose = 2;
    program.rest(0);
    program.send(0);
    program.now_ns += UNREPORTED_NS + 1;
    let events = polled(&mut table, &mut program);
    let kinds: Vec<_> = events.into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [FlowEventKind::Idle]);
}
