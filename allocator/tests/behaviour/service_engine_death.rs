//! A dead engine ends the process with one clear error: systemd starts another, and the hosts are
//! on plain TCP meanwhile.

use std::sync::Arc;

use ratewright_allocator::engine::{
    EngineError, EngineEvent, IterationReport, Optimality, RateEngine, RateUpdate,
};
use ratewright_allocator::service::run;

use crate::service_support::process::TestSite;

/// An engine that panics at its first iteration.
struct Broken;

impl RateEngine for Broken {
    fn apply(&mut self, _event: EngineEvent) -> Result<(), EngineError> {
        Ok(())
    }

    fn iterate(&mut self) -> IterationReport {
        panic!("the test's engine breaks");
    }

    fn drain_updates(&mut self, _sink: &mut dyn FnMut(RateUpdate)) {}

    fn link_loads(&self, _loads_bps: &mut Vec<f64>) {
        panic!("the test's engine breaks");
    }

    fn link_capacities(&self, _capacities_bps: &mut Vec<f64>) {}

    fn optimality(&self) -> Optimality {
        Optimality::default()
    }

    fn flow_count(&self) -> usize {
        0
    }
}

#[test]
fn the_process_ends_with_an_error_when_the_engine_dies() {
    let site = TestSite::new();
    let config = site.config("127.0.0.1:0", "[transport]\nhot = \"quic\"\n");
    site.write("allocator.toml", &config);
    // It publishes its first figures a moment after its start, and breaks over them.
    let factory = Arc::new(|_: &_, _: &_, _: &[f64]| Ok(Box::new(Broken) as Box<dyn RateEngine>));
    let error = run::run(&site.path().join("allocator.toml"), factory).expect_err("it died");
    assert_eq!(error.to_string(), "the engine thread died");
}

/// With a port, which the engine's thread serves, too, a dead engine ends both.
#[test]
fn the_process_ends_likewise_when_a_shard_drives_the_engine() {
    let site = TestSite::new();
    let config = site.config("127.0.0.1:0", "[transport]\nhot = \"udp\"\n");
    site.write("allocator.toml", &config);
    let factory = Arc::new(|_: &_, _: &_, _: &[f64]| Ok(Box::new(Broken) as Box<dyn RateEngine>));
    let error = run::run(&site.path().join("allocator.toml"), factory).expect_err("it died");
    assert_eq!(error.to_string(), "a thread of sealed datagrams panicked");
}
