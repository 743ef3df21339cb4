//! Messages of other releases, written field by field as protobuf has them.

use ratewright_proto::VERSION;
use ratewright_proto::control::{
    AccessCapacity, ClassInfo, ControlMessage, FrameDecoder, Hello, HostInfo, HostsDigest, Members,
    Refusal, RefusalCode, SealedUdp, TopologySnapshot, Welcome,
};
use ratewright_proto::sealed::Cipher;
use ratewright_proto::telemetry::{
    AccessUse, CreditState, HostFaults, LinkInt, LinkUse, ReceiverCount, Telemetry,
};

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field that is a varint.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A field that is text, bytes or a message.
fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    let length = varint(value.len() as u64);
    [varint(field << 3 | 2), length, value.to_vec()].concat()
}

/// A field that is a number of 64 bits in floating point.
fn double(field: u64, value: f64) -> Vec<u8> {
    [varint(field << 3 | 1), value.to_le_bytes().to_vec()].concat()
}

/// Fields of a release that is yet to come.
fn later() -> Vec<u8> {
    [number(1_000, 7), bytes(1_001, b"later")].concat()
}

fn topology() -> TopologySnapshot {
    TopologySnapshot {
        version: 4,
        ecmp_seed: 9,
        ecmp_symmetric: true,
        hosts: [HostInfo {
            id: 1,
            name: "h1".to_owned(),
            prefixes: vec!["10.0.0.1/32".parse().unwrap()],
        }]
        .into(),
        digest: Some(HostsDigest([7; 32])),
        known: false,
        access: None,
    }
}

/// Topology as release 0.2 tells it.
fn topology_of_0_2() -> Vec<u8> {
    let prefix = [bytes(1, &[10, 0, 0, 1]), number(2, 32)].concat();
    let host = [number(1, 1), bytes(2, b"h1"), bytes(3, &prefix)].concat();
    [
        number(1, 4),
        number(2, 9),
        number(3, 1),
        bytes(4, &host),
        bytes(5, &[7; 32]),
    ]
    .concat()
}

#[test]
fn what_a_daemon_of_the_last_release_says_is_taken() {
    let hello = [
        number(1, 2),
        bytes(2, b"h1"),
        number(3, 5),
        number(4, 2),
        bytes(5, b"ratewright-endpointd 0.2.0"),
        number(6, 16_384),
        number(7, 20_000_000),
        number(8, 77),
        number(9, 1),
        bytes(10, &[7; 32]),
    ];
    let expected = Hello {
        version: u32::from(VERSION),
        host_name: "h1".to_owned(),
        incarnation: 5,
        attempt: 2,
        software: "ratewright-endpointd 0.2.0".to_owned(),
        max_flows: 16_384,
        ack_delay_ns: 20_000_000,
        first_seq: 77,
        sealed_udp: true,
        known_hosts: Some(HostsDigest([7; 32])),
        // It hears of none.
        members: false,
    };
    let decoded = ControlMessage::decode(&bytes(1, &hello.concat()));
    assert_eq!(decoded, Ok(ControlMessage::Hello(expected)));

    let ack = [number(1, 1), number(2, 12)];
    let expected = ControlMessage::ReleaseAck {
        released: true,
        paced_flows: 12,
    };
    assert_eq!(
        ControlMessage::decode(&bytes(6, &ack.concat())),
        Ok(expected)
    );

    let receiver = [
        number(1, 1),
        number(2, 3),
        number(3, 1),
        bytes(4, &[4, 5]),
        number(5, 6),
    ];
    let credit: Vec<u8> = (1..)
        .zip([1, 2, 10, 3, 7, 6, 7, 8, 9, 11])
        .flat_map(|(field, value)| number(field, value))
        .collect();
    let link: Vec<u8> = (1..=6).flat_map(|field| number(field, field)).collect();
    let telemetry = [
        bytes(1, &receiver.concat()),
        bytes(2, &credit),
        bytes(3, &link),
    ];
    let expected = Telemetry {
        receivers: vec![ReceiverCount {
            receiver: 1,
            active_senders: 3,
            lookahead_senders: 1,
            senders: vec![4, 5],
            age_ns: 6,
            ..ReceiverCount::default()
        }],
        credits: vec![CreditState {
            sender: 1,
            receiver: 2,
            granted_bytes: 10,
            consumed_bytes: 3,
            accumulated_bytes: 7,
            csn_marked_packets: 6,
            packets: 7,
            sender_bucket_bytes: 8,
            global_bucket_bytes: 9,
            age_ns: 11,
            ..CreditState::default()
        }],
        links: vec![LinkInt {
            link: 1,
            queue_bytes: 2,
            tx_bytes: 3,
            timestamp_ns: 4,
            bandwidth_bps: 5,
            age_ns: 6,
            ..LinkInt::default()
        }],
        ..Telemetry::default()
    };
    assert_eq!(
        ControlMessage::decode(&bytes(7, &telemetry.concat())),
        Ok(ControlMessage::Telemetry(expected))
    );
}

