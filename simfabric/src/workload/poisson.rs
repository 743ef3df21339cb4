//! Poisson arrivals between hosts drawn at random, at an offered load.

use rand::RngExt;

use super::sizes::SizeDistribution;
use crate::rng::{Purpose, Stream};
use crate::{FlowSpec, HostId, Span, Time};

/// Reason that arrivals cannot be generated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PoissonError {
    /// The load is out of range.
    #[error("the load is {load}; it must be above 0 and at most 1, a share of the hosts' links")]
    Load {
        /// Offered load.
        load: f64,
    },
    /// There is no second host.
    #[error("there are {hosts} hosts; flows between hosts need at least 2")]
    Hosts {
        /// Number of hosts.
        hosts: u32,
    },
    /// Incasts need more senders than there are, or none.
    #[error("an incast has {senders} senders; with {hosts} hosts there can be 1 to {}", .hosts - 1)]
    Senders {
        /// Senders of an incast.
        senders: u32,
        /// Number of hosts.
        hosts: u32,
    },
}

/// Incasts in place of single flows: several hosts send to one at the same moment.
#[derive(Clone, Debug)]
struct Incasts {
    senders: usize,
    /// Groups of senders that the application knows; empty: senders are drawn anew.
    groups: Vec<Vec<HostId>>,
    /// Number of the first group.
    first_group: u8,
    /// Order of hosts, of which draws without replacement take the first.
    order: Vec<u32>,
    /// The present incast: begin, receiver, group, and senders that are still to send.
    start: Time,
    receiver: HostId,
    group: u8,
    waiting: Vec<HostId>,
}

impl Incasts {
    /// Begins an incast.
    fn begin(&mut self, start: Time, hosts: u32, rng: &mut Stream) {
        self.start = start;
        if self.groups.is_empty() {
            self.receiver = HostId(rng.random_range(0..hosts));
            self.waiting = draw(&mut self.order, self.senders, Some(self.receiver), rng);
        } else {
            let group = rng.random_range(0..self.groups.len());
            self.group = self.first_group + group as u8;
            let members = &self.groups[group];
            // One of the hosts that are not in the group.
            let mut others = (0..hosts).map(HostId).filter(|h| !members.contains(h));
            let nth = rng.random_range(0..hosts as usize - members.len());
            self.receiver = others.nth(nth).unwrap_or(HostId(0));
            self.waiting.clone_from(members);
        }
        // Taken from the end.
        self.waiting.reverse();
    }
}

/// Draws `count` hosts without replacement, none of them `without`. `order` has a number for each
/// host that may be drawn; any order gives a uniform draw.
fn draw(order: &mut [u32], count: usize, without: Option<HostId>, rng: &mut Stream) -> Vec<HostId> {
    let members = (0..count).map(|at| {
        let pick = rng.random_range(at..order.len());
        order.swap(at, pick);
        let number = order[at];
        // Numbers from the one left out on are shifted past it.
        HostId(number + u32::from(without.is_some_and(|host| number >= host.0)))
    });
    members.collect()
}

/// Flows between uniformly random pairs of hosts, beginning as a Poisson process (flowtune §5.3).
///
/// At load 1, the starting flows' bytes per second equal the capacity of all hosts' links: the rate
/// of the process is hosts × link capacity / mean size. Sources and destinations are drawn
/// independently and uniformly, a destination other than the source.
#[derive(Clone, Debug)]
pub struct Poisson {
    hosts: u32,
    sizes: SizeDistribution,
    /// Mean time between two arrivals, over all hosts, in picoseconds.
    mean_gap_ps: f64,
    load: f64,
    from: Time,
    now_ps: f64,
    until: Time,
    incasts: Option<Incasts>,
    rng: Stream,
}

impl Poisson {
    /// Makes arrivals from `from` until `until` among `hosts` whose links carry `link_bps` each.
    ///
    /// # Errors
    /// If the load is not within (0, 1], or there are fewer than two hosts.
    pub fn new(
        hosts: u32,
        link_bps: u64,
        load: f64,
        sizes: SizeDistribution,
        (from, until): (Time, Time),
        seed: u64,
    ) -> Result<Self, PoissonError> {
        if !(load > 0.0 && load <= 1.0) {
            return Err(PoissonError::Load { load });
        }
        if hosts < 2 {
            return Err(PoissonError::Hosts { hosts });
        }
        // Payload only: headers and acknowledgements come on top of the load.
        let rate_per_s = load * f64::from(hosts) * link_bps as f64 / (8.0 * sizes.mean_bytes());
        Ok(Self {
            hosts,
            sizes,
            mean_gap_ps: 1e12 / rate_per_s,
            load,
            from,
            now_ps: from.as_ps() as f64,
            until,
            incasts: None,
            rng: Stream::new(seed, Purpose::Arrivals, 0),
        })
    }

