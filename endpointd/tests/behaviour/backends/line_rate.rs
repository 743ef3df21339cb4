//! Line rates: what a topology makes of one fills the link and stands in no queue.

use std::time::Duration;

use ratewright_endpointd::backend::{BackendConfig, BackendKind};
use ratewright_endpointd::clock::now_ns;
use ratewright_topology::Frame;

use super::demand::Bottleneck;
use super::tunnels::{INNER_RIGHT_V4, add_tunnel, send_single_frames};
use super::{Driver, FOREVER_NS, MBIT, MS, alone, config};
use crate::netns::cubic::cubic_pair;
use crate::netns::{BulkReceiver, BulkSender, RIGHT_V4};

const LINE_MBIT: u64 = 200;
/// Bytes of an Ethernet frame that a queue does not count: preamble, checksum and gap.
const UNCOUNTED_BYTES: u16 = 24;
/// Ethernet's 14 bytes, and those.
const WIRE_BYTES: u16 = 14 + UNCOUNTED_BYTES;
/// Frames that a queue holds, in the median, of a link that its rates fit.
const STANDING_FRAMES: u64 = 2;
/// Part of a capacity that the allocator hands out.
const DERATING: f64 = 0.99;
const SAMPLES: usize = 200;
/// Samples of each window whose use counts by its median.
const WINDOW_SAMPLES: usize = 10;

/// Use by a flow of a link that counts whole Ethernet frames.
#[derive(Debug)]
struct LinkUse {
    /// Part of the line rate that its frames take.
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
        add_tunnel(&pair, mtu_bytes - 50);
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
    driver
        .backend
        .set_rate(conn, rate_bps, FOREVER_NS)
        .expect("set a rate");
    // What the first window left in the queue drains at a hundredth of the line rate.
    driver.run_for(Duration::from_millis(1_500));
    let before = (now_ns(), link.queue());
    let mut last = (before.0, before.1.sent_bytes);
    let (mut queued, mut used) = (Vec::new(), Vec::new());
    for sample in 1..=SAMPLES {
        driver.run_for(Duration::from_millis(10));
        let queue = link.queue();
        queued.push(queue.backlog_bytes);
        if sample.is_multiple_of(WINDOW_SAMPLES) {
            let (now_ns, sent_bytes) = (now_ns(), queue.sent_bytes);
            let took_ms = (now_ns - last.0) as f64 / MS as f64;
            let sent_bits = 8.0 * (sent_bytes - last.1) as f64;
            used.push(sent_bits / (took_ms * 1e3 * LINE_MBIT as f64));
            last = (now_ns, sent_bytes);
        }
    }
    let after = link.queue();
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
    queued.sort_unstable();
    used.sort_by(f64::total_cmp);
    LinkUse {
        // A timer that a busy machine lets wait spoils one window or two.
        used: used[used.len() / 2],
        queued_bytes: [queued[SAMPLES / 2], queued[SAMPLES - 1]],
        dropped: after.dropped - before.1.dropped,
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
        assert!(link.used > 0.95, "the line rate is not used: {link:?}");
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

/// A line rate that is taken for what can be allocated is 1.6 % too much.
///
/// A sender that lacks a core for some of its time leaves a smaller queue.
#[test]
fn a_line_rate_without_its_frames_stands_in_a_queue() {
    let rate_bps = Frame::AS_COUNTED.allocatable_bps(LINE_MBIT * MBIT);
    let link = use_of(BackendKind::SockOps, 1_500, rate_bps, false);
    println!("{link:?}");
    let [median, _] = link.queued_bytes;
    let standing_bytes = STANDING_FRAMES * u64::from(1_500 + WIRE_BYTES);
    assert!(median > standing_bytes || link.dropped > 0, "{link:?}");
}
