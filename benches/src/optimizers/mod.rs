//! Optimisers for comparison, behind the trait of the engine's own, [`Optimizer`].
//!
//! | optimiser | price update | for |
//! |---|---|---|
//! | [`Gradient`], [`Fgm`] | along G, without or with Nesterov's extrapolation | flowtune §5.4 |
//! | [`NewtonLike`] | NED with a measured H | flowtune appendix B |
//! | [`CoordinateDescent`] | one link after another, each exactly full | the optimum |
//! | [`NedRt`], [`GradientRt`] | as NED and Gradient, single precision | speed |
//!
//! [`Optimizer`]: ratewright_allocator::num::Optimizer

mod coordinate;
mod gradient;
mod rt;

pub use coordinate::CoordinateDescent;
pub use gradient::{Fgm, Gradient, NewtonLike};
pub use rt::{GradientRt, NedRt};
