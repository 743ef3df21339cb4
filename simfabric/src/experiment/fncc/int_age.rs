//! FNCC fig. 12 and §5.4.1: the age of each hop's telemetry when it reaches the sender, of HPCC's,
//! which data carries on, and of FNCC's, which the acknowledgement takes on its way back.
//!
//! For M switches, links of delay D, and packets and acknowledgements that take S and A on a link,
//! an idle path has, at the sender, for switch i of 1 to M:
//!
//! ```text
//! HPCC: (M + 1 − i) (S + D) + (M + 1) (A + D)
//! FNCC: i (A + D)
//! ```
//!
//! HPCC's stamp is of the time at which the data leaves the switch, FNCC's of that at which the
//! acknowledgement comes to it (in the figure t1 to t3 and t5 to t7; t8 is the sender's). A probe
//! measures both in the simulator: one packet at a time, whose acknowledgement brings the trail.
//!
//! Stamps are of whole nanoseconds. Probes therefore begin at every picosecond of one: the floor
//! then gives the stamp's time to the picosecond.

use ratewright_topology::HostId;

use super::scene::{Hop, LINK_DELAY, Meeting, SWITCHES};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::ext::{Extension, IntHop};
use crate::flow::FlowId;
use crate::host::{Endpoint, Side};
use crate::net::port::ByteTime;
use crate::net::{FabricConfig, Framing, Telemetry};
use crate::packet::{Flags, Packet, PacketKind};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};
use crate::run::{Config, Sim};
use crate::time::{Span, Time};
use crate::transport::{Context, Transport};

/// Rates of links, in Gbit/s (§5.2).
const RATES_GBPS: [u64; 3] = [100, 200, 400];
/// Probes of a run, one for each picosecond of a nanosecond.
const PROBES: u64 = 1_000;
/// Time between probes, in which the path is idle again.
const GAP: Span = Span::from_us(20);

/// Packets that telemetry goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
enum Carrier {
    /// Data, as in HPCC.
    Data,
    /// Acknowledgements, as in FNCC.
    Acknowledgements,
}

impl Carrier {
    const ALL: [Self; 2] = [Self::Data, Self::Acknowledgements];

    const fn scheme(self) -> &'static str {
        match self {
            Self::Data => "HPCC",
            Self::Acknowledgements => "FNCC",
        }
    }

    const fn telemetry(self) -> Telemetry {
        match self {
            Self::Data => Telemetry::Asked,
            Self::Acknowledgements => Telemetry::Acknowledgements,
        }
    }

    /// Returns the closed form of the age of the telemetry of the path's switch `number`, from 1.
    fn age(self, number: u64, data: Span, ack: Span) -> Span {
        match self {
            Self::Data => {
                (data + LINK_DELAY) * (SWITCHES + 1 - number) + (ack + LINK_DELAY) * (SWITCHES + 1)
            }
            Self::Acknowledgements => (ack + LINK_DELAY) * number,
        }
    }
}

/// Trail of one probe, at its sender.
#[derive(Clone, Debug)]
struct Probe {
    sent: Time,
    arrived: Time,
    /// Time of each switch's stamp in whole nanoseconds, in the order of the request's path.
    stamps_ns: Vec<u64>,
}

/// Sends one packet for each flow, and notes the telemetry that comes back.
#[derive(Debug)]
struct Prober(Carrier);

/// The prober at one host.
#[derive(Debug)]
struct ProbingHost {
    carrier: Carrier,
    probes: Vec<Probe>,
}

impl Transport for Prober {
    type Shared = ();
    type Endpoint = ProbingHost;

    fn start(self, nodes: u32) -> ((), Vec<ProbingHost>) {
        let host = |_| ProbingHost {
            carrier: self.0,
            probes: Vec::new(),
        };
        ((), (0..nodes).map(host).collect())
    }
}

