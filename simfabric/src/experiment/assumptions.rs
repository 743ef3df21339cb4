//! Assumptions: values for what the paper leaves open about figures 9 to 15. Each has a key, so
//! that its effect can be measured (`simfabric reproduce flowtune H --set KEY=VALUE`). Why each
//! default was taken is in `docs/simfabric/reproduction.md`.

use ratewright_allocator::engine::StepRule;

use crate::control::Carrier;
use crate::net::Framing;
use crate::net::queue::QueueLimit;
use crate::time::Span;
use crate::transport::ideal::Objective;
use crate::workload::sizes::{NAMES, SizeDistribution, SizeError};

/// Payload of 1,460 bytes under 40 bytes of TCP and IP, as ns-2 counts packets: neither Ethernet's
/// header nor preamble and gap, and acknowledgements of 40 bytes.
pub const NS2: Framing = Framing {
    mss_bytes: 1_460,
    header_bytes: 40,
    min_wire_bytes: 40,
};

/// Queues that add up to the queueing delay of a path (figure 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathQueues {
    /// Queues of switches.
    Switches,
    /// Queues of switches, and the sender's NIC.
    All,
}

/// The discipline of hosts' queues with pFabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PFabricNic {
    /// The most urgent packet first (pFabric §4.2).
    Priority,
    /// First in, first out, with the limit of the other schemes' queues.
    Fifo,
    /// First in, first out, as short as the switches' queues.
    Short,
}

/// Weight of a flowlet's rate in the fairness score (figure 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreWeight {
    /// Every flowlet counts once.
    Flowlet,
    /// A flowlet counts by its duration: the score of the active flowlets, averaged over time.
    Time,
}

/// Counting of the traffic to and from the allocator in figures 9 to 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Everything on links, with Ethernet, preamble and gap.
    Wire,
    /// IP packets, as ns-2 counts.
    Ip,
    /// The sent packets with their records in the paper's encoding: 40 bytes of headers each, 16
    /// for a start, 4 for an end, 6 for a rate (flowtune §5.3). Bare acknowledgements do not count.
    Paper,
    /// The paper's encoding, with a packet for every start, end and rate.
    Alone,
    /// The paper's encoding, with a packet for every rate, and nothing else.
    Updates,
}

