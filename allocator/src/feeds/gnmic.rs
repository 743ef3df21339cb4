//! Readings of switches out of the events of gnmic, OpenConfig's collector (its output format
//! `event`, <https://gnmic.openconfig.net/user_guide/event_processors/intro/#the-event-format>).
//!
//! | event | becomes |
//! |---|---|
//! | value `/interfaces/interface/state/counters/out-octets`, tags `source` and `interface_name` | a [`LinkInt`] of the interface's link |
//! | value `/qos/interfaces/interface/output/queues/queue/state/avg-queue-len`, tags `source`, `interface_interface-id` and `queue_name` | part of the queue in the next one |
//! | the same under `…/input/virtual-output-queues/voq-interface`, tag `voq-interface_name` too | part of the queue of that interface, towards which the bytes wait |
//!
//! A datagram holds an array of events, or one. Interfaces are configured: an event of any other
//! counts as unknown. Values are numbers, or digits in a string, as RFC 7951 writes 64 bits. Other
//! paths, such as those of subinterfaces, are [not used](Unused), and counted.
//!
//! A switch's clock need not agree with the allocator's: a reading is as old as its way was longer
//! than the shortest one that the interface's readings have had.

use std::collections::BTreeMap;

use ratewright_proto::telemetry::{LinkInt, MAX_ENTRIES, Telemetry};
use ratewright_topology::{LinkId, Topology};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Maximum number of queues of an interface: its own, and those of inputs that wait for it.
const MAX_QUEUES: usize = 512;

/// Maximum number of queues of all interfaces.
const MAX_ALL_QUEUES: usize = 1 << 20;

/// Maximum length of a queue's names, in bytes.
const MAX_QUEUE_NAME: usize = 128;

/// Maximum length of an example of what is not used, in characters.
const MAX_EXAMPLE: usize = 200;

/// Value that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaf {
    Octets,
    Queue,
    VirtualQueue,
}

/// Paths that are read, without names of modules.
const LEAVES: [(&str, Leaf); 3] = [
    (
        "interfaces/interface/state/counters/out-octets",
        Leaf::Octets,
    ),
    (
        "qos/interfaces/interface/output/queues/queue/state/avg-queue-len",
        Leaf::Queue,
    ),
    (
        "qos/interfaces/interface/input/virtual-output-queues/voq-interface/queues/queue/state/avg-queue-len",
        Leaf::VirtualQueue,
    ),
];

/// Part of time by which two clocks may drift apart.
const DRIFT: f64 = 1e-4;

/// Difference in age from which a clock was set back, and no datagram late.
const CLOCK_STEP_NS: i128 = 5_000_000_000;

/// Interface of a switch, and the link that it sends into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchInterface {
    /// Name of the switch at gnmic: its tag `source`, with or without the port.
    pub target: String,
    /// Name of the interface.
    pub name: String,
    /// Node at the sending end of the link.
    pub from: String,
    /// Node at the receiving end of the link.
    pub to: String,
}

impl SwitchInterface {
    /// Returns the interface's link; `None` if the topology has none.
    #[must_use]
    pub fn link(&self, topology: &Topology) -> Option<LinkId> {
        let node = |name: &str| topology.node_by_name(name);
        topology.link_between(node(&self.from)?, node(&self.to)?)
    }
}

/// Datagram that holds no events.
#[derive(Debug, thiserror::Error)]
#[error("no events of gnmic: {0}")]
pub struct EventsError(#[from] serde_json::Error);

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(default)]
    timestamp: i64,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    values: BTreeMap<String, Value>,
    /// Paths that are gone, beside which there are no values.
    deletes: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Events {
    Many(Vec<Event>),
    One(Event),
}

/// Input whose queue it is, empty for the interface's own, and the queue's name.
type QueueName = (String, String);

/// State of an interface.
#[derive(Debug, Clone)]
struct Interface {
    link: u32,
    bandwidth_bps: u64,
    /// Bytes that wait on average, and the time of the reading, by queue.
    queues: BTreeMap<QueueName, (u64, i64)>,
    counted_ns: i64,
    heard_ns: u64,
    shortest_ns: Option<i128>,
}

