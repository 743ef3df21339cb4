//! One side of a comparison: a group's network, with or without a control plane in it, and a run
//! of a traffic there.

use std::time::Duration;

use anyhow::Result;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};

use super::cases::{
    Deployment, Group, HOSTS, MANAGED, NARROW_BUFFER_KIB, NARROW_MBPS, NARROW_SOURCES, NEIGHBOURS,
    OWN_QUEUE, QUEUED, RECEIVER, Road, SLOW_LINK_MBPS, SLOW_RECEIVER, Span, Traffic,
};
use super::judge::Sample;
use crate::lab::context::Lab;
use crate::lab::control::{Control, ControlKeys, FEEDS_ON};
use crate::lab::testbed::{FIRST_PORT, FlowEnd, PORTS, Testbed, TransferSpec};
use crate::measure::recording::Recording;
use crate::measure::sockdiag::SockDiag;
use crate::net::loss;
use crate::net::plan::{Capacities, NetworkPlan, Offload, payload_share};
use crate::net::qdisc::Shaping;
use crate::options::Backend;
use crate::scenario::phases::capacities;
use crate::traffic::protocol::{BIN_NS, Behaviour, Congestion};

const LEAD_NS: u64 = 150 * NS_PER_MS;
const REST_NS: u64 = 200 * NS_PER_MS;
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);
/// Sinks report every 50 ms.
const REPORT_LAG_NS: u64 = 120 * NS_PER_MS;
/// Width of the windows in which no flow stands still, and the distance of their beginnings.
const WINDOW_NS: u64 = NS_PER_S / 2;
const STEP_NS: u64 = NS_PER_S / 10;

/// Conditions of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    /// Congestion control of all flows.
    pub(super) congestion: Congestion,
    /// True for IPv6.
    pub(super) v6: bool,
}

impl Column {
    pub(super) fn family(self) -> u8 {
        if self.v6 { 6 } else { 4 }
    }

    /// Share of a link's capacity that is TCP's payload.
    pub(super) fn payload(self) -> f64 {
        payload_share(self.v6)
    }
}

/// A network of a group.
#[derive(Debug)]
pub(super) struct Side {
    testbed: Testbed,
    control: Option<Control>,
    /// Back end and what the topology file says of it; `None`: without a control plane.
    pub(super) kind: Option<(Backend, f64)>,
}

impl Side {
    /// Builds it; its testbed is called `name`.
    pub(super) fn build(
        lab: &Lab,
        name: &str,
        group: &Group,
        kind: Option<(Backend, f64)>,
    ) -> Result<Side> {
        let senders: Vec<usize> = MANAGED.into_iter().chain(NEIGHBOURS).collect();
        let testbed = Testbed::build(
            lab,
            name,
            plan(lab, group),
            &senders,
            &[SLOW_RECEIVER, RECEIVER],
        )?;
        let mut side = Side {
            testbed,
            control: None,
            kind,
        };
        side.spoil(group)?;
        if let Some((backend, told)) = kind {
            let canary = format!(
                "\n[rollout]\npercent = 0\nhosts = [\"{}\"]\n",
                side.testbed.network.plan.nodes[MANAGED[0]].name
            );
            let (rollout, unmanaged) = match group.deployment {
                Deployment::WithoutNeighbours => ("", &NEIGHBOURS[..]),
                Deployment::Canary => (canary.as_str(), &[][..]),
            };
            let feeds = if group.feeds { FEEDS_ON } else { "" };
            let allocator = format!("{rollout}{feeds}");
            let keys = ControlKeys {
                allocator: &allocator,
                backend,
                told_bps: Some((lab.options.link_bps() as f64 * told) as u64),
                unmanaged,
                min_flowlet_bytes: None,
                ..ControlKeys::of(lab)
            };
            side.control = Some(Control::start_with(lab, &side.testbed, &keys)?);
        }
        Ok(side)
    }

