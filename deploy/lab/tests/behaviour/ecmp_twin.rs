//! The leaf's BPF program and `ratewright_topology::ecmp::flow_hash` are twins: the allocator knows
//! which spine a packet takes only if both agree on every packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_lab::net::ecmp::{EcmpProgram, LeafConfig};
use ratewright_topology::ecmp::{FiveTuple, flow_hash};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// An Ethernet frame with the tuple's headers and 20 bytes of transport.
fn frame(tuple: &FiveTuple) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match (tuple.src, tuple.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend([
                0x08,
                0x00,
                0x45,
                0,
                0,
                40,
                0,
                0,
                0x40,
                0,
                64,
                tuple.protocol,
                0,
                0,
            ]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, tuple.protocol, 64]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
        _ => unreachable!("both ends are of one family"),
    }
    frame.extend(tuple.src_port.to_be_bytes());
    frame.extend(tuple.dst_port.to_be_bytes());
    frame.extend([0; 16]);
    frame
}

fn random_tuple(random: &mut Pcg64Mcg) -> FiveTuple {
    // Few distinct values, so that equal words, equal addresses and equal ports occur.
    let v4 = |random: &mut Pcg64Mcg| {
        IpAddr::V4(Ipv4Addr::new(
            10,
            77,
            random.random_range(0..3),
            random.random_range(0..3),
        ))
    };
    let v6 = |random: &mut Pcg64Mcg| {
        let mut words = [0u16; 8];
        words.fill_with(|| {
            if random.random() {
                random.random()
            } else {
                0xfd77
            }
        });
        IpAddr::V6(Ipv6Addr::from(words))
    };
    let (src, dst) = if random.random() {
        (v4(random), v4(random))
    } else {
        (v6(random), v6(random))
    };
    let protocol = [TCP, UDP, ICMP][random.random_range(0..3)];
    let mut port = || {
        if protocol == ICMP {
            0
        } else {
            random.random_range(0..5) * 13_000
        }
    };
    FiveTuple {
        src,
        dst,
        src_port: port(),
        dst_port: port(),
        protocol,
    }
}

#[test]
fn the_program_computes_the_same_hash_as_its_twin() {
    crate::common::require_root();
    let mut random = Pcg64Mcg::seed_from_u64(1);
    for symmetric in [false, true] {
        let config = LeafConfig {
            seed: 0xfeed,
            symmetric,
            spines: 3,
            mark_base: 0x100,
        };
        let program = EcmpProgram::load(config).unwrap();
        for _ in 0..2_000 {
            let tuple = random_tuple(&mut random);
            let expected = flow_hash(config.seed, symmetric, &tuple);
            let (hash, mark) = program.test_run(&frame(&tuple)).unwrap();
            assert_eq!(hash, expected, "{tuple:?}");
            // The mark is the base plus the hash modulo the spines.
            assert_eq!(mark, 0x100 + expected % 3);
            if symmetric {
                assert_eq!(
                    program.test_run(&frame(&tuple.reversed())).unwrap().0,
                    expected
                );
            }
        }
    }
}

#[test]
fn what_is_not_ip_is_left_to_the_main_table() {
    crate::common::require_root();
    let program = EcmpProgram::load(LeafConfig {
        seed: 1,
        symmetric: true,
        spines: 2,
        mark_base: 0x100,
    })
    .unwrap();
    let mut arp = vec![0xff; 12];
    arp.extend([0x08, 0x06]);
    arp.extend([0; 46]);
    assert_eq!(program.test_run(&arp).unwrap(), (0, 0));
}
