//! Poisson arrivals between hosts drawn at random, at an offered load.

use std::collections::BTreeMap;

use rand::RngExt;

use super::SizeDistribution;
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

/// Incasts in place of single flows: several hosts send to one at the same moment, or each within
/// `jitter` after it.
#[derive(Clone, Debug)]
struct Incasts {
    senders: usize,
    jitter: Span,
    /// Groups of senders that the application knows; empty: senders are drawn anew.
    groups: Vec<Vec<HostId>>,
    /// Number of the first group.
    first_group: u8,
    /// Order of hosts, of which draws without replacement take the first.
    order: Vec<u32>,
    /// Messages of incasts that have begun, by the time at which they are sent and by their number.
    waiting: BTreeMap<(Time, u64), FlowSpec>,
    /// Messages so far.
    count: u64,
    /// Begin of the next incast, which is after all that is sent before it.
    next: Time,
}

impl Incasts {
    /// Begins an incast at `self.next`.
    fn begin(&mut self, hosts: u32, sizes: &SizeDistribution, rng: &mut Stream) {
        let (receiver, number, members);
        if self.groups.is_empty() {
            receiver = HostId(rng.random_range(0..hosts));
            number = 0;
            members = draw(&mut self.order, self.senders, Some(receiver), rng);
        } else {
            let group = rng.random_range(0..self.groups.len());
            number = self.first_group + group as u8;
            members = self.groups[group].clone();
            // One of the hosts that are not in the group.
            let mut others = (0..hosts).map(HostId).filter(|h| !members.contains(h));
            let nth = rng.random_range(0..hosts as usize - members.len());
            receiver = others.nth(nth).unwrap_or(HostId(0));
        }
        for src in members {
            let bytes = sizes.sample(rng);
            let late = match self.jitter.0 {
                0 => Span::ZERO,
                most => Span(rng.random_range(0..most)),
            };
            let start = self.next + late;
            let flow = FlowSpec::new(src, receiver, bytes, start);
            let flow = FlowSpec {
                group: number,
                ..flow
            };
            self.waiting.insert((start, self.count), flow);
            self.count += 1;
        }
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

    /// Makes each arrival an incast: `senders` hosts send to one, each at its own moment within
    /// `jitter` after the arrival, at the same load in all. With `groups` above 0 the senders are
    /// one of so many groups, drawn once, and the receiver is none of them; otherwise receiver and
    /// senders are drawn anew.
    ///
    /// # Errors
    /// If there are not enough hosts.
    pub fn of_incasts(
        mut self,
        senders: u32,
        groups: u8,
        jitter: Span,
    ) -> Result<Self, PoissonError> {
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
            jitter,
            groups,
            first_group: 1,
            order: (0..hosts - 1).collect(),
            waiting: BTreeMap::new(),
            count: 0,
            next: self.from,
        });
        let first = self.next_arrival();
        if let Some(incasts) = &mut self.incasts {
            incasts.next = first;
        }
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

impl Poisson {
    /// Returns the time of the next arrival.
    fn next_arrival(&mut self) -> Time {
        // 1 − u lies in (0, 1], so that the logarithm is finite.
        let u: f64 = self.rng.random();
        self.now_ps -= (1.0 - u).ln() * self.mean_gap_ps;
        Time::from_ps(self.now_ps as u64)
    }

    /// Returns the next message of incasts. One incast may begin while another's are still sent.
    fn next_of_incasts(&mut self) -> Option<FlowSpec> {
        loop {
            let incasts = self.incasts.as_mut()?;
            let earliest = incasts.waiting.first_key_value().map(|(key, _)| key.0);
            if incasts.next >= self.until || earliest.is_some_and(|first| first <= incasts.next) {
                return incasts.waiting.pop_first().map(|(_, flow)| flow);
            }
            incasts.begin(self.hosts, &self.sizes, &mut self.rng);
            let next = self.next_arrival();
            if let Some(incasts) = &mut self.incasts {
                incasts.next = next;
            }
        }
    }
}

impl Iterator for Poisson {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        if self.incasts.is_some() {
            return self.next_of_incasts();
        }
        let start = self.next_arrival();
        if start >= self.until {
            return None;
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
            let incasts = web(0.3, 4_000, 5).of_incasts(16, groups, Span::ZERO);
            let flows: Vec<FlowSpec> = incasts.unwrap().collect();
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
        assert!(none.clone().of_incasts(0, 0, Span::ZERO).is_err());
        assert!(none.clone().of_incasts(144, 0, Span::ZERO).is_err());
        assert!(none.of_incasts(143, 2, Span::ZERO).is_ok());
    }

    /// With jitter the messages of an incast are spread evenly over it, all come in order of time,
    /// and the load stays.
    #[test]
    fn incasts_with_jitter_come_in_order() {
        let jitter = Span::from_us(100);
        let incasts = web(0.3, 4_000, 5).of_incasts(16, 9, jitter).unwrap();
        let flows: Vec<FlowSpec> = incasts.collect();
        assert!(flows.is_sorted_by_key(|flow| flow.start));
        let without = web(0.3, 4_000, 5).of_incasts(16, 9, Span::ZERO).unwrap();
        let bytes = |flows: &[FlowSpec]| flows.iter().map(|f| f.bytes as f64).sum::<f64>();
        let ratio = bytes(&flows) / bytes(&without.collect::<Vec<_>>());
        assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
        let mut last = BTreeMap::<(u8, HostId), FlowSpec>::new();
        let mut gaps_us = Vec::new();
        for flow in &flows {
            let before = last.insert((flow.group, flow.dst), *flow);
            let gap = before.map(|before| flow.start.since(before.start));
            gaps_us.extend(gap.filter(|gap| *gap < jitter).map(Span::as_us_f64));
        }
        let mean = gaps_us.iter().sum::<f64>() / gaps_us.len() as f64;
        // 16 points on 100 µs: 17 equal gaps on average.
        assert!((mean / (100.0 / 17.0) - 1.0).abs() < 0.03, "{mean}");
    }
}
