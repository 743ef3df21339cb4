//! The second line in the daemon: when it engages, and the way of shares to the flow table.

use std::future::pending;
use std::net::IpAddr;

use ratewright_proto::FlowId;

use super::{Daemon, DaemonError};
use crate::clock;
use crate::config::Config;
use crate::samples::Samples;
use crate::second_line::apportion::FlowDemand;
use crate::second_line::directory::Directory;
use crate::second_line::peers::{PeerEvent, Peers};
use crate::second_line::{SecondLine, SecondLineStatus};

/// Most flows that are paced by shares; the others are plain TCP.
const MAX_FLOWS: usize = 4_096;
/// Connections are looked over this often, and closed if they were not needed for two such times.
const UPKEEP_NS: u64 = 30_000_000_000;

/// The state machine with its connections.
#[derive(Debug)]
pub(super) struct DaemonSecondLine {
    line: SecondLine,
    peers: Peers,
    /// Number after which this daemon's demands are counted.
    first_seq: u64,
    /// Lease of the last session; `None` before the first one.
    lease_ns: Option<u64>,
    /// Flows in the order in which rates are computed.
    flows: Vec<(FlowId, FlowDemand)>,
    upkeep_ns: u64,
    /// Times from a demand to its share.
    answers: Samples,
}

impl DaemonSecondLine {
    /// Opens the second line, if the configuration turns it on.
    pub(super) fn open(config: &Config, incarnation: u64) -> Result<Option<Self>, DaemonError> {
        if !config.second_line.enabled {
            return Ok(None);
        }
        let dscp = config.transport.control_dscp;
        Ok(Some(Self {
            line: SecondLine::default(),
            peers: Peers::open(&config.second_line, &config.tls, dscp)?,
            first_seq: incarnation,
            lease_ns: None,
            flows: Vec::new(),
            upkeep_ns: clock::now_ns() + UPKEEP_NS,
            answers: Samples::default(),
        }))
    }
}

/// Waits for the next event of another daemon. Cancel safe.
pub(super) async fn next(second_line: &mut Option<DaemonSecondLine>) -> PeerEvent {
    match second_line {
        Some(second_line) => second_line.peers.next().await,
        None => pending().await,
    }
}

impl Daemon {
    /// Takes the host's links, the lease and the names of hosts from a new session.
    pub(super) fn second_line_on_session(&mut self, now_ns: u64) {
        self.second_line_directory();
        let (Some(second_line), Some(welcome)) = (&mut self.second_line, &self.health.welcome)
        else {
            return;
        };
        second_line.lease_ns = Some(welcome.lease_ns);
        let (access, lease_ns) = (welcome.access, welcome.lease_ns);
        second_line
            .line
            .on_session(now_ns, access, lease_ns, second_line.first_seq);
    }

    /// Takes the names of hosts from the session's topology.
    pub(super) fn second_line_directory(&mut self) {
        if let (Some(second_line), Some(welcome)) = (&mut self.second_line, &self.health.welcome) {
            let hosts = welcome.topology.hosts.iter();
            let hosts = hosts.chain(self.health.members.iter());
            let directory = Directory::new(welcome.host_id, hosts);
            second_line.peers.set_directory(directory);
        }
    }

    /// Reads the certificates of the second line again.
    pub(super) fn reload_second_line(&mut self, config: &Config) {
        if let Some(second_line) = &mut self.second_line
            && let Err(error) = second_line.peers.reload(&config.tls)
        {
            tracing::error!("[second_line]: {error}; the certificates of before stay in force");
        }
    }

    /// Returns the time at which the allocator counts as lost: when no rate of it can hold any
    /// more. `None` while there is nothing to lose.
    fn allocator_lost_ns(&self) -> Option<u64> {
        let lease_ns = self.second_line.as_ref()?.lease_ns?;
        Some(if self.session.is_established() {
            self.health.last_heard_ns.saturating_add(lease_ns)
        } else {
            self.health.last_heard_ns
        })
    }

