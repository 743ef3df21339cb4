//! Two stacks talk to each other over a wire that is a byte slice; the header fields are checked
//! against the RFCs at their offsets, not through the code that wrote them.

use super::*;
use proptest::prelude::*;

const A_MAC: Mac = [2, 0, 0, 0, 0, 0xA];
const B_MAC: Mac = [2, 0, 0, 0, 0, 0xB];
const A: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

fn stack(mac: Mac, address: Ipv4Addr) -> UdpStack {
    UdpStack::new(StackConfig {
        mac,
        address,
        prefix_len: 24,
        gateway: Some(Ipv4Addr::new(10, 1, 0, 254)),
        udp_port: 7601,
        dscp: 48,
        siblings: 7601..7603,
        mtu_bytes: 1500,
        max_neighbours: 64,
    })
}

#[test]
fn a_datagram_for_another_queues_port_is_for_that_queue_and_teaches_nothing_here() {
    let (mut a, mut b) = introduced();
    let (mut frame, mut reply) = ([0; 1514], [0; 1514]);
    let before = b.counters();
    for (port, expected) in [
        (7602, Received::Sibling(7602)),
        (7603, Received::Nothing),
        (7600, Received::Nothing),
    ] {
        let bytes = a
            .send(1, SocketAddrV4::new(B, port), b"hello", &mut frame)
            .expect("B is known");
        assert_eq!(b.receive(&frame[..bytes], &mut reply), expected);
    }
    assert_eq!(b.counters().datagrams_in, before.datagrams_in);
    assert_eq!(b.counters().not_ours, before.not_ours + 2);
}

#[test]
fn an_authentic_datagram_moves_its_senders_station_and_a_mere_one_does_not() {
    let (mut a, mut b) = introduced();
    let (mut frame, mut reply) = ([0; 1514], [0; 1514]);
    let elsewhere = [2, 0, 0, 0, 0, 0xE];
    let bytes = a
        .send(1, SocketAddrV4::new(B, 7601), b"hello", &mut frame)
        .expect("B is known");
    // Bytes 6 to 12 of an Ethernet frame are the source address.
    frame[6..12].copy_from_slice(&elsewhere);
    let Received::Datagram { from, station, .. } = b.receive(&frame[..bytes], &mut reply) else {
        panic!("a datagram");
    };
    assert_eq!(station, elsewhere);
    let bytes = b.send(2, from, b"rates", &mut frame).expect("known");
    assert_eq!(frame[..6], A_MAC, "{bytes} bytes");
    b.confirm(*from.ip(), station);
    let bytes = b.send(3, from, b"rates", &mut frame).expect("known");
    assert_eq!(frame[..6], elsewhere, "{bytes} bytes");
}

/// A knows B by an ARP exchange.
fn introduced() -> (UdpStack, UdpStack) {
    let (mut a, mut b) = (stack(A_MAC, A), stack(B_MAC, B));
    let (mut request, mut reply, mut none) = ([0; 1514], [0; 1514], [0; 1514]);
    let to_b = SocketAddrV4::new(B, 7601);
    let Err(SendError::Ask(bytes)) = a.send(0, to_b, b"x", &mut request) else {
        panic!("A asks first");
    };
    let Received::Reply(bytes) = b.receive(&request[..bytes], &mut reply) else {
        panic!("B answers ARP");
    };
    assert_eq!(a.receive(&reply[..bytes], &mut none), Received::Nothing);
    (a, b)
}

#[test]
fn a_datagram_crosses_after_arp_and_the_answer_needs_no_arp() {
    let (mut a, mut b) = introduced();
    let (mut frame, mut reply) = ([0; 1514], [0; 1514]);
    let bytes = a
        .send(1, SocketAddrV4::new(B, 7601), b"hello", &mut frame)
        .expect("B is known");
    assert_eq!(
        b.receive(&frame[..bytes], &mut reply),
        Received::Datagram {
            from: SocketAddrV4::new(A, 7601),
            station: A_MAC,
            payload: b"hello"
        }
    );
    let bytes = b
        .send(1, SocketAddrV4::new(A, 7601), b"rates", &mut frame)
        .expect("A asked, so A is known");
    assert_eq!(
        a.receive(&frame[..bytes], &mut reply),
        Received::Datagram {
            from: SocketAddrV4::new(B, 7601),
            station: B_MAC,
            payload: b"rates"
        }
    );
    assert_eq!(a.counters().unresolved, 1);
    assert_eq!(b.counters().unresolved, 0);
}