    /// Name in messages.
    pub(super) fn name(&self) -> String {
        match self.kind {
            None => "without Ratewright".to_owned(),
            Some((backend, told)) => format!("{}, told {told} times", backend.name()),
        }
    }

    /// Makes the network what the topology file does not say.
    fn spoil(&self, group: &Group) -> Result<()> {
        let network = &self.testbed.network;
        let port = &network.plan.links[RECEIVER].upper;
        match group.road {
            Road::Plain | Road::Long(_) => Ok(()),
            Road::Narrow => {
                let sources: Vec<_> = NARROW_SOURCES
                    .into_iter()
                    .flat_map(|host| [false, true].map(|v6| network.plan.host_addr(host, v6)))
                    .collect();
                let narrow = Shaping {
                    rate_bps: NARROW_MBPS * 1_000_000,
                    buffer_bytes: NARROW_BUFFER_KIB * 1024,
                    burst_bytes: None,
                    control_dscp: 0,
                };
                network.tc(port.node, &narrow.narrow(&port.device, &sources))
            }
            Road::Lossy(share) => loss::attach(network.netns(port.node), &port.device, share),
            Road::OwnQueue => {
                let device = &network.plan.links[QUEUED].lower.device;
                network.tc(
                    QUEUED,
                    &format!("qdisc replace dev {device} root {OWN_QUEUE}\n"),
                )
            }
        }
    }

    /// Runs a traffic once; returns a sample for each of its spans.
    pub(super) fn run(
        &mut self,
        lab: &Lab,
        traffic: &Traffic,
        column: Column,
    ) -> Result<Vec<Sample>> {
        let begin_ns = (now_ns() + LEAD_NS).next_multiple_of(BIN_NS);
        let mut flows: Vec<Vec<u32>> = Vec::new();
        let mut port = 0;
        for flow in &traffic.flows {
            let mut numbers = Vec::new();
            for _ in 0..flow.count {
                // Flows that change their minds while a write waits are woken often.
                let end = match flow.behaviour.later {
                    Some(_) => FlowEnd::Told,
                    None => FlowEnd::Bytes(1 << 50),
                };
                numbers.push(self.testbed.flow(TransferSpec {
                    label: flow.kind.to_owned(),
                    from: flow.from,
                    to: flow.to,
                    port: FIRST_PORT + port % PORTS,
                    v6: column.v6,
                    start_ns: begin_ns,
                    connect_ns: None,
                    end,
                    behaviour: Behaviour {
                        congestion: Some(column.congestion),
                        ..flow.behaviour
                    },
                })?);
                port += 1;
            }
            flows.push(numbers);
        }
        let at = |seconds: f64| begin_ns + lab.scaled(Duration::from_secs_f64(seconds));
        for (seconds, share) in &traffic.capacities {
            lab.sleep_until(at(*seconds))?;
            self.testbed.network.scale_downlink(RECEIVER, *share)?;
        }
        lab.sleep_until(at(traffic.length_s))?;
        // Before the connections go, and with them what their sockets counted.
        let retransmitted = self.retransmitted(&traffic.flows)?;
        lab.sleep_until(at(traffic.length_s) + REPORT_LAG_NS)?;
        let samples = {
            let recording = self.testbed.recording.lock();
            let sample = |span: &Span| Sample {
                retransmitted,
                ..measured(&recording, &flows, at(span.from_s), at(span.to_s))
            };
            traffic.spans.iter().map(sample).collect()
        };
        self.end(lab)?;
        Ok(samples)
    }

    /// Segments that the flows' senders have sent again.
    fn retransmitted(&self, flows: &[super::cases::Flow]) -> Result<u64> {
        let mut hosts: Vec<usize> = flows.iter().map(|flow| flow.from).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let mut sum = 0;
        for host in hosts {
            let mut kernel = SockDiag::open(self.testbed.network.netns(host))?;
            let sockets = kernel.connections(FIRST_PORT..=FIRST_PORT + PORTS - 1)?;
            sum += sockets
                .iter()
                .map(|socket| u64::from(socket.segments_retransmitted))
                .sum::<u64>();
        }
        Ok(sum)
    }

