use super::*;
use crate::control::HOSTS_DIGEST_BYTES;
use crate::telemetry::{
    AccessUse, CreditState, LinkInt, LinkUse, ReceiverCount, SyncTerms, Telemetry,
};

fn topology() -> TopologySnapshot {
    TopologySnapshot {
        version: 4,
        ecmp_seed: 0xabcd,
        ecmp_symmetric: true,
        hosts: [
            HostInfo {
                id: 1,
                name: "h1".to_owned(),
                prefixes: vec![
                    "10.0.0.1/32".parse().unwrap(),
                    "fd00::1:0/112".parse().unwrap(),
                ],
            },
            HostInfo {
                id: 2,
                name: "rest".to_owned(),
                prefixes: vec!["10.0.0.0/8".parse().unwrap()],
            },
        ]
        .into(),
        digest: Some(HostsDigest([7; HOSTS_DIGEST_BYTES])),
        known: false,
        access: Some(AccessCapacity::new(10_000_000_000, 0).with_line_rates(0, 10_400_000_000)),
    }
}

fn welcome() -> Welcome {
    Welcome {
        epoch: u64::MAX,
        session: 77,
        host_id: 1,
        lease_ns: 300_000_000,
        liveness_ns: 1_500_000_000,
        max_flows: 16_384,
        ack_delay_ns: 1_000_000,
        first_seq: 1,
        released: true,
        observe: true,
        threshold: 0.01,
        topology: topology(),
        classes: vec![ClassInfo {
            id: 127,
            name: "bulk".to_owned(),
        }],
        sealed_udp: Some(SealedUdp {
            port: 7_601,
            cipher: Cipher::ChaCha20Poly1305,
            address: Some([10, 1, 2, 3].into()),
        }),
        telemetry_interval_ns: 10_000_000,
        telemetry_sync: Some(SyncTerms {
            hysteresis: 0.02,
            repeat_ns: 25_000_000,
        }),
        access: AccessCapacity::new(25_000_000_000, u64::MAX).with_line_rates(u64::MAX, 1),
    }
}

fn hello() -> Hello {
    Hello {
        version: u32::from(VERSION),
        host_name: "h1".to_owned(),
        incarnation: 5,
        attempt: 2,
        software: "test 1".to_owned(),
        max_flows: 16_384,
        ack_delay_ns: 1_000_000,
        first_seq: 1,
        sealed_udp: true,
        known_hosts: Some(HostsDigest([9; HOSTS_DIGEST_BYTES])),
        members: true,
    }
}

fn round_trip(message: &ControlMessage) {
    let frame = message.to_frame().unwrap();
    let mut decoder = crate::control::FrameDecoder::new();
    decoder.push(&frame);
    let body = decoder.next_frame().unwrap().unwrap();
    assert_eq!(&ControlMessage::decode(body).unwrap(), message);
}

#[test]
fn every_message_survives_a_round_trip() {
    let refusal = |code| {
        ControlMessage::Refused(Refusal {
            code,
            reason: "because".to_owned(),
            retry: false,
        })
    };
    for message in [
        ControlMessage::Hello(hello()),
        ControlMessage::Welcome(welcome()),
        refusal(RefusalCode::VersionMismatch),
        refusal(RefusalCode::UnknownHost),
        refusal(RefusalCode::DuplicateHost),
        refusal(RefusalCode::CertificateMismatch),
        refusal(RefusalCode::Draining),
        refusal(RefusalCode::TableFull),
        refusal(RefusalCode::Superseded),
        refusal(RefusalCode::ProtocolError),
        refusal(RefusalCode::NotAllowed),
        refusal(RefusalCode::Unknown(99)),
        ControlMessage::Topology(topology()),
        ControlMessage::Members(Members {
            replaces: true,
            joined: topology().hosts.to_vec(),
            left: vec![0, u32::MAX],
        }),
        ControlMessage::ReleaseState {
            released: true,
            observe: true,
            next_seq: u64::MAX,
        },
        ControlMessage::ReleaseAck {
            released: false,
            paced_flows: 12,
        },
        ControlMessage::Telemetry(Telemetry {
            receivers: vec![ReceiverCount {
                receiver: 1,
                active_senders: 3,
                lookahead_senders: 1,
                senders: vec![4, 5],
                sender_flows: vec![1, 9],
                excludes_managed: true,
                stands: true,
                age_ns: 6,
            }],
            credits: vec![CreditState {
                sender: 1,
                receiver: 2,
                granted_bytes: 10,
                consumed_bytes: 3,
                accumulated_bytes: 7,
                csn_marked_packets: 1,
                packets: 2,
                sender_bucket_bytes: 8,
                global_bucket_bytes: 9,
                flow: Some(12),
                age_ns: 11,
            }],
            links: vec![LinkInt {
                link: 1,
                queue_bytes: 2,
                tx_bytes: 3,
                managed_bytes: Some(0),
                shaped_packets: 7,
                timestamp_ns: 4,
                bandwidth_bps: 5,
                interval_ns: 4,
                former_queue_bytes: 8,
                age_ns: 6,
            }],
            whole: true,
            access_use: Some(Box::new(AccessUse {
                observes: true,
                downlink: LinkUse {
                    hosts: vec![4],
                    strangers: 1,
                    stranger: "10.0.0.7".parse().ok(),
                    udp: true,
                    carried_bps: Some(8),
                    ..LinkUse::default()
                },
                ..AccessUse::default()
            })),
        }),
    ] {
        round_trip(&message);
    }
}

