//! Every optimiser for comparison finds the optimum of static problems.

use ratewright_allocator::num::{Ned, Optimizer};
use ratewright_bench::optimizers::{
    CoordinateDescent, Fgm, Gradient, GradientRt, NedRt, NewtonLike,
};

use crate::num_support::{largest_error, mixed_instance, optimum};

/// Runs each optimiser for its number of iterations, and checks its tolerance.
#[test]
fn every_optimiser_finds_the_optimum() {
    for (seed, kinds) in [(1, 1), (2, 1), (3, 3), (4, 3)] {
        let instance = mixed_instance(seed, 60, kinds);
        let (truth, _) = optimum(&instance);
        let links = instance.capacities.len();
        let all: [(&str, Box<dyn Optimizer>, u32, f64); 6] = [
            (
                "coordinate descent",
                Box::new(CoordinateDescent::new(links)),
                2_000,
                1e-4,
            ),
            // First-order methods need many more iterations, and their tolerance is wider.
            (
                "Gradient",
                Box::new(Gradient::new(0.4, links)),
                20_000,
                1e-2,
            ),
            ("FGM", Box::new(Fgm::new(links)), 20_000, 1e-2),
            (
                "Newton-like",
                Box::new(NewtonLike::new(0.1, links)),
                20_000,
                1e-2,
            ),
            ("NED-RT", Box::new(NedRt::new(0.2, links)), 5_000, 1e-3),
            (
                "Gradient-RT",
                Box::new(GradientRt::new(0.4, links)),
                20_000,
                1e-2,
            ),
        ];
        for (name, mut optimizer, iterations, tolerance) in all {
            let mut rates = vec![0.0; truth.len()];
            for _ in 0..iterations {
                optimizer.iterate(&instance.problem(), &mut rates);
            }
            let error = largest_error(&rates, &truth);
            println!("{name}, instance {seed}: {error:.1e}");
            assert!(error < tolerance, "{name}, instance {seed}: {error}");
        }
    }
}

/// Single precision follows double precision at each iteration, not only at the optimum.
#[test]
fn single_precision_follows_double() {
    for kinds in [1, 3] {
        let instance = mixed_instance(7, 200, kinds);
        let links = instance.capacities.len();
        let (mut ned, mut ned_rt) = (Ned::new(0.2, links), NedRt::new(0.2, links));
        let (mut rates, mut rates_rt) = (vec![0.0; 200], vec![0.0; 200]);
        for iteration in 0..200 {
            ned.iterate(&instance.problem(), &mut rates);
            ned_rt.iterate(&instance.problem(), &mut rates_rt);
            let error = largest_error(&rates_rt, &rates);
            assert!(
                error < 2e-3,
                "iteration {iteration}, {kinds} utilities: {error}"
            );
        }
    }
}
