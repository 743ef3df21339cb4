//! A back end under test, driven step by step as the daemon would drive it.

use std::time::Duration;

use ratewright_endpointd::backend::struct_ops::StructOps;
use ratewright_endpointd::backend::{BackendConfig, Conn, FlowEvent, FlowEventKind, PacingBackend};
use ratewright_endpointd::clock::now_ns;

use super::{NamespacePair, wait_for};

pub const MBIT: u64 = 1_000_000;

/// A lease that outlives any test.
pub const FOREVER_NS: u64 = u64::MAX / 2;

pub fn config(tag: &str) -> BackendConfig {
    BackendConfig {
        instance: tag.to_owned(),
        max_flows: 1024,
        min_flowlet_bytes: 15_000,
        max_burst_ns: 500_000,
        cgroup: None,
        device: None,
        take_over: true,
        network_namespaces: Vec::new(),
        procfs: "/proc".into(),
        observe: false,
    }
}

/// The struct_ops back end in the calling thread's namespace, and all its events so far.
pub struct StructOpsDriver {
    pub backend: StructOps,
    pub events: Vec<FlowEvent>,
}

impl StructOpsDriver {
    /// Enters the left namespace and opens the back end there.
    pub fn open(pair: &NamespacePair) -> Self {
        Self::with(pair, &config(&pair.tag))
    }

    pub fn with(pair: &NamespacePair, config: &BackendConfig) -> Self {
        pair.left.enter();
        Self::here(config)
    }

    pub fn here(config: &BackendConfig) -> Self {
        let backend = StructOps::open(config).expect("open the back end");
        Self {
            backend,
            events: Vec::new(),
        }
    }

    pub fn poll(&mut self) {
        self.backend
            .poll_events(now_ns(), &mut self.events)
            .expect("poll");
    }

    /// Polls until the events so far satisfy `found`.
    pub fn until<T>(&mut self, what: &str, found: impl Fn(&[FlowEvent]) -> Option<T>) -> T {
        wait_for(what, Duration::from_secs(10), || {
            self.poll();
            found(&self.events)
        })
    }

    /// The first flowlet's connection.
    pub fn started(&mut self) -> Conn {
        self.starts(1)[0]
    }

    /// The connections of the first `count` flowlets.
    pub fn starts(&mut self, count: usize) -> Vec<Conn> {
        self.until(&format!("{count} starts"), |events| {
            let conns: Vec<_> = events
                .iter()
                .filter(|event| matches!(event.kind, FlowEventKind::Start(_)))
                .map(|event| event.conn)
                .collect();
            (conns.len() >= count).then_some(conns)
        })
    }

    pub fn count(&self, wanted: impl Fn(&FlowEventKind) -> bool) -> usize {
        self.events
            .iter()
            .filter(|event| wanted(&event.kind))
            .count()
    }

    pub fn set(&mut self, conn: Conn, mbit: u64, expires_ns: u64) {
        self.backend
            .set_rate(conn, mbit * MBIT, expires_ns)
            .expect("set a rate");
    }
}
