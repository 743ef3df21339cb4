//! Connections between pairs of hosts that stay open from flow to flow.

use std::collections::BTreeMap;

use ratewright_topology::HostId;

/// Idle connections of one host, by destination: each with what it knows of its path.
///
/// A flow takes the connection that was used last, which knows the path best, and brings it back.
/// At most `limit` are kept for a destination. Taking and bringing back cost the logarithm of the
/// number of destinations.
#[derive(Debug)]
pub struct Pool<T> {
    idle: BTreeMap<HostId, Vec<T>>,
    limit: usize,
}

impl<T> Pool<T> {
    /// Makes a pool without connections that keeps at most `limit` of them for a destination.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            idle: BTreeMap::new(),
            limit,
        }
    }

    /// Takes the connection to this host that was used last; `None` if none is idle.
    pub fn take(&mut self, to: HostId) -> Option<T> {
        self.idle.get_mut(&to)?.pop()
    }

    /// Brings a connection to this host back. Beyond the limit it is closed.
    pub fn keep(&mut self, to: HostId, connection: T) {
        if self.limit > 0 {
            let idle = self.idle.entry(to).or_default();
            if idle.len() < self.limit {
                idle.push(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_used_last_comes_first_and_no_more_are_kept_than_allowed() {
        let mut pool = Pool::new(2);
        assert_eq!(pool.take(HostId(1)), None);
        for number in 0..3 {
            pool.keep(HostId(1), number);
        }
        assert_eq!(pool.take(HostId(2)), None);
        assert_eq!(pool.take(HostId(1)), Some(1));
        assert_eq!(pool.take(HostId(1)), Some(0));
        assert_eq!(pool.take(HostId(1)), None);
        let mut cold = Pool::new(0);
        cold.keep(HostId(1), 7);
        assert_eq!(cold.take(HostId(1)), None);
    }
}
