//! Events for the engine: starts and ends of flows between random hosts.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::{EngineEvent, FlowNumber, FlowNumbers, FlowSpec};
use ratewright_topology::{HostId, PathChoice, Topology};

/// Makes flows between random hosts of different racks.
pub(super) struct EngineTraffic<'a> {
    topology: &'a Topology,
    random: Pcg64Mcg,
    started: u64,
    numbers: FlowNumbers<()>,
    /// In the order in which they started.
    active: VecDeque<FlowNumber>,
    classes: u8,
}

impl<'a> EngineTraffic<'a> {
    pub(super) fn new(topology: &'a Topology, seed: u64) -> Self {
        Self {
            topology,
            random: Pcg64Mcg::seed_from_u64(seed),
            started: 0,
            numbers: FlowNumbers::new(0),
            active: VecDeque::new(),
            classes: 1,
        }
    }

    /// Spreads flows over `classes` classes.
    pub(super) fn over_classes(mut self, classes: u8) -> Self {
        self.classes = classes;
        self
    }

    /// Starts another flow.
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
        let number = self.numbers.take(());
        self.active.push_back(number);
        Ok(EngineEvent::Start(FlowSpec {
            number,
            links: path.iter().map(|link| link.0).collect(),
            // In turn, so that classes have equally many flows.
            class: ((self.started - 1) % u64::from(self.classes)) as u8,
            weight: 1.0,
            demand_bps: f64::INFINITY,
        }))
    }

    /// Ends the oldest flow.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn end(&mut self) -> Result<EngineEvent> {
        let oldest = self.active.pop_front().context("no flow is active")?;
        self.numbers.give_back(oldest);
        Ok(EngineEvent::End(oldest))
    }
}
