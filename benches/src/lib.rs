//! Criterion benchmarks of Ratewright's hot paths.
