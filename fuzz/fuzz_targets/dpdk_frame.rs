//! Ethernet frames at a DPDK port's stack (ARP, IPv4, ICMP echo, UDP), and datagrams that it sends
//! in between.
//!
//! The input is a sequence of steps, each `[kind, length (u16), bytes]`; see [`steps`]. The target
//! checks received frames against the RFCs' offsets, and gives written frames to another stack.
//! (Built for fuzzing, smoltcp accepts any checksum; the tests beside the stack use wrong ones.)
#![no_main]

use std::net::{Ipv4Addr, SocketAddrV4};

use libfuzzer_sys::fuzz_target;
use ratewright_dpdk::stack::{
    HEADER_BYTES, MIN_FRAME_BYTES, Received, SendError, StackConfig, StackCounters, UdpStack,
};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xB];
const UDP_PORT: u16 = 7601;
const SIBLINGS: std::ops::Range<u16> = 7601..7604;
const MTU: usize = 1_500;
const NEIGHBOURS: usize = 8;

/// The step sends a datagram, `[address, port, payload]`. Otherwise it receives a frame.
const SEND: u8 = 1;
/// The frame is addressed to our station.
const TO_US: u8 = 2;
/// The datagram of the frame, if there is one, was authentic.
const AUTHENTIC: u8 = 4;

fuzz_target!(|input: &[u8]| {
    let mut stack = stack(OUR_MAC, OURS);
    // Not zeros: a byte that the stack forgets to write would show in a checksum.
    let mut out = [0xEE; 14 + MTU];
    for (at, (kind, bytes)) in (0u64..).zip(steps(input)) {
        if kind & SEND == 0 {
            let mut frame = bytes.to_vec();
            if kind & TO_US != 0
                && let Some(to) = frame.get_mut(..6)
            {
                to.copy_from_slice(&OUR_MAC);
            }
            receive(&mut stack, &frame, kind & AUTHENTIC != 0, &mut out);
        } else if let Some((head, payload)) = bytes.split_first_chunk::<6>() {
            let [a, b, c, d, high, low] = *head;
            let to = SocketAddrV4::new([a, b, c, d].into(), u16::from_be_bytes([high, low]));
            // Half the interval of ARP requests, so that every other send may ask again.
            send(&mut stack, at * 50_000_000, to, payload, &mut out);
        }
        // Forged senders must not grow the table beyond its bound.
        assert!(stack.neighbours() <= NEIGHBOURS);
    }
});

fn stack(mac: [u8; 6], address: Ipv4Addr) -> UdpStack {
    UdpStack::new(StackConfig {
        mac,
        address,
        prefix_len: 24,
        gateway: Some(Ipv4Addr::new(10, 1, 0, 254)),
        udp_port: UDP_PORT,
        dscp: 48,
        siblings: SIBLINGS,
        mtu_bytes: MTU,
        max_neighbours: NEIGHBOURS,
    })
}

fn steps(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([kind, low, high], rest) = input.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        input = rest;
        Some((*kind, bytes))
    })
}

/// Computes the Internet checksum's sum (RFC 1071).
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| (u32::from(word[0]) << 8) | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

