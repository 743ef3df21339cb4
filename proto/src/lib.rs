//! Ratewright's control protocol: hot-path records, control messages and the sans-IO session state machines of both ends.
