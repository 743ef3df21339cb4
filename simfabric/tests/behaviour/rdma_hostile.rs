//! RDMA's controls against senders, switches, receivers and networks that misbehave: rates stay
//! between the least and the line's, what is wrong once is forgotten, and others keep their share.

use proptest::prelude::*;
use ratewright_simfabric::ext::{IntHop, RcpHeader};
use ratewright_simfabric::net::Telemetry;
use ratewright_simfabric::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use ratewright_simfabric::net::queue::ClassMask;
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::results::RunResults;
use ratewright_simfabric::transport::rdma::control::{
    Acked, Control, Dcqcn, DcqcnConfig, Fncc, FnccConfig, Hpcc, HpccConfig, LastHop, PathFacts,
    PowerTcp, PowerTcpConfig, Rcp, RcpConfig, Reaction, Rocc, RoccConfig, ThetaPowerTcp, Timely,
    TimelyConfig,
};
use ratewright_simfabric::transport::rdma::{Rdma, RdmaConfig, Recovery};
use ratewright_simfabric::{
    Config, FabricConfig, FlowId, FlowSpec, Framing, HostId, Sim, Span, Time, host::Policy,
};
use ratewright_topology::{BigSwitch, EcmpConfig, Topology, TwoTierClos};

use crate::golden::schemes::RDMA;

const LINE_BPS: u64 = 100_000_000_000;
const MIN_BPS: f64 = 1e9;
const BASE_RTT: Span = Span::from_ns(12_320);
const PATH: PathFacts = PathFacts {
    line_bps: LINE_BPS as f64,
    receiver_bps: LINE_BPS as f64,
    base_rtt: BASE_RTT,
    begins: Time::ZERO,
};

const HPCC: HpccConfig = HpccConfig {
    eta: 0.95,
    max_stage: 5,
    increase_share: 0.0004,
    min_rate_bps: MIN_BPS,
    per_ack: true,
};

const fn fncc(last_hop: LastHop) -> FnccConfig {
    FnccConfig {
        hpcc: HPCC,
        last_hop,
        alpha: 1.05,
        beta: 0.9,
    }
}

const POWER: PowerTcpConfig = PowerTcpConfig {
    gamma: 0.9,
    increase_bps: 150e6,
    eta: 0.95,
    tolerance: 1.05,
    min_rate_bps: MIN_BPS,
    first_reacts: false,
};

const THETA: PowerTcpConfig = PowerTcpConfig {
    gamma: 0.7,
    eta: 1.0,
    ..POWER
};

const fn timely(patched: bool) -> TimelyConfig {
    TimelyConfig {
        low: Span::from_us(50),
        high: Span::from_us(500),
        least_rtt: Span::from_us(20),
        weight: 0.875,
        beta: 0.8,
        increase_share: 0.001,
        hyper_share: 0.005,
        min_rate_bps: MIN_BPS,
        patched,
        window: true,
        keep_turns: false,
    }
}

const fn dcqcn(reaction: Reaction) -> DcqcnConfig {
    DcqcnConfig {
        reaction,
        gain: 1.0 / 256.0,
        alpha_interval: Span::from_us(55),
        decrease_interval: Span::from_us(4),
        increase_interval: Span::from_us(55),
        byte_counter: 10_000_000,
        fast_recovery: 5,
        additive_bps: 40e6,
        hyper_bps: 200e6,
        min_rate_bps: MIN_BPS,
        window: true,
    }
}

/// Anything that can happen to a control.
#[derive(Clone, Debug)]
enum Happening {
    Ack {
        ack: u64,
        next: u64,
        rtt: Span,
        marked: bool,
        hops: Vec<IntHop>,
        flows: u16,
        rate_bps: Option<u64>,
    },
    Cnp,
    Notice(u64, u32),
    Sent(u16),
    /// The control's own clock goes on, if it has one.
    Clock,
}

/// Absurd values more often than chance has them.
fn wild() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        any::<u64>(),
        0_u64..1 << 20
    ]
}

fn hop() -> impl Strategy<Value = IntHop> {
    (wild(), wild(), wild(), wild())
        .prop_map(|(rate, at, sent, queue)| IntHop::new(rate, Time::from_ns(at >> 10), sent, queue))
}

