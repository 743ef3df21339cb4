//! The service around the engine: configuration, transport, sessions, admin and metrics.
