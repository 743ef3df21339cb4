//! Arbitrary datagrams of a collector, a line each: an error, or a good message that tells of
//! configured links alone; and feeds take it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ratewright_allocator::feeds::gnmic::{EventReader, SwitchInterface};
use ratewright_allocator::feeds::{Feeds, FeedsConfig, Reporter};
use ratewright_topology::{Topology, TwoTierClos};

static TOPOLOGY: LazyLock<Topology> =
    LazyLock::new(|| TwoTierClos::default().build().expect("a topology"));

fuzz_target!(|lines: &[u8]| {
    let topology = &*TOPOLOGY;
    let link = &topology.links()[0];
    let interface = SwitchInterface {
        target: "leaf1".to_owned(),
        name: "Ethernet1/1".to_owned(),
        from: topology.node_name(link.from).to_owned(),
        to: topology.node_name(link.to).to_owned(),
    };
    let mut reader = EventReader::new(&[interface], topology);
    let mut feeds = Feeds::new(FeedsConfig::default(), topology);
    let mut now_ns = 1_000_000_000;
    for datagram in lines.split(|byte| *byte == b'\n').take(64) {
        now_ns += 10_000_000;
        feeds.observe(now_ns, &mut vec![0.0; topology.links().len()]);
        if let Ok(read) = reader.read(now_ns, datagram) {
            read.telemetry.validate().expect("a good message");
            assert!(read.telemetry.links.iter().all(|entry| entry.link == link.id.0));
            let collector = Reporter::Collector;
            feeds.take(now_ns, collector, &read.telemetry, topology, |_| true);
            feeds.apply(now_ns, topology, &mut |_| {});
        }
    }
});