#[test]
fn what_an_allocator_of_the_last_release_says_is_taken() {
    let class = [number(1, 3), bytes(2, b"bulk")].concat();
    let sealed = [number(1, 7_601), number(2, 1)].concat();
    let welcome = [
        number(1, 2),
        number(2, 1 << 40),
        number(3, 77),
        number(4, 1),
        number(5, 300_000_000),
        number(6, 1_000_000_000),
        number(7, 16_384),
        number(8, 20_000_000),
        number(9, 5),
        number(10, 1),
        double(11, 0.01),
        bytes(12, &topology_of_0_2()),
        bytes(13, &class),
        bytes(14, &sealed),
    ];
    let expected = Welcome {
        epoch: 1 << 40,
        session: 77,
        host_id: 1,
        lease_ns: 300_000_000,
        liveness_ns: 1_000_000_000,
        max_flows: 16_384,
        ack_delay_ns: 20_000_000,
        first_seq: 5,
        released: true,
        threshold: 0.01,
        topology: topology(),
        classes: vec![ClassInfo {
            id: 3,
            name: "bulk".to_owned(),
        }],
        sealed_udp: Some(SealedUdp {
            port: 7_601,
            cipher: Cipher::Aes128Gcm,
            address: None,
        }),
        // It asks for no measurements, and tells no capacities.
        observe: false,
        telemetry_interval_ns: 0,
        telemetry_sync: None,
        access: AccessCapacity::default(),
    };
    assert_eq!(
        ControlMessage::decode(&bytes(2, &welcome.concat())),
        Ok(ControlMessage::Welcome(expected))
    );
    assert_eq!(
        ControlMessage::decode(&bytes(4, &topology_of_0_2())),
        Ok(ControlMessage::Topology(topology()))
    );
    let release = [number(1, 1), number(2, 900)].concat();
    let expected = ControlMessage::ReleaseState {
        released: true,
        observe: false,
        next_seq: 900,
    };
    assert_eq!(ControlMessage::decode(&bytes(5, &release)), Ok(expected));
}

/// Returns a frame's body with fields of a later release at the end of its message.
fn with_later(body: &[u8]) -> Vec<u8> {
    let (key, rest) = body.split_first().expect("a key");
    let length_bytes = 1 + rest.iter().position(|byte| byte & 0x80 == 0).expect("ends");
    let message = [&rest[length_bytes..], later().as_slice()].concat();
    bytes(u64::from(key >> 3), &message)
}

#[test]
fn fields_of_a_later_release_are_passed_over() {
    let host = topology().hosts.to_vec();
    for message in [
        ControlMessage::Hello(Hello {
            version: u32::from(VERSION),
            host_name: "h1".to_owned(),
            incarnation: 5,
            attempt: 2,
            software: "later".to_owned(),
            max_flows: 16_384,
            ack_delay_ns: 0,
            first_seq: 1,
            sealed_udp: true,
            known_hosts: None,
            members: true,
        }),
        ControlMessage::Refused(Refusal {
            code: RefusalCode::Draining,
            reason: "later".to_owned(),
            retry: true,
        }),
        ControlMessage::Topology(topology()),
        ControlMessage::ReleaseState {
            released: true,
            observe: true,
            next_seq: 900,
        },
        ControlMessage::ReleaseAck {
            released: true,
            paced_flows: 12,
        },
        ControlMessage::Telemetry(Telemetry {
            whole: true,
            ..Telemetry::default()
        }),
        ControlMessage::Members(Members {
            replaces: true,
            joined: host,
            left: vec![4],
        }),
    ] {
        let frame = message.to_frame().unwrap();
        let mut decoder = FrameDecoder::new();
        decoder.push(&frame);
        let body = decoder.next_frame().unwrap().expect("a frame");
        assert_eq!(ControlMessage::decode(&with_later(body)), Ok(message));
    }
}

#[test]
fn fields_of_a_later_release_are_passed_over_within_what_a_host_tells_of_itself() {
    let link = [number(6, 10_000_000_000), later()].concat();
    let faults = [number(1, 1), later()].concat();
    let access_use = [number(1, 1), bytes(3, &link), bytes(4, &faults), later()];
    let receiver = [number(1, 3), number(2, 8), later()].concat();
    let telemetry = [bytes(1, &receiver), bytes(5, &access_use.concat()), later()];
    let expected = Telemetry {
        receivers: vec![ReceiverCount {
            receiver: 3,
            active_senders: 8,
            ..ReceiverCount::default()
        }],
        access_use: Some(Box::new(AccessUse {
            observes: true,
            downlink: LinkUse {
                speed_bps: 10_000_000_000,
                ..LinkUse::default()
            },
            faults: HostFaults {
                no_address: true,
                ..HostFaults::default()
            },
            ..AccessUse::default()
        })),
        ..Telemetry::default()
    };
    assert_eq!(
        ControlMessage::decode(&bytes(7, &telemetry.concat())),
        Ok(ControlMessage::Telemetry(expected))
    );
}
