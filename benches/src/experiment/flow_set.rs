//! Flows that an experiment changes, over a network.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::num::utility::{ClassTable, Utility as _, UtilityKind};
use ratewright_allocator::num::{
    FlowArrays, FlowView, LinkPath, Problem, RATE_UNIT_BPS, RateLimit, path_capacity,
};
use ratewright_topology::{BuildError, HostId, PathChoice, PathError, Topology, TwoTierClos};

/// Error for a network that cannot be built, or in which hosts cannot reach each other.
#[derive(Debug, thiserror::Error)]
pub enum FlowSetError {
    /// The network cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Two hosts have no path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Fewer than two hosts.
    #[error("flows need two hosts, the network has {0}")]
    TooFewHosts(usize),
}

/// Log flows of weight 1 without demands, over a network.
#[derive(Debug)]
pub struct FlowSet {
    topology: Topology,
    capacities: Vec<f64>,
    classes: ClassTable,
    paths: Vec<LinkPath>,
    class_ids: Vec<u8>,
    weights: Vec<f64>,
    limits: Vec<RateLimit>,
}

impl FlowSet {
    /// An empty set over this network.
    ///
    /// # Errors
    /// A network that cannot be built, or has fewer than two hosts.
    pub fn new(network: &TwoTierClos) -> Result<Self, FlowSetError> {
        let topology = network.build()?;
        if topology.hosts().len() < 2 {
            return Err(FlowSetError::TooFewHosts(topology.hosts().len()));
        }
        let capacities = topology
            .links()
            .iter()
            // 0 for links that are down, or whose switch is.
            .map(|l| topology.effective_capacity_bps(l.id) as f64 / RATE_UNIT_BPS)
            .collect();
        Ok(Self {
            topology,
            capacities,
            classes: ClassTable::default(),
            paths: Vec::new(),
            class_ids: Vec::new(),
            weights: Vec::new(),
            limits: Vec::new(),
        })
    }

    /// Returns a path between two different random hosts, over a random spine.
    ///
    /// # Errors
    /// Hosts that cannot reach each other.
    pub fn random_path(&self, rng: &mut Pcg64Mcg) -> Result<LinkPath, FlowSetError> {
        let hosts = self.hosts() as u32;
        let src = rng.random_range(0..hosts);
        // An offset of at least 1 never draws the source again.
        let dst = (src + rng.random_range(1..hosts)) % hosts;
        let choice = PathChoice::Hash(rng.random());
        let path = self.topology.path(HostId(src), HostId(dst), choice)?;
        Ok(path.iter().map(|link| link.0).collect())
    }

    fn limit(&self, path: &LinkPath) -> RateLimit {
        let utility: &UtilityKind = self.classes.utility(0);
        debug_assert!(utility.marginal(1.0) > 0.0, "class 0 is defined");
        let capacity = path_capacity(path, &self.capacities);
        RateLimit::new(utility, 1.0, f64::INFINITY, capacity)
    }

    /// Adds a flow.
    pub fn push(&mut self, path: LinkPath) {
        // The limit depends on the path's capacity only, so it is computed once.
        self.limits.push(self.limit(&path));
        self.paths.push(path);
        self.class_ids.push(0);
        self.weights.push(1.0);
    }

    /// Removes a flow; the last one takes its index.
    pub fn swap_remove(&mut self, flow: usize) {
        self.paths.swap_remove(flow);
        self.class_ids.swap_remove(flow);
        self.weights.swap_remove(flow);
        self.limits.swap_remove(flow);
    }

    /// Replaces a flow's path.
    pub fn replace(&mut self, flow: usize, path: LinkPath) {
        self.limits[flow] = self.limit(&path);
        self.paths[flow] = path;
    }

    /// Returns the view of a flow for an event.
    #[must_use]
    pub fn view(&self, flow: usize) -> FlowView<'_> {
        FlowView {
            path: &self.paths[flow],
            // All flows are of class 0, the default log class.
            utility: self.classes.utility(0),
            weight: self.weights[flow],
            limit: self.limits[flow],
        }
    }

    /// Returns the problem of the present flows.
    #[must_use]
    pub fn problem(&self) -> Problem<'_> {
        Problem {
            capacities: &self.capacities,
            classes: &self.classes,
            flows: FlowArrays {
                paths: &self.paths,
                classes: &self.class_ids,
                weights: &self.weights,
                limits: &self.limits,
            },
        }
    }

    /// The network.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Number of flows.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.paths.len()
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.topology.hosts().len()
    }

    /// Number of directed links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.capacities.len()
    }

    /// Sum of the hosts' link speeds, in Gbit/s.
    #[must_use]
    pub fn host_capacity(&self) -> f64 {
        let edge = self.topology.links().iter().filter(|l| l.level == 1);
        // Level 1 holds both directions of the hosts' links: half of them go up.
        edge.map(|l| l.capacity_bps as f64).sum::<f64>() / 2.0 / RATE_UNIT_BPS
    }
}
