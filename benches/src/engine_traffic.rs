//! Events for the engine: starts and ends of flows between random hosts.

use anyhow::Result;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::{EngineEvent, FlowKey, FlowSpec};
use ratewright_topology::{HostId, PathChoice, Topology};

/// Makes flows between random hosts of different racks.
pub(super) struct EngineTraffic<'a> {
    topology: &'a Topology,
    random: Pcg64Mcg,
    started: u64,
    ended: u64,
    classes: u8,
}

impl<'a> EngineTraffic<'a> {
    pub(super) fn new(topology: &'a Topology, seed: u64) -> Self {
        Self {
            topology,
            random: Pcg64Mcg::seed_from_u64(seed),
            started: 0,
            ended: 0,
            classes: 1,
        }
    }

    /// Spreads flows over `classes` classes.
    pub(super) fn over_classes(mut self, classes: u8) -> Self {
        self.classes = classes;
        self
    }

    /// Starts another flow. Keys count up from 0.
    pub(super) fn start(&mut self) -> Result<EngineEvent> {
        let hosts = self.topology.hosts().len() as u32;
        let rack = |host: u32| self.topology.hosts()[host as usize].rack;
        let source = self.random.random_range(0..hosts);
        // Drawn again until the racks differ: flows within a rack cross no fabric link.
        let destination = loop {
            let host = self.random.random_range(0..hosts);
            if rack(host) != rack(source) {
                break host;
            }
        };
        let choice = PathChoice::Hash(self.random.random());
        let path = self
            .topology
            .path(HostId(source), HostId(destination), choice)?;
        self.started += 1;
        Ok(EngineEvent::Start(FlowSpec {
            key: FlowKey(self.started - 1),
            links: path.iter().map(|link| link.0).collect(),
            // In turn, so that classes have equally many flows.
            class: ((self.started - 1) % u64::from(self.classes)) as u8,
            weight: 1.0,
            demand_bps: f64::INFINITY,
        }))
    }

    /// Ends the oldest flow.
    pub(super) fn end(&mut self) -> EngineEvent {
        self.ended += 1;
        // Keys count up, so the oldest flow is the one that follows the last end.
        EngineEvent::End(FlowKey(self.ended - 1))
    }
}
