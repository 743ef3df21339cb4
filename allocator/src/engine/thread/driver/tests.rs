use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::engine::{IterationReport, Optimality};

/// An engine whose scans are interrupted for 30 ms each; it counts them.
struct Interrupted(Arc<AtomicU32>);

impl RateEngine for Interrupted {
    fn apply(&mut self, _event: EngineEvent) -> Result<(), EngineError> {
        Ok(())
    }

    fn iterate(&mut self) -> IterationReport {
        IterationReport::default()
    }

    fn drain_updates(&mut self, _sink: &mut dyn FnMut(RateUpdate)) {}

    fn link_loads(&self, _loads_bps: &mut Vec<f64>) {}

    fn link_capacities(&self, _capacities_bps: &mut Vec<f64>) {}

    fn optimality(&self) -> Optimality {
        Optimality::default()
    }

    #[allow(clippy::disallowed_methods, reason = "the interruption")]
    fn scan(&self, _scan: &mut Scan, _flows: usize) -> bool {
        std::thread::sleep(Duration::from_millis(30));
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn flow_count(&self) -> usize {
        0
    }
}

#[test]
fn an_interrupted_scan_does_not_put_off_the_next_one_for_half_a_minute() {
    let scans = Arc::new(AtomicU32::new(0));
    let mut driver = EngineDriver::new(Box::new(Interrupted(Arc::clone(&scans))), Arc::default());
    let start = clock::now();
    // A busy engine: it iterates just before each call.
    for (at_s, scanned) in [(1, 1), (5, 1), (7, 2), (11, 2), (13, 3)] {
        let now = start + Duration::from_secs(at_s);
        driver.iterate(now);
        driver.maintain(now);
        driver.maintain(now);
        assert_eq!(scans.load(Ordering::Relaxed), scanned, "after {at_s} s");
    }
}
