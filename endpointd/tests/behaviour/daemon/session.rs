//! The daemon against the production server session over real QUIC, with a back end that records.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use ratewright_endpointd::backend::FlowEventKind;
use ratewright_endpointd::clock;
use ratewright_endpointd::daemon::{DaemonCommand, Exit};
use ratewright_endpointd::status::SessionState;
use ratewright_proto::control::{HostInfo, Members};
use ratewright_proto::{FlowPath, RateCode, StartRecord, WeightCode};
use ratewright_topology::ecmp::flow_hash;

use super::allocator::{LEASE_NS, ScriptedAllocator, hosts};
use super::recorder::recorder;
use super::{Running, config, conn, facts, on_one_thread, until};
use crate::site::{TestAuthority, certificates};

fn wire(rate_bps: u64) -> Option<u64> {
    Some(RateCode::encode(rate_bps).decode())
}

#[test]
fn a_flowlet_is_reported_paced_renewed_and_ended() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 7, None);
        let (backend, kernel) = recorder();
        // It began before there was a session: it is reported when there is one.
        kernel.event(conn(4), FlowEventKind::Start(facts("10.0.2.1", 5_201)));
        let rules = "[[policy]]\ndst_port = 5201\nclass = \"gold\"\nweight = 2.0\n";
        let daemon = Running::start(config(folder.path(), &[allocator.address], rules), backend);
        until("the flow is paced", || kernel.rate_of(4).is_some()).await;
        assert_eq!(kernel.rate_of(4), wire(100_000_000));
        let report = allocator.script.borrow().flows[0];
        let hash = flow_hash(5, true, &facts("10.0.2.1", 5_201).tuple);
        assert_eq!(
            (report.dst_host(), report.path()),
            (2, FlowPath::Hash(hash))
        );
        assert_eq!(
            (report.class(), report.weight()),
            (3, WeightCode::encode(2.0))
        );

        // The lease moves on while the flow runs, and never beyond one lease from now.
        let renewals = kernel.calls.borrow().renewals;
        until("leases are renewed", || {
            kernel.calls.borrow().renewals > renewals + 3
        })
        .await;
        assert!(kernel.calls.borrow().renewed_to_ns <= clock::now_ns() + LEASE_NS);
        assert!(kernel.calls.borrow().paced[&4].1 > clock::now_ns());

        let status = daemon.status().await;
        assert_eq!(status.session.state, SessionState::Established);
        assert_eq!(
            (status.epoch, status.topology_epoch, status.session.host_id),
            (7, 1, 1)
        );
        assert_eq!(
            (status.flows, status.reported_flows, status.paced_flows),
            (1, 1, 1)
        );
        assert_eq!(
            (status.policy_matches[0], status.backend_stats.adopted),
            (1, 3)
        );

        kernel.event(
            conn(4),
            FlowEventKind::FirstPaced {
                latency_ns: 250_000,
            },
        );
        kernel.event(conn(4), FlowEventKind::Idle);
        until("the flowlet ended", || {
            !allocator.script.borrow().ends.is_empty()
        })
        .await;
        assert_eq!(kernel.rate_of(4), None);
        let first_paced = daemon.status().await.first_paced_us;
        assert_eq!(first_paced.count, 1);
        assert!((first_paced.p50 - 250.0).abs() < 1.0, "{first_paced:?}");

        // Goodbye: the allocator sees the connection close, connections are given back.
        assert_eq!(daemon.stop().await.unwrap(), Exit::Stopped);
        assert!(kernel.calls.borrow().shut_down);
        until("the connection closed", || {
            allocator.script.borrow().closed == 1
        })
        .await;
    });
}

/// A timer of the runtime lasts a millisecond at least, so none stands on a way that has taken half
/// of one. The machine may be busy for most of the ways, not for all forty.
#[test]
fn no_timer_stands_between_a_start_and_its_rate() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        until("the session is established", || {
            allocator.script.borrow().sessions == 1
        })
        .await;
        let mut took_us = Vec::new();
        for slot in 0..40 {
            let began_ns = clock::now_ns();
            kernel.event(conn(slot), FlowEventKind::Start(facts("10.0.2.1", 80)));
            while kernel.rate_of(slot).is_none() {
                tokio::task::yield_now().await;
                assert!(
                    clock::now_ns() - began_ns < 5_000_000_000,
                    "no rate for slot {slot}"
                );
            }
            took_us.push((clock::now_ns() - began_ns) / 1_000);
        }
        took_us.sort_unstable();
        println!(
            "start to rate over loopback: least {} µs, median {} µs, worst {} µs",
            took_us[0], took_us[20], took_us[39]
        );
        assert!(took_us[0] < 500, "{took_us:?}");
        // The daemon's own account is of the same ways, and of no more than the test saw.
        let first_rate = daemon.status().await.first_rate_us;
        assert_eq!(first_rate.count, 40);
        assert!(first_rate.p50 <= 1.0 + took_us[21] as f64, "{first_rate:?}");
        daemon.stop().await.unwrap();
    });
}