impl Endpoint for ProbingHost {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let mut packet = cx.next_data(flow, 0);
        packet.flags = Flags::INT;
        cx.set_slot(flow, Side::Sender, 0);
        cx.send(packet);
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let trail = cx.take_extension(packet);
        if packet.kind == PacketKind::Data {
            let mut ack = cx.reply(packet);
            if let Some(trail) = trail {
                cx.attach_extension(&mut ack, trail);
            }
            cx.count_arrival(packet);
            cx.send(ack);
            return;
        }
        cx.acknowledged(packet.flow);
        let Some(Extension::Int(trail)) = trail else {
            return;
        };
        let now = cx.now();
        let origin = IntHop::new(cx.nic_rate_bps(cx.me()), Time::ZERO, 0, 0);
        let stamps = trail.hops().iter().map(|hop| {
            // A stamp's time has 24 bits; no trail is as old as they last.
            let (passed, _) = hop.since(origin);
            let age_ns = now.as_ns().wrapping_sub(passed.as_ns()) & ((1 << 24) - 1);
            now.as_ns() - age_ns
        });
        let mut stamps_ns: Vec<u64> = stamps.collect();
        if self.carrier == Carrier::Acknowledgements {
            // Stamped on the way back.
            stamps_ns.reverse();
        }
        self.probes.push(Probe {
            sent: packet.stamp,
            arrived: now,
            stamps_ns,
        });
    }
}

/// Ages of one carrier's telemetry, in picoseconds.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AgeSample {
    /// Measured, by switch of the path.
    pub measured_ps: Vec<u64>,
    /// Closed form, by switch of the path.
    pub expected_ps: Vec<u64>,
}

/// Measures the ages over links of a rate.
fn sample(rate_gbps: u64, carrier: Carrier) -> Result<AgeSample, ExperimentError> {
    let meeting = Meeting::new(Hop::First, 1, rate_gbps * 1_000_000_000)?;
    let framing = super::FRAMING;
    let (src, dst) = (HostId(0), HostId(1));
    let flows = (0..PROBES).map(move |i| {
        let start = Time::ZERO + GAP * (i + 1) + Span(i);
        FlowSpec::new(src, dst, framing.mss_bytes.into(), start)
    });
    let config = Config {
        fabric: FabricConfig {
            framing,
            telemetry: carrier.telemetry(),
            ..FabricConfig::default()
        },
        ..Config::default()
    };
    let mut sim = Sim::new(config, meeting.topology, flows, Prober(carrier))?;
    sim.run_until(Time::MAX)?;
    sim.results().conservation?;
    let sender = sim.endpoints().nth(src.index());
    Ok(AgeSample::of(
        sender.map_or(&[], |sender| &sender.probes),
        meeting.rate_bps,
        framing,
        carrier,
    ))
}

