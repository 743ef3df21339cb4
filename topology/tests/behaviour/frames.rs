//! Line rates, counted in the bytes that Ethernet carries for each frame.

use proptest::prelude::*;
use ratewright_topology::frames::WITHOUT_FRAMES;
use ratewright_topology::{Frame, Frames, LinkId, Topology};

const GBIT: u64 = 1_000_000_000;

/// Of one flow at a link's whole capacity: frames per second that leave its sender.
fn frames_per_s(capacity_bps: u64, counted_bytes: u64) -> f64 {
    capacity_bps as f64 / 8.0 / counted_bytes as f64
}

/// Frames by hand: TCP over IPv4 with timestamps, at 10 Gbit/s. `inner` is what a sender's own
/// device carries, `tunnel` what is added below it.
fn payload_at_line_rate(mtu: u64, tunnel: u64) -> (f64, f64) {
    let inner_mtu = mtu - tunnel;
    // IPv4 20, TCP 20, timestamps 12.
    let payload = inner_mtu - 52;
    // Preamble 7 and start 1, two addresses 12, type 2, the packet, check sequence 4, gap 12.
    let on_the_wire = 7 + 1 + 12 + 2 + mtu + 4 + 12;
    let link = Frame {
        mtu_bytes: u16::try_from(mtu).expect("an MTU"),
        overhead_bytes: 38,
    };
    // The daemon counts payload, headers, tunnel and 14 bytes of Ethernet.
    let counted = payload + 52 + tunnel + 14;
    let frames = frames_per_s(link.allocatable_bps(10 * GBIT), counted);
    (
        frames * payload as f64 * 8.0,
        frames * on_the_wire as f64 * 8.0,
    )
}

#[test]
fn full_frames_of_all_that_is_allocated_fill_the_line_rate() {
    // Payload in Mbit/s as Ethernet's own tables have it: 1448 of 1538 bytes, 8948 of 9038, and
    // through VXLAN over IPv4 (outer IP 20, UDP 8, VXLAN 8, inner Ethernet 14) 50 bytes less.
    for (mtu, tunnel, payload_mbps) in [
        (1_500, 0, 10_000.0 * 1_448.0 / 1_538.0),
        (1_500, 50, 10_000.0 * 1_398.0 / 1_538.0),
        (9_000, 0, 10_000.0 * 8_948.0 / 9_038.0),
        (9_000, 50, 10_000.0 * 8_898.0 / 9_038.0),
    ] {
        let (payload_bps, wire_bps) = payload_at_line_rate(mtu, tunnel);
        assert!(wire_bps <= 10e9, "MTU {mtu}, tunnel {tunnel}: {wire_bps}");
        assert!(
            wire_bps > 10e9 - 10.0,
            "MTU {mtu}, tunnel {tunnel}: {wire_bps}"
        );
        assert!(
            (payload_bps / 1e6 - payload_mbps).abs() < 0.001,
            "MTU {mtu}, tunnel {tunnel}: {payload_bps}"
        );
    }
}

#[test]
fn line_rates_and_mtus_of_a_file_make_what_can_be_allocated() {
    let net = file(
        "[frames]\nmtu = 9000\nfabric_overhead = 88\n\
         [[link]]\nfrom = \"h1\"\nto = \"leaf1\"\nmtu = 1500\nboth_ways = true\n\
         [[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity = \"100Gbit/s\"\nframe_overhead = 38\n",
    );
    let link = |from, to| {
        let node = |name| net.node_by_name(name).expect("it is there");
        &net.links()[net
            .link_between(node(from), node(to))
            .expect("a link")
            .index()]
    };
    for (from, to, line_rate_bps, capacity_bps) in [
        ("h2", "leaf1", 10 * GBIT, 10_000_000_000 * 9_014 / 9_038),
        ("h1", "leaf1", 10 * GBIT, 10_000_000_000 * 1_514 / 1_538),
        ("leaf1", "h1", 10 * GBIT, 10_000_000_000 * 1_514 / 1_538),
        ("leaf2", "spine1", 40 * GBIT, 40_000_000_000 * 9_014 / 9_088),
        (
            "leaf1",
            "spine1",
            100 * GBIT,
            100_000_000_000 * 9_014 / 9_038,
        ),
    ] {
        let link = link(from, to);
        assert_eq!(
            (link.line_rate_bps, link.capacity_bps),
            (line_rate_bps, capacity_bps),
            "{from} to {to}"
        );
    }
}

