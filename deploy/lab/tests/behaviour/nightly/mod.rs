//! Tests that `make nightly` runs, and the gate does not.

mod safety;
mod scenarios;