    /// Makes each arrival an incast: `senders` hosts send to one at the same moment, at the same
    /// load in all. With `groups` above 0 the senders are one of so many groups, drawn once, and
    /// the receiver is none of them; otherwise receiver and senders are drawn anew.
    ///
    /// # Errors
    /// If there are not enough hosts.
    pub fn of_incasts(mut self, senders: u32, groups: u8) -> Result<Self, PoissonError> {
        let hosts = self.hosts;
        if senders == 0 || senders >= hosts {
            return Err(PoissonError::Senders { senders, hosts });
        }
        let mut every: Vec<u32> = (0..hosts).collect();
        let members = |_| draw(&mut every, senders as usize, None, &mut self.rng);
        let groups = (0..groups).map(members).collect();
        self.mean_gap_ps *= f64::from(senders);
        self.incasts = Some(Incasts {
            senders: senders as usize,
            groups,
            first_group: 1,
            order: (0..hosts - 1).collect(),
            start: Time::ZERO,
            receiver: HostId(0),
            group: 0,
            waiting: Vec::new(),
        });
        Ok(self)
    }

    /// Returns the groups of senders, of which the first gets this number, and the others those
    /// that follow.
    pub fn number_groups(&mut self, first: u8) -> &[Vec<HostId>] {
        self.incasts.as_mut().map_or(&[], |incasts| {
            incasts.first_group = first;
            &incasts.groups
        })
    }

    /// Returns the load offered at this time, as a share of the hosts' links.
    #[must_use]
    pub fn load_at(&self, at: Time) -> f64 {
        if (self.from..self.until).contains(&at) {
            self.load
        } else {
            0.0
        }
    }

    /// Returns the time at which arrivals end.
    #[must_use]
    pub const fn until(&self) -> Time {
        self.until
    }

    /// Returns the time at which arrivals begin.
    #[must_use]
    pub const fn from(&self) -> Time {
        self.from
    }

    /// Returns the mean time between two arrivals, over all hosts.
    #[must_use]
    pub fn mean_gap(&self) -> Span {
        Span::from_ps(self.mean_gap_ps.round() as u64)
    }
}

impl Iterator for Poisson {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        if let Some(incasts) = &mut self.incasts
            && let Some(src) = incasts.waiting.pop()
        {
            let bytes = self.sizes.sample(&mut self.rng);
            let flow = FlowSpec::new(src, incasts.receiver, bytes, incasts.start);
            return Some(FlowSpec {
                group: incasts.group,
                ..flow
            });
        }
        // 1 − u lies in (0, 1], so that the logarithm is finite.
        let u: f64 = self.rng.random();
        self.now_ps -= (1.0 - u).ln() * self.mean_gap_ps;
        let start = Time::from_ps(self.now_ps as u64);
        if start >= self.until {
            return None;
        }
        if let Some(incasts) = &mut self.incasts {
            incasts.begin(start, self.hosts, &mut self.rng);
            return self.next();
        }
        let src = self.rng.random_range(0..self.hosts);
        // One of the other hosts − 1; numbers from the source on are shifted past it, so that each
        // has the same share.
        let other = self.rng.random_range(0..self.hosts - 1);
        let dst = other + u32::from(other >= src);
        let bytes = self.sizes.sample(&mut self.rng);
        Some(FlowSpec::new(HostId(src), HostId(dst), bytes, start))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn web(load: f64, ms: u64, seed: u64) -> Poisson {
        let sizes = SizeDistribution::published("web").unwrap();
        let span = (Time::ZERO, Time::from_ms(ms));
        Poisson::new(144, 10_000_000_000, load, sizes, span, seed).unwrap()
    }

    #[test]
    fn the_offered_load_is_the_one_asked_for() {
        let flows: Vec<FlowSpec> = web(0.6, 2_000, 3).collect();
        let offered = flows.iter().map(|f| f.bytes as f64 * 8.0).sum::<f64>() / 2.0;
        let load = offered / (144.0 * 10e9);
        // The relative standard error of a compound Poisson sum is √(E[s²] / E[s]² / n).
        let n = flows.len() as f64;
        let mean = offered * 2.0 / 8.0 / n;
        let second = flows.iter().map(|f| (f.bytes as f64).powi(2)).sum::<f64>() / n;
        let error = (second / mean.powi(2) / n).sqrt();
        assert!((load / 0.6 - 1.0).abs() < 4.0 * error, "{load} ± {error}");
        assert!(error < 0.01);
    }