    /// Resets the connections, so that the next run finds the network empty.
    fn end(&mut self, lab: &Lab) -> Result<()> {
        self.testbed.end_flows(lab, DRAIN_PATIENCE)?;
        if let Some(control) = &mut self.control {
            control.check_alive()?;
        }
        self.testbed.forget_flows();
        lab.sleep_until(now_ns() + REST_NS)
    }

    /// Ends the control plane and removes the network.
    pub(super) fn finish(self) {
        if let Some(control) = self.control {
            control.stop();
        }
        self.testbed.tear_down();
    }

    /// Shows a run of it.
    pub(super) fn show(&self, lab: &Lab, what: &str) {
        lab.live
            .phase(&format!("{what}, {}", self.name()), &self.testbed.recording);
    }
}

fn plan(lab: &Lab, group: &Group) -> NetworkPlan {
    let mut plan = NetworkPlan::big_switch(
        HOSTS,
        Capacities {
            buffer_bytes: group.buffer_kib * 1024,
            // One network for all back ends, of which one owns the hosts' queues.
            shape_hosts: false,
            // Where TCP builds single packets, flows fall into step with the queue's departures:
            // one with a maximum then takes more than half, and so without us.
            offload: Offload::Interfaces,
            ..capacities(lab)
        },
    );
    if let Some(slow) = &mut plan.links[SLOW_RECEIVER].shape_down {
        slow.rate_bps = SLOW_LINK_MBPS * 1_000_000;
    }
    if let Road::Long(rtt) = group.road {
        plan.links[RECEIVER].delay = rtt / 2;
    }
    plan
}

/// Rates of flows, each of several connections, between two times.
fn measured(recording: &Recording, flows: &[Vec<u32>], from_ns: u64, to_ns: u64) -> Sample {
    let (from_ns, to_ns) = (from_ns / BIN_NS * BIN_NS, to_ns / BIN_NS * BIN_NS);
    let mbps = |numbers: &[u32], from_ns: u64, to_ns: u64| -> f64 {
        let records = numbers.iter().filter_map(|flow| recording.flows.get(flow));
        records
            .map(|record| record.rate_bps(from_ns, to_ns) / 1e6)
            .sum()
    };
    let least = |numbers: &Vec<u32>| {
        (from_ns..=to_ns.saturating_sub(WINDOW_NS))
            .step_by(STEP_NS as usize)
            .map(|from_ns| mbps(numbers, from_ns, from_ns + WINDOW_NS))
            .fold(f64::INFINITY, f64::min)
    };
    Sample {
        mbps: flows.iter().map(|all| mbps(all, from_ns, to_ns)).collect(),
        least_mbps: flows.iter().map(least).collect(),
        retransmitted: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::recording::FlowRecord;

    /// Two connections of 8 Mbit/s each; one of them rests from 1.2 to 1.9 s.
    #[test]
    fn connections_of_a_flow_are_taken_together() {
        let bins = |rests: bool| {
            (0..300u64)
                .map(|bin| {
                    if rests && (120..190).contains(&bin) {
                        0
                    } else {
                        10_000
                    }
                })
                .collect()
        };
        let mut recording = Recording::new();
        for (flow, rests) in [(1, true), (2, false)] {
            let record = FlowRecord {
                bins: bins(rests),
                ..FlowRecord::default()
            };
            recording.flows.insert(flow, record);
        }
        let sample = measured(
            &recording,
            &[vec![1, 2], vec![2], vec![1]],
            NS_PER_S,
            3 * NS_PER_S,
        );
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 1e-9;
        assert!(near(sample.mbps[0], 16.0 - 8.0 * 0.35), "{sample:?}");
        assert!(near(sample.least_mbps[0], 8.0), "{sample:?}");
        assert!(near(sample.least_mbps[1], 8.0), "{sample:?}");
        assert!(near(sample.least_mbps[2], 0.0), "{sample:?}");
    }
}
