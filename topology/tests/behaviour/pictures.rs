//! Pictures are well formed and show what there is.

use proptest::prelude::*;
use ratewright_topology::render::{summary, to_dot, to_svg};
use ratewright_topology::{FatTree, Frames, Topology, TwoTierClos};

use crate::nets;

/// Every element that is opened is closed, in order; returns the names of all elements.
fn elements(svg: &str) -> Vec<&str> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("every tag ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "elements are nested");
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        all.push(name);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    all
}

fn count(svg: &str, what: &str) -> usize {
    svg.matches(what).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_network_can_be_drawn(net in nets::damaged()) {
        let svg = to_svg(&net);
        elements(&svg);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let dot = to_dot(&net);
        // One edge per cable, which is two links.
        prop_assert_eq!(dot.matches(" -- ").count(), net.links().len() / 2);
        prop_assert_eq!(dot.matches('{').count(), dot.matches('}').count());
        let text = summary(&net);
        prop_assert!(text.lines().all(|l| l.chars().count() <= 120), "{}", text);
        prop_assert_eq!(net.is_whole(), text.contains("failed    nothing"));
    }
}

#[test]
fn a_small_network_is_drawn_whole() {
    let net = TwoTierClos::default().build().unwrap();
    let svg = to_svg(&net);
    for name in net
        .hosts()
        .iter()
        .map(|h| &h.name)
        .chain(net.switches().iter().map(|s| &s.name))
    {
        assert!(svg.contains(&format!("<title>{name}</title>")), "{name}");
    }
    assert!(svg.contains(">10.0.4.4<"), "hosts show their address");
    assert!(
        svg.contains("leaf – spine") && svg.contains("40Gbit/s each way, 2us"),
        "there is a legend"
    );
    assert!(!svg.contains("failed"));
    // 16 host cables, 8 fabric cables, and lines of the legend without a title.
    assert_eq!(count(&svg, "</title></path>"), 24);
}

#[test]
fn failures_show_red_and_dashed() {
    let mut net = TwoTierClos::default().build().unwrap();
    let spine = net.switch_by_name("spine2").unwrap();
    net.set_switch_up(spine, false);
    let one_way = net
        .path(
            ratewright_topology::HostId(0),
            ratewright_topology::HostId(15),
            ratewright_topology::PathChoice::Hash(0),
        )
        .unwrap()[1];
    net.set_link_up(one_way, false);
    let svg = to_svg(&net);
    // The group of the failed cables, by its dash pattern.
    let failed = svg
        .split("stroke-dasharray=\"6 4\">")
        .nth(1)
        .unwrap()
        .split("</g>")
        .next()
        .unwrap();
    assert_eq!(
        count(failed, "<path"),
        5,
        "four cables of the spine and one that fails one way"
    );
    assert_eq!(
        count(failed, "marker-end"),
        1,
        "an arrow the way that is lost"
    );
    assert!(svg.contains("1 switch, 9 directed links with them"));
    assert!(
        to_dot(&net)
            .contains("\"leaf1\" -- \"spine1\" [color=\"#dc2626\", style=dashed, dir=forward")
    );
    let text = summary(&net);
    assert!(
        text.contains("failed    spine2 and its links\n          leaf1 → spine1\n"),
        "{text}"
    );
}

#[test]
fn large_networks_are_summarised() {
    let size = |net: &Topology| elements(&to_svg(net)).len();
    let tree = |k| {
        FatTree {
            k,
            ..FatTree::default()
        }
        .build()
        .unwrap()
    };
    assert!(to_svg(&tree(8)).contains(">4 hosts<"));
    let large = to_svg(&tree(32));
    assert!(large.contains("… 30 more pods …") && large.contains("… 224 more …"));
    assert!(
        size(&tree(32)) < 8_000,
        "the picture of 8,192 hosts stays small"
    );
}

#[test]
fn the_summary_of_a_two_tier_network() {
    let net = TwoTierClos {
        racks: 9,
        hosts_per_rack: 16,
        spines: 4,
        ..TwoTierClos::default()
    }
    .build()
    .unwrap();
    let expected = "\
kind      two_tier_clos, epoch 1
hosts     144 in 9 racks of 16
switches  9 leaves, 4 spines
links     288 host – leaf, each 10Gbit/s and 2us
          72 leaf – spine, each 40Gbit/s and 2us
frames    not given: capacities count each frame with its header of 14 bytes
edge      hosts to uplinks 1.00 : 1, full bisection at the leaves
addresses 10.0.1.1 … 10.0.9.16
          fd00:0:0:1::1 … fd00:0:0:9::10
ecmp      seed 0, not symmetric
blocks    up to 8
failed    nothing
";
    assert_eq!(summary(&net), expected);
    let ethernet = summary(&net.with_frames(Frames::default()));
    let share = "frames    MTU 1500, 38 bytes beside it: 98.43 % of a line rate is allocated";
    assert!(ethernet.contains(share), "{ethernet}");
}
