//! The probe tries each mechanism and leaves no trace; `open` installs the requested one.

use ratewright_endpointd::backend::probe::probe;
use ratewright_endpointd::backend::{BackendConfig, BackendKind, open};

use crate::netns::{NamespacePair, run};

/// Everything a trial could leave behind: programs' pins, cgroups, namespaces, devices' queues.
fn traces() -> Vec<String> {
    let mut found = Vec::new();
    for place in ["/run/ratewright", "/sys/fs/bpf/ratewright"] {
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            found.push(entry.path().display().to_string());
        }
    }
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounted");
    for root in mounts
        .lines()
        .filter(|line| line.contains(" cgroup2 "))
        .filter_map(|line| line.split(' ').nth(1))
    {
        for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
            found.push(entry.path().display().to_string());
        }
    }
    found.push(run("tc qdisc show"));
    let own = format!("p{}", std::process::id());
    found.retain(|trace| trace.contains("qdisc") || trace.contains(&own));
    found
}

#[test]
fn this_kernel_has_both_and_the_trial_leaves_nothing() {
    let pair = NamespacePair::new();
    pair.left.enter();
    let before = traces();
    let results = probe();
    let kinds: Vec<_> = results.iter().map(|result| result.kind).collect();
    assert_eq!(kinds, [BackendKind::SockOps, BackendKind::TcHtb]);
    for result in &results {
        assert_eq!(result.usable, result.reasons.is_empty(), "{result:?}");
        assert!(result.usable, "{result:?}");
    }
    assert_eq!(traces(), before);
    assert!(
        !pair.left.run("tc qdisc show dev v0").contains("htb"),
        "no device of this namespace was touched"
    );
}

#[test]
fn the_back_end_that_was_asked_for_is_opened() {
    let pair = NamespacePair::new();
    pair.left.enter();
    let config = BackendConfig {
        instance: pair.tag.clone(),
        max_flows: 16,
        min_flowlet_bytes: 15_000,
        cgroup: None,
        device: Some("v0".to_owned()),
        take_over: false,
        network_namespaces: Vec::new(),
        tunnel_bytes: 0,
        observe: false,
    };
    for kind in [BackendKind::SockOps, BackendKind::TcHtb] {
        let mut backend = open(Some(kind), &config).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(backend.kind(), kind);
        backend.shut_down().expect("shut down");
    }
    let mut best = open(None, &config).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        best.kind(),
        BackendKind::SockOps,
        "the preferred one works here"
    );
    best.shut_down().expect("shut down");
}