/// Values for what the paper leaves open. The figures are made with the defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// The workload, one of [`NAMES`].
    pub workload: &'static str,
    /// Factor on the workload's sizes.
    pub size_factor: f64,
    /// Largest size of a flowlet in bytes; larger ones are cut to it.
    pub size_cut: u64,
    /// Bytes around the payload.
    pub framing: Framing,
    /// Hosts' queues are of the scheme's discipline, as all queues of an ns-2 model are.
    pub nic_of_scheme: bool,
    /// Packets in the NIC from which on a host holds its TCP flows back.
    pub nic_limit_packets: u32,
    /// Capacity of queues.
    pub buffer: QueueLimit,
    /// Hosts' queues with pFabric.
    pub pfabric_nic: PFabricNic,
    /// Flows begin with TCP's exchange of SYN and SYN-ACK.
    pub handshake: bool,
    /// Initial window of DCTCP and of CUBIC, in packets.
    pub tcp_window_packets: u32,
    /// Initial window of XCP, in packets.
    pub xcp_window_packets: u32,
    /// XCP's control interval before any round trip is known, and after an interval without
    /// traffic. `None`: 100 µs, and the last mean round trip.
    pub xcp_interval: Option<Span>,
    /// Shortest control interval of XCP's routers.
    pub xcp_least_interval: Span,
    /// Initial window of pFabric, in packets; it does not grow far beyond.
    pub pfabric_window_packets: u32,
    /// Packets that a flowlet of Flowtune sends before its first rate.
    pub flowtune_window_packets: u32,
    /// Least retransmission time-out of all schemes but pFabric.
    pub min_rto: Span,
    /// pFabric's retransmission time-out.
    pub pfabric_rto: Span,
    /// Capacity of pFabric's queues, in bytes.
    pub pfabric_buffer_bytes: u64,
    /// Packets at which a queue of 10 Gbit/s marks.
    pub mark_packets: u32,
    /// Factor on `mark_packets` for queues of 40 Gbit/s.
    pub core_marks: u32,
    /// DCTCP's g.
    pub dctcp_gain: f64,
    /// sfqCoDel's target.
    pub codel_target: Span,
    /// sfqCoDel's interval.
    pub codel_interval: Span,
    /// CUBIC grows by whole packets, as in Linux and ns-2, and not as fast as NewReno.
    pub cubic_counted: bool,
    /// CUBIC leaves slow start by HyStart.
    pub hystart: bool,
    /// Share of a link that the allocator leaves to traffic that it does not allocate.
    pub reserve: f64,
    /// Transport of Flowtune's control traffic.
    pub carrier: Carrier,
    /// Time between the allocator's iterations.
    pub iteration: Span,
    /// The allocator's price update.
    pub step: StepRule,
    /// Objective of the exact rates without a control plane.
    pub ideal: Objective,
    /// Counting in figures 9 to 11. `None`: IP packets in figure 9, everything in the others.
    pub count: Option<Counting>,
    /// Queues that figure 13 counts.
    pub path_queues: PathQueues,
    /// Weights of figure 15.
    pub score: ScoreWeight,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            // The paper's workload "unless otherwise specified" (§5.3): most changes, most stress.
            workload: "web",
            size_factor: 1.0,
            size_cut: u64::MAX,
            framing: NS2,
            nic_of_scheme: true,
            nic_limit_packets: u32::MAX,
            buffer: QueueLimit::Packets(1_000),
            pfabric_nic: PFabricNic::Priority,
            handshake: false,
            tcp_window_packets: 10,
            // As in ns-2: XCP's routers grant the rest of the window.
            xcp_window_packets: 1,
            xcp_interval: None,
            xcp_least_interval: Span::ZERO,
            pfabric_window_packets: 12,
            flowtune_window_packets: 1,
            min_rto: Span::from_us(200),
            pfabric_rto: Span::from_us(45),
            pfabric_buffer_bytes: 36_864,
            // DCTCP (SIGCOMM 2010, §3.5): K = 65 at 10 Gbit/s, in proportion to the rate.
            mark_packets: 65,
            core_marks: 4,
            dctcp_gain: 1.0 / 16.0,
            // Target and interval are in proportion to the round trip, 22 µs here: see `schemes`.
            codel_target: Span::from_us(10),
            codel_interval: Span::from_us(200),
            cubic_counted: false,
            hystart: true,
            reserve: 0.0,
            carrier: Carrier::Datagram,
            // §5.3: "The allocator performs an iteration every 10 µs."
            iteration: Span::from_us(10),
            step: StepRule::Safeguarded,
            ideal: Objective::MaxMin,
            count: None,
            path_queues: PathQueues::All,
            score: ScoreWeight::Flowlet,
        }
    }
}

/// A refused `KEY=VALUE`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssumptionError {
    /// No equals sign.
    #[error("`{0}`: a choice is KEY=VALUE")]
    NoValue(String),
    /// Unknown key.
    #[error("there is no choice `{key}`; there are {}", known())]
    UnknownKey {
        /// The given key.
        key: String,
    },
    /// A value that does not fit.
    #[error("`{key}={value}`: {expected}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// The given value.
        value: String,
        /// The values that the key takes, in words.
        expected: &'static str,
    },
}

