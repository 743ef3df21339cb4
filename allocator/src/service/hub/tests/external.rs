//! Traffic that the allocator does not schedule (flowtune §6) takes its part of links, and no more.

use ratewright_topology::TwoTierClos;

use super::{HubWorld, settings};
use crate::service::admin_request::{
    ExternalLoad, LinkChange, SwitchChange, TopologyChange, TopologyChangeError,
};
use crate::service::status::ExternalStatus;

/// Of every link, what may be handed out: the rest is the notification threshold's.
const DERATED: f64 = 0.99;

fn load(from: &str, to: &str) -> ExternalLoad {
    ExternalLoad {
        from: from.to_owned(),
        to: to.to_owned(),
        load_bps: 0,
        flows: 0.0,
        for_ms: None,
    }
}

impl HubWorld {
    fn tell(&mut self, told: &ExternalLoad) -> f64 {
        let report = self
            .hub
            .network_mut()
            .set_external_load(self.now_ns, told)
            .expect("the link is there");
        self.settle();
        report.capacity_bps
    }

    fn external(&self) -> Vec<ExternalStatus> {
        // One at a time, as `/status` goes on where it stopped.
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(link) = from {
            from = self
                .hub
                .network()
                .external_status(self.now_ns, link, 1, &mut all);
        }
        all
    }

    /// Asserts that the rate is within a threshold of this number of Gbit/s.
    fn assert_gbps(&self, host: &str, flow: ratewright_proto::FlowId, gbps: f64) {
        let rate = self.rate(host, flow).expect("rated") as f64 / 1e9;
        assert!((rate / gbps - 1.0).abs() < 0.011, "{rate} and not {gbps}");
    }
}

#[test]
fn what_gives_no_way_is_taken_off_the_link() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    world.assert_gbps("h1", flow, 10.0 * DERATED);
    let four = ExternalLoad {
        load_bps: 4_000_000_000,
        ..load("leaf4", "h16")
    };
    assert_eq!(world.tell(&four), 6e9);
    world.assert_gbps("h1", flow, 6.0 * DERATED);
    // Another report replaces this one; the reverse direction has not changed.
    let one = ExternalLoad {
        load_bps: 1_000_000_000,
        ..load("leaf4", "h16")
    };
    assert_eq!(world.tell(&one), 9e9);
    world.assert_gbps("h1", flow, 9.0 * DERATED);
    assert_eq!(world.tell(&load("leaf4", "h16")), 10e9);
    world.assert_gbps("h1", flow, 10.0 * DERATED);
    assert_eq!(world.external(), []);
}

#[test]
fn what_gives_way_shares_the_link_by_its_weight() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let flow = world.start("h1", 0, "h16");
    let three = ExternalLoad {
        flows: 3.0,
        ..load("leaf4", "h16")
    };
    assert_eq!(world.tell(&three), 10e9);
    world.assert_gbps("h1", flow, 10.0 * DERATED / 4.0);
    let granted_gbps = world.external()[0].granted_bps / 1e9;
    assert!((granted_gbps / (7.5 * DERATED) - 1.0).abs() < 0.011);
    // A second flow of ours: one of five.
    let other = world.start("h2", 0, "h16");
    world.settle();
    world.assert_gbps("h1", flow, 10.0 * DERATED / 5.0);
    world.assert_gbps("h2", other, 10.0 * DERATED / 5.0);
    world.tell(&load("leaf4", "h16"));
    world.assert_gbps("h1", flow, 10.0 * DERATED / 2.0);
    assert_eq!(world.hub.counts().updates_stale, 0);
}

#[test]
fn a_lie_costs_a_link_no_more_than_the_bound() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    let all = ExternalLoad {
        load_bps: 400_000_000_000,
        flows: 1e6,
        ..load("leaf4", "h16")
    };
    assert!((world.tell(&all) - 1e9).abs() < 1.0);
    world.assert_gbps("h1", flow, DERATED);
    let many = ExternalLoad {
        flows: 1e6,
        ..load("leaf4", "h16")
    };
    world.tell(&many);
    world.assert_gbps("h1", flow, 10.0 * DERATED - 9.0);
}

#[test]
fn a_word_that_is_not_renewed_is_forgotten() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    let brief = ExternalLoad {
        load_bps: 2_000_000_000,
        flows: 1.0,
        for_ms: Some(50),
        ..load("leaf4", "h16")
    };
    world.tell(&brief);
    world.assert_gbps("h1", flow, 8.0 * DERATED / 2.0);
    assert_eq!(world.external()[0].expires_in_ms, Some(30));
    world.pass(20_000_000);
    world.tell(&brief);
    world.pass(20_000_000);
    world.assert_gbps("h1", flow, 8.0 * DERATED / 2.0);
    world.pass(20_000_000);
    world.assert_gbps("h1", flow, 10.0 * DERATED);
    assert_eq!(world.external(), []);
    assert_eq!(world.hub.next_own_timeout_ns(), None);
}

