use ratewright_proto::telemetry::{CreditState, LinkInt, OWN_DOWNLINK, OWN_UPLINK, ReceiverCount};
use ratewright_topology::TwoTierClos;

use super::*;

mod contradictions;
mod histories;
mod loops;
mod rates;
mod states;

fn topology() -> Topology {
    TwoTierClos::default().build().expect("a topology")
}

fn link(link: u32) -> Telemetry {
    Telemetry {
        links: vec![LinkInt {
            link,
            bandwidth_bps: 1,
            managed_bytes: Some(0),
            ..LinkInt::default()
        }],
        ..Telemetry::default()
    }
}

fn credit(sender: u32, receiver: u32) -> Telemetry {
    Telemetry {
        credits: vec![CreditState {
            sender,
            receiver,
            ..CreditState::default()
        }],
        ..Telemetry::default()
    }
}

fn count(receiver: u32, age_ns: u64) -> Telemetry {
    Telemetry {
        receivers: vec![ReceiverCount {
            receiver,
            age_ns,
            ..ReceiverCount::default()
        }],
        ..Telemetry::default()
    }
}

#[test]
fn a_host_tells_of_itself_and_its_links_and_a_collector_of_everything() {
    let topology = topology();
    let host = Reporter::Host(HostId(1));
    let other_uplink = topology.host_uplink(HostId(2)).0;
    let own_downlink = topology.host_downlink(HostId(1)).0;
    let core = topology
        .links()
        .iter()
        .find(|link| link.level == 2)
        .expect("a link between switches")
        .id
        .0;
    let max_age_ns = FeedsConfig::default().max_age_ns;
    for (reporter, telemetry, refused) in [
        (host, count(1, 0), None),
        (host, count(2, 0), Some(Refused::NotOfReporter)),
        (host, count(1, max_age_ns), Some(Refused::TooOld)),
        (host, credit(1, 2), None),
        (host, credit(2, 1), None),
        (host, credit(2, 3), Some(Refused::NotOfReporter)),
        (host, credit(1, 1 << 30), Some(Refused::Unknown)),
        (host, link(OWN_UPLINK), None),
        (host, link(own_downlink), None),
        (host, link(other_uplink), Some(Refused::NotOfReporter)),
        (host, link(core), Some(Refused::NotOfReporter)),
        (host, link(1 << 30), Some(Refused::Unknown)),
        (Reporter::Collector, link(core), None),
        (Reporter::Collector, count(2, 0), None),
        (
            Reporter::Collector,
            link(OWN_UPLINK),
            Some(Refused::Unknown),
        ),
    ] {
        let mut feeds = Feeds::new(FeedsConfig::default(), &topology);
        feeds.take(0, reporter, &telemetry, &topology, |_| true);
        let expected: BTreeMap<_, _> = refused
            .into_iter()
            .map(|reason| (reason.reason(), 1))
            .collect();
        let status = feeds.status();
        let figures = status.feeds.values();
        let told: BTreeMap<_, _> = figures
            .clone()
            .flat_map(|feed| feed.refused.clone())
            .collect();
        let taken: u64 = figures.map(|feed| feed.taken).sum();
        assert_eq!(told, expected, "{telemetry:?}");
        assert_eq!(taken, u64::from(refused.is_none()));
    }
}

#[test]
fn a_reading_that_is_off_takes_nothing() {
    let topology = topology();
    let config = FeedsConfig {
        int: false,
        ..FeedsConfig::default()
    };
    let mut feeds = Feeds::new(config, &topology);
    let host = Reporter::Host(HostId(1));
    feeds.take(0, host, &link(OWN_UPLINK), &topology, |_| true);
    feeds.take(0, host, &count(1, 0), &topology, |_| true);
    let status = feeds.status();
    assert_eq!(status.feeds["int"].refused["off"], 1);
    assert_eq!(
        (status.feeds["int"].taken, status.feeds["receivers"].taken),
        (0, 1)
    );
}

