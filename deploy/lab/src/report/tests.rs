//! Pictures of every kind, of made-up outcomes: each has its panels, curves and labels.

use clap::Parser;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S};

use super::*;
use crate::measure::recording::{FlowRecord, PortRecord, Recording};
use crate::scenario::figures::{Completion, Figures, LinkRow, SafetyRow, TimeQuantiles};
use crate::scenario::outcome::ScenarioPhase;
use crate::traffic::protocol::BIN_NS;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: LabOptions,
}

/// Flows of one second that share a link of 200 Mbit/s, with one event in between.
fn recording() -> Recording {
    let flow = |label: String, mbps: u64| FlowRecord {
        label,
        started_ns: Some(NS_PER_S),
        ended_ns: Some(2 * NS_PER_S),
        first_bin: NS_PER_S / BIN_NS,
        bins: vec![mbps * 125 * BIN_NS / NS_PER_MS; (NS_PER_S / BIN_NS) as usize],
        ..FlowRecord::default()
    };
    let long = (0..20).map(|i| (i, flow(format!("h{i} → r"), 2 + u64::from(i))));
    let short = (20, flow("short flows".to_owned(), 60));
    Recording {
        begin_ns: NS_PER_S,
        flows: long.chain([short]).collect(),
        ports: vec![PortRecord {
            name: "uplink".to_owned(),
            capacity_bps: 200_000_000,
            samples: vec![(NS_PER_S, 0), (2 * NS_PER_S, 24_000_000)],
        }],
        events: vec![(3 * NS_PER_S / 2, "allocator killed".to_owned())],
        listening: 0,
    }
}

fn phase(fates: &[&'static str]) -> ScenarioPhase {
    let samples = vec![0.31, 0.27, 0.94];
    let transfers = TimeQuantiles::of(&samples).unwrap();
    let safety = |fate: &&'static str| SafetyRow {
        backend: "sock_ops",
        fate,
        family: 4,
        runs: 1,
        connections: 3,
        unfinished: 0,
        broken: 0,
        missing_bytes: 0,
        silent_backoff: 0,
        held: Some(3),
        completion_s: Some(transfers),
        samples_s: samples.clone(),
    };
    let link = |(link_mbps, flows)| LinkRow {
        link_mbps,
        flows,
        payload_gbps: f64::from(link_mbps) / 1_100.0,
        of_rate: None,
        processor_ps_per_bit: 500.0 / flows as f64,
        own_maxima_ps_per_bit: Some(400.0 / flows as f64),
        runs: 1,
    };
    ScenarioPhase {
        figures: Figures {
            completion_s: Some(Completion {
                p50: 0.31,
                p90: 0.94,
                p95: 0.94,
                runs: 3,
                samples: samples.clone(),
                transfers,
            }),
            reader_mbps: Some(151.3),
            bulk_mbps: Some(8.4),
            courses: vec![("stops", vec![(-0.2, 40.0), (0.0, 40.0), (0.7, 300.0)])],
            links: Some(
                [(1_000, 1), (1_000, 8), (10_000, 1), (10_000, 8)]
                    .map(link)
                    .to_vec(),
            ),
            safety: Some(fates.iter().map(safety).collect()),
            ..Figures::default()
        },
        recording: recording(),
        first_paced_us: Vec::new(),
    }
}

#[test]
fn every_picture_names_its_panels_and_its_curves() {
    let outcome = RunOutcome {
        backend: "sock_ops".to_owned(),
        with: Some(phase(&["leased", "lapsed"])),
        without: Some(phase(&["cubic"])),
        broken_off: None,
        missed: None,
        cases: None,
        checks: None,
    };
    let directory = tempfile::tempdir().unwrap();
    let rates = "Cubic alone|with Ratewright (sock_ops)|h0 → r|h17 → r|short flows|link capacity|\
                 allocator killed|rate (Mbit/s)|time (s)|link use (share of capacity)";
    for (scenario, words) in [
        ("fairness", [rates, "Jain's index"].join("|").as_str()),
        ("mixed", rates),
        (
            "coflow",
            "Cubic alone|whole coflows|single transfers|time (s)",
        ),
        ("safety", "sock_ops|Cubic alone|leased|lapsed|share of runs"),
        (
            "use",
            "Cubic alone|other receiver stops|bulk beside small writes|8.4|time after it (s)",
        ),
        (
            "links",
            "with Ratewright, 1 flow|Cubic alone, 8 flows|payload|ps per bit of payload",
        ),
    ] {
        let options = Line::parse_from(["lab", scenario]).options;
        let file = directory.path().join(scenario);
        picture(&options, &outcome).write(&file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        for word in words.split('|') {
            assert!(
                svg.contains(&word.replace('\'', "&apos;")),
                "{scenario}: {word}"
            );
        }
        assert_eq!(svg.contains("Jain"), scenario == "fairness");
        // A legend of all of hundreds of flows would leave no room for their rates.
        assert!(!svg.contains("h18 → r"));
    }
}
