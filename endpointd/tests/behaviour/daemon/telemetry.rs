//! Measurements of real traffic that the daemon tells the allocator: a host outside the allocator
//! sends TCP into the managed host's namespace.

use std::time::{Duration, Instant};

use ratewright_proto::control::AccessCapacity;
use ratewright_proto::telemetry::{LinkInt, OWN_DOWNLINK, OWN_UPLINK, SyncTerms, Telemetry};

use super::allocator::{ScriptedAllocator, hosts};
use super::recorder::recorder;
use super::{Running, config, on_one_thread, until};
use crate::netns::cubic::cubic_pair;
use crate::netns::{BulkReceiver, BulkSender, LEFT_V4, Namespace, NamespacePair, RIGHT_V4};
use crate::site::certificates;

/// Capacity that the allocator tells; traffic over the veth may exceed it.
const ACCESS: AccessCapacity = AccessCapacity::new(1_000_000_000, 1_000_000_000);

/// Runs `test` with a daemon for host 1, whose address is the right namespace's. `left` is the
/// topology's host at the other address, if it has one. `terms` are the allocator's, if it takes
/// telemetry as a state.
fn with_daemon<F: Future<Output = ()>>(
    pair: &NamespacePair,
    left: Option<u32>,
    keys: &'static str,
    (interval_ms, terms): (u64, Option<SyncTerms>),
    test: impl FnOnce(ScriptedAllocator, Running) -> F + Send + 'static,
) {
    let run = move || {
        on_one_thread(async move {
            let folder = certificates();
            let allocator = ScriptedAllocator::start(folder.path(), 1, None);
            let right = format!("{RIGHT_V4}/32");
            let other = format!("{LEFT_V4}/32");
            let mut known = vec![(1, "h1", right.as_str())];
            known.extend(left.map(|id| (id, "h2", other.as_str())));
            {
                let mut script = allocator.script.borrow_mut();
                script.topology = hosts(&known, 1);
                script.access = ACCESS;
                script.telemetry_interval_ns = interval_ms * 1_000_000;
                script.telemetry_sync = terms;
            }
            let config = config(folder.path(), &[allocator.address], keys);
            let (backend, _calls) = recorder();
            let running = Running::start(config, backend);
            test(allocator, running).await;
        });
    };
    pair.right.spawn(run).join().expect("the test");
}

fn link(message: &Telemetry, number: u32) -> LinkInt {
    let mut links = message.links.iter();
    *links.find(|link| link.link == number).expect("both links")
}

/// Sends from left to right while `during` runs.
async fn with_traffic<F: Future<Output = ()>>(
    pair: (Namespace, Namespace),
    during: impl FnOnce() -> F,
) {
    let (left, right) = pair;
    let receiver = BulkReceiver::start(&right, RIGHT_V4, 2);
    let senders = [0, 1].map(|_| BulkSender::start(&left, receiver.address));
    during().await;
    for sender in senders {
        sender.stop();
    }
    receiver.finish();
}

#[test]
fn a_sender_that_the_topology_does_not_know_is_counted_while_it_sends() {
    let pair = NamespacePair::new();
    let spaces = (pair.left.clone(), pair.right.clone());
    with_daemon(
        &pair,
        None,
        "",
        (10, None),
        move |allocator, running| async move {
            let script = allocator.script.clone();
            until("a session exists", || script.borrow().sessions == 1).await;
            // Nothing happens, so there is nothing to tell.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(
                script.borrow().telemetry.len() <= 4,
                "an idle host is quiet"
            );
            script.borrow_mut().telemetry.clear();

            let watched = script.clone();
            with_traffic(spaces, || async move {
                let counted = |message: &Telemetry| active_senders(message) == Some(1);
                until("the sender counts", || {
                    watched.borrow().telemetry.iter().any(counted)
                })
                .await;
                until("ten messages came", || {
                    watched.borrow().telemetry.len() >= 10
                })
                .await;
                let mut messages = watched.borrow().telemetry.clone();
                // Who uses the host's links is told beside what the feeds ask for.
                messages.retain(|message| !message.has_access_use_alone());
                for message in &messages {
                    assert_eq!(message.validate(), Ok(()));
                    let count = &message.receivers[0];
                    assert_eq!(count.receiver, 1);
                    // Two connections of one sender, which has no name.
                    assert!(count.active_senders <= 1 && count.senders.is_empty());
                }
                let down = |message| link(message, OWN_DOWNLINK);
                for pair in messages.windows(2) {
                    let (before, now) = (down(&pair[0]), down(&pair[1]));
                    assert!(now.timestamp_ns > before.timestamp_ns);
                    assert!(now.tx_bytes >= before.tx_bytes);
                    assert_eq!(now.bandwidth_bps, ACCESS.downlink_bps);
                }
                let (first, last) = (down(&messages[0]), down(&messages[messages.len() - 1]));
                assert!(last.tx_bytes > first.tx_bytes, "the downlink carries data");
                // Acknowledgements leave the host, and none of them is managed.
                let up = link(&messages[messages.len() - 1], OWN_UPLINK);
                assert_eq!(up.managed_bytes, Some(0));
            })
            .await;

            until("the sender is gone", || {
                let script = script.borrow();
                script.telemetry.iter().rev().find_map(active_senders) == Some(0)
            })
            .await;
            let mut quiet = false;
            for _ in 0..50 {
                let told = script.borrow().telemetry.len();
                tokio::time::sleep(Duration::from_millis(100)).await;
                quiet = script.borrow().telemetry.len() == told;
                if quiet {
                    break;
                }
            }
            assert!(quiet, "the host is quiet again");
            let status = running.status().await;
            assert!(status.telemetry.passes > 10 && status.telemetry.errors == 0);
            assert!(status.telemetry.totals.received_bytes > 0);
            running.stop().await.expect("stopped");
        },
    );
}