/// Reason for which an event, or a part of it, is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unused {
    /// No value has a path that is read.
    Path,
    /// A value is no number, or negative.
    Value,
    /// It has no values, so another format than `event` was sent.
    Empty,
    /// It names no source or no interface.
    Tags,
    /// Its queue is beyond what is kept, or has a longer name.
    Queues,
    /// Its counter is beyond what one message holds.
    Entries,
}

impl Unused {
    /// Returns the reason as a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Value => "value",
            Self::Empty => "empty",
            Self::Tags => "tags",
            Self::Queues => "queues",
            Self::Entries => "entries",
        }
    }
}

/// Events of a datagram that one reason kept from being used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnusedEvents {
    /// Number of times.
    pub count: u64,
    /// Path of the first one, or its tags; shortened.
    pub example: String,
}

/// Entries of a datagram.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventsRead {
    /// Message of a [collector](super::Reporter::Collector).
    pub telemetry: Telemetry,
    /// Events with a value of use, of interfaces that are not configured.
    pub unknown: u64,
    /// Events that say nothing.
    pub unused: BTreeMap<Unused, UnusedEvents>,
}

impl EventsRead {
    fn leave(&mut self, reason: Unused, example: &dyn std::fmt::Debug) {
        let events = self.unused.entry(reason).or_default();
        events.count += 1;
        if events.count == 1 {
            let example = format!("{example:?}");
            events.example = example.chars().take(MAX_EXAMPLE).collect();
        }
    }
}

/// Reader of events.
#[derive(Debug, Clone, Default)]
pub struct EventReader {
    /// By target without port, and interface.
    interfaces: BTreeMap<(String, String), Interface>,
    /// Number of queues of all interfaces.
    queues: usize,
}

impl EventReader {
    /// Makes a reader for interfaces of a topology. Those whose links it has not are unknown.
    #[must_use]
    pub fn new(interfaces: &[SwitchInterface], topology: &Topology) -> Self {
        let known = interfaces.iter().filter_map(|interface| {
            let link = interface.link(topology)?;
            let key = (
                without_port(&interface.target).to_owned(),
                interface.name.clone(),
            );
            let interface = Interface {
                link: link.0,
                bandwidth_bps: topology.links()[link.index()].capacity_bps,
                queues: BTreeMap::new(),
                counted_ns: i64::MIN,
                heard_ns: 0,
                shortest_ns: None,
            };
            Some((key, interface))
        });
        Self {
            interfaces: known.collect(),
            queues: 0,
        }
    }

    /// Reads a datagram. O(bytes), and for each counter O(queues of its interface).
    ///
    /// # Errors
    /// It is not JSON, or of another shape.
    pub fn read(&mut self, now_ns: u64, datagram: &[u8]) -> Result<EventsRead, EventsError> {
        let mut read = EventsRead::default();
        match serde_json::from_slice(datagram)? {
            Events::One(event) => self.take(now_ns, &event, &mut read),
            Events::Many(events) => {
                for event in &events {
                    self.take(now_ns, event, &mut read);
                }
            }
        }
        Ok(read)
    }

    fn take(&mut self, now_ns: u64, event: &Event, read: &mut EventsRead) {
        let mut octets = None;
        let mut queue = None;
        let mut broken = None;
        for (path, value) in &event.values {
            let Some(leaf) = leaf(path) else {
                continue;
            };
            match (leaf, number(value)) {
                (_, None) => broken = Some(path),
                (Leaf::Octets, Some(count)) => octets = Some(count),
                (Leaf::Queue | Leaf::VirtualQueue, Some(bytes)) => queue = Some((leaf, bytes)),
            }
        }
        if let Some(path) = broken {
            read.leave(Unused::Value, path);
        } else if octets.is_none() && queue.is_none() {
            match event.values.keys().next() {
                Some(path) => read.leave(Unused::Path, path),
                None if event.deletes.is_none() => read.leave(Unused::Empty, &event.tags),
                None => {}
            }
        }
        let unknown = read.unknown;
        if let Some((leaf, bytes)) = queue {
            self.queue(event, leaf, bytes, read);
        }
        if let Some(octets) = octets {
            self.count(now_ns, event, octets, read);
        }
        // An event of an unknown interface is one, with a counter and a queue, too.
        read.unknown = read.unknown.min(unknown + 1);
    }

