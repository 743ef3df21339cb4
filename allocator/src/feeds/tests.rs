use ratewright_proto::telemetry::{CreditState, LinkInt, OWN_DOWNLINK, OWN_UPLINK, ReceiverCount};
use ratewright_topology::TwoTierClos;

use super::*;

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
