//! Gives a class of flows a utility of its own: log(1 + x), whose first bits are worth less than
//! under log x.
//!
//! Run it with `cargo run -p ratewright-allocator --example utility`.
//!
//! NED needs four functions of a utility (flowtune §2): its value, the marginal utility, the rate
//! that is worth a price, and the slope of that rate. Rates are in Gbit/s.

use std::error::Error;
use std::sync::Arc;

use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowSpec, RateEngine, ReferenceEngine,
};
use ratewright_allocator::num::utility::{Class, ClassTable, Utility, UtilityKind};

#[derive(Debug)]
struct Saturating;

impl Utility for Saturating {
    fn value(&self, rate: f64) -> f64 {
        rate.ln_1p()
    }
    fn marginal(&self, rate: f64) -> f64 {
        1.0 / (1.0 + rate)
    }
    fn rate_at(&self, price: f64) -> f64 {
        // At a price above the first bit's utility, the optimal rate is zero.
        (1.0 / price - 1.0).max(0.0)
    }
    fn rate_slope_at(&self, price: f64) -> f64 {
        if price < 1.0 {
            -1.0 / (price * price)
        } else {
            0.0
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let saturating = Class {
        utility: UtilityKind::Custom(Arc::new(Saturating)),
        ..Class::default()
    };
    let config = EngineConfig {
        classes: ClassTable::new([(0, Class::default()), (1, saturating)])?,
        threshold: 1e-4,
        ..EngineConfig::default()
    };
    // One link of 4 Gbit/s.
    let mut engine = ReferenceEngine::new(config, &[4e9])?;
    for (flow, class) in [(0, 0), (1, 1)] {
        engine.apply(EngineEvent::Start(FlowSpec {
            number: FlowNumber::first(flow),
            links: [0].into_iter().collect(),
            class,
            weight: 1.0,
            demand_bps: f64::INFINITY,
        }))?;
    }
    let mut rates_gbps = [0.0; 2];
    while !engine.iterate().settled {
        engine.drain_updates(&mut |update| {
            rates_gbps[update.number.index() as usize] = update.rate_bps / 1e9;
        });
    }
    // 1/x = 1/(1 + y) and x + y = 4 give x = 2.5 and y = 1.5.
    println!("log x:       {:.3} Gbit/s", rates_gbps[0]);
    println!("log (1 + x): {:.3} Gbit/s", rates_gbps[1]);
    Ok(())
}