impl AgeSample {
    fn of(probes: &[Probe], rate_bps: u64, framing: Framing, carrier: Carrier) -> Self {
        // A stamp is ⌊sent + offset⌋ in nanoseconds: never above it, and equal to it for the one of
        // a thousand probes whose time is whole. The greatest difference is therefore the offset.
        let offset = |switch: usize| {
            let differences = probes.iter().map(|probe| {
                Some((probe.stamps_ns.get(switch)? * 1_000).checked_sub(probe.sent.0))
            });
            differences.flatten().flatten().max().unwrap_or(0)
        };
        let round_trip = probes.first().map_or(0, |p| p.arrived.since(p.sent).0);
        let byte_time = ByteTime::of_rate(rate_bps);
        let [data, ack] = [framing.mss_bytes, 0].map(|b| byte_time.of(framing.wire_bytes(b)));
        let switches = 0..SWITCHES as usize;
        Self {
            measured_ps: switches
                .map(|switch| round_trip - offset(switch).min(round_trip))
                .collect(),
            expected_ps: (1..=SWITCHES)
                .map(|number| carrier.age(number, data, ack).0)
                .collect(),
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases: Vec<(u64, Carrier)> = RATES_GBPS
        .into_iter()
        .flat_map(|rate| Carrier::ALL.map(|carrier| (rate, carrier)))
        .collect();
    let each = GAP * (PROBES + 1);
    let plan = |(rate, carrier): &(u64, Carrier)| {
        Ok(CasePlan {
            name: format!("int-age-{rate}G-{}", carrier.scheme()),
            key: format!("{:?}", super::FRAMING),
            time: each,
        })
    };
    let samples = sweep(settings, &cases, plan, |&(rate, carrier), _| {
        let sample = sample(rate, carrier)?;
        MONITOR.done(each)?;
        Ok(sample)
    })?;
    let mut figure = settings.figure(
        "fncc-fig12",
        "Age of each hop's telemetry at the sender (FNCC fig. 12, §5.4.1)",
    );
    let framing = super::FRAMING;
    figure.scenario = vec![
        format!("an idle path over {SWITCHES} switches, links of {LINK_DELAY}"),
        format!(
            "packets of {} and acknowledgements of {} bytes on the link",
            framing.wire_bytes(framing.mss_bytes),
            framing.wire_bytes(0)
        ),
        format!("{PROBES} probes, a picosecond apart in phase; nothing is random"),
    ];
    let mut bars = Vec::new();
    for (rate, runs) in RATES_GBPS.iter().zip(samples.chunks(2)) {
        let [hpcc, fncc] = [&runs[0], &runs[1]];
        for (carrier, runs) in Carrier::ALL.iter().zip([hpcc, fncc]) {
            let scheme = carrier.scheme();
            for switch in 0..SWITCHES as usize {
                figure.rows.push(Row::judge(
                    format!(
                        "{rate}G, {scheme}: age of switch {}'s telemetry",
                        switch + 1
                    ),
                    Claim::nothing(),
                    runs.estimate(|s| Some(*s.measured_ps.get(switch)? as f64 / 1e6)),
                    "µs",
                ));
            }
            figure.rows.push(Row::judge(
                format!("{rate}G, {scheme}: largest distance from the closed form"),
                Claim::words("t1 to t8 of fig. 12")
                    .at_least(0.0)
                    .at_most(0.0),
                runs.estimate(|s| {
                    let pairs = s.measured_ps.iter().zip(&s.expected_ps);
                    pairs.map(|(a, b)| a.abs_diff(*b)).max().map(|d| d as f64)
                }),
                "ps",
            ));
        }
        let gain = |switch: usize| {
            hpcc.paired(fncc, |hpcc, fncc| {
                let [a, b] = [hpcc, fncc].map(|s| s.measured_ps.get(switch));
                Some((*a? as f64 - *b? as f64) / 1e6)
            })
        };
        for (switch, words) in ["more pronounced", "relatively large", "not very prominent"]
            .into_iter()
            .enumerate()
        {
            figure.rows.push(Row::judge(
                format!(
                    "{rate}G, switch {}: FNCC's telemetry is younger by",
                    switch + 1
                ),
                Claim::words(words).at_least(0.0),
                gain(switch),
                "µs",
            ));
        }
        for (switch, words) in ["first over second", "second over third"]
            .into_iter()
            .enumerate()
        {
            let ratio = hpcc.paired(fncc, |hpcc, fncc| {
                let gain = |i: usize| {
                    Some(*hpcc.measured_ps.get(i)? as f64 - *fncc.measured_ps.get(i)? as f64)
                };
                Some(gain(switch)? / gain(switch + 1)?)
            });
            figure.rows.push(Row::judge(
                format!("{rate}G: that gain, {words} switch"),
                Claim::words("greater").at_least(1.0),
                ratio,
                "ratio",
            ));
        }
        if *rate == RATES_GBPS[0] {
            for (carrier, runs) in Carrier::ALL.iter().zip([hpcc, fncc]) {
                let values = (0..SWITCHES as usize).map(|switch| {
                    runs.estimate(|s| Some(*s.measured_ps.get(switch)? as f64 / 1e6))
                });
                let values: Vec<_> = values.collect();
                let bar = Bars::estimates(carrier.scheme(), &values);
                bars.push(bar.colour(super::colour(carrier.scheme())));
            }
        }
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let groups = (1..=SWITCHES)
        .map(|number| format!("switch {number}"))
        .collect();
    let panel = Panel::bars(
        "Age of telemetry when the sender reads it",
        "switch of the path",
        Axis::linear("Age (µs)"),
        groups,
        bars,
    );
    let picture = Picture::new(
        "Telemetry in acknowledgements is younger, most so from the first switch",
        "FNCC fig. 12; 100 Gbit/s, idle path",
        vec![panel],
    )
    .panel_size(680, 380);
    Ok(Reproduction { figure, picture })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_the_closed_form_to_the_picosecond() {
        for rate in RATES_GBPS {
            for carrier in Carrier::ALL {
                let sample = sample(rate, carrier).unwrap();
                assert_eq!(sample.measured_ps, sample.expected_ps, "{rate} {carrier:?}");
            }
        }
    }
}
