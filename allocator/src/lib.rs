//! Ratewright's allocator: network utility maximisation for every active flowlet, and the service around it.
