//! The daemon against the allocator's own service and engine: the transports of its datagrams.

use ratewright_endpointd::backend::FlowEventKind;
use ratewright_endpointd::status::{ConnectionCounters, HotPathKind, Status};
use ratewright_proto::control::SealedUdp;
use ratewright_proto::sealed::Cipher;

use super::allocator::ScriptedAllocator;
use super::recorder::{BackendScript, recorder};
use super::service::{RelayService, Service};
use super::{Running, config, conn, facts, on_one_thread, until};
use crate::site::{TestAuthority, certificates};

/// Rate of a single flow, of its host's 10 Gbit/s.
const ALONE: std::ops::RangeInclusive<u64> = 9_700_000_000..=10_000_000_000;
const HALF: std::ops::RangeInclusive<u64> = 4_850_000_000..=5_000_000_000;

/// The second host of the topology.
const H2: &str = "10.0.1.2";

async fn paced(kernel: &BackendScript, slot: u32, rates: &std::ops::RangeInclusive<u64>) {
    until("the flow has its share", || {
        kernel
            .rate_of(slot)
            .is_some_and(|rate_bps| rates.contains(&rate_bps))
    })
    .await;
}

async fn on_path(daemon: &Running, path: HotPathKind) {
    while daemon.status().await.session.hot != path {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Starts and ends a second flow until none of its datagrams takes QUIC. The allocator changes over
/// with the first sealed datagram that it receives; earlier QUIC datagrams may still be in flight.
async fn goes_sealed(daemon: &Running, kernel: &BackendScript) -> ConnectionCounters {
    for _ in 0..100 {
        let before = daemon.status().await.link;
        kernel.event(conn(1), FlowEventKind::Start(facts(H2, 81)));
        // The rates prove that the datagrams reached the engine: the counters alone would not.
        paced(kernel, 0, &HALF).await;
        paced(kernel, 1, &HALF).await;
        kernel.event(conn(1), FlowEventKind::Idle);
        paced(kernel, 0, &ALONE).await;
        let after = daemon.status().await.link;
        assert!(after.sealed_sent >= before.sealed_sent + 2, "{after:?}");
        let quic = |link: &ConnectionCounters| (link.quic_sent, link.quic_received);
        if quic(&after) == quic(&before) {
            assert!(
                after.sealed_received >= before.sealed_received + 2,
                "{after:?}"
            );
            return after;
        }
    }
    panic!(
        "QUIC carries datagrams still: {:?}",
        daemon.status().await.link
    );
}

#[test]
fn sealed_datagrams_carry_the_session_where_the_allocator_offers_them() {
    on_one_thread(async {
        let folder = certificates();
        let service = Service::start(folder.path(), "[transport]\nhot = \"udp\"\n");
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[service.address], ""), backend);
        on_path(&daemon, HotPathKind::Udp).await;
        kernel.event(conn(0), FlowEventKind::Start(facts(H2, 80)));
        paced(&kernel, 0, &ALONE).await;
        let after = goes_sealed(&daemon, &kernel).await;
        assert_eq!((after.path_fallbacks, after.sealed_dropped), (0, 0));
        daemon.stop().await.unwrap();
        service.stop().await;
    });
}

#[test]
fn quic_carries_the_session_where_either_side_wants_it() {
    for (allocator, endpoint) in [("udp", "quic"), ("quic", "udp")] {
        on_one_thread(async move {
            let folder = certificates();
            let service = Service::start(
                folder.path(),
                &format!("[transport]\nhot = \"{allocator}\"\n"),
            );
            let (backend, kernel) = recorder();
            let more = format!("[transport]\nhot = \"{endpoint}\"\n");
            let daemon = Running::start(config(folder.path(), &[service.address], &more), backend);
            kernel.event(conn(0), FlowEventKind::Start(facts(H2, 80)));
            paced(&kernel, 0, &ALONE).await;
            let status = daemon.status().await;
            assert_eq!(status.session.hot, HotPathKind::Quic);
            assert_eq!(
                (status.link.sealed_sent, status.link.sealed_received),
                (0, 0)
            );
            assert!(status.link.quic_sent > 0 && status.link.quic_received > 0);
            daemon.stop().await.unwrap();
            service.stop().await;
        });
    }
}

#[test]
fn quic_carries_the_session_where_sealed_datagrams_do_not_get_through() {
    on_one_thread(async {
        let folder = certificates();
        // A bound socket without a reader swallows the probes; a closed port would answer with
        // ICMP.
        let hole = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        allocator.script.borrow_mut().sealed_udp = Some(SealedUdp {
            port: hole.local_addr().unwrap().port(),
            address: None,
            cipher: Cipher::default(),
        });
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the flow is paced", || kernel.rate_of(0).is_some()).await;
        while daemon.status().await.link.sealed_sent < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let status = daemon.status().await;
        assert_eq!(
            status.session.hot,
            HotPathKind::Quic,
            "no probe is answered"
        );
        assert_eq!(status.link.sealed_received, 0);
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_restarted_allocator_is_spoken_to_by_sealed_datagrams_again() {
    const HOT: &str = "[transport]\nhot = \"udp\"\n";
    on_one_thread(async {
        let folder = certificates();
        let service = Service::start(folder.path(), HOT);
        let address = service.address;
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[address], ""), backend);
        on_path(&daemon, HotPathKind::Udp).await;
        kernel.event(conn(0), FlowEventKind::Start(facts(H2, 80)));
        kernel.event(conn(1), FlowEventKind::Start(facts(H2, 81)));
        paced(&kernel, 0, &HALF).await;
        service.stop().await;
        let service = Service::restart(folder.path(), address, HOT).await;
        while daemon.status().await.link.sessions_established < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        on_path(&daemon, HotPathKind::Udp).await;
        // Only an allocator that knows both the flow that ends and the one that stays gives this
        // rate.
        kernel.event(conn(1), FlowEventKind::Idle);
        paced(&kernel, 0, &ALONE).await;
        goes_sealed(&daemon, &kernel).await;
        daemon.stop().await.unwrap();
        service.stop().await;
    });
}

#[test]
fn a_daemon_whose_relay_vanishes_goes_on_with_the_allocator() {
    on_one_thread(async {
        let folder = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        authority.write(&folder.path().join("ca.pem"));
        authority.issue(folder.path(), "h1", "h1");
        authority.issue(folder.path(), "allocator", "ratewright-allocator");
        let names = ["ratewright-allocator", "relay-1"];
        authority.issue_for(folder.path(), "relay", &names);
        let more = "[transport]\nhot = \"udp\"\n[trust.relays]\nrelay-1 = [\"h1\"]\n";
        let service = Service::start(folder.path(), more);
        let relay = RelayService::start(folder.path(), service.address).await;
        let servers = [relay.address, service.address];
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &servers, ""), backend);
        // Through the relay, everything works as without it.
        on_path(&daemon, HotPathKind::Udp).await;
        kernel.event(conn(0), FlowEventKind::Start(facts(H2, 80)));
        paced(&kernel, 0, &ALONE).await;
        goes_sealed(&daemon, &kernel).await;
        let at = |status: Box<Status>| status.session.allocator.unwrap_or_default();
        assert_eq!(at(daemon.status().await), relay.address.to_string());

        relay.vanish();
        while daemon.status().await.link.sessions_established < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        on_path(&daemon, HotPathKind::Udp).await;
        goes_sealed(&daemon, &kernel).await;
        assert_eq!(at(daemon.status().await), service.address.to_string());
        daemon.stop().await.unwrap();
        service.stop().await;
    });
}