#[test]
fn addresses_find_their_host_by_the_longest_prefix() {
    let topology = topology();
    let host = |text: &str| {
        let addr = text.parse().unwrap();
        topology.host_by_addr(addr).map(|host| host.id)
    };
    assert_eq!(host("10.0.0.1"), Some(1));
    assert_eq!(host("10.0.0.2"), Some(2));
    assert_eq!(host("fd00::1:7"), Some(1));
    assert_eq!(host("192.0.2.1"), None);
    assert_eq!(host("fd00::2:7"), None);
}

fn field_of(body: Body) -> &'static str {
    match ControlMessage::try_from(body) {
        Err(SessionError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn impossible_values_are_refused_by_field() {
    let bad_welcome = |change: fn(&mut wire::Welcome)| {
        let mut wire = wire::Welcome::from(&welcome());
        change(&mut wire);
        field_of(Body::Welcome(wire))
    };
    assert_eq!(bad_welcome(|w| w.version = 9), "Welcome.version");
    assert_eq!(bad_welcome(|w| w.liveness_ns = 0), "Welcome.liveness_ns");
    assert_eq!(
        bad_welcome(|w| w.liveness_ns = MAX_LIVENESS_NS + 1),
        "Welcome.liveness_ns"
    );
    assert_eq!(bad_welcome(|w| w.max_flows = u32::MAX), "Welcome.max_flows");
    assert_eq!(bad_welcome(|w| w.threshold = f64::NAN), "Welcome.threshold");
    assert_eq!(bad_welcome(|w| w.threshold = 1.0), "Welcome.threshold");
    assert_eq!(bad_welcome(|w| w.topology = None), "Welcome.topology");
    assert_eq!(bad_welcome(|w| w.classes[0].id = 128), "FlowClass.id");
    let bad_prefix = |address: &[u8], length| {
        let mut wire = wire::Topology::from(&topology());
        wire.hosts[0].prefixes[0] = wire::Prefix {
            address: address.to_vec(),
            length,
        };
        field_of(Body::Topology(wire))
    };
    assert_eq!(bad_prefix(&[10, 0, 0], 8), "Prefix.address");
    assert_eq!(bad_prefix(&[10, 0, 0, 1], 33), "Prefix.length");
    assert_eq!(bad_prefix(&[0; 16], 129), "Prefix.length");
    let bad_hello = |change: fn(&mut wire::Hello)| {
        let mut wire = wire::Hello::from(&hello());
        change(&mut wire);
        field_of(Body::Hello(wire))
    };
    assert_eq!(bad_hello(|h| h.host_name.clear()), "Hello.host_name");
    assert_eq!(
        bad_hello(|h| h.host_name = "x".repeat(2_000)),
        "Hello.host_name"
    );
    assert_eq!(bad_hello(|h| h.max_flows = u32::MAX), "Hello.max_flows");
    assert_eq!(
        bad_hello(|h| h.ack_delay_ns = u64::MAX),
        "Hello.ack_delay_ns"
    );
}

/// Whoever has an allocator's or a relay's key decides on the lease.
#[test]
fn a_lease_of_less_than_10_ms_or_more_than_10_s_is_refused() {
    let welcome_of = |lease_ns| {
        let mut wire = wire::Welcome::from(&welcome());
        wire.lease_ns = lease_ns;
        Welcome::try_from(wire)
    };
    for lease_ns in [0, 1, 9_999_999, 10_000_000_001, 3_600_000_000_000, u64::MAX] {
        let refused = welcome_of(lease_ns).expect_err("refused");
        assert!(
            refused.to_string().contains("Welcome.lease_ns"),
            "{refused}"
        );
    }
    for lease_ns in [10_000_000, 10_000_000_000] {
        assert_eq!(welcome_of(lease_ns).expect("taken").lease_ns, lease_ns);
    }
}

#[test]
fn a_refusals_reason_is_cut_at_the_bound_between_characters() {
    let wire = wire::Refused {
        // Two bytes per character: the text is twice the bound.
        reason: "é".repeat(MAX_TEXT_BYTES),
        ..wire::Refused::default()
    };
    let refusal = Refusal::from(wire);
    assert!(refusal.reason.len() <= MAX_TEXT_BYTES);
    assert!(refusal.reason.chars().all(|c| c == 'é'));
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    // Nothing, no varint, a field cut short, and an unknown field alone.
    for body in [[].as_slice(), &[0xff; 40], &[0x0a, 0x05, 1], &[0x7a, 0]] {
        assert!(matches!(
            ControlMessage::decode(body),
            Err(SessionError::Decode(_))
        ));
    }
}

#[test]
fn an_offer_of_an_unknown_cipher_is_none() {
    let mut wire = wire::Welcome::from(&welcome());
    wire.sealed_udp = Some(wire::SealedUdp {
        port: 7_601,
        cipher: 99,
        ipv4: None,
    });
    assert_eq!(Welcome::try_from(wire).unwrap().sealed_udp, None);
}

#[test]
fn an_offer_of_an_address_that_no_server_has_is_none() {
    let good = wire::Welcome::from(&welcome());
    for bad in [
        vec![],
        vec![10, 1, 2],
        vec![10, 1, 2, 3, 4],
        // The unspecified, the broadcast and a multicast address are no server's.
        vec![0, 0, 0, 0],
        vec![255, 255, 255, 255],
        vec![224, 0, 0, 1],
    ] {
        let mut wire = good.clone();
        if let Some(offer) = &mut wire.sealed_udp {
            offer.ipv4 = Some(bad.clone());
        }
        let welcome = Welcome::try_from(wire).unwrap();
        assert_eq!(welcome.sealed_udp, None, "{bad:?}");
    }
    assert!(Welcome::try_from(good).unwrap().sealed_udp.is_some());
}