    /// Returns the interface of an event that the first known of these tags names.
    fn interface<'a>(
        interfaces: &'a mut BTreeMap<(String, String), Interface>,
        event: &Event,
        tags: &[&str],
        read: &mut EventsRead,
    ) -> Option<&'a mut Interface> {
        let name = tags.iter().find_map(|tag| event.tags.get(*tag));
        let Some((source, name)) = event.tags.get("source").zip(name) else {
            read.leave(Unused::Tags, &event.tags);
            return None;
        };
        let key = (without_port(source).to_owned(), name.clone());
        let known = interfaces.get_mut(&key);
        if known.is_none() {
            read.unknown += 1;
        }
        known
    }

    fn queue(&mut self, event: &Event, leaf: Leaf, bytes: u64, read: &mut EventsRead) {
        let tag = |name: &str| event.tags.get(name).cloned().unwrap_or_default();
        let (tags, input): (&[&str], _) = match leaf {
            Leaf::VirtualQueue => (&["voq-interface_name"], tag("interface_interface-id")),
            _ => (&["interface_interface-id", "interface_name"], String::new()),
        };
        let Some(interface) = Self::interface(&mut self.interfaces, event, tags, read) else {
            return;
        };
        let name = (input, tag("queue_name"));
        if let Some(queue) = interface.queues.get_mut(&name) {
            *queue = (bytes, event.timestamp);
        } else if interface.queues.len() < MAX_QUEUES
            && self.queues < MAX_ALL_QUEUES
            && name.0.len() + name.1.len() <= MAX_QUEUE_NAME
        {
            interface.queues.insert(name, (bytes, event.timestamp));
            self.queues += 1;
        } else {
            read.leave(Unused::Queues, &event.tags);
        }
    }

    fn count(&mut self, now_ns: u64, event: &Event, octets: u64, read: &mut EventsRead) {
        let tags = ["interface_name", "interface_interface-id"];
        let Some(interface) = Self::interface(&mut self.interfaces, event, &tags, read) else {
            return;
        };
        if read.telemetry.links.len() >= MAX_ENTRIES {
            read.leave(Unused::Entries, &event.tags);
            return;
        }
        let before = interface.queues.len();
        let entry = interface.count(now_ns, octets, event.timestamp);
        self.queues -= before - interface.queues.len();
        read.telemetry.links.push(entry);
    }
}

impl Interface {
    fn count(&mut self, now_ns: u64, octets: u64, at_ns: i64) -> LinkInt {
        // A queue that nothing was read of since the last counter says nothing of now.
        let since_ns = std::mem::replace(&mut self.counted_ns, at_ns);
        self.queues
            .retain(|_, &mut (_, read_ns)| read_ns >= since_ns);
        let queues = self.queues.values();
        LinkInt {
            link: self.link,
            queue_bytes: queues.fold(0, |sum: u64, &(bytes, _)| sum.saturating_add(bytes)),
            tx_bytes: octets,
            managed_bytes: None,
            shaped_packets: 0,
            timestamp_ns: u64::try_from(at_ns).unwrap_or(0),
            bandwidth_bps: self.bandwidth_bps.max(1),
            age_ns: self.age_ns(now_ns, at_ns),
            ..LinkInt::default()
        }
    }

    /// Returns the time by which this reading's way was longer than the shortest.
    fn age_ns(&mut self, now_ns: u64, at_ns: i64) -> u64 {
        let way_ns = i128::from(now_ns) - i128::from(at_ns);
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.heard_ns, now_ns));
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "a ten-thousandth of a time between two datagrams"
        )]
        let drift_ns = (elapsed_ns as f64 * DRIFT) as i128;
        let shortest_ns = self
            .shortest_ns
            .map_or(way_ns, |shortest_ns| (shortest_ns + drift_ns).min(way_ns));
        let longer_ns = way_ns - shortest_ns;
        if longer_ns >= CLOCK_STEP_NS {
            self.shortest_ns = Some(way_ns);
            return 0;
        }
        self.shortest_ns = Some(shortest_ns);
        u64::try_from(longer_ns).unwrap_or(0)
    }
}