fn happening() -> impl Strategy<Value = Happening> {
    let hops = prop::collection::vec(hop(), 0..7);
    let ack = (wild(), wild(), wild(), any::<bool>(), hops, any::<u16>());
    let ack = (ack, prop::option::of(wild())).prop_map(|(ack, rate_bps)| {
        let (ack, next, rtt, marked, hops, flows) = ack;
        let rtt = Span(rtt);
        Happening::Ack {
            ack,
            next,
            rtt,
            marked,
            hops,
            flows,
            rate_bps,
        }
    });
    prop_oneof![
        6 => ack,
        1 => Just(Happening::Cnp),
        1 => (wild(), 0_u32..3).prop_map(|(rate, from)| Happening::Notice(rate, from)),
        1 => any::<u16>().prop_map(Happening::Sent),
        2 => Just(Happening::Clock),
    ]
}

/// Lets all this happen to a control, and checks its rate and window after each.
fn endure<C: Control>(config: &C::Config, happenings: &[(Happening, u32)]) {
    let mut control = C::new(config, PATH);
    let mut now = Time::ZERO;
    for (happening, ns) in happenings {
        now += Span::from_ns(u64::from(*ns));
        // A control's clock rings in time.
        for _ in 0..4 {
            let at = control.timer();
            if at > now {
                break;
            }
            control.on_timer(at);
        }
        match happening {
            Happening::Ack {
                ack,
                next,
                rtt,
                marked,
                hops,
                flows,
                rate_bps,
            } => control.on_ack(&Acked {
                now,
                ack: *ack,
                next: *next,
                rtt: *rtt,
                marked: *marked,
                hops,
                flows: *flows,
                rcp: rate_bps.map(|rate_bps| RcpHeader {
                    rate_bps,
                    rtt: *rtt,
                }),
            }),
            Happening::Cnp => control.on_cnp(now),
            Happening::Notice(rate, from) => control.on_notice(now, *rate, HostId(*from)),
            Happening::Sent(bytes) => control.on_sent(now, *bytes),
            Happening::Clock => {
                if control.timer() < Time::MAX {
                    now = now.max(control.timer());
                    control.on_timer(now);
                }
            }
        }
        let (rate, window) = (control.rate_bps(), control.window_bytes());
        assert!(
            (MIN_BPS..=PATH.line_bps).contains(&rate),
            "{rate} after {happening:?}: {control:?}"
        );
        let most = PATH.bdp_bytes() as u64;
        assert!(
            (1..=most).contains(&window) || window == u64::MAX,
            "{window}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever acknowledgements, notifications and notices say.
    #[test]
    fn rates_stay_between_the_least_and_the_lines(
        happenings in prop::collection::vec((happening(), 0_u32..20_000), 1..60),
    ) {
        endure::<Hpcc>(&HPCC, &happenings);
        endure::<Hpcc>(&HpccConfig { per_ack: false, ..HPCC }, &happenings);
        for last_hop in [LastHop::None, LastHop::Reference, LastHop::Window] {
            endure::<Fncc>(&fncc(last_hop), &happenings);
        }
        endure::<PowerTcp>(&POWER, &happenings);
        endure::<ThetaPowerTcp>(&THETA, &happenings);
        endure::<Timely>(&timely(false), &happenings);
        endure::<Timely>(&timely(true), &happenings);
        endure::<Dcqcn>(&dcqcn(Reaction::Cnp), &happenings);
        endure::<Dcqcn>(&dcqcn(Reaction::Periodic), &happenings);
        let rocc = RoccConfig { recovery_interval: Span::from_us(55), min_rate_bps: MIN_BPS };
        endure::<Rocc>(&rocc, &happenings);
        endure::<Rcp>(&RcpConfig { min_rate_bps: MIN_BPS }, &happenings);
    }
}

/// A field of telemetry that a switch writes wrongly, into one acknowledgement in so many.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    None,
    /// The longest queue that the field holds.
    Queue,
    /// Fewer bytes than the stamp before.
    Backwards,
    /// The time of the stamp before.
    SameTime,
    /// A time far ahead, so that all later ones seem late.
    Ahead,
    /// No rate, and the greatest one.
    NoRate,
    HugeRate,
    /// A trail without hops.
    NoHops,
}

const LIES: [Lie; 8] = [
    Lie::None,
    Lie::Queue,
    Lie::Backwards,
    Lie::SameTime,
    Lie::Ahead,
    Lie::NoRate,
    Lie::HugeRate,
    Lie::NoHops,
];

/// Queue above which packets are marked, and least time between notifications.
const MARK_BYTES: f64 = 20_000.0;
const CNP_INTERVAL: Span = Span::from_us(50);

/// Content of an acknowledgement.
#[derive(Clone, Default, Debug)]
struct Told {
    ack: u64,
    rtt: Span,
    marked: bool,
    hops: Vec<IntHop>,
}

/// One hop, as fluid, and a flow that crosses it.
#[derive(Clone, Copy)]
struct Crossing {
    /// Rate of another flow to the same receiver, as a share of the line's.
    other: f64,
    /// Length in µs.
    steps: u64,
}

/// A lone flow.
const ALONE: Crossing = Crossing {
    other: 0.0,
    steps: 4_000,
};

/// A flow for which the link has half of its rate, for many of a control's swings.
const BESIDE: Crossing = Crossing {
    other: 0.5,
    steps: 100_000,
};

impl Crossing {
    /// Gives the control an acknowledgement per microsecond, which `changed` may change, or lose
    /// with the notification beside it. Returns the flow's mean rate over the last half, in Gbit/s.
    fn rate_gbps<C: Control>(
        self,
        config: &C::Config,
        mut changed: impl FnMut(u64, Told) -> Option<Told>,
    ) -> f64 {
        let mut control = C::new(config, PATH);
        let line = PATH.line_bps;
        let step = Span::from_us(1);
        let bytes = step.as_secs_f64() / 8.0;
        let (mut own, mut sent, mut queue, mut next) = (0.0, 0.0, 0.0, 0);
        let (mut notifies_from, mut sum) = (Time::ZERO, 0.0);
        for n in 1..=self.steps {
            let now = Time::ZERO + step * n;
            while control.timer() <= now {
                control.on_timer(control.timer());
            }
            let rate = control.rate_bps();
            assert!((MIN_BPS..=line).contains(&rate));
            if n > self.steps / 2 {
                sum += rate / 1e9 / (self.steps / 2) as f64;
            }
            control.on_sent(now, (rate * bytes) as u16);
            let came = (rate + self.other * line) * bytes;
            let out = f64::min(queue + came, line * bytes);
            queue += came - out;
            sent += out;
            own += rate * bytes;
            let rtt = BASE_RTT + Span::from_secs_f64(queue * 8.0 / line);
            let told = Told {
                ack: own as u64,
                rtt,
                marked: queue > MARK_BYTES,
                hops: vec![IntHop::new(LINE_BPS, now, sent as u64, queue as u64)],
            };
            // What the rate sends in a round trip is in flight.
            next = u64::max(next, told.ack + (rate * rtt.as_secs_f64() / 8.0) as u64);
            let notifies = told.marked && now >= notifies_from;
            if notifies {
                notifies_from = now + CNP_INTERVAL;
            }
            let Some(told) = changed(n, told) else {
                continue;
            };
            if notifies {
                control.on_cnp(now);
            }
            control.on_ack(&Acked {
                now,
                ack: told.ack,
                next,
                rtt: told.rtt,
                marked: told.marked,
                hops: &told.hops,
                flows: if self.other > 0.0 { 2 } else { 1 },
                rcp: None,
            });
        }
        sum
    }
}

/// The mean rate of a lone flow whose switch lies every `every` microseconds, until the end or for
/// the first quarter.
fn lied_to<C: Control>(config: &C::Config, lie: Lie, every: u64, for_ever: bool) -> f64 {
    let mut before = IntHop::NONE;
    ALONE.rate_gbps::<C>(config, |n, mut told| {
        let hop = told.hops[0];
        let previous = std::mem::replace(&mut before, hop);
        let lies = n % every == 0 && (for_ever || n <= 1_000);
        let now = Time::from_us(n);
        let (sent, queue) = (n * 12_000, hop.queue_bytes());
        told.hops[0] = match lie {
            _ if !lies => hop,
            Lie::None => hop,
            Lie::Queue => IntHop::new(LINE_BPS, now, sent, u64::MAX),
            Lie::Backwards => IntHop::new(LINE_BPS, now, sent / 2, queue),
            Lie::SameTime => previous,
            Lie::Ahead => IntHop::new(LINE_BPS, now + Span::from_us(8_000), sent, queue),
            Lie::NoRate => IntHop::new(0, now, sent, queue),
            Lie::HugeRate => IntHop::new(u64::MAX, now, sent, queue),
            Lie::NoHops => {
                told.hops.clear();
                return Some(told);
            }
        };
        Some(told)
    })
}

/// Once a switch is honest again, a flow has what it had before. A lie in a thousand costs it a
/// fifth at most: the greatest queue stops it for some round trips.
#[test]
fn lies_of_a_switch_are_forgotten() {
    fn check<C: Control>(config: &C::Config, name: &str) {
        let honest = lied_to::<C>(config, Lie::None, 1, true);
        assert!(honest > 90.0, "{name}: {honest}");
        for lie in LIES {
            let after = lied_to::<C>(config, lie, 1, false);
            assert!(
                (after / honest - 1.0).abs() < 0.05,
                "{name} {lie:?}: {after}"
            );
            let among = lied_to::<C>(config, lie, 1_000, true);
            assert!(
                (0.8..1.05).contains(&(among / honest)),
                "{name} {lie:?}: {among}"
            );
        }
    }
    check::<Hpcc>(&HPCC, "hpcc");
    check::<Fncc>(&fncc(LastHop::Reference), "fncc");
    check::<Fncc>(&fncc(LastHop::Window), "fncc, window");
    check::<PowerTcp>(&POWER, "powertcp");
}

/// One acknowledgement in three is lost, or neighbours change places, of a flow that must heed
/// them: another one takes half of the link.
#[test]
fn lost_and_reordered_acknowledgements_change_little() {
    fn check<C: Control>(config: &C::Config, name: &str) {
        let honest = BESIDE.rate_gbps::<C>(config, |_, told| Some(told));
        let lost = BESIDE.rate_gbps::<C>(config, |n, told| (n % 3 != 0).then_some(told));
        // An odd one comes after the next.
        let mut held = Told::default();
        let reordered = BESIDE.rate_gbps::<C>(config, |n, told| {
            if n == 1 {
                held = told;
                return None;
            }
            Some(if n % 2 == 0 {
                told
            } else {
                std::mem::replace(&mut held, told)
            })
        });
        println!("{name}: {honest:.2}, lost {lost:.2}, reordered {reordered:.2}");
        assert!((20.0..90.0).contains(&honest), "{name}: {honest}");
        for (rate, what) in [(lost, "lost"), (reordered, "reordered")] {
            let share = rate / honest;
            assert!((share - 1.0).abs() < 0.1, "{name}, {what}: {share}");
        }
    }
    check::<Hpcc>(&HPCC, "hpcc");
    check::<Fncc>(&fncc(LastHop::Reference), "fncc");
    check::<PowerTcp>(&POWER, "powertcp");
    check::<ThetaPowerTcp>(&THETA, "theta-powertcp");
    check::<Timely>(&timely(false), "timely");
    check::<Timely>(&timely(true), "timely, patched");
    check::<Dcqcn>(&dcqcn(Reaction::Cnp), "dcqcn");
    check::<Dcqcn>(&dcqcn(Reaction::Periodic), "dcqcn, periodic");
}

const FRAMING: Framing = Framing {
    mss_bytes: 1_000,
    header_bytes: 48,
    min_wire_bytes: 60,
};

fn rdma<C>(int_bytes: u16, control: C) -> RdmaConfig<C> {
    RdmaConfig {
        recovery: Recovery::GoBackN,
        rto: Span::from_us(500),
        rto_low: None,
        nack_interval: Span::from_us(500),
        ack_every: 1,
        ack_wire_bytes: None,
        int_bytes,
        stamp_bytes: 0,
        cnp_interval: Some(Span::from_us(50)),
        dasr: None,
        source_mark_bytes: None,
        short_bytes: 8_192,
        data_class: 0,
        long_class: 0,
        ack_class: None,
        arbiter: Policy::RoundRobin,
        base_rtt: BASE_RTT,
        control,
    }
}

fn lossless() -> FabricConfig {
    FabricConfig {
        framing: FRAMING,
        shared_buffer: Some(SharedBuffer {
            bytes: 2_000_000,
            alpha: 1.0,
            lossless: Some(Lossless {
                classes: ClassMask::of(0),
                xoff: Xoff::Bytes(100_000),
                hysteresis_bytes: 3_072,
                headroom_bytes: 80_000,
                watchdog: USUAL_WATCHDOG,
            }),
        }),
        ..FabricConfig::default()
    }
}

fn star(hosts: u32) -> Topology {
    BigSwitch {
        racks: 1,
        hosts_per_rack: hosts,
        host_capacity_bps: LINE_BPS,
        host_delay_ns: 1_500,
        ..BigSwitch::default()
    }
    .build()
    .expect("a switch")
}

/// A sender that says it heeds its control, and does not: flows that begin at time 0.
#[derive(Debug)]
enum Sender<C> {
    Honest(C),
    Liar(f64),
}

impl<C: Control> Control for Sender<C> {
    type Config = C::Config;
    const MARKS: bool = C::MARKS;
    const TELEMETRY: Telemetry = C::TELEMETRY;

    fn new(config: &C::Config, path: PathFacts) -> Self {
        if path.begins == Time::ZERO {
            Self::Liar(path.line_bps)
        } else {
            Self::Honest(C::new(config, path))
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        if let Self::Honest(control) = self {
            control.on_ack(acked);
        }
    }

    fn on_cnp(&mut self, now: Time) {
        if let Self::Honest(control) = self {
            control.on_cnp(now);
        }
    }

    fn on_sent(&mut self, now: Time, wire_bytes: u16) {
        if let Self::Honest(control) = self {
            control.on_sent(now, wire_bytes);
        }
    }

    fn timer(&self) -> Time {
        match self {
            Self::Honest(control) => control.timer(),
            Self::Liar(_) => Time::MAX,
        }
    }

    fn on_timer(&mut self, now: Time) {
        if let Self::Honest(control) = self {
            control.on_timer(now);
        }
    }

    fn rate_bps(&self) -> f64 {
        match self {
            Self::Honest(control) => control.rate_bps(),
            Self::Liar(rate_bps) => *rate_bps,
        }
    }

    fn window_bytes(&self) -> u64 {
        match self {
            Self::Honest(control) => control.window_bytes(),
            Self::Liar(_) => u64::MAX,
        }
    }
}

/// A liar takes what an honest flow gives up, at most the line's rate; pauses stop it at the
/// switch. Nothing is lost. A flow on other links has all of its own. The honest one gets at least
/// its least rate, and its bandwidth back when the liar has gone.
#[test]
fn a_sender_that_lies_about_its_window_takes_no_more_than_its_link() {
    fn check<C: Control>(int_bytes: u16, control: C::Config, name: &str) {
        let at = |src, dst, us| {
            let (src, dst) = (HostId(src), HostId(dst));
            FlowSpec::new(src, dst, FlowSpec::UNBOUNDED, Time::from_us(us))
        };
        let liar = FlowSpec {
            stop: Time::from_ms(3),
            ..at(0, 2, 0)
        };
        let flows = vec![liar, at(1, 2, 100), at(3, 4, 100)];
        let config = Config {
            fabric: lossless(),
            sample_every: Some(Span::from_ms(1)),
            sampled_flows: 3,
            ..Config::default()
        };
        let transport = Rdma::<Sender<C>>::new(rdma(int_bytes, control));
        let mut sim = Sim::new(config, star(5), flows.into_iter(), transport).expect("a run");
        sim.run_until(Time::from_ms(10)).expect("good flows");
        let results = sim.results();
        results.conservation.as_ref().expect("the books are right");
        assert_eq!(results.drops(), 0, "{name}");
        let series = results.series.expect("it is sampled");
        let gbps = |flow, ms: usize| series.goodput_bps(FlowId(flow))[ms] / 1e9;
        for ms in 1..3 {
            assert!(gbps(0, ms) <= 100.0, "{name}");
            // Beside the headers, and a little for the start.
            assert!(gbps(1, ms) > 0.8 * MIN_BPS / 1e9, "{name}: {}", gbps(1, ms));
            assert!(gbps(2, ms) > 80.0, "{name}: {}", gbps(2, ms));
        }
        assert!(gbps(1, 9) > 40.0, "{name}: {}", gbps(1, 9));
    }
    check::<Hpcc>(42, HPCC, "hpcc");
    check::<Fncc>(42, fncc(LastHop::Reference), "fncc");
    check::<PowerTcp>(42, POWER, "powertcp");
    check::<ThetaPowerTcp>(0, THETA, "theta-powertcp");
    // In steps of 0.5 % of the line's rate a round trip.
    check::<Timely>(0, timely(true), "timely");
    check::<Dcqcn>(0, dcqcn(Reaction::Cnp), "dcqcn");
}

/// Telemetry of nonsense in every acknowledgement: flows go on, nothing is lost, and all arrives.
#[derive(Debug)]
struct Deceived<C> {
    control: C,
    acks: u64,
}

impl<C: Control> Control for Deceived<C> {
    type Config = C::Config;
    const TELEMETRY: Telemetry = C::TELEMETRY;

    fn new(config: &C::Config, path: PathFacts) -> Self {
        let (control, acks) = (C::new(config, path), 0);
        Self { control, acks }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        self.acks += 1;
        // Of this acknowledgement's number, so that every run is the same.
        let word = self.acks.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let nonsense = |i: u64| {
            let word = word.rotate_left(7 * i as u32);
            IntHop::new(word, Time(word >> 8), word >> 16, word >> (word % 60))
        };
        let hops: Vec<IntHop> = (0..word % 7).map(nonsense).collect();
        self.control.on_ack(&Acked {
            hops: &hops,
            flows: word as u16,
            ..*acked
        });
    }

    fn rate_bps(&self) -> f64 {
        self.control.rate_bps()
    }

    fn window_bytes(&self) -> u64 {
        self.control.window_bytes()
    }
}

#[test]
fn flows_complete_over_switches_that_write_nonsense() {
    fn check<C: Control>(control: C::Config, name: &str) {
        let flow = |src| FlowSpec::new(HostId(src), HostId(0), 1_000_000, Time::ZERO);
        let config = Config {
            fabric: lossless(),
            ..Config::default()
        };
        let transport = Rdma::<Deceived<C>>::new(rdma(42, control));
        let mut sim = Sim::new(config, star(5), (1..5).map(flow), transport).expect("a run");
        sim.run_until(Time::from_ms(100)).expect("good flows");
        let results = sim.results();
        results.conservation.as_ref().expect("the books are right");
        assert_eq!(results.drops(), 0, "{name}");
        // At the least rate a megabyte takes 8.8 ms; four share a link that is never idle long.
        let least = 1e6 * 1.09 * 8.0 / MIN_BPS;
        for flow in &results.flows {
            let took = flow.fct().expect("complete").as_secs_f64();
            assert!(took < 1.1 * least, "{name}: {took}");
        }
    }
    check::<Hpcc>(HPCC, "hpcc");
    check::<Fncc>(fncc(LastHop::Reference), "fncc");
    check::<Fncc>(fncc(LastHop::Window), "fncc, window");
    check::<PowerTcp>(POWER, "powertcp");
}

/// Hosts spray over links of different queues, so that data and acknowledgements overtake each
/// other, and telemetry is now of this path, now of that: all arrives, in bounded time.
#[test]
fn every_scheme_completes_its_flows_over_paths_that_reorder() {
    let clos = TwoTierClos {
        racks: 2,
        hosts_per_rack: 4,
        spines: 4,
        host_capacity_bps: LINE_BPS,
        fabric_capacity_bps: LINE_BPS,
        host_delay_ns: 1_000,
        fabric_delay_ns: 1_000,
        ecmp: EcmpConfig::default(),
        ..TwoTierClos::default()
    };
    let topology = clos.build().expect("two racks");
    let swift = "\n[[transport]]\nname = \"swift\"\nlabel = \"swift\"\n";
    // FNCC needs one way; the test of symmetric paths has it.
    let text = RDMA.replace("[[transport]]\nname = \"fncc\"", "");
    let text = text.replace(
        "[[transport]]",
        "[[transport]]\nrecovery = \"selective-repeat\"",
    );
    let fabric = FabricConfig {
        framing: FRAMING,
        spraying: true,
        ..FabricConfig::default()
    };
    let transports =
        read_transports(&(text + swift), "rdma", &topology, fabric, &[]).expect("transports");
    let run = |transport: &PlannedTransport| -> RunResults {
        let flow = |src: u32| {
            let dst = HostId(4 + (src + 1) % 4);
            FlowSpec::new(HostId(src), dst, 1_000_000, Time::ZERO)
        };
        let late = (0..3).map(|src| FlowSpec {
            start: Time::from_us(20),
            dst: HostId(7),
            ..flow(src)
        });
        let flows: Vec<FlowSpec> = (0..4).map(flow).chain(late).collect();
        let config = Config {
            seed: 4,
            ..Config::default()
        };
        let mut run = transport
            .start(config, &topology, Box::new(flows.into_iter()))
            .expect("a run");
        run.run_until(Time::from_ms(100)).expect("good flows");
        run.results()
    };
    for transport in transports {
        let results = run(&transport);
        let name = &transport.label;
        results.conservation.as_ref().expect("the books are right");
        for flow in &results.flows {
            let took = flow.fct().map(|fct| fct.as_us_f64());
            // A megabyte at the least rate of all, 100 Mbit/s, with its headers.
            assert!(took.is_some_and(|us| us < 87_200.0), "{name}: {took:?}");
        }
    }
}
