//! What a pair of sessions does in cases that can be told one by one.

mod bounds;
mod control;
mod counters;
mod flows;
mod lifetimes;
mod malformed;
mod session_pair;
