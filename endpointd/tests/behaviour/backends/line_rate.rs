//! Line rates: what a topology makes of one fills the link and stands in no queue.

use std::time::Duration;

use ratewright_endpointd::backend::{BackendConfig, BackendKind};
use ratewright_endpointd::clock::now_ns;
use ratewright_topology::Frame;

use super::demand::Bottleneck;
use super::tunnels::{INNER_RIGHT_V4, add_tunnel, send_single_frames};
use super::{Driver, MBIT, alone, config};
use crate::netns::cubic::cubic_pair;
use crate::netns::{BulkReceiver, BulkSender, RIGHT_V4};

/// So slow that a frame takes longer than a virtual machine lets most timers wait.
const LINE_MBIT: u64 = 10;
/// Bytes of an Ethernet frame that a queue does not count: preamble, checksum and gap.
const UNCOUNTED_BYTES: u16 = 24;
/// Ethernet's 14 bytes, and those.
const WIRE_BYTES: u16 = 14 + UNCOUNTED_BYTES;
/// Headers of IPv4 and of TCP with timestamps.
const HEADER_BYTES: u16 = 52;
/// Headers that VXLAN adds to a frame.
const TUNNEL_BYTES: u16 = 50;
/// Frames that a queue holds, in the median, of a link that its rates fit.
const STANDING_FRAMES: u64 = 2;
/// Part of a capacity that the allocator hands out.
const DERATING: f64 = 0.99;
const SAMPLES: usize = 200;
/// Longest wait for what the first windows left in the queue, before anything is measured.
const DRAIN_MS: u64 = 5_000;

/// Use by a flow of a link that counts whole Ethernet frames.
#[derive(Debug)]
struct LinkUse {
    /// Part of the line rate that its frames take, by the median of their distances. A virtual
    /// machine that stops for a while spoils few of those, but much of the mean.
    used: f64,
    /// Median and most of what stands in its queue.
    queued_bytes: [u64; 2],
    /// Packets that the queue dropped.
    dropped: u64,
}

/// Paces a bulk flow of single frames at `rate_bps`, through a VXLAN tunnel or not.
fn use_of(kind: BackendKind, mtu_bytes: u16, rate_bps: u64, tunnelled: bool) -> LinkUse {
    let _alone = alone();
    let pair = cubic_pair();
    let link = Bottleneck::of_mbit(&pair, LINE_MBIT);
    link.set_mtu(&pair, mtu_bytes);
    link.count_beside(UNCOUNTED_BYTES);
    send_single_frames(&pair, &["v0"]);
    let mut device = "v0";
    let mut address = RIGHT_V4;
    if tunnelled {
        add_tunnel(&pair, mtu_bytes - TUNNEL_BYTES);
        (device, address) = ("vx0", INNER_RIGHT_V4);
        send_single_frames(&pair, &[device]);
    }
    let paced = BackendConfig {
        device: Some(device.to_owned()),
        ..config(&pair)
    };
    let mut driver = Driver::with(kind, &pair, &paced);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    // At the rate itself the first windows would drain at a hundredth of the line rate.
    driver.set_bps(conn, rate_bps / 2);
    driver.run_for(Duration::from_millis(500));
    for _ in 0..DRAIN_MS / 10 {
        driver.run_for(Duration::from_millis(10));
        if link.queue().backlog_bytes == 0 {
            break;
        }
    }
    driver.set_bps(conn, rate_bps);
    driver.run_for(Duration::from_millis(500));
    let (from_ns, before) = (now_ns(), link.queue());
    let mut queued = Vec::new();
    for _ in 0..SAMPLES {
        driver.run_for(Duration::from_millis(10));
        queued.push(link.queue().backlog_bytes);
    }
    let (to_ns, after) = (now_ns(), link.queue());
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    let trace = receiver.finish().remove(0);
    driver.backend.shut_down().expect("shut down");
    queued.sort_unstable();
    let inner_bytes = if tunnelled {
        mtu_bytes - TUNNEL_BYTES
    } else {
        mtu_bytes
    };
    let of_payload = f64::from(mtu_bytes + WIRE_BYTES) / f64::from(inner_bytes - HEADER_BYTES);
    let mut used: Vec<f64> = trace
        .windows(2)
        .filter(|reads| reads[0].0 >= from_ns && reads[1].0 <= to_ns)
        .map(|reads| {
            let wire_bits = 8.0 * of_payload * (reads[1].1 - reads[0].1) as f64;
            wire_bits / ((reads[1].0 - reads[0].0) as f64 / 1e3 * LINE_MBIT as f64)
        })
        .collect();
    used.sort_by(f64::total_cmp);
    LinkUse {
        used: used[used.len() / 2],
        queued_bytes: [queued[SAMPLES / 2], queued[SAMPLES - 1]],
        dropped: after.dropped - before.dropped,
    }
}

/// At MTU 1,500 and 9,000, with and without VXLAN, whose outer frames are full ones.
fn a_line_rate_is_filled_without_a_queue(kind: BackendKind) {
    for (mtu_bytes, tunnelled) in [(1_500, false), (1_500, true), (9_000, false), (9_000, true)] {
        let frame = Frame {
            mtu_bytes,
            overhead_bytes: WIRE_BYTES,
        };
        let rate_bps = DERATING * frame.allocatable_bps(LINE_MBIT * MBIT) as f64;
        let link = use_of(kind, mtu_bytes, rate_bps as u64, tunnelled);
        println!("MTU {mtu_bytes}, tunnel {tunnelled}: {link:?}");
        let [median, _] = link.queued_bytes;
        let standing_bytes = STANDING_FRAMES * u64::from(mtu_bytes + WIRE_BYTES);
        assert!(median <= standing_bytes, "a queue stands: {link:?}");
        assert_eq!(link.dropped, 0, "{link:?}");
        let filled = 0.95..1.0;
        assert!(filled.contains(&link.used), "the line rate: {link:?}");
    }
}

#[test]
fn a_line_rate_is_filled_without_a_queue_by_sock_ops() {
    a_line_rate_is_filled_without_a_queue(BackendKind::SockOps);
}

#[test]
fn a_line_rate_is_filled_without_a_queue_by_tc_htb() {
    a_line_rate_is_filled_without_a_queue(BackendKind::TcHtb);
}

/// A line rate that is taken for what can be allocated is 1.6 % too much. While the sender is never
/// late a queue stands. Else it finds none, and its frames follow each other faster than the link.
#[test]
fn a_line_rate_without_its_frames_is_too_much() {
    let rate_bps = Frame::AS_COUNTED.allocatable_bps(LINE_MBIT * MBIT);
    let link = use_of(BackendKind::SockOps, 1_500, rate_bps, false);
    println!("{link:?}");
    let [median, _] = link.queued_bytes;
    let standing_bytes = STANDING_FRAMES * u64::from(1_500 + WIRE_BYTES);
    let queues = median > standing_bytes || link.dropped > 0;
    assert!(queues || link.used > 1.005, "{link:?}");
}