#[test]
fn headers_are_where_the_rfcs_put_them() {
    let (mut a, _) = introduced();
    let mut frame = [0xEE; 1514];
    let bytes = a
        .send(1, SocketAddrV4::new(B, 9), &[7; 100], &mut frame)
        .expect("B is known");
    assert_eq!(bytes, HEADER_BYTES + 100);
    assert_eq!(frame[0..6], B_MAC);
    assert_eq!(frame[6..12], A_MAC);
    assert_eq!(frame[12..14], [0x08, 0x00]);
    assert_eq!(frame[14], 0x45);
    // CS6 in the upper six bits of the type of service (RFC 2474, section 3).
    assert_eq!(frame[15], 0xC0);
    assert_eq!(frame[16..18], (128u16).to_be_bytes());
    assert_eq!(frame[23], 17);
    assert_eq!(frame[26..30], A.octets());
    assert_eq!(frame[30..34], B.octets());
    // RFC 1071: the ones' complement sum over a correct header is all ones.
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF);
    assert_eq!(frame[34..36], 7601u16.to_be_bytes());
    assert_eq!(frame[36..38], 9u16.to_be_bytes());
    assert_eq!(frame[38..40], 108u16.to_be_bytes());
    // No UDP checksum (RFC 768): the seal authenticates the payload.
    assert_eq!(frame[40..42], [0, 0]);
}

#[test]
fn a_short_frame_is_padded_with_zeros() {
    let (mut a, _) = introduced();
    let mut frame = [0xEE; 1514];
    let bytes = a
        .send(1, SocketAddrV4::new(B, 9), &[7; 4], &mut frame)
        .expect("B is known");
    assert_eq!(bytes, MIN_FRAME_BYTES);
    assert!(
        frame[HEADER_BYTES + 4..MIN_FRAME_BYTES]
            .iter()
            .all(|&b| b == 0)
    );
}

#[test]
fn another_prefix_goes_to_the_gateway() {
    let (mut a, _) = introduced();
    let mut frame = [0; 1514];
    let far = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9);
    let Err(SendError::Ask(bytes)) = a.send(1, far, b"x", &mut frame) else {
        panic!("the gateway is not known yet");
    };
    // RFC 826: the target protocol address is at 24 of the ARP packet.
    assert_eq!(frame[14 + 24..14 + 28], [10, 1, 0, 254]);
    assert_eq!(bytes, MIN_FRAME_BYTES);
    assert_eq!(a.send(2, far, b"x", &mut frame), Err(SendError::Unresolved));

    let mut config = a.config().clone();
    config.gateway = None;
    let mut lone = UdpStack::new(config);
    assert_eq!(lone.send(1, far, b"x", &mut frame), Err(SendError::NoRoute));
}

#[test]
fn what_does_not_fit_the_mtu_is_refused() {
    let (mut a, _) = introduced();
    let mut frame = [0; 4096];
    let to = SocketAddrV4::new(B, 9);
    // 1500 less 20 of IPv4 and 8 of UDP.
    assert!(a.send(1, to, &[0; 1472], &mut frame).is_ok());
    assert_eq!(
        a.send(1, to, &[0; 1473], &mut frame),
        Err(SendError::TooLong)
    );
    assert_eq!(
        a.send(1, to, &[0; 100], &mut frame[..141]),
        Err(SendError::TooLong)
    );
}

#[test]
fn pings_are_answered() {
    let (mut a, mut b) = introduced();
    let (mut frame, mut reply, mut none) = ([0; 1514], [0; 1514], [0; 1514]);
    let request = Icmpv4Repr::EchoRequest {
        ident: 5,
        seq_no: 6,
        data: b"ratewright ratewright",
    };
    let bytes = ETHERNET_BYTES + IPV4_BYTES + request.buffer_len();
    let body = a.write_ipv4(
        &mut frame[..bytes],
        B_MAC,
        B,
        IpProtocol::Icmp,
        request.buffer_len(),
    );
    request.emit(
        &mut Icmpv4Packet::new_unchecked(body),
        &ChecksumCapabilities::default(),
    );
    let Received::Reply(answer) = b.receive(&frame[..bytes], &mut reply) else {
        panic!("answered");
    };
    assert_eq!(b.counters().echo_replies, 1);
    // Replies to pings do not have the priority of control datagrams.
    assert_eq!(reply[15], 0);
    // Type 0 is an echo reply; identifier and sequence follow.
    assert_eq!(reply[34], 0);
    assert_eq!(reply[38..42], [0, 5, 0, 6]);
    // It is well-formed: A takes it for what it is, a message that it has no use for.
    assert_eq!(a.receive(&reply[..answer], &mut none), Received::Nothing);
    assert_eq!(a.counters().not_ours, 1);
    assert_eq!(a.counters().malformed, 0);
}

