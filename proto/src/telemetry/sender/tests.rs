use proptest::prelude::*;

use super::*;
use crate::control::ControlMessage;
use crate::telemetry::{OWN_DOWNLINK, OWN_UPLINK};

const MS: u64 = 1_000_000;
const BPS: u64 = 10_000_000_000;
const TERMS: SyncTerms = SyncTerms {
    hysteresis: 0.01,
    repeat_ns: 25 * MS,
};

/// A host whose counters grow by given loads.
#[derive(Debug, Clone)]
struct Host {
    at_ns: u64,
    tx_bytes: u64,
    managed_bytes: u64,
}

impl Host {
    fn new() -> Self {
        Self {
            at_ns: 1_000 * MS,
            tx_bytes: 7,
            managed_bytes: 5,
        }
    }

    /// Lets an interval pass. Loads are in thousandths of the link.
    fn pass(&mut self, external: u64, managed: u64, senders: &[u32]) -> Telemetry {
        self.at_ns += 10 * MS;
        let bytes = |share: u64| BPS / 8_000 * share / 100;
        self.tx_bytes += bytes(external + managed);
        self.managed_bytes += bytes(managed);
        let uplink = LinkInt {
            link: OWN_UPLINK,
            tx_bytes: self.tx_bytes,
            managed_bytes: Some(self.managed_bytes),
            timestamp_ns: self.at_ns,
            bandwidth_bps: BPS,
            ..LinkInt::default()
        };
        Telemetry {
            receivers: vec![ReceiverCount {
                receiver: 3,
                active_senders: senders.len() as u32,
                senders: senders.to_vec(),
                ..ReceiverCount::default()
            }],
            links: vec![
                uplink,
                LinkInt {
                    link: OWN_DOWNLINK,
                    managed_bytes: None,
                    ..uplink
                },
            ],
            ..Telemetry::default()
        }
    }
}

/// Knowledge that a server has by a session: the last word about each entry that stands.
#[derive(Debug, Default)]
struct Server {
    counts: BTreeMap<u32, ReceiverCount>,
    loads_bps: BTreeMap<u32, f64>,
    heard_ns: u64,
}

impl Server {
    /// Takes a message as it comes off the stream.
    fn take(&mut self, now_ns: u64, message: &Telemetry) {
        let frame = ControlMessage::Telemetry(message.clone())
            .to_frame()
            .unwrap();
        let mut frames = crate::control::FrameDecoder::new();
        frames.push(&frame);
        let body = frames.next_frame().unwrap().unwrap();
        let Ok(ControlMessage::Telemetry(message)) = ControlMessage::decode(body) else {
            panic!("it is telemetry");
        };
        if message.whole {
            (self.counts, self.loads_bps) = Default::default();
        }
        self.heard_ns = now_ns;
        for count in message.receivers {
            assert!(count.stands);
            self.counts.insert(count.receiver, count);
        }
        for link in message.links {
            let bytes = link.tx_bytes - link.managed_bytes.unwrap_or(0);
            let load_bps = bytes as f64 * 8e9 / link.interval_ns as f64;
            self.loads_bps.insert(link.link, load_bps);
        }
    }
}

#[test]
fn without_terms_everything_is_told_each_time_as_it_was_measured() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(None, 1));
    for _ in 0..3 {
        let measured = host.pass(100, 100, &[1]);
        assert_eq!(sender.measure(host.at_ns, measured.clone()), Some(measured));
    }
    assert_eq!(sender.measure(host.at_ns, Telemetry::default()), None);
}

#[test]
fn what_stands_is_told_once_and_then_only_that_it_stands() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    let mut told = Vec::new();
    for pass in 0..12 {
        // Managed traffic may do what it likes on a link whose host can tell it apart; the
        // downlink's cannot, and stands still here.
        let measured = host.pass(100, 100, &[1, 2]);
        if let Some(message) = sender.measure(host.at_ns, measured) {
            told.push((pass, message.links.len(), message.is_empty(), message.whole));
        }
    }
    let expected = [
        (0, 0, false, true),
        (1, 2, false, false),
        (4, 0, true, false),
        (7, 0, true, false),
        (10, 0, true, false),
    ];
    assert_eq!(told, expected);
}

#[test]
fn all_that_stands_takes_two_bytes_and_one_for_its_length() {
    let frame = ControlMessage::Telemetry(Telemetry::default())
        .to_frame()
        .unwrap();
    assert_eq!(frame, [2, 0x3a, 0]);
}

#[test]
fn managed_traffic_that_the_host_knows_is_not_told() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    let uplink = |mut telemetry: Telemetry| {
        telemetry.links.truncate(1);
        telemetry.receivers.clear();
        telemetry
    };
    let mut messages = 0;
    for pass in 0..20 {
        let measured = uplink(host.pass(100, 50 * (pass % 10), &[]));
        let message = sender.measure(host.at_ns, measured);
        messages += usize::from(message.is_some_and(|message| !message.links.is_empty()));
    }
    assert_eq!(messages, 1);
}

#[test]
fn a_step_is_told_whole_in_the_interval_in_which_it_came() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    for _ in 0..100 {
        let measured = host.pass(100, 0, &[]);
        sender.measure(host.at_ns, measured);
    }
    let measured = host.pass(400, 0, &[]);
    let message = sender.measure(host.at_ns, measured).expect("it moved");
    let load_bps = LinkState::of(&message.links[0]).load_bps;
    assert!((load_bps / BPS as f64 - 0.4).abs() < 1e-3, "{load_bps}");
}

