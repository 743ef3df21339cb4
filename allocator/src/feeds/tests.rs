use ratewright_proto::telemetry::{CreditState, LinkInt, ReceiverCount};
use ratewright_topology::TwoTierClos;

use super::*;

mod histories;
mod loops;

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