    #[test]
    fn gaps_are_exponential() {
        let process = web(0.5, 500, 4);
        let mean = process.mean_gap().as_ps() as f64;
        let flows: Vec<FlowSpec> = process.collect();
        let mut gaps: Vec<f64> = flows
            .windows(2)
            .map(|pair| pair[1].start.since(pair[0].start).as_ps() as f64)
            .collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let n = gaps.len() as f64;
        let distance = gaps
            .iter()
            .enumerate()
            .map(|(i, gap)| {
                let cdf = 1.0 - (-gap / mean).exp();
                (cdf - i as f64 / n)
                    .abs()
                    .max((cdf - (i + 1) as f64 / n).abs())
            })
            .fold(0.0, f64::max);
        assert!(n > 50_000.0);
        // The critical value of Kolmogorov and Smirnov at a significance of 0.1 %.
        assert!(distance < 1.95 / n.sqrt(), "{distance}");
    }

    #[test]
    fn pairs_are_uniform_and_never_of_one_host() {
        let mut counts = [[0_u32; 8]; 8];
        let sizes = SizeDistribution::constant(1_000);
        let span = (Time::ZERO, Time::from_ms(10));
        let flows = Poisson::new(8, 10_000_000_000, 1.0, sizes, span, 5).unwrap();
        let mut n = 0.0;
        for flow in flows {
            counts[flow.src.0 as usize][flow.dst.0 as usize] += 1;
            n += 1.0;
        }
        let expected = n / 56.0;
        let mut chi_square = 0.0;
        for (src, row) in counts.iter().enumerate() {
            for (dst, count) in row.iter().enumerate() {
                if src == dst {
                    assert_eq!(*count, 0);
                } else {
                    chi_square += (f64::from(*count) - expected).powi(2) / expected;
                }
            }
        }
        // 55 degrees of freedom: the 99.9 % quantile is 93.2.
        assert!(n > 90_000.0 && chi_square < 93.2, "{chi_square} of {n}");
    }

    #[test]
    fn a_seed_fixes_every_flow() {
        assert!(web(0.4, 20, 9).eq(web(0.4, 20, 9)));
        assert!(!web(0.4, 20, 9).eq(web(0.4, 20, 10)));
    }

    #[test]
    fn impossible_loads_are_refused() {
        for load in [0.0, -0.1, 1.01, f64::NAN] {
            let sizes = SizeDistribution::constant(1);
            let made = Poisson::new(4, 1, load, sizes, (Time::ZERO, Time::MAX), 0);
            assert!(matches!(made, Err(PoissonError::Load { .. })), "{load}");
        }
        let sizes = SizeDistribution::constant(1);
        let made = Poisson::new(1, 1, 0.5, sizes, (Time::ZERO, Time::MAX), 0);
        assert_eq!(made.unwrap_err(), PoissonError::Hosts { hosts: 1 });
    }

    /// Incasts offer the load of single flows. Each has its senders, once each, and one receiver.
    #[test]
    fn incasts_offer_the_load_that_is_asked_for() {
        for groups in [0, 9] {
            let incasts = web(0.3, 4_000, 5).of_incasts(16, groups).unwrap();
            let flows: Vec<FlowSpec> = incasts.collect();
            let offered = flows.iter().map(|f| f.bytes as f64 * 8.0).sum::<f64>() / 4.0;
            let load = offered / (144.0 * 10e9);
            assert!((load / 0.3 - 1.0).abs() < 0.05, "{load}");
            let mut members = BTreeMap::<u8, Vec<HostId>>::new();
            let mut receivers = std::collections::BTreeSet::new();
            for incast in flows.chunks(16) {
                let first = incast[0];
                let alike = |f: &FlowSpec| {
                    (f.dst, f.start, f.group) == (first.dst, first.start, first.group)
                };
                assert!(incast.iter().all(alike));
                let mut senders: Vec<HostId> = incast.iter().map(|f| f.src).collect();
                senders.sort_unstable();
                senders.dedup();
                assert!(senders.len() == 16 && !senders.contains(&first.dst));
                receivers.insert(first.dst);
                if groups > 0 {
                    let known = members
                        .entry(first.group)
                        .or_insert_with(|| senders.clone());
                    assert_eq!(*known, senders, "a group's members stay");
                } else {
                    assert_eq!(first.group, 0);
                }
            }
            assert_eq!(members.len(), usize::from(groups));
            assert!(members.into_keys().eq(1..=groups));
            assert_eq!(receivers.len(), 144);
        }
        let none = web(0.3, 1, 5);
        assert!(none.clone().of_incasts(0, 0).is_err());
        assert!(none.clone().of_incasts(144, 0).is_err());
        assert!(none.of_incasts(143, 2).is_ok());
    }
}