    pub(super) fn second_line_timeout(&self) -> Option<u64> {
        let second_line = self.second_line.as_ref()?;
        // A host that does not pace keeps it from engaging, and the timer from firing for nothing.
        let engages_ns = (!second_line.line.is_engaged() && self.flows.paces())
            .then(|| self.allocator_lost_ns())
            .flatten();
        let timeouts = [
            engages_ns,
            second_line.line.next_timeout(),
            Some(second_line.upkeep_ns),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Connects to the daemon of a flow's receiver.
    pub(super) fn on_flow_to(&mut self, now_ns: u64, flow: FlowId, host: u32) {
        if let Some(second_line) = &mut self.second_line {
            second_line.line.on_flows_changed();
            if let Some(address) = self.flows.destination(flow) {
                second_line.peers.want(now_ns, host, address);
            }
        }
    }

    pub(super) fn on_flow_ended(&mut self) {
        if let Some(second_line) = &mut self.second_line {
            second_line.line.on_flows_changed();
        }
    }

    pub(super) fn on_peer_event(&mut self, event: PeerEvent) {
        let Some(second_line) = &mut self.second_line else {
            return;
        };
        let now_ns = clock::now_ns();
        match event {
            PeerEvent::Reachable(host) => second_line.line.on_reachable(now_ns, host),
            PeerEvent::Message(host, message) => {
                second_line.line.on_message(now_ns, host, &message);
                if let Some(answer_ns) = second_line.line.take_answer_ns() {
                    second_line.answers.record(answer_ns);
                }
            }
        }
    }

    /// Hands the newest measurement to the second line.
    pub(super) fn second_line_measured(&mut self, now_ns: u64) {
        if let Some(second_line) = &mut self.second_line {
            let active = self.sampler.active(now_ns);
            second_line.line.on_measured(now_ns, &active);
        }
    }

    /// Does the second line's work of this turn. Returns true if flows got rates.
    pub(super) fn turn_second_line(&mut self, now_ns: u64) -> bool {
        let lost_ns = self.allocator_lost_ns();
        let paces = self.flows.paces();
        let established = self.session.is_established();
        let Some(second_line) = &mut self.second_line else {
            return false;
        };
        let line = &mut second_line.line;
        let lost = lost_ns.is_some_and(|at_ns| at_ns <= now_ns) && paces;
        if lost && !line.is_engaged() {
            tracing::warn!("the allocator is lost; receivers' shares pace flows");
            line.engage();
        } else if !lost && line.is_engaged() {
            tracing::info!(established, "the second line rests");
            line.disengage(now_ns);
            self.flows.end_shares();
        }
        line.on_timeout(now_ns);
        if line.take_flows_changed() {
            second_line.flows.clear();
            for (id, host, address, demand_bps) in self.flows.reported_flows().take(MAX_FLOWS) {
                second_line
                    .flows
                    .push((id, FlowDemand { host, demand_bps }));
                second_line.peers.want(now_ns, host, address);
            }
            let demands: Vec<FlowDemand> = second_line
                .flows
                .iter()
                .map(|&(_, demand)| demand)
                .collect();
            line.set_flows(now_ns, &demands);
        }
        while let Some((host, message)) = line.poll(now_ns) {
            second_line.peers.send(host, &message);
        }
        let mut paced = false;
        if line.take_rates_due() {
            let demands: Vec<FlowDemand> = second_line
                .flows
                .iter()
                .map(|&(_, demand)| demand)
                .collect();
            let rates = line.rates(now_ns, &demands);
            for (&(id, _), rate) in second_line.flows.iter().zip(rates) {
                if let Some(rate) = rate {
                    self.flows
                        .on_share(now_ns, id, rate.rate_bps, rate.expires_ns);
                    paced = true;
                }
            }
        }
        if second_line.upkeep_ns <= now_ns {
            second_line.upkeep_ns = now_ns + UPKEEP_NS;
            let reported: Vec<(u32, IpAddr)> = self
                .flows
                .reported_flows()
                .take(MAX_FLOWS)
                .map(|(_, host, address, _)| (host, address))
                .collect();
            for (host, address) in reported {
                second_line.peers.want(now_ns, host, address);
            }
            second_line
                .peers
                .close_unneeded(now_ns.saturating_sub(2 * UPKEEP_NS));
        }
        paced
    }

    pub(super) fn second_line_status(&self, now_ns: u64) -> SecondLineStatus {
        self.second_line
            .as_ref()
            .map_or_else(SecondLineStatus::default, |second_line| {
                let peers = second_line.peers.counters();
                SecondLineStatus {
                    share_us: second_line.answers.summary(),
                    ..second_line.line.status(now_ns, peers)
                }
            })
    }
}
