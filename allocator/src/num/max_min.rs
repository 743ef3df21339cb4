//! Exact max-min fair rates: what α-fair ones tend to as α grows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct ActiveFlow<F> {
    flow: F,
    weight: f64,
    links: Vec<u32>,
    /// Position of this flow in the list of each of its links.
    places: Vec<u32>,
    rate_bps: f64,
    /// Number of the solution that fixed the rate.
    fixed_in: u64,
}

/// Weighted max-min fair rates of the active flows: progressive filling, exact.
///
/// Algorithm: Bertsekas and Gallager, *Data Networks*, §6.5.2. The link with the least rate per
/// weight is filled first. Its flows are fixed there, and what they leave on other links is shared
/// by the rest.
///
/// `F` names a flow. The measure of other objectives' rates, and of the simulator's ideal scheme.
pub struct MaxMin<F> {
    capacities_bps: Vec<f64>,
    on_link: Vec<Vec<u32>>,
    flows: Vec<Option<ActiveFlow<F>>>,
    free: Vec<u32>,
    solution: u64,
    residual_bps: Vec<f64>,
    weights: Vec<f64>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    changed: Vec<(F, f64)>,
}

impl<F: Copy> MaxMin<F> {
    /// Makes a solver without flows on links of these capacities.
    #[must_use]
    pub fn new(capacities_bps: Vec<f64>) -> Self {
        let links = capacities_bps.len();
        Self {
            capacities_bps,
            on_link: vec![Vec::new(); links],
            flows: Vec::new(),
            free: Vec::new(),
            solution: 0,
            residual_bps: Vec::new(),
            weights: Vec::new(),
            heap: BinaryHeap::new(),
            changed: Vec::new(),
        }
    }

    /// Adds a flow over `links` and returns its slot.
    pub fn add(&mut self, flow: F, weight: f64, links: Vec<u32>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            (self.flows.len() - 1) as u32
        });
        let places = links
            .iter()
            .map(|&link| {
                let list = &mut self.on_link[link as usize];
                list.push(slot);
                (list.len() - 1) as u32
            })
            .collect();
        self.flows[slot as usize] = Some(ActiveFlow {
            flow,
            weight,
            links,
            places,
            rate_bps: 0.0,
            fixed_in: 0,
        });
        slot
    }

    /// Removes a flow.
    pub fn remove(&mut self, slot: u32) {
        let Some(gone) = self.flows[slot as usize].take() else {
            return;
        };
        self.free.push(slot);
        for (&link, &place) in gone.links.iter().zip(&gone.places) {
            let list = &mut self.on_link[link as usize];
            list.swap_remove(place as usize);
            let Some(&moved) = list.get(place as usize) else {
                continue;
            };
            // `swap_remove` put the last flow of the link here: its position follows.
            if let Some(moved) = self.flows[moved as usize].as_mut()
                && let Some(at) = moved.links.iter().position(|&l| l == link)
            {
                moved.places[at] = place;
            }
        }
    }

    /// Computes all rates and returns those that changed.
    pub fn solve(&mut self) -> &[(F, f64)] {
        self.solution += 1;
        self.changed.clear();
        self.residual_bps.clone_from(&self.capacities_bps);
        self.weights.clear();
        self.weights.resize(self.capacities_bps.len(), 0.0);
        for flow in self.flows.iter().flatten() {
            for &link in &flow.links {
                self.weights[link as usize] += flow.weight;
            }
        }
        self.heap.clear();
        for (link, &weight) in (0u32..).zip(&self.weights) {
            if weight > 0.0 {
                // Positive floats compare like their bits.
                let fill = (self.residual_bps[link as usize] / weight).max(0.0);
                self.heap.push(Reverse((fill.to_bits(), link)));
            }
        }
        while let Some(Reverse((fill, link))) = self.heap.pop() {
            let at = link as usize;
            // All flows of the link are fixed: subtraction leaves rounding errors and not exactly
            // 0.
            if self.weights[at] <= 1e-9 {
                continue;
            }
            let now = (self.residual_bps[at] / self.weights[at]).max(0.0);
            if now.to_bits() > fill {
                // Flows that were fixed elsewhere have left it more: fills only grow.
                self.heap.push(Reverse((now.to_bits(), link)));
                continue;
            }
            for &slot in &self.on_link[at] {
                let Some(flow) = self.flows[slot as usize].as_mut() else {
                    continue;
                };
                // Numbers instead of flags, so that no flow is reset between solutions.
                if flow.fixed_in == self.solution {
                    continue;
                }
                flow.fixed_in = self.solution;
                let rate_bps = now * flow.weight;
                if (rate_bps - flow.rate_bps).abs() > 1e-9 * rate_bps {
                    flow.rate_bps = rate_bps;
                    self.changed.push((flow.flow, rate_bps));
                }
                for &other in &flow.links {
                    self.residual_bps[other as usize] -= rate_bps;
                    self.weights[other as usize] -= flow.weight;
                }
            }
            self.weights[at] = 0.0;
        }
        &self.changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_textbook_example_of_max_min_fairness() {
        // Three links of 1, 2 and 1: one flow over all, others over one each.
        let mut rates = MaxMin::new(vec![1e9, 2e9, 1e9]);
        rates.add(0_u32, 1.0, vec![0, 1, 2]);
        rates.add(1, 1.0, vec![0]);
        rates.add(2, 1.0, vec![1]);
        let third = rates.add(3, 1.0, vec![2]);
        rates.add(4, 2.0, vec![2]);
        let of = |changed: &[(u32, f64)], flow| {
            changed
                .iter()
                .find(|c| c.0 == flow)
                .map(|c| (c.1 / 1e6).round())
        };
        let changed = rates.solve();
        // Link 2 has weight 4 on 1 Gbit/s; what flow 0 leaves goes to the others.
        let expected = [250.0, 750.0, 1750.0, 250.0, 500.0];
        for (flow, &rate) in (0..).zip(&expected) {
            assert_eq!(of(changed, flow), Some(rate), "flow {flow}");
        }
        rates.remove(third);
        let changed = rates.solve();
        assert_eq!(of(changed, 0), Some(333.0));
        assert_eq!(of(changed, 1), Some(667.0));
        assert_eq!(of(changed, 4), Some(667.0));
    }
}
