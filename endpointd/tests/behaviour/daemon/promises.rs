//! Names that other programs depend on: metrics with the values of their labels, and members of the
//! status.

use std::collections::BTreeSet;

use ratewright_endpointd::admin::router;
use ratewright_io::admin::{AdminAddress, Listener};

use super::admin::ask;
use super::allocator::ScriptedAllocator;
use super::recorder::recorder;
use super::{Running, config, on_one_thread, start_paced};
use crate::site::certificates;

// The allocator's tests have it, too: one place says how an answer is read.
#[path = "../../../../allocator/tests/behaviour/promised.rs"]
mod promised;

/// Names that stand until a release after the one that says they will go.
const PROMISED: &str = include_str!("names.txt");

/// Source of the daemon's metrics.
const METRICS: &str = include_str!("../../../src/metrics.rs");

#[test]
fn no_metric_and_no_member_of_the_status_goes_without_notice() {
    on_one_thread(async {
        let folder = certificates();
        let socket = folder.path().join("admin.sock");
        let listener = Listener::bind(&AdminAddress::Unix(socket.clone())).unwrap();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        tokio::task::spawn_local(listener.serve(router(daemon.requests.clone(), None)));
        // Classes and latencies have figures once a flow is paced.
        start_paced(&kernel).await;

        let mut names = BTreeSet::new();
        let (code, metrics) = ask(&socket, "GET", "/v1/metrics", "").await;
        assert_eq!(code, 200, "{metrics}");
        promised::collect_metrics(&metrics, "/v1/metrics", &mut names);
        promised::collect_families(METRICS, "ratewright_endpointd_", "/v1/metrics", &mut names);
        let (code, status) = ask(&socket, "GET", "/v1/status", "").await;
        assert_eq!(code, 200, "{status}");
        let status = serde_json::from_str(&status).unwrap();
        promised::collect(&status, "/v1/status ", &mut names);
        promised::assert_kept(
            PROMISED,
            "endpointd/tests/behaviour/daemon/names.txt",
            &names,
        );
        daemon.stop().await.unwrap();
    });
}