/// Returns what a path leads to; `None` for paths that are not read. The path may begin with an
/// origin (`openconfig:/interfaces`).
fn leaf(path: &str) -> Option<Leaf> {
    let is_at = |known: &str| {
        let nodes = path.split('/').map(without_module);
        nodes.filter(|node| !node.is_empty()).eq(known.split('/'))
    };
    let known = LEAVES.iter().find(|(known, _)| is_at(known));
    known.map(|&(_, leaf)| leaf)
}

/// Returns a node of a path without the name of its YANG module.
fn without_module(node: &str) -> &str {
    node.rsplit(':').next().unwrap_or(node)
}

/// Returns a target without its port: `leaf1:57400`, `[2001:db8::1]:57400`, `2001:db8::1`.
fn without_port(target: &str) -> &str {
    if let Some(rest) = target.strip_prefix('[')
        && let Some((address, _)) = rest.split_once(']')
    {
        return address;
    }
    match target.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => target,
    }
}

/// Returns a whole number, or one in a string; a broken one is rounded down.
fn number(value: &Value) -> Option<u64> {
    match value {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float saturates, and negative ones are left out"
        )]
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64().filter(|float| *float >= 0.0);
            float.map(|float| float as u64)
        }),
        Value::String(digits) => digits.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ratewright_topology::TwoTierClos;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn reader() -> (EventReader, u32) {
        let topology = TwoTierClos::default().build().expect("a topology");
        let link = topology.links().iter().find(|link| link.level == 2);
        let link = link.expect("a link between switches");
        let interface = SwitchInterface {
            target: "leaf1:57400".to_owned(),
            name: "Ethernet1/1".to_owned(),
            from: topology.node_name(link.from).to_owned(),
            to: topology.node_name(link.to).to_owned(),
        };
        (EventReader::new(&[interface], &topology), link.id.0)
    }

    fn counter(source: &str, interface: &str, at_ns: u64, octets: &str) -> String {
        format!(
            r#"{{"name":"ports","timestamp":{at_ns},
            "tags":{{"source":"{source}","interface_name":"{interface}","subscription-name":"ports"}},
            "values":{{"/openconfig-interfaces:interfaces/interface/state/counters/out-octets":{octets}}}}}"#
        )
    }

    fn queue(name: &str, at_ns: u64, bytes: u64) -> String {
        format!(
            r#"{{"timestamp":{at_ns},
            "tags":{{"source":"leaf1","interface_interface-id":"Ethernet1/1","queue_name":"{name}"}},
            "values":{{"/qos/interfaces/interface/output/queues/queue/state/avg-queue-len":"{bytes}"}}}}"#
        )
    }

    #[test]
    fn a_counter_of_a_configured_interface_is_a_reading_of_its_link_and_another_is_unknown() {
        let (mut reader, link) = reader();
        let events = [
            counter("leaf1:57400", "Ethernet1/1", 5 * SECOND, "1000"),
            counter(
                "leaf1",
                "Ethernet1/1",
                6 * SECOND,
                r#""18446744073709551615""#,
            ),
            counter("leaf1", "Ethernet1/2", 6 * SECOND, "1000"),
            counter("leaf2", "Ethernet1/1", 6 * SECOND, "1000"),
        ];
        let read = reader.read(7 * SECOND, format!("[{}]", events.join(",")).as_bytes());
        let read = read.expect("events");
        assert_eq!(read.unknown, 2);
        let links = &read.telemetry.links;
        assert_eq!(links.len(), 2);
        assert!(links.iter().all(|entry| entry.link == link));
        assert_eq!(links[0].tx_bytes, 1_000);
        assert_eq!(
            (links[1].tx_bytes, links[1].timestamp_ns),
            (u64::MAX, 6 * SECOND)
        );
        read.telemetry.validate().expect("a good message");
    }

    #[test]
    fn queues_read_since_the_last_counter_add_up() {
        let (mut reader, _) = reader();
        let events = [
            queue("0", SECOND, 3_000),
            queue("1", SECOND, 4_000),
            counter("leaf1", "Ethernet1/1", SECOND, "1"),
            queue("1", 2 * SECOND, 500),
            counter("leaf1", "Ethernet1/1", 2 * SECOND, "2"),
            counter("leaf1", "Ethernet1/1", 3 * SECOND, "3"),
            counter("leaf1", "Ethernet1/1", 4 * SECOND, "4"),
        ];
        let mut bytes = Vec::new();
        for event in &events {
            let read = reader.read(9 * SECOND, event.as_bytes()).expect("an event");
            bytes.extend(read.telemetry.links.iter().map(|entry| entry.queue_bytes));
        }
        assert_eq!(bytes, [7_000, 3_500, 500, 0]);
    }

    #[test]
    fn a_late_datagram_is_old_and_a_clock_that_was_set_back_is_not() {
        let (mut reader, _) = reader();
        let mut age_ms = |now_ms: u64, at_ms: u64| {
            let event = counter("leaf1", "Ethernet1/1", at_ms * 1_000_000, "1");
            let read = reader.read(now_ms * 1_000_000, event.as_bytes());
            read.expect("an event").telemetry.links[0].age_ns / 1_000_000
        };
        // The switch's clock is a minute ahead.
        assert_eq!(age_ms(1_000, 61_000), 0);
        assert_eq!(age_ms(1_130, 61_100), 29);
        assert_eq!(age_ms(1_200, 61_200), 0);
        // And now an hour behind.
        assert_eq!(age_ms(4_000_000, 400_000), 0);
        assert_eq!(age_ms(4_000_100, 400_050), 49);
    }

    /// Reads one event; returns what was left out, by reason.
    fn unused(reader: &mut EventReader, event: &str) -> Vec<(&'static str, u64)> {
        let read = reader.read(0, event.as_bytes()).expect("an event");
        assert_eq!(
            (read.telemetry, read.unknown),
            Default::default(),
            "{event}"
        );
        let unused = read.unused.into_iter();
        unused
            .map(|(reason, events)| (reason.as_str(), events.count))
            .collect()
    }

    #[test]
    fn counters_of_subinterfaces_and_of_other_lists_are_not_the_interfaces() {
        let (mut reader, _) = reader();
        let own = "/openconfig-interfaces:interfaces/interface/state/counters/out-octets";
        for path in [
            "/interfaces/interface/subinterfaces/subinterface/state/counters/out-octets",
            "/interfaces/interface/subinterfaces/subinterface/ipv4/state/counters/out-octets",
            "/vlans/interfaces/interface/state/counters/out-octets",
            "/interfaces/interface/state/counters/in-octets",
            "/vendor:interface/statistics/out-octets",
        ] {
            let event = counter("leaf1", "Ethernet1/1", SECOND, "7").replace(own, path);
            assert_eq!(unused(&mut reader, &event), [("path", 1)], "{path}");
        }
        for path in [
            "openconfig:/interfaces/interface/state/counters/out-octets",
            "interfaces/interface/state/counters/openconfig-interfaces:out-octets",
        ] {
            let event = counter("leaf1", "Ethernet1/1", SECOND, "7").replace(own, path);
            let read = reader.read(SECOND, event.as_bytes()).expect("an event");
            assert_eq!(read.telemetry.links.len(), 1, "{path}");
        }
    }

    #[test]
    fn a_virtual_output_queue_is_one_of_the_interface_towards_which_it_waits() {
        let (mut reader, _) = reader();
        let virtual_queue = |input: &str, output: &str, bytes: u64| {
            let tags =
                format!(r#""voq-interface_name":"{output}","interface_interface-id":"{input}""#);
            queue("0", SECOND, bytes)
                .replace(r#""interface_interface-id":"Ethernet1/1""#, &tags)
                .replace(
                    "output/queues",
                    "input/virtual-output-queues/voq-interface/queues",
                )
        };
        let input_queue = queue("0", SECOND, 9_000).replace("output/", "input/");
        let events = [
            virtual_queue("Ethernet1/7", "Ethernet1/1", 300),
            virtual_queue("Ethernet1/8", "Ethernet1/1", 40),
            virtual_queue("Ethernet1/1", "Ethernet1/7", 5_000),
            queue("0", SECOND, 2),
            input_queue,
            counter("leaf1", "Ethernet1/1", SECOND, "1"),
        ];
        let read = reader.read(SECOND, format!("[{}]", events.join(",")).as_bytes());
        let read = read.expect("events");
        assert_eq!(read.telemetry.links[0].queue_bytes, 342);
        assert_eq!(read.unknown, 1, "the queue towards another interface");
        assert_eq!(
            read.unused[&Unused::Path].count,
            1,
            "the queue of the input"
        );
    }

    #[test]
    fn every_queue_up_to_the_bound_is_read_and_those_beyond_are_counted() {
        let (mut reader, _) = reader();
        let last = 512;
        for number in 0..=last {
            let event = queue(&format!("q{number}"), SECOND, 10);
            let expected: &[(&str, u64)] = if number < last { &[] } else { &[("queues", 1)] };
            assert_eq!(unused(&mut reader, &event), expected, "{number}");
        }
        let long = queue(&"q".repeat(MAX_QUEUE_NAME + 1), SECOND, 10);
        assert_eq!(unused(&mut reader, &long), [("queues", 1)]);
        let mut sum = |at_ns| {
            let event = counter("leaf1", "Ethernet1/1", at_ns, "1");
            let read = reader.read(at_ns, event.as_bytes()).expect("an event");
            (read.telemetry.links[0].queue_bytes, reader.queues)
        };
        assert_eq!(sum(SECOND), (10 * last, 512));
        assert_eq!(sum(2 * SECOND), (10 * last, 512));
        // Nothing was read of them since.
        assert_eq!(sum(3 * SECOND), (0, 0));
    }

    #[test]
    fn an_event_with_nothing_of_use_is_counted_by_its_reason_with_an_example() {
        let (mut reader, _) = reader();
        let untagged = counter("leaf1", "Ethernet1/1", 1, "1").replace("interface_name", "port");
        for (event, reason) in [
            (r#"{"values":{"/a/b":1}}"#, "path"),
            ("{}", "empty"),
            (r#"{"source":"leaf1","updates":[{"Path":"a"}]}"#, "empty"),
            (&untagged, "tags"),
            (&counter("leaf1", "Ethernet1/1", 1, "-1"), "value"),
            (&counter("leaf1", "Ethernet1/1", 1, "true"), "value"),
        ] {
            assert_eq!(unused(&mut reader, event), [(reason, 1)], "{event}");
        }
        let long = format!(
            r#"[{{"values":{{"/{}":1}}}},{{"values":{{"/b":1}}}}]"#,
            "a".repeat(9_000)
        );
        let read = reader.read(0, long.as_bytes()).expect("events");
        let events = &read.unused[&Unused::Path];
        assert_eq!((events.count, events.example.len()), (2, MAX_EXAMPLE));
        // A value of use beside others is enough.
        let both = counter("leaf1", "Ethernet1/1", 1, r#"1,"/a/in-octets":2"#);
        let read = reader.read(0, both.as_bytes()).expect("an event");
        assert_eq!((read.telemetry.links.len(), read.unused.len()), (1, 0));
    }

    #[test]
    fn what_is_no_event_is_an_error_or_says_nothing() {
        let (mut reader, _) = reader();
        for bad in [
            "",
            "{",
            "7",
            r#"[{"timestamp":"x"}]"#,
            r#"[{"tags":7}]"#,
            "\u{0}",
        ] {
            assert!(reader.read(0, bad.as_bytes()).is_err(), "{bad}");
        }
        for idle in ["[]", r#"{"deletes":["/a"]}"#] {
            let read = reader.read(0, idle.as_bytes()).expect("events");
            assert_eq!(read, EventsRead::default(), "{idle}");
        }
    }

    #[test]
    fn targets_have_ports_or_not() {
        for (target, host) in [
            ("leaf1:57400", "leaf1"),
            ("leaf1", "leaf1"),
            ("10.0.0.1:57400", "10.0.0.1"),
            ("[2001:db8::1]:57400", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(without_port(target), host);
        }
    }
}