/// Every key with the values that it takes and its meaning.
pub const KEYS: &[(&str, &str, &str)] = &[
    (
        "workload",
        "a published workload's name",
        "sizes of flowlets",
    ),
    (
        "size-factor",
        "a number above 0",
        "sizes are taken times this",
    ),
    (
        "size-cut",
        "a number above 0",
        "larger flowlets are cut to so many bytes",
    ),
    ("framing", "ethernet or ns2", "bytes around the payload"),
    ("nic", "fifo or scheme", "discipline of hosts' queues"),
    (
        "nic-limit",
        "a number above 0, or none",
        "packets in the NIC from which on TCP flows are held back",
    ),
    ("buffer", "a number above 0", "packets that a queue holds"),
    (
        "pfabric-nic",
        "priority, fifo, or short, a fifo as short as the switches' queues",
        "discipline of hosts' queues with pFabric",
    ),
    (
        "handshake",
        "true or false",
        "flows begin with SYN and SYN-ACK",
    ),
    (
        "tcp-window",
        "a number above 0",
        "initial window of DCTCP and CUBIC, in packets",
    ),
    (
        "xcp-window",
        "a number above 0",
        "initial window of XCP, in packets",
    ),
    (
        "xcp-interval",
        "microseconds above 0",
        "XCP's control interval at first and after one without traffic; ns-2 has 50000",
    ),
    (
        "xcp-least-interval",
        "microseconds above 0",
        "XCP's shortest control interval; ns-2 has 1000",
    ),
    (
        "pfabric-window",
        "a number above 0",
        "initial window of pFabric, in packets",
    ),
    (
        "flowtune-window",
        "a number, 0 too",
        "packets that a flowlet sends before its first rate",
    ),
    (
        "min-rto",
        "microseconds above 0",
        "least time-out of all but pFabric",
    ),
    ("pfabric-rto", "microseconds above 0", "pFabric's time-out"),
    (
        "pfabric-buffer",
        "a number above 0",
        "bytes that pFabric's queues hold",
    ),
    (
        "mark",
        "a number above 0",
        "packets at which DCTCP's queues of 10 Gbit/s mark",
    ),
    (
        "core-marks",
        "a number above 0",
        "queues of 40 Gbit/s mark at this many times as many",
    ),
    ("dctcp-gain", "a number above 0 and at most 1", "DCTCP's g"),
    ("codel-target", "microseconds above 0", "sfqCoDel's target"),
    (
        "codel-interval",
        "microseconds above 0",
        "sfqCoDel's interval",
    ),
    ("cubic", "rfc9438 or counted", "how CUBIC's window grows"),
    (
        "hystart",
        "true or false",
        "CUBIC leaves slow start by HyStart",
    ),
    (
        "reserve",
        "a number from 0 to 0.5",
        "share of links that the allocator leaves free",
    ),
    (
        "control",
        "datagram or tcp",
        "what Flowtune's control traffic goes over",
    ),
    (
        "iteration",
        "microseconds above 0",
        "time between the allocator's iterations",
    ),
    (
        "step",
        "guarded or paper",
        "the allocator's price update: ours, which answers starts and ends at once, or Algorithm 1 to the letter",
    ),
    (
        "ideal",
        "max-min or proportional",
        "what exact fair rates without a control plane are fair by",
    ),
    (
        "count",
        "wire, ip, paper, alone or updates",
        "what of the control traffic counts in figures 9 to 11: all, IP packets, what they say in the paper's encoding, the same with a packet for each notice, only the rates of those",
    ),
    (
        "path-queues",
        "switches or all",
        "queues that a path's queueing delay counts",
    ),
    (
        "score",
        "flowlet or time",
        "what the fairness score weighs by",
    ),
];

/// All keys, for the message about an unknown one.
fn known() -> String {
    let keys: Vec<&str> = KEYS.iter().map(|(key, ..)| *key).collect();
    keys.join(", ")
}

/// A number above 0; NaN is none, as it compares with nothing.
fn above_zero<T: std::str::FromStr + PartialOrd + Default>(value: &str) -> Option<T> {
    value.parse().ok().filter(|v| *v > T::default())
}

/// A time from microseconds above 0 and below 1,000 s.
fn microseconds(value: &str) -> Option<Span> {
    let us: f64 = above_zero(value)?;
    (us < 1e9).then(|| Span::from_secs_f64(us / 1e6))
}

/// The value that belongs to a name.
fn one_of<T: Copy, const N: usize>(value: &str, of: [(&str, T); N]) -> Option<T> {
    of.iter().find(|(name, _)| *name == value).map(|(_, v)| *v)
}