#[test]
fn external_traffic_outlives_failures_and_another_topology() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    let told = ExternalLoad {
        load_bps: 4_000_000_000,
        flows: 1.0,
        ..load("leaf4", "h16")
    };
    world.tell(&told);
    world.assert_gbps("h1", flow, 6.0 * DERATED / 2.0);
    let change = |world: &mut HubWorld, change: TopologyChange| {
        let report = world.change_topology(&change);
        world.settle();
        report.expect("it is there")
    };
    let capacity = |bps| {
        TopologyChange::Link(LinkChange {
            from: "leaf4".to_owned(),
            to: "h16".to_owned(),
            up: None,
            capacity_bps: Some(bps),
            one_way: true,
            force: false,
        })
    };
    // Of 2 Gbit/s, external traffic has 90 % at most.
    change(&mut world, capacity(2_000_000_000));
    world.assert_gbps("h1", flow, 0.2 * DERATED);
    change(&mut world, capacity(10_000_000_000));
    world.assert_gbps("h1", flow, 6.0 * DERATED / 2.0);
    let switch = |up| {
        TopologyChange::Switch(SwitchChange {
            name: "leaf4".to_owned(),
            up,
        })
    };
    change(&mut world, switch(false));
    assert_eq!(world.rate("h1", flow), None);
    assert_eq!(world.external()[0].granted_bps, 0.0);
    change(&mut world, switch(true));
    world.assert_gbps("h1", flow, 6.0 * DERATED / 2.0);
    // More racks: all links have other numbers, the hosts have their old ones.
    let larger = TwoTierClos {
        racks: 9,
        ..TwoTierClos::default()
    };
    world.replace_topology(larger.build().expect("good"));
    world.settle();
    assert!(world.hosts["h1"].established, "its host kept its id");
    world.assert_gbps("h1", flow, 6.0 * DERATED / 2.0);
    assert_eq!(world.external()[0].name, "leaf4->h16");
    // A topology without the link: the report about it is dropped.
    let smaller = TwoTierClos {
        racks: 2,
        ..TwoTierClos::default()
    };
    world.replace_topology(smaller.build().expect("good"));
    assert_eq!(world.external(), []);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let good = load("leaf4", "h16");
    let table = [
        (load("leaf4", "h99"), "no host or switch is named \"h99\""),
        (load("leaf1", "h16"), "no link from \"leaf1\" to \"h16\""),
        (
            ExternalLoad {
                load_bps: u64::MAX,
                ..good.clone()
            },
            "load_bps = 18446744073709551615: more than any link can carry",
        ),
        (
            ExternalLoad {
                flows: -1.0,
                ..good.clone()
            },
            "flows = -1: must be from 0 to 1000000",
        ),
        (
            ExternalLoad {
                for_ms: Some(0),
                ..good
            },
            "for_ms = 0: must be 1 to 86400000",
        ),
    ];
    for (told, expected) in table {
        let now_ns = world.now_ns;
        let error: TopologyChangeError = world
            .hub
            .network_mut()
            .set_external_load(now_ns, &told)
            .expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }
    assert!(world.hub.engine_events().is_empty());
    assert_eq!(world.external(), []);
}

#[test]
fn the_next_expiry_is_the_earliest_of_all_that_hold() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let hosts: Vec<String> = (1..=16).map(|n| format!("h{n}")).collect();
    let mut expected = std::collections::BTreeMap::new();
    let mut random = 12_345u64;
    for _ in 0..300 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let host = &hosts[(random >> 33) as usize % hosts.len()];
        let leaf = format!("leaf{}", ((random >> 33) as usize % hosts.len()) / 4 + 1);
        let for_ms = match (random >> 40) % 4 {
            0 => None,
            n => Some(n * 17 + (random >> 50) % 100),
        };
        let told = ExternalLoad {
            load_bps: 1_000_000_000,
            for_ms,
            ..load(&leaf, host)
        };
        let now_ns = world.now_ns;
        world
            .hub
            .network_mut()
            .set_external_load(now_ns, &told)
            .expect("it is there");
        expected.insert(host.clone(), for_ms.map(|ms| now_ns + ms * 1_000_000));
        world.now_ns += 5_000_000;
        world.hub.on_own_timeout(world.now_ns);
        expected.retain(|_, until: &mut Option<u64>| until.is_none_or(|at| at > world.now_ns));
        let next = expected.values().flatten().min().copied();
        assert_eq!(world.hub.next_own_timeout_ns(), next);
        assert_eq!(world.external().len(), expected.len());
    }
}
