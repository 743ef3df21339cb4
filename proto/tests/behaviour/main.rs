//! Behaviour of sessions: a pair case by case, and random schedules over a faulty network.

mod releases;
mod schedules;
mod sessions;