/// Passes that measure say nothing while all stands, and a word now and then that it does.
#[test]
fn an_allocator_that_takes_a_state_is_told_what_moved() {
    let pair = NamespacePair::new();
    let spaces = (pair.left.clone(), pair.right.clone());
    // From nothing to the link's capacity is a move, and whatever a busy machine does to the
    // sender is none. A word every 20 passes.
    let terms = SyncTerms {
        hysteresis: 0.99,
        repeat_ns: 200_000_000,
    };
    let of = (10, Some(terms));
    with_daemon(&pair, None, "", of, move |allocator, running| async move {
        let script = allocator.script.clone();
        until("a session exists", || script.borrow().sessions == 1).await;
        let (watched, daemon) = (script.clone(), &running);
        with_traffic(spaces, || async move {
            until("the sender is told, as all of what is measured", || {
                let script = watched.borrow();
                let mut told = script.telemetry.iter();
                told.any(|message| {
                    message
                        .receivers
                        .iter()
                        .any(|count| count.active_senders == 1)
                })
            })
            .await;
            assert!(watched.borrow().telemetry[0].whole);
            let begin = daemon.status().await.telemetry.passes;
            watched.borrow_mut().telemetry.clear();
            let mut passes = 0;
            while passes < 100 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                passes = daemon.status().await.telemetry.passes - begin;
            }
            let told = watched.borrow().telemetry.clone();
            let stands = |message: &&Telemetry| message.is_empty() && !message.whole;
            assert!(told.iter().filter(stands).count() >= 1, "{told:?}");
            // One in each pass without a state. With it, one in twenty, and what moves where a busy
            // machine stops the sender.
            assert!(
                told.len() as u64 <= passes / 3,
                "{} in {passes}: {told:?}",
                told.len()
            );
        })
        .await;
        until("the sender is gone", || {
            let script = script.borrow();
            let counts = script
                .telemetry
                .iter()
                .flat_map(|message| &message.receivers);
            counts.last().is_some_and(|count| count.active_senders == 0)
        })
        .await;
        running.stop().await.expect("stopped");
    });
}

#[test]
fn a_sender_of_the_topology_is_named_with_its_connections() {
    let pair = NamespacePair::new();
    let spaces = (pair.left.clone(), pair.right.clone());
    with_daemon(
        &pair,
        Some(2),
        "",
        (10, None),
        move |allocator, running| async move {
            let script = allocator.script.clone();
            until("a session exists", || script.borrow().sessions == 1).await;
            let watched = script.clone();
            with_traffic(spaces, || async move {
                until("it is named with both connections", || {
                    let script = watched.borrow();
                    let mut counts = script.telemetry.iter().map(|message| &message.receivers[0]);
                    counts.any(|count| count.senders == [2] && count.sender_flows == [2])
                })
                .await;
            })
            .await;
            running.stop().await.expect("stopped");
        },
    );
}

fn active_senders(message: &Telemetry) -> Option<u32> {
    Some(message.receivers.first()?.active_senders)
}