#[test]
fn the_kill_switch_takes_all_rates_and_gives_them_back() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the flow is paced", || kernel.rate_of(0).is_some()).await;

        let pressed_ns = clock::now_ns();
        allocator.script.borrow_mut().released = true;
        until("the allocator knows", || {
            allocator.script.borrow().release_acks == [(true, 0)]
        })
        .await;
        assert!(clock::now_ns() - pressed_ns < LEASE_NS, "within one lease");
        assert_eq!(kernel.rate_of(0), None);
        kernel.event(conn(1), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the second flow is known", || {
            allocator.script.borrow().flows.len() == 2
        })
        .await;
        // Long enough for the second flow's rate to arrive, if one were sent.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(kernel.calls.borrow().paced.is_empty());
        assert!(daemon.status().await.released);

        allocator.script.borrow_mut().released = false;
        until("both flows are paced", || {
            kernel.calls.borrow().paced.len() == 2
        })
        .await;
        assert!(!daemon.status().await.released);
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_release_that_the_kernel_refuses_is_not_confirmed_as_done() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        for slot in 0..3 {
            kernel.event(conn(slot), FlowEventKind::Start(facts("10.0.2.1", 80)));
        }
        until("the flows are paced", || {
            kernel.calls.borrow().paced.len() == 3
        })
        .await;
        kernel.calls.borrow_mut().refuse_clear_all = true;
        allocator.script.borrow_mut().released = true;
        until("the allocator knows", || {
            allocator.script.borrow().release_acks == [(true, 3)]
        })
        .await;
        // The leases run out all the same: nothing renews them any more.
        tokio::time::sleep(Duration::from_nanos(2 * LEASE_NS)).await;
        let now_ns = clock::now_ns();
        let paced = kernel.calls.borrow().paced.clone();
        assert!(
            paced.values().all(|(_, expires_ns)| *expires_ns < now_ns),
            "{paced:?}"
        );
        daemon.stop().await.unwrap();
    });
}

#[test]
fn flows_are_paced_again_when_the_lease_had_lapsed_inside_the_session() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the flow is paced", || kernel.rate_of(0).is_some()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;

        allocator.script.borrow_mut().mute = true;
        let holds = || kernel.calls.borrow().paced[&0].1 > clock::now_ns();
        until("the lease runs out", || !holds()).await;
        allocator.script.borrow_mut().mute = false;
        until("the flow is paced again", holds).await;
        assert_eq!(kernel.rate_of(0), wire(100_000_000));
        assert_eq!(
            allocator.script.borrow().sessions,
            1,
            "in the same session, without another word of the flow"
        );
        assert_eq!(allocator.script.borrow().starts, 1);
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_restarted_allocator_gets_the_flows_again() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the flow is paced", || kernel.rate_of(0).is_some()).await;

        let address = allocator.vanish();
        let before = (
            kernel.calls.borrow().cleared.len(),
            kernel.calls.borrow().clear_alls,
        );
        // It notices by itself, and leaves the socket to the kernel's own expiry.
        let mut status = daemon.status().await;
        while status.session.state == SessionState::Established {
            tokio::time::sleep(Duration::from_millis(5)).await;
            status = daemon.status().await;
        }
        assert_eq!(
            (
                kernel.calls.borrow().cleared.len(),
                kernel.calls.borrow().clear_alls
            ),
            before
        );
        assert!(
            kernel.calls.borrow().paced[&0].1 <= clock::now_ns(),
            "the lease has run out by now"
        );
        assert_eq!((status.paced_flows, status.flows), (0, 1));
        assert!(status.session.last_error.is_some());
        kernel.event(conn(1), FlowEventKind::Start(facts("10.0.2.1", 80)));
        tokio::time::sleep(Duration::from_millis(300)).await;

        let back_ns = clock::now_ns();
        let allocator = ScriptedAllocator::restart(folder.path(), 2, address).await;
        allocator.script.borrow_mut().rate_bps = 50_000_000;
        until("both flows have new rates", || {
            kernel.rate_of(0) == wire(50_000_000) && kernel.rate_of(1) == wire(50_000_000)
        })
        .await;
        let took_ms = (clock::now_ns() - back_ns) / 1_000_000;
        assert!(took_ms < 1_000, "{took_ms} ms until rates were back");
        let status = daemon.status().await;
        assert_eq!(
            (
                status.epoch,
                status.link.sessions_established,
                status.link.sessions_lost
            ),
            (2, 2, 1)
        );
        daemon.stop().await.unwrap();
    });
}

#[test]
fn the_next_address_is_tried_when_one_is_dead() {
    on_one_thread(async {
        let folder = certificates();
        // Bound but never read: the attempt times out instead of being refused.
        let dead = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        setsockopt(&dead, sockopt::IpRecvTos, &true).unwrap();
        dead.set_nonblocking(true).unwrap();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, _kernel) = recorder();
        let addresses = [dead.local_addr().unwrap(), allocator.address];
        let daemon = Running::start(config(folder.path(), &addresses, ""), backend);
        until("the session is established", || {
            allocator.script.borrow().sessions == 1
        })
        .await;
        assert_eq!(daemon.status().await.link.connect_failures, 1);
        // Its packets to that address were marked CS6 (RFC 2474: the upper six bits).
        assert_eq!(class_of(&dead), 48 << 2);
        daemon.stop().await.unwrap();
    });
}

