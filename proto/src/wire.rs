//! Messages as generated from `control.proto`, unchecked.
//!
//! [`control`](crate::control), [`telemetry`](crate::telemetry) and [`relay`](crate::relay) stand
//! on this module and convert its types into checked ones.
#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::derive_partial_eq_without_eq
)]

include!(concat!(env!("OUT_DIR"), "/ratewright.v1.rs"));