impl Assumptions {
    /// Replaces the value of one assumption, given as `KEY=VALUE`.
    ///
    /// # Errors
    /// See [`AssumptionError`].
    pub fn set(&mut self, option: &str) -> Result<(), AssumptionError> {
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| AssumptionError::NoValue(option.to_owned()))?;
        let &(key, expected, _) =
            KEYS.iter()
                .find(|(known, ..)| *known == key)
                .ok_or_else(|| AssumptionError::UnknownKey {
                    key: key.to_owned(),
                })?;
        // Only known keys come here, so `None` means a value that does not fit.
        self.apply(key, value)
            .ok_or_else(|| AssumptionError::BadValue {
                key,
                value: value.to_owned(),
                expected,
            })
    }

    /// Sets a value; `None` if it does not fit the key.
    fn apply(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "workload" => self.workload = NAMES.iter().find(|name| **name == value)?,
            "size-factor" => {
                self.size_factor = above_zero(value).filter(|f: &f64| f.is_finite())?;
            }
            "size-cut" => self.size_cut = above_zero(value)?,
            "framing" => {
                self.framing = one_of(value, [("ethernet", Framing::default()), ("ns2", NS2)])?;
            }
            "nic" => self.nic_of_scheme = one_of(value, [("fifo", false), ("scheme", true)])?,
            "nic-limit" if value == "none" => self.nic_limit_packets = u32::MAX,
            "nic-limit" => self.nic_limit_packets = above_zero(value)?,
            "buffer" => self.buffer = QueueLimit::Packets(above_zero(value)?),
            "pfabric-nic" => {
                let names = [
                    ("priority", PFabricNic::Priority),
                    ("fifo", PFabricNic::Fifo),
                    ("short", PFabricNic::Short),
                ];
                self.pfabric_nic = one_of(value, names)?;
            }
            "handshake" => self.handshake = value.parse().ok()?,
            "tcp-window" => self.tcp_window_packets = above_zero(value)?,
            "xcp-window" => self.xcp_window_packets = above_zero(value)?,
            "xcp-interval" => self.xcp_interval = Some(microseconds(value)?),
            "xcp-least-interval" => self.xcp_least_interval = microseconds(value)?,
            "pfabric-window" => self.pfabric_window_packets = above_zero(value)?,
            "flowtune-window" => self.flowtune_window_packets = value.parse().ok()?,
            "min-rto" => self.min_rto = microseconds(value)?,
            "pfabric-rto" => self.pfabric_rto = microseconds(value)?,
            "pfabric-buffer" => self.pfabric_buffer_bytes = above_zero(value)?,
            "mark" => self.mark_packets = above_zero(value)?,
            "core-marks" => self.core_marks = above_zero(value)?,
            "dctcp-gain" => self.dctcp_gain = above_zero(value).filter(|g| *g <= 1.0)?,
            "codel-target" => self.codel_target = microseconds(value)?,
            "codel-interval" => self.codel_interval = microseconds(value)?,
            "cubic" => {
                self.cubic_counted = one_of(value, [("rfc9438", false), ("counted", true)])?;
            }
            "hystart" => self.hystart = value.parse().ok()?,
            "reserve" => {
                self.reserve = value.parse().ok().filter(|r| (0.0..=0.5).contains(r))?;
            }
            "control" => {
                let names = [("datagram", Carrier::Datagram), ("tcp", Carrier::Tcp)];
                self.carrier = one_of(value, names)?;
            }
            "iteration" => self.iteration = microseconds(value)?,
            "step" => {
                let names = [("guarded", StepRule::Safeguarded), ("paper", StepRule::Ned)];
                self.step = one_of(value, names)?;
            }
            "ideal" => {
                let names = [
                    ("max-min", Objective::MaxMin),
                    ("proportional", Objective::Proportional),
                ];
                self.ideal = one_of(value, names)?;
            }
            "count" => {
                let names = [
                    ("wire", Counting::Wire),
                    ("ip", Counting::Ip),
                    ("paper", Counting::Paper),
                    ("alone", Counting::Alone),
                    ("updates", Counting::Updates),
                ];
                self.count = Some(one_of(value, names)?);
            }
            "path-queues" => {
                let names = [("switches", PathQueues::Switches), ("all", PathQueues::All)];
                self.path_queues = one_of(value, names)?;
            }
            "score" => {
                let names = [
                    ("flowlet", ScoreWeight::Flowlet),
                    ("time", ScoreWeight::Time),
                ];
                self.score = one_of(value, names)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Sizes of the flowlets of [`Self::workload`], after factor and cut.
    ///
    /// # Errors
    /// If the factor leaves nothing of them.
    pub fn sizes(&self) -> Result<SizeDistribution, SizeError> {
        self.sizes_of(self.workload)
    }

    /// Sizes of the flowlets of any published workload, after factor and cut.
    ///
    /// # Errors
    /// If the workload is not a published one, or the factor leaves nothing of it.
    pub fn sizes_of(&self, workload: &str) -> Result<SizeDistribution, SizeError> {
        let published = SizeDistribution::published(workload)?;
        let mut sizes = published;
        if (self.size_factor - 1.0).abs() >= f64::EPSILON {
            let times = |bytes: u64| (bytes as f64 * self.size_factor).round() as u64;
            let points = sizes.points().iter();
            let points = points
                .map(|&(bytes, share)| (times(bytes), share))
                .collect();
            let name = format!("{workload} × {}", self.size_factor);
            sizes = SizeDistribution::from_points(&name, points)?;
        }
        let largest = sizes.points().last().map_or(0, |point| point.0);
        if self.size_cut < largest {
            let cut = self.size_cut;
            let points = sizes.points().iter().copied();
            let mut points: Vec<_> = points.filter(|point| point.0 < cut).collect();
            // Two points at one size are a step: every larger flowlet has the size of the cut.
            points.extend([(cut, sizes.cdf(cut as f64)), (cut, 1.0)]);
            let name = format!("{} up to {cut}", sizes.name());
            sizes = SizeDistribution::from_points(&name, points)?;
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::schemes::Scheme;

    #[test]
    fn every_key_can_be_set_and_refuses_nonsense() {
        let good = |key| match key {
            "workload" => "cache",
            "framing" => "ethernet",
            "nic" => "fifo",
            "cubic" => "counted",
            "hystart" => "false",
            "handshake" => "true",
            "pfabric-nic" => "fifo",
            "path-queues" => "switches",
            "score" => "time",
            "control" => "tcp",
            "count" | "step" => "paper",
            "ideal" => "proportional",
            "reserve" => "0.05",
            "dctcp-gain" => "0.5",
            _ => "7",
        };
        for (key, expected, _) in KEYS {
            let mut assumptions = Assumptions::default();
            assumptions.set(&format!("{key}={}", good(key))).unwrap();
            assert_ne!(assumptions, Assumptions::default(), "{key}");
            let heard = Scheme::ALL
                .iter()
                .chain(&[Scheme::Ideal])
                .any(|scheme| scheme.relevant(&assumptions) != Assumptions::default());
            // The counting of a run does not change the run.
            assert_eq!(heard, *key != "count", "{key}");
            let refused = assumptions.set(&format!("{key}=-1")).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }

    #[test]
    fn a_key_that_does_not_exist_is_named_with_those_that_do() {
        let refused = Assumptions::default()
            .set("mss=9000")
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("`mss`") && refused.contains("framing"),
            "{refused}"
        );
        let refused = Assumptions::default()
            .set("framing")
            .unwrap_err()
            .to_string();
        assert_eq!(refused, "`framing`: a choice is KEY=VALUE");
    }

    #[test]
    fn a_factor_moves_the_mean() {
        let mut assumptions = Assumptions::default();
        let before = assumptions.sizes().unwrap().mean_bytes();
        assumptions.set("size-factor=3").unwrap();
        let after = assumptions.sizes().unwrap().mean_bytes();
        assert!((after / before - 3.0).abs() < 1e-3, "{before} {after}");
    }

    /// Larger flowlets have the size of the cut; all others are as before.
    #[test]
    fn a_cut_shortens_what_is_larger() {
        let mut assumptions = Assumptions::default();
        let whole = assumptions.sizes_of("hadoop").unwrap();
        assumptions.set("size-cut=1000000").unwrap();
        let cut = assumptions.sizes_of("hadoop").unwrap();
        for i in 0..=1_000 {
            let share = f64::from(i) / 1_000.0;
            // A byte for rounding.
            let expected = whole.quantile(share).min(1_000_000);
            assert!(cut.quantile(share).abs_diff(expected) <= 1, "{share}");
        }
        assumptions.set("size-cut=1000000000").unwrap();
        let uncut = assumptions.sizes_of("hadoop").unwrap();
        assert_eq!(uncut.points(), whole.points());
    }
}
