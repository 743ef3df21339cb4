//! The flow completion time on an empty network, in closed form. Flowtune fig. 12 normalises by it.

use ratewright_topology::{HostId, PathChoice, PathError, Topology};

use crate::{Framing, Span};

/// Picoseconds that `wire_bytes` take on a link, to the nearest, as a port rounds.
fn transmission_ps(wire_bytes: u16, rate_bps: u64) -> u64 {
    let rate = u128::from(rate_bps.max(1));
    ((u128::from(wire_bytes) * 8_000_000_000_000 + rate / 2) / rate) as u64
}

/// Time from a flow's start until the receiver has the last of `bytes`, if the sender sends at the
/// rate of its link and no other flow is active.
///
/// All packets but the last are full. Full packet j leaves link i of the path at Σ_{l ≤ i} t_l + (j
/// − 1) · max_{l ≤ i} t_l, where t_l is the transmission of a full packet on link l; the last
/// packet leaves link i when both it has left link i − 1 and the packet before it has left link i,
/// plus its own transmission. Propagation and the hosts' processing come on top. Among several
/// equal paths the first is taken; they differ only where links of a tier do.
///
/// # Errors
/// If there is no path.
pub fn completion_time(
    topology: &Topology,
    framing: Framing,
    host_delay: Span,
    (src, dst): (HostId, HostId),
    bytes: u64,
) -> Result<Span, PathError> {
    let path = topology.path(src, dst, PathChoice::Hash(0))?;
    let mss = u64::from(framing.mss_bytes.max(1));
    let packets = bytes.div_ceil(mss).max(1);
    let last = (bytes - (packets - 1) * mss) as u16;
    // A flow of 0 bytes is one packet without payload, as a handshake's.
    let (mut first_full, mut slowest, mut last_left, mut delays) =
        (0, 0, 0, 2 * host_delay.as_ps());
    for link in path.iter() {
        let link = &topology.links()[link.index()];
        let full = transmission_ps(framing.wire_bytes(framing.mss_bytes), link.capacity_bps);
        first_full += full;
        slowest = slowest.max(full);
        // Departure of the last full packet from this link: number packets − 1, which is
        // (packets − 2) behind the first.
        let before = if packets > 1 {
            first_full + (packets - 2) * slowest
        } else {
            0
        };
        // The last packet waits for its own arrival or for the packet before it, whichever is
        // later.
        let own = transmission_ps(framing.wire_bytes(last), link.capacity_bps);
        last_left = last_left.max(before) + own;
        delays += Span::from_ns(link.delay_ns).as_ps();
    }
    Ok(Span::from_ps(last_left + delays))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::FabricConfig;
    use crate::scheme::fixed_window::ConstantWindow;
    use crate::transport::tcp::congestion::NewReno;
    use crate::transport::tcp::{Tcp, TcpConfig};
    use crate::{Config, FlowSpec, Sim, Time};
    use ratewright_topology::TwoTierClos;

    /// A window that never closes on an empty network: the simulator must give the closed form to
    /// the picosecond, within a rack and across the fabric, with links faster and slower than the
    /// hosts'.
    #[test]
    fn an_uncontended_flow_takes_exactly_this_long() {
        let host_delay = Span::from_us(2);
        for fabric_gbps in [4, 10, 40] {
            let topology = TwoTierClos {
                racks: 2,
                hosts_per_rack: 2,
                spines: 1,
                host_capacity_bps: 10_000_000_000,
                fabric_capacity_bps: fabric_gbps * 1_000_000_000,
                host_delay_ns: 1_500,
                fabric_delay_ns: 1_500,
                ..TwoTierClos::default()
            }
            .build()
            .unwrap();
            for dst in [1, 3] {
                for bytes in [1, 7, 1_459, 1_460, 1_461, 14_600, 100_001, 2_000_000] {
                    let pair = (HostId(0), HostId(dst));
                    let fabric = FabricConfig {
                        host_delay,
                        ..FabricConfig::default()
                    };
                    let framing = fabric.framing;
                    let config = Config {
                        fabric,
                        ..Config::default()
                    };
                    let flow = FlowSpec::new(pair.0, pair.1, bytes, Time::from_us(3));
                    let window = ConstantWindow::new(1_000_000);
                    let mut sim =
                        Sim::new(config, topology.clone(), std::iter::once(flow), window).unwrap();
                    sim.run_until(Time::MAX).unwrap();
                    let simulated = sim.results().flows[0].fct();
                    let ideal = completion_time(&topology, framing, host_delay, pair, bytes);
                    assert_eq!(
                        simulated,
                        ideal.ok(),
                        "{bytes} bytes to {dst} over {fabric_gbps}G"
                    );
                }
            }
        }
    }

    /// SYN and SYN-ACK are one round trip of packets without data, and nothing else.
    #[test]
    fn a_handshake_is_a_round_trip_of_empty_packets() {
        let host_delay = Span::from_us(2);
        let topology = TwoTierClos::default().build().unwrap();
        let last = HostId(topology.hosts().len() as u32 - 1);
        let fct = |handshake| {
            let fabric = FabricConfig {
                host_delay,
                ..FabricConfig::default()
            };
            let config = Config {
                fabric,
                ..Config::default()
            };
            let tcp = TcpConfig {
                handshake,
                ..TcpConfig::default()
            };
            let flow = FlowSpec::new(HostId(0), last, 1_460, Time::from_us(3));
            let tcp = Tcp::<NewReno>::new(tcp);
            let mut sim = Sim::new(config, topology.clone(), std::iter::once(flow), tcp).unwrap();
            sim.run_until(Time::from_ms(100)).unwrap();
            sim.results().flows[0].fct().unwrap().as_ps()
        };
        let framing = FabricConfig::default().framing;
        let pair = (HostId(0), last);
        let empty = completion_time(&topology, framing, host_delay, pair, 0).unwrap();
        assert_eq!(fct(true) - fct(false), 2 * empty.as_ps());
    }

    /// Flowtune §5.3: links of 1.5 us and hosts of 2 us make a round trip of 14 us over 2 hops.
    /// Over 4 hops the same delays add up to 20 us; the 22 us that the paper states leave 2 us to
    /// transmission.
    #[test]
    fn delays_add_up_as_in_the_paper() {
        let topology = TwoTierClos {
            racks: 9,
            hosts_per_rack: 16,
            spines: 4,
            host_capacity_bps: 10_000_000_000,
            fabric_capacity_bps: 40_000_000_000,
            host_delay_ns: 1_500,
            fabric_delay_ns: 1_500,
            ..TwoTierClos::default()
        }
        .build()
        .unwrap();
        let bare = Framing {
            mss_bytes: 1_460,
            header_bytes: 0,
            min_wire_bytes: 0,
        };
        for (dst, round_trip_us) in [(1, 14), (143, 20)] {
            let pair = (HostId(0), HostId(dst));
            let one_way = completion_time(&topology, bare, Span::from_us(2), pair, 0).unwrap();
            assert_eq!(one_way, Span::from_us(round_trip_us / 2));
        }
    }
}
