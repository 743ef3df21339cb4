//! Behaviour of a pair of sessions, case by case.

mod bounds;
mod control;
mod counters;
mod flows;
mod lifetimes;
mod malformed;
mod session_pair;