#[test]
fn fewer_flows_are_told_once_two_measurements_have_counted_them() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    let mut told = Vec::new();
    for senders in [3, 2, 3, 2, 3, 2, 2, 2, 5] {
        let measured = host.pass(0, 0, &(0..senders).collect::<Vec<_>>());
        let message = sender.measure(host.at_ns, measured).unwrap_or_default();
        told.extend(message.receivers.first().map(|count| count.active_senders));
    }
    assert_eq!(told, [3, 2, 5]);
}

#[test]
fn a_link_is_told_with_every_reading_while_it_was_shaped_lately() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    let mut told = 0;
    for pass in 0..200 {
        let mut measured = host.pass(100, 0, &[]);
        measured.links[0].shaped_packets = u64::from(pass >= 10);
        let message = sender.measure(host.at_ns, measured).unwrap_or_default();
        let mut links = message.links.iter();
        told += u32::from(links.any(|link| link.link == OWN_UPLINK)) * u32::from(!message.whole);
    }
    // The first one, then from the shaped packet on; one among them with the refresh.
    assert!(
        (SHAPED_READINGS..=SHAPED_READINGS + 1).contains(&told),
        "{told}"
    );
}

#[test]
fn what_is_not_measured_any_more_does_not_stand() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    for _ in 0..3 {
        let measured = host.pass(100, 0, &[1]);
        sender.measure(host.at_ns, measured);
    }
    let mut measured = host.pass(100, 0, &[1]);
    measured.links.clear();
    let message = sender
        .measure(host.at_ns, measured)
        .expect("the links are gone");
    assert!(message.whole && message.links.is_empty());
    assert_eq!(message.receivers.len(), 1);
}

#[test]
fn after_a_rest_all_is_told_and_the_load_is_that_of_one_interval() {
    let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), 100));
    for _ in 0..50 {
        sender.rest(&host.pass(0, 0, &[]));
    }
    let measured = host.pass(300, 0, &[1]);
    let message = sender.measure(host.at_ns, measured).expect("it is busy");
    assert!(message.whole && message.links.len() == 2);
    let load_bps = LinkState::of(&message.links[0]).load_bps;
    assert!((load_bps / BPS as f64 - 0.3).abs() < 1e-3, "{load_bps}");
}

#[test]
fn hosts_tell_all_anew_in_turns() {
    for number in [0, 1, 500, 999] {
        let (mut host, mut sender) = (Host::new(), TelemetrySender::new(Some(TERMS), number));
        let mut whole = Vec::new();
        for pass in 0..2 * REFRESH_INTERVALS {
            let measured = host.pass(100, 0, &[1]);
            let message = sender.measure(host.at_ns, measured);
            whole.extend(message.filter(|message| message.whole).map(|_| pass));
        }
        let first = (1 + number).max(1);
        assert_eq!(whole[..2], [0, first], "{number}");
        assert!(
            whole[2..]
                .iter()
                .all(|pass| (pass - first).is_multiple_of(REFRESH_INTERVALS))
        );
    }
}

/// One interval: thousandths of external and managed load, number of senders, and what happens.
type Interval = (u64, u64, u32, u8);

fn intervals() -> impl Strategy<Value = Vec<Interval>> {
    // Loads that stand, creep and jump.
    let load = || prop_oneof![Just(300_u64), 295..306_u64, 0..500_u64];
    proptest::collection::vec((load(), load(), 0..4_u32, 0..40_u8), 1..200)
}

proptest! {
    /// The bound that the documentation states: of each link, what the server knows is within the
    /// hysteresis of what the host measured last, and counts are those of the last two
    /// measurements. It holds whenever the sessions are lost, and whatever could not be sent.
    #[test]
    fn the_server_knows_what_was_measured_within_the_hysteresis(intervals in intervals()) {
        let mut host = Host::new();
        let mut sender = TelemetrySender::new(Some(TERMS), 7);
        let mut server = Server::default();
        let mut before: Option<(u64, u64, u32)> = None;
        // Of the present session: readings, and messages that could not be sent since the last one.
        let (mut readings, mut refused) = (0, 0);
        for (external, managed, senders, event) in intervals {
            let measured = host.pass(external, managed, &(0..senders).collect::<Vec<_>>());
            let now_ns = host.at_ns;
            if event == 0 {
                // The session is lost; the new one begins with this measurement.
                sender = TelemetrySender::new(Some(TERMS), 7);
                (server, readings, before) = (Server::default(), 0, None);
            }
            readings += 1;
            if let Some(message) = sender.measure(now_ns, measured) {
                prop_assert_eq!(message.validate(), Ok(()));
                if event == 1 {
                    // The queue was full.
                    sender.restart();
                    refused = 1;
                } else {
                    server.take(now_ns, &message);
                    refused = 0;
                }
            }
            if refused == 0 {
                prop_assert!(now_ns - server.heard_ns < TERMS.repeat_ns + 10 * MS);
                let counted = server.counts[&3].active_senders;
                let former = before.map_or(senders, |before| before.2);
                prop_assert!(counted == senders || counted >= former, "{counted}: {senders}");
                if readings > 1 {
                    let near = |link, share: u64| {
                        let truth_bps = share as f64 / 1000.0 * BPS as f64;
                        let known_bps: f64 = server.loads_bps[&link];
                        (known_bps - truth_bps).abs() <= 0.0101 * BPS as f64
                    };
                    prop_assert!(near(OWN_UPLINK, external), "{:?} {}", server, external);
                    prop_assert!(near(OWN_DOWNLINK, external + managed));
                }
            }
            before = Some((external, managed, senders));
        }
    }
}