/// The type of service of the next datagram.
fn class_of(socket: &std::net::UdpSocket) -> u8 {
    let mut bytes = [0; 2_048];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([i32; 4]);
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let message =
        recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), flags).expect("a datagram");
    let mut controls = message.cmsgs().unwrap();
    controls
        .find_map(|control| match control {
            ControlMessageOwned::Ipv4Tos(class) => Some(class),
            _ => None,
        })
        .expect("the type of service")
}

/// A host that joins at run time is a destination from then on, and none once it has left; the
/// other flows go on throughout.
#[test]
fn members_are_destinations_while_they_are_there() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        kernel.event(conn(1), FlowEventKind::Start(facts("10.0.9.1", 80)));
        until("one flow is paced", || kernel.rate_of(0).is_some()).await;
        assert_eq!(kernel.rate_of(1), None, "nobody is there yet");
        let guest = HostInfo {
            id: 40,
            name: "guest".to_owned(),
            prefixes: vec!["10.0.9.1/32".parse().unwrap()],
        };
        let joined = Members {
            joined: vec![guest],
            ..Members::default()
        };
        allocator.script.borrow_mut().members.push(joined);
        until("the flow to the guest is paced", || {
            kernel.rate_of(1).is_some()
        })
        .await;
        let destinations: Vec<u32> = (allocator.script.borrow().flows.iter())
            .map(StartRecord::dst_host)
            .collect();
        assert_eq!(destinations, [2, 40]);
        let left = Members {
            left: vec![40],
            ..Members::default()
        };
        allocator.script.borrow_mut().members.push(left);
        until("the flow to the guest is plain TCP", || {
            kernel.rate_of(1).is_none()
        })
        .await;
        assert!(kernel.rate_of(0).is_some());
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_topology_change_moves_running_flows() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        kernel.event(conn(1), FlowEventKind::Start(facts("10.0.3.1", 80)));
        until("one flow is known", || {
            allocator.script.borrow().flows.len() == 1
        })
        .await;
        assert_eq!(daemon.status().await.counters.unknown_destination, 1);
        allocator.script.borrow_mut().topology = hosts(
            &[
                (1, "h1", "10.0.1.1/32"),
                (8, "h2", "10.0.2.1/32"),
                (9, "h3", "10.0.3.1/32"),
            ],
            2,
        );
        until("both flows go to the new hosts", || {
            let mut to: Vec<u32> = allocator
                .script
                .borrow()
                .flows
                .iter()
                .map(|flow| flow.dst_host())
                .collect();
            to.sort_unstable();
            to == [8, 9]
        })
        .await;
        assert_eq!(daemon.status().await.topology_epoch, 2);
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_reload_changes_the_policy_of_running_flows() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the flow is paced", || kernel.rate_of(0).is_some()).await;
        let changed = config(
            folder.path(),
            &[allocator.address],
            "[[policy]]\nbypass = true\n",
        );
        daemon
            .commands
            .send(DaemonCommand::Reload(Box::new(changed)))
            .await
            .unwrap();
        until("the flow is given back", || kernel.rate_of(0).is_none()).await;
        until("the allocator forgets it", || {
            allocator.script.borrow().flows.is_empty()
        })
        .await;
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_reload_takes_new_certificates_and_the_session_stands() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, kernel) = recorder();
        let config = config(folder.path(), &[allocator.address], "");
        let daemon = Running::start(config.clone(), backend);
        kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("the flow is paced", || kernel.rate_of(0).is_some()).await;
        let reload = async || {
            let command = DaemonCommand::Reload(Box::new(config.clone()));
            daemon.commands.send(command).await.unwrap();
            // A command is taken before a request.
            daemon.status().await
        };

        // Files that are of no use leave everything as it is.
        std::fs::write(folder.path().join("h1.pem"), "nonsense").unwrap();
        reload().await;
        let authority = TestAuthority::new();
        authority.write(&folder.path().join("ca.pem"));
        authority.issue(folder.path(), "h1", "h1");
        authority.issue(folder.path(), "allocator", "ratewright-allocator");
        reload().await;
        kernel.event(conn(1), FlowEventKind::Start(facts("10.0.2.1", 80)));
        until("another flow is paced", || kernel.rate_of(1).is_some()).await;
        let link = daemon.status().await.link;
        assert_eq!((link.sessions_established, link.sessions_lost), (1, 0));

        // Everything is signed by the new authority now, and only that is trusted.
        let address = allocator.vanish();
        let _allocator = ScriptedAllocator::restart(folder.path(), 2, address).await;
        while daemon.status().await.link.sessions_established < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        daemon.stop().await.unwrap();
    });
}