/// Users of the host's links are seen without any feed, unless the operator turns measuring off.
#[test]
fn nothing_is_measured_if_the_allocator_or_the_operator_does_not_want_it() {
    for (keys, interval_ms) in [("", 0), ("[telemetry]\nperiod_ms = 0\n", 10)] {
        let pair = NamespacePair::new();
        let spaces = (pair.left.clone(), pair.right.clone());
        with_daemon(
            &pair,
            None,
            keys,
            (interval_ms, None),
            move |allocator, running| async move {
                let script = allocator.script.clone();
                until("a session exists", || script.borrow().sessions == 1).await;
                with_traffic(spaces, || tokio::time::sleep(Duration::from_millis(100))).await;
                let told = script.borrow().telemetry.clone();
                assert!(told.iter().all(Telemetry::has_access_use_alone));
                let status = running.status().await;
                let is_off = !keys.is_empty();
                assert!(!is_off || told.is_empty());
                assert_eq!(status.telemetry.passes == 0, is_off);
                running.stop().await.expect("stopped");
            },
        );
    }
}

#[test]
fn a_default_congestion_control_that_is_changed_under_the_daemon_is_told_and_taken_back() {
    let pair = cubic_pair();
    let right = pair.right.clone();
    with_daemon(
        &pair,
        None,
        "",
        (0, None),
        move |allocator, running| async move {
            let script = allocator.script.clone();
            until("a session exists", || script.borrow().sessions == 1).await;
            for (control, expected) in [("reno", true), ("cubic", false)] {
                right.set_ipv4("tcp_congestion_control", control);
                until("the change is told", || {
                    let script = script.borrow();
                    let mut newest = script.telemetry.iter().rev();
                    let told = newest.find_map(|message| message.access_use.as_ref());
                    told.is_some_and(|told| told.faults.other_congestion_control) == expected
                })
                .await;
            }
            running.stop().await.expect("stopped");
        },
    );
}

/// The allocator forgets it with the topology. Otherwise it is repeated every ten seconds.
#[test]
fn an_allocator_with_another_topology_is_told_at_once_what_is_wrong_with_the_host() {
    const NEWER: AccessCapacity = AccessCapacity::new(25_000_000_000, 10_000_000_000);
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let script = allocator.script.clone();
        // No interface of this machine has this address: it is for documents.
        let known = [(1, "h1", "192.0.2.77/32")];
        script.borrow_mut().topology = hosts(&known, 1);
        script.borrow_mut().access = ACCESS;
        let (backend, _calls) = recorder();
        let running = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        let count = || {
            let script = script.borrow();
            let told = script.telemetry.iter().filter(|message| {
                let told = message.access_use.as_ref();
                told.is_some_and(|told| told.faults.no_address)
            });
            told.count()
        };
        until("the fault is told", || count() > 0).await;
        let (before, since) = (count(), Instant::now());
        script.borrow_mut().access = NEWER;
        script.borrow_mut().topology = hosts(&known, 2);
        until("it is told again", || count() > before).await;
        assert!(since.elapsed() < Duration::from_secs(5));
        // The topology brings the capacities with which the host compares its interface.
        let mut told_bps = [0; 2];
        for _ in 0..100 {
            told_bps = running.status().await.telemetry.access.told_bps;
            if told_bps == [NEWER.uplink_bps, NEWER.downlink_bps] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(told_bps, [NEWER.uplink_bps, NEWER.downlink_bps]);
        running.stop().await.expect("stopped");
    });
}

#[test]
fn an_interface_that_goes_is_read_again_when_it_comes_back() {
    let pair = NamespacePair::new();
    let right = pair.right.clone();
    with_daemon(
        &pair,
        None,
        "[telemetry]\ndevice = \"d0\"\n",
        (0, None),
        move |allocator, running| async move {
            let script = allocator.script.clone();
            until("a session exists", || script.borrow().sessions == 1).await;
            for _ in 0..2 {
                right.run("ip link add d0 type veth peer name d1");
                until_it_reads(&running, Some("d0")).await;
                right.run("ip link del d0");
                until_it_reads(&running, None).await;
                // It stays away for more than one attempt.
                tokio::time::sleep(Duration::from_millis(1_500)).await;
            }
            running.stop().await.expect("stopped");
        },
    );
}

async fn until_it_reads(running: &Running, interface: Option<&str>) {
    for _ in 0..200 {
        let status = running.status().await;
        if status.telemetry.interface.as_deref() == interface {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("timed out waiting until it reads {interface:?}");
}
