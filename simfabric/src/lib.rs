//! Ratewright's simulated fabric: the production allocator and session code, packet by packet, next to other schemes.