#[test]
fn a_new_file_counts_38_bytes_and_a_shaper_may_count_14() {
    let usual = file("[frames]\n");
    assert_eq!(usual.frames(), Some(Frames::of(1_500, 38)));
    assert_eq!(
        usual.links()[0].capacity_bps,
        10_000_000_000 * 1_514 / 1_538
    );
    let shaped = file("[frames]\noverhead = 14\n");
    assert_eq!(shaped.links()[0].capacity_bps, 10 * GBIT);
}

#[test]
fn an_old_file_keeps_its_meaning_and_gets_a_note() {
    let old = file("");
    assert_eq!(old.frames(), None);
    assert!(
        old.links()
            .iter()
            .all(|l| l.capacity_bps == l.line_rate_bps)
    );
    assert_eq!(old.note(), Some(WITHOUT_FRAMES));
    assert_eq!(file("[frames]\n").note(), None);
    assert_eq!(
        Topology::from_toml_str(&old.to_toml_string(), "t")
            .unwrap()
            .frames(),
        None
    );
}

#[test]
fn a_changed_capacity_is_a_line_rate_as_in_the_file() {
    let mut net = file("[frames]\n");
    let epoch = net.epoch();
    assert!(net.set_capacity_bps(LinkId(0), GBIT));
    assert_eq!(net.links()[0].capacity_bps, 1_000_000_000 * 1_514 / 1_538);
    assert_eq!(net.epoch(), epoch + 1);
    assert!(
        !net.set_capacity_bps(LinkId(0), GBIT),
        "it has that already"
    );
}

fn file(more: &str) -> Topology {
    let text = format!(
        "kind = \"two_tier_clos\"\n[parameters]\nracks = 2\nhosts_per_rack = 2\nspines = 2\n\
         host_capacity = \"10Gbit/s\"\nfabric_capacity = \"40Gbit/s\"\n{more}"
    );
    Topology::from_toml_str(&text, "frames.toml").unwrap_or_else(|e| panic!("{e}"))
}

proptest! {
    /// Any flows of full frames that share what can be allocated stay within the line rate, and
    /// leave of it what rounding costs.
    #[test]
    fn allocated_frames_fill_the_line_rate_and_never_exceed_it(
        line_rate_bps in 1_000_000u64..1_000_000_000_000,
        mtu in 576u16..9_217,
        overhead in 14u16..120,
        shares in prop::collection::vec((1u32..100, 0u16..90), 1..20),
    ) {
        let link = Frame { mtu_bytes: mtu, overhead_bytes: overhead };
        let capacity_bps = link.allocatable_bps(line_rate_bps);
        let whole: u64 = shares.iter().map(|(share, _)| u64::from(*share)).sum();
        let mut wire_bps = 0.0;
        for (share, tunnel) in &shares {
            let rate_bps = capacity_bps * u64::from(*share) / whole;
            // The sender's MTU is smaller by its tunnel, which the daemon adds to each frame.
            let counted = u64::from(mtu - tunnel) + u64::from(*tunnel) + 14;
            let frames = frames_per_s(rate_bps, counted);
            wire_bps += frames * f64::from(u32::from(mtu) + u32::from(overhead)) * 8.0;
        }
        let line = line_rate_bps as f64;
        prop_assert!(wire_bps <= line * (1.0 + 1e-12), "{wire_bps} of {line}");
        // A bit per flow, and one of the capacity, in frames of at most 1.25 times the size.
        let rounding = 1.25 * (shares.len() + 1) as f64;
        prop_assert!(wire_bps >= line - rounding, "{wire_bps} of {line}");
    }
}