#[test]
fn wrong_checksums_fragments_and_strangers_move_one_counter_each() {
    let (mut a, mut b) = introduced();
    let (mut frame, mut reply) = ([0; 1514], [0; 1514]);
    let bytes = a
        .send(1, SocketAddrV4::new(B, 7601), &[1; 64], &mut frame)
        .expect("B is known");
    let good = frame[..bytes].to_vec();
    let mut expect = b.counters();

    let mut bad = good.clone();
    // Bytes 24 and 25: the checksum of the IPv4 header.
    bad[24] ^= 1;
    assert_eq!(b.receive(&bad, &mut reply), Received::Nothing);
    expect.bad_checksum += 1;
    assert_eq!(b.counters(), expect);

    let mut fragment = good.clone();
    // "More fragments" is bit 5 of the flags at byte 20 (RFC 791).
    fragment[20] |= 0x20;
    let mut ip = Ipv4Packet::new_unchecked(&mut fragment[14..34]);
    ip.fill_checksum();
    assert_eq!(b.receive(&fragment, &mut reply), Received::Nothing);
    expect.fragments += 1;
    assert_eq!(b.counters(), expect);

    let mut other_port = good.clone();
    // Bytes 36 and 37: the UDP destination port.
    other_port[37] ^= 1;
    assert_eq!(b.receive(&other_port, &mut reply), Received::Nothing);
    expect.not_ours += 1;
    assert_eq!(b.counters(), expect);

    let mut other_station = good.clone();
    // Bytes 0 to 6: the destination station.
    other_station[5] ^= 1;
    assert_eq!(b.receive(&other_station, &mut reply), Received::Nothing);
    expect.not_ours += 1;
    assert_eq!(b.counters(), expect);

    assert_eq!(b.receive(&good[..50], &mut reply), Received::Nothing);
    expect.malformed += 1;
    assert_eq!(b.counters(), expect);

    // RFC 791: a header of less than five words, even one whose checksum is right.
    let mut short_header = good;
    short_header[14] = 0x44;
    Ipv4Packet::new_unchecked(&mut short_header[14..]).fill_checksum();
    assert_eq!(b.receive(&short_header, &mut reply), Received::Nothing);
    expect.malformed += 1;
    assert_eq!(b.counters(), expect);
}

proptest! {
    /// Whatever arrives, nothing panics, and a reply is never longer than its buffer.
    #[test]
    fn any_bytes_are_survived(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        ours in any::<bool>(),
        kind in 0u8..4,
    ) {
        let mut b = stack(B_MAC, B);
        // Random bytes alone would nearly never pass the checks of address and type.
        if ours && frame.len() > 34 {
            frame[0..6].copy_from_slice(&B_MAC);
            frame[6] = 2;
            match kind {
                0 => frame[12..14].copy_from_slice(&[8, 6]),
                1 => frame[12..14].copy_from_slice(&[8, 0]),
                _ => {
                    frame[12..14].copy_from_slice(&[8, 0]);
                    frame[14] = 0x45;
                    frame[30..34].copy_from_slice(&B.octets());
                    let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..34]);
                    ip.fill_checksum();
                }
            }
        }
        let mut reply = [0; 300];
        if let Received::Reply(bytes) = b.receive(&frame, &mut reply) {
            prop_assert!((MIN_FRAME_BYTES..=reply.len()).contains(&bytes));
        }
    }

    /// Every payload that fits arrives as it was sent.
    #[test]
    fn payloads_survive_the_wire(payload in proptest::collection::vec(any::<u8>(), 0..=1472)) {
        let (mut a, mut b) = introduced();
        let (mut frame, mut reply) = ([0xEE; 1514], [0; 1514]);
        let bytes = a.send(1, SocketAddrV4::new(B, 7601), &payload, &mut frame).expect("fits");
        prop_assert_eq!(
            b.receive(&frame[..bytes], &mut reply),
            Received::Datagram { from: SocketAddrV4::new(A, 7601), station: A_MAC, payload: &payload }
        );
    }
}
