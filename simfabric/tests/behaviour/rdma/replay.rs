//! Controls of RDMA on what public simulators logged: the same feedback gives the same rates.
//!
//! HPCC's public simulator is alibaba-edu/High-Precision-Congestion-Control at 9f4be2a. Its traces
//! are of two flows on a dumbbell of three switches at 100 Gbit/s; they are not in the repository.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ratewright_simfabric::ext::IntHop;
use ratewright_simfabric::transport::rdma::control::{Acked, Control, Hpcc, PathFacts, Timely};
use ratewright_simfabric::{Span, Time};

use super::RATE_BPS;
use super::public::{hpcc, timely};

/// Variable of the folder with the traces.
const TRACES: &str = "RATEWRIGHT_RDMA_TRACES";
/// Distance between rates that count as equal: the traces have Mbit/s.
const TOLERANCE_GBPS: f64 = 0.002;

const PATH: PathFacts = PathFacts {
    line_bps: RATE_BPS as f64,
    receiver_bps: RATE_BPS as f64,
    base_rtt: Span::from_ns(12_320),
    begins: Time::ZERO,
};

/// Returns the lines of a trace below its header.
fn lines(name: &str) -> Vec<String> {
    let folder = std::env::var_os(TRACES);
    let folder = folder.unwrap_or_else(|| panic!("{TRACES} must name the folder of the traces"));
    let path = PathBuf::from(folder).join(name);
    let text = std::fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().skip(1).map(str::to_owned).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    let number = text.parse().ok();
    number.unwrap_or_else(|| panic!("{text:?} is no number"))
}

/// Reads hops of `queue:sent:time`, each of which the same value of the stamp before follows where
/// there is one.
fn hops(text: &str) -> Vec<IntHop> {
    let hop = |text: &str| {
        let fields: Vec<u64> = text.split(':').map(number).collect();
        let (queue, sent, ns) = match fields[..] {
            [queue, sent, ns] => (queue, sent, ns),
            [queue, _, sent, _, ns, _] => (queue, sent, ns),
            _ => panic!("{text:?} is no hop"),
        };
        IntHop::new(RATE_BPS, Time::from_ns(ns), sent, queue)
    };
    text.split('|').map(hop).collect()
}

/// Counts rates that are the logged ones, and prints the first others.
#[derive(Default)]
struct Count {
    rates: usize,
    equal: usize,
}

impl Count {
    fn add(&mut self, line: &str, rate_bps: f64, logged_gbps: f64) {
        let rate_gbps = rate_bps / 1e9;
        self.rates += 1;
        if (rate_gbps - logged_gbps).abs() <= TOLERANCE_GBPS {
            self.equal += 1;
        } else if self.rates - self.equal <= 10 {
            println!("{rate_gbps:.4} for {line}");
        }
    }

    /// Asserts that 99.9 % of at least `least` rates are equal.
    fn check(&self, least: usize) {
        println!("{} of {}", self.equal, self.rates);
        assert!(self.rates >= least, "{} rates", self.rates);
        assert!(self.equal as f64 >= 0.999 * self.rates as f64);
    }
}

/// Every acknowledgement of both flows. The first of each has no rate: it is only noted.
#[test]
#[ignore = "needs the traces of the public simulators"]
fn hpcc_gives_the_logged_rate_of_each_acknowledgement() {
    let config = hpcc(0);
    let mut controls: BTreeMap<u32, Hpcc> = BTreeMap::new();
    let mut count = Count::default();
    for line in lines("hpcc_dumbbell100_perack.csv") {
        let fields: Vec<&str> = line.split(',').collect();
        let src = number(fields[2]);
        let control = controls
            .entry(src)
            .or_insert_with(|| Hpcc::new(&config, PATH));
        control.on_ack(&Acked {
            now: Time::from_ns(number(fields[0])),
            ack: number(fields[5]),
            next: number(fields[6]),
            rtt: PATH.base_rtt,
            marked: false,
            hops: &hops(fields[7]),
            flows: 0,
            rcp: None,
        });
        if fields[1] == "first" {
            assert_eq!(control.rate_bps().to_bits(), PATH.line_bps.to_bits());
        } else {
            count.add(&line, control.rate_bps(), number(fields[13]));
        }
    }
    assert_eq!(controls.len(), 2);
    count.check(5_000);
}

/// Every update of both flows. The log lacks each flow's first round trip, which is that of an idle
/// network.
#[test]
#[ignore = "needs the traces of the public simulators"]
fn timely_gives_the_logged_rate_of_each_update() {
    let config = timely();
    // Updates are one per round trip already: each acknowledges what was sent after the last one.
    let update = |control: &mut Timely, number: u64, rtt_ns: u64| {
        control.on_ack(&Acked {
            now: Time::ZERO,
            ack: number,
            next: number,
            rtt: Span::from_ns(rtt_ns),
            marked: false,
            hops: &[],
            flows: 0,
            rcp: None,
        });
    };
    let mut controls: BTreeMap<u32, (Timely, u64)> = BTreeMap::new();
    let mut count = Count::default();
    for line in lines("timely_dumbbell100_updates.csv") {
        let fields: Vec<&str> = line.split(',').collect();
        let (control, updates) = controls.entry(number(fields[1])).or_insert_with(|| {
            let mut control = Timely::new(&config, PATH);
            update(&mut control, 1, 12_352);
            (control, 1)
        });
        *updates += 1;
        update(control, *updates, number(fields[2]));
        count.add(&line, control.rate_bps(), number(fields[7]));
    }
    assert_eq!(controls.len(), 2);
    count.check(300);
}