fn receive(stack: &mut UdpStack, frame: &[u8], authentic: bool, reply: &mut [u8]) {
    let before = stack.counters();
    let received = stack.receive(frame, reply);
    let moved = total(&stack.counters()) - total(&before);
    match received {
        Received::Datagram {
            from,
            station,
            payload,
        } => {
            assert_eq!(moved, 1);
            assert_eq!(stack.counters().datagrams_in, before.datagrams_in + 1);
            assert_eq!(udp(frame), Some((from, UDP_PORT, payload)));
            assert_eq!(frame[6..12], station);
            if authentic {
                stack.confirm(*from.ip(), station);
                // A confirmed station is reached without ARP.
                let mut answer = [0; 100];
                let bytes = stack.send(0, from, b"rates", &mut answer).expect("known");
                assert_eq!(answer[..6], station);
                assert_eq!(
                    udp(&answer[..bytes]).map(|(_, port, _)| port),
                    Some(from.port())
                );
            }
        }
        Received::Sibling(port) => {
            assert_eq!(moved, 0);
            assert!(SIBLINGS.contains(&port) && port != UDP_PORT);
            assert_eq!(udp(frame).map(|(_, to, _)| to), Some(port));
        }
        Received::Reply(bytes) => {
            assert_eq!(moved, 1);
            let reply = &reply[..bytes];
            assert!((MIN_FRAME_BYTES..=14 + MTU).contains(&bytes));
            assert_eq!(reply[6..12], OUR_MAC);
            assert_eq!(reply[12..14], frame[12..14]);
            // The lowest bit of the first byte marks group addresses.
            assert!(reply[0] & 1 == 0, "replies go to one station");
            check_at_receiver(reply);
        }
        // An ARP reply teaches a station and moves no counter.
        Received::Nothing => assert!(moved == 1 || (moved == 0 && frame[12..14] == [8, 6])),
    }
}

fn send(stack: &mut UdpStack, now_ns: u64, to: SocketAddrV4, payload: &[u8], out: &mut [u8]) {
    match stack.send(now_ns, to, payload, out) {
        Ok(bytes) => {
            let source = SocketAddrV4::new(OURS, UDP_PORT);
            assert_eq!(udp(&out[..bytes]), Some((source, to.port(), payload)));
            check_at_receiver(&out[..bytes]);
        }
        Err(SendError::Ask(bytes)) => {
            assert_eq!(bytes, MIN_FRAME_BYTES);
            assert_eq!(out[..6], [0xFF; 6]);
            assert_eq!(out[12..14], [8, 6]);
        }
        Err(SendError::TooLong) => assert!(payload.len() + HEADER_BYTES > 14 + MTU),
        Err(SendError::Unresolved) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Checks that the receiver's stack accepts the frame.
fn check_at_receiver(frame: &[u8]) {
    let to = *frame.first_chunk().expect("a whole header");
    let address = if frame[12..14] == [8, 6] {
        &frame[38..42]
    } else {
        &frame[30..34]
    };
    let address: [u8; 4] = address.try_into().expect("four bytes");
    if frame[12..14] == [8, 0] {
        // A right header sums up to all ones, its checksum included.
        assert_eq!(ones_complement_sum(&frame[14..34]), 0xFFFF);
    }
    let mut theirs = stack(to, address.into());
    theirs.receive(frame, &mut [0; 14 + MTU]);
    assert_eq!(theirs.counters().malformed, 0);
}

/// Returns source, destination port and payload, at the offsets of RFCs 791 and 768.
fn udp(frame: &[u8]) -> Option<(SocketAddrV4, u16, &[u8])> {
    let be16 = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let header = 4 * usize::from(frame.get(14)? & 15);
    let whole = be16(12)? == 0x0800
        && frame[14] >> 4 == 4
        && header >= 20
        // No fragment: offset 0 and no more fragments to come.
        && be16(20)? & 0x3FFF == 0
        && *frame.get(23)? == 17;
    let at = 14 + header;
    let length = usize::from(be16(at + 4)?);
    if !whole || length < 8 || header + length > usize::from(be16(16)?) {
        return None;
    }
    let source: [u8; 4] = frame[26..30].try_into().expect("four bytes");
    let from = SocketAddrV4::new(source.into(), be16(at)?);
    Some((from, be16(at + 2)?, frame.get(at + 8..at + length)?))
}

fn total(counters: &StackCounters) -> u64 {
    let StackCounters {
        datagrams_in,
        datagrams_out,
        arp_replies,
        arp_requests,
        echo_replies,
        malformed,
        bad_checksum,
        fragments,
        not_ours,
        unresolved,
    } = counters;
    datagrams_in
        + datagrams_out
        + arp_replies
        + arp_requests
        + echo_replies
        + malformed
        + bad_checksum
        + fragments
        + not_ours
        + unresolved
}