#[test]
fn a_reporter_that_was_silent_too_long_has_its_effect_again_by_the_same_words() {
    const MS: u64 = 1_000_000;
    let topology = topology();
    let config = FeedsConfig::default();
    let host = HostId(1);
    let (uplink, downlink) = (topology.host_uplink(host), topology.host_downlink(host));
    let capacity_bps = topology.effective_capacity_bps(uplink);
    let mut feeds = Feeds::new(config.clone(), &topology);
    let mut now_ns = MS;
    let mut tell = |feeds: &mut Feeds, intervals: u64| {
        for _ in 0..intervals {
            now_ns += config.interval_ns;
            let mut told = count(host.0, 0);
            told.receivers[0].active_senders = 3;
            let mut int = link(OWN_UPLINK);
            int.links[0].bandwidth_bps = capacity_bps;
            int.links[0].timestamp_ns = now_ns;
            // A fifth of the link.
            let bits = u128::from(capacity_bps / 5) * u128::from(now_ns) / 1_000_000_000;
            int.links[0].tx_bytes = (bits / 8) as u64;
            for message in [told, int] {
                feeds.take(now_ns, Reporter::Host(host), &message, &topology, |_| true);
            }
            feeds.apply(now_ns, &topology, &mut |_| {});
        }
        now_ns += 2 * config.max_age_ns;
        let effects = [uplink, downlink].map(|link| feeds.effect(link).copied());
        feeds.apply(now_ns, &topology, &mut |_| {});
        effects
    };
    let effect_of = |effects: [Option<LinkEffect>; 2]| {
        let [uplink, downlink] = effects.map(Option::unwrap_or_default);
        (uplink.load_bps / capacity_bps as f64, downlink.flows)
    };
    let (load, flows) = effect_of(tell(&mut feeds, 100));
    assert!((load - 0.2).abs() < 0.01 && flows == 3.0, "{load} {flows}");
    assert_eq!(feeds.status().links, 0, "all is forgotten");
    let (load, flows) = effect_of(tell(&mut feeds, 100));
    assert!((load - 0.2).abs() < 0.01 && flows == 3.0, "{load} {flows}");
}

/// Credit of flows of host 1 to host 2 that its receiver bounds to 1 Gbit/s if the bucket is not 0.
fn credit_of_flows(flows: std::ops::Range<u32>, at_ns: u64, bucket_bytes: u64) -> Telemetry {
    let credits = flows.map(|flow| CreditState {
        sender: 1,
        receiver: 2,
        flow: Some(flow),
        granted_bytes: at_ns / 8,
        sender_bucket_bytes: bucket_bytes,
        ..CreditState::default()
    });
    Telemetry {
        credits: credits.collect(),
        ..Telemetry::default()
    }
}

#[test]
fn pairs_beyond_a_reporters_bound_are_refused_until_others_are_forgotten() {
    let topology = topology();
    for (reporter, most) in [
        (Reporter::Host(HostId(1)), 4_096),
        (Reporter::Collector, 65_536),
    ] {
        let mut feeds = Feeds::new(FeedsConfig::default(), &topology);
        let take = |feeds: &mut Feeds, now_ns, flows| {
            let told = credit_of_flows(flows, now_ns, 0);
            feeds.take(now_ns, reporter, &told, &topology, |_| true);
            let figures = &feeds.status().feeds["credit"];
            let refused = figures.refused.get("too_many").copied();
            (figures.taken, refused.unwrap_or(0))
        };
        let most_taken = u64::from(most);
        assert_eq!(take(&mut feeds, 0, 0..most + 3), (most_taken, 3));
        assert_eq!(
            take(&mut feeds, 1, 0..3),
            (most_taken + 3, 3),
            "known ones count on"
        );
        let later_ns = 2 * FeedsConfig::default().max_age_ns;
        feeds.apply(later_ns, &topology, &mut |_| {});
        assert_eq!(
            take(&mut feeds, later_ns, most..most + 3),
            (most_taken + 6, 3)
        );
    }
}

#[test]
fn only_flows_that_a_bound_moves_count() {
    let topology = topology();
    let config = FeedsConfig::default();
    let mut feeds = Feeds::new(config.clone(), &topology);
    let mut now_ns = 0;
    let mut pass = |feeds: &mut Feeds, bucket_bytes| {
        now_ns += config.interval_ns;
        let told = credit_of_flows(0..3, now_ns, bucket_bytes);
        feeds.take(now_ns, Reporter::Host(HostId(1)), &told, &topology, |_| {
            true
        });
        let flows = feeds.status().flows;
        let mut moved = 0;
        feeds.apply(now_ns, &topology, &mut |change| {
            moved += u32::from(matches!(change, FeedChange::Demand { .. }));
        });
        (flows, feeds.status().flows, moved)
    };
    for _ in 0..3 {
        assert_eq!(pass(&mut feeds, 0), (0, 0, 0), "nothing bounds them");
    }
    assert!(!feeds.bounds_demands());
    assert_eq!(pass(&mut feeds, 1_000), (3, 3, 3));
    let demand_bps = feeds.demand_bps(HostId(1), 2);
    assert!((demand_bps - 1.25e9).abs() < 1.0, "{demand_bps}");
    assert_eq!(pass(&mut feeds, 1_000), (3, 3, 0), "it stands");
    assert_eq!(pass(&mut feeds, 0), (3, 0, 3), "it is taken back");
    assert_eq!(pass(&mut feeds, 0), (0, 0, 0));
}
