//! Behaviour of the reference engine.
