use zerocopy::IntoBytes as _;

use super::*;
use crate::codes::RateCode;
use crate::records::{FlowId, FlowPath};

fn header(flags: u8, starts: u16, ends: u16, rates: u16) -> Header {
    Header {
        version: VERSION,
        flags,
        starts: starts.into(),
        ends: ends.into(),
        rates: rates.into(),
        session: 7.into(),
        epoch: 9.into(),
        seq: 11.into(),
        ack: 13.into(),
        ack_bitmap: 0x8000_0000_0000_0001.into(),
    }
}

fn client_datagram() -> Vec<u8> {
    let mut bytes = header(flags::ACK_ELICITING, 2, 3, 0).as_bytes().to_vec();
    for slot in 0..2 {
        let start = StartRecord::new(FlowId::new(slot, 1), 5, FlowPath::Explicit(3));
        bytes.extend_from_slice(start.as_bytes());
    }
    for slot in 2..5 {
        bytes.extend_from_slice(EndRecord::new(FlowId::new(slot, 0)).as_bytes());
    }
    bytes
}

#[test]
fn the_layout_is_fixed() {
    let bytes = client_datagram();
    assert_eq!(bytes.len(), 32 + 2 * 16 + 3 * 4);
    assert_eq!(bytes[..8], [VERSION, 1, 2, 0, 3, 0, 0, 0]);
    assert_eq!(bytes[8..12], 7u32.to_le_bytes());
    assert_eq!(bytes[12..16], 9u32.to_le_bytes());
    assert_eq!(bytes[16..20], 11u32.to_le_bytes());
    assert_eq!(bytes[20..24], 13u32.to_le_bytes());
    assert_eq!(bytes[24..32], 0x8000_0000_0000_0001u64.to_le_bytes());
    // The first start: flow 0.1, host 5, route 3, class 0 with the route bit.
    assert_eq!(bytes[32..36], (1u32 << 20).to_le_bytes());
    assert_eq!(bytes[36..48], [5, 0, 0, 0, 3, 0, 0, 0, 0x80, 0, 0, 0]);
}

#[test]
fn records_come_back_as_they_went() {
    let bytes = client_datagram();
    let datagram = Datagram::parse(&bytes, SessionRole::Client).unwrap();
    assert_eq!(datagram.starts.len(), 2);
    assert_eq!(datagram.starts[1].flow(), FlowId::new(1, 1));
    assert_eq!(datagram.starts[1].path(), FlowPath::Explicit(3));
    let ends: Vec<_> = datagram.ends.iter().map(|end| end.flow().slot()).collect();
    assert_eq!(ends, [2, 3, 4]);

    let mut bytes = header(flags::FROM_SERVER | flags::HAS_ACK, 0, 0, 1)
        .as_bytes()
        .to_vec();
    let rate = RateRecord::new(FlowId::new(3, 4095), RateCode::encode(10_000_000));
    bytes.extend_from_slice(rate.as_bytes());
    let datagram = Datagram::parse(&bytes, SessionRole::Server).unwrap();
    assert_eq!(datagram.rates, [rate]);
}

#[test]
fn a_start_keeps_class_weight_demand_and_path_apart() {
    use crate::codes::WeightCode;
    for path in [FlowPath::Hash(0xdead_beef), FlowPath::Explicit(2)] {
        let start = StartRecord::new(FlowId::new(0xf_ffff, 0xfff), u32::MAX, path)
            .with_class(0x7f)
            .with_weight(WeightCode(200))
            .with_demand(RateCode(0x1234));
        assert_eq!(start.flow(), FlowId(u32::MAX));
        assert_eq!(start.path(), path);
        assert_eq!(start.class(), 0x7f);
        assert_eq!(start.with_class(3).path(), path);
        assert_eq!(start.weight(), WeightCode(200));
        assert_eq!(start.demand(), RateCode(0x1234));
    }
    assert_eq!(FlowId(u32::MAX).next_generation(), FlowId::new(0xf_ffff, 0));
}

#[test]
fn every_truncation_and_extension_is_refused() {
    let bytes = client_datagram();
    for length in 0..bytes.len() {
        let error = Datagram::parse(&bytes[..length], SessionRole::Client).unwrap_err();
        let want = if length < HEADER_BYTES {
            HEADER_BYTES
        } else {
            bytes.len()
        };
        assert_eq!(error, DatagramError::Length { got: length, want });
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(
        Datagram::parse(&longer, SessionRole::Client),
        Err(DatagramError::Length { .. })
    ));
}

#[test]
fn another_version_is_named() {
    for version in (0..=u8::MAX).filter(|&version| version != VERSION) {
        let error = Datagram::parse(&[version], SessionRole::Client).unwrap_err();
        assert_eq!(
            error,
            DatagramError::Version {
                got: version,
                want: VERSION
            }
        );
    }
}

#[test]
fn directions_and_unknown_flags_are_checked() {
    let parse = |header: Header, role| Datagram::parse(header.as_bytes(), role).map(|_| ());
    let malformed = Err(DatagramError::Malformed);
    let server = flags::FROM_SERVER;
    assert_eq!(parse(header(0, 0, 0, 0), SessionRole::Client), Ok(()));
    assert_eq!(parse(header(server, 0, 0, 0), SessionRole::Server), Ok(()));
    // Reflected back at its sender.
    assert_eq!(parse(header(0, 0, 0, 0), SessionRole::Server), malformed);
    assert_eq!(
        parse(header(server, 0, 0, 0), SessionRole::Client),
        malformed
    );
    // Records and flags of the other direction.
    assert_eq!(parse(header(0, 0, 0, 1), SessionRole::Client), malformed);
    assert_eq!(
        parse(header(flags::RELEASED, 0, 0, 0), SessionRole::Client),
        malformed
    );
    assert_eq!(
        parse(header(server, 1, 0, 0), SessionRole::Server),
        malformed
    );
    assert_eq!(
        parse(header(server, 0, 1, 0), SessionRole::Server),
        malformed
    );
    for bit in 5..8 {
        assert_eq!(
            parse(header(1 << bit, 0, 0, 0), SessionRole::Client),
            malformed
        );
    }
}
