//! Random numbers: a stream for each thing that draws.
//!
//! A [`Stream`] is a function of the run's seed, of what it is for, and of whose it is. What one
//! thing draws moves no other's numbers. Runs of several schemes with one seed therefore see the
//! same flows on the same paths (common random numbers: Law, *Simulation Modeling and Analysis*,
//! §11.2), and parts of a fabric may be simulated in any order.

use std::convert::Infallible;

use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _, TryRng};
use rand_pcg::Pcg64Mcg;

/// Purpose of a stream. Streams of different purposes are independent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Starts, ends and sizes of a workload's flows.
    Arrivals = 1,
    /// Paths of flows, by number.
    Path,
    /// Choices of the scheme at a host.
    Host,
    /// Paths of packets that a host sprays.
    Spraying,
    /// Processing times of a host.
    Jitter,
    /// Choices of a port's queue discipline.
    Queue,
    /// Inputs of tests, and of measurements of the machine.
    Test,
    /// Paths whose delays are measured.
    Measure,
    /// Ports that a switch deflects to.
    Deflection,
    /// Packets that a link loses.
    Loss,
    /// Links of which an allocator is told another capacity.
    Told,
    /// Hosts that run another scheme.
    Beside,
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(Pcg64Mcg);

impl Stream {
    /// Makes the stream of thing number `id` for a purpose.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose, id: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(finish(base(seed, purpose) ^ id)))
    }

    /// Splits off a stream, for a part of the thing that this one belongs to.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(Pcg64Mcg::seed_from_u64(finish(self.0.next_u64())))
    }

    /// Draws this share of so many things, to the nearest, without replacement. Returns for each of
    /// them true if it was drawn.
    #[must_use]
    pub fn draw_share(&mut self, share: f64, of: usize) -> Vec<bool> {
        let drawn = (share.clamp(0.0, 1.0) * of as f64).round() as usize;
        let mut all: Vec<bool> = (0..of).map(|number| number < drawn).collect();
        all.shuffle(self);
        all
    }
}

impl TryRng for Stream {
    type Error = Infallible;

    #[inline]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.next_u32())
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill_bytes(bytes);
        Ok(())
    }
}

/// Path entropy of a run's flows, by their numbers: the same for all schemes.
#[derive(Clone, Copy, Debug)]
pub struct Paths(u64);

impl Paths {
    /// Makes the paths of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(base(seed, Purpose::Path))
    }

    /// Returns the entropy of flow number `flow`, in its own direction or in the other.
    #[inline]
    #[must_use]
    pub const fn of(self, flow: u32, reverse: bool) -> u16 {
        let entropy = finish(self.0 ^ flow as u64);
        // Two independent parts of one number.
        if reverse {
            (entropy >> 32) as u16
        } else {
            (entropy >> 48) as u16
        }
    }
}

/// Mixes seed and purpose. One step for each: with their mere sum, neighbouring seeds would have
/// streams in common.
const fn base(seed: u64, purpose: Purpose) -> u64 {
    finish(finish(seed) ^ purpose as u64)
}

/// SplitMix64's output function after one step of its counter (Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014, fig. 17).
#[inline]
const fn finish(word: u64) -> u64 {
    let z = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The generator's published first outputs for seed 1234567 (Vigna's `splitmix64.c`).
    #[test]
    fn the_mixer_is_splitmix64() {
        let golden = 0x9E37_79B9_7F4A_7C15_u64;
        let outputs =
            [0, 1].map(|n: u64| finish(1_234_567_u64.wrapping_add(golden.wrapping_mul(n))));
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn streams_differ_in_seed_purpose_and_number() {
        let mut firsts = BTreeSet::new();
        for seed in 0..20 {
            for purpose in [Purpose::Arrivals, Purpose::Host, Purpose::Queue] {
                for id in 0..20 {
                    assert!(firsts.insert(Stream::new(seed, purpose, id).next_u64()));
                }
            }
        }
    }

    #[test]
    fn a_drawn_share_is_exact_and_of_the_stream() {
        let draw = |seed| Stream::new(seed, Purpose::Told, 0).draw_share(0.1, 200);
        let drawn = draw(1);
        assert_eq!(
            (drawn.len(), drawn.iter().filter(|d| **d).count()),
            (200, 20)
        );
        assert_eq!(draw(1), drawn);
        assert_ne!(draw(2), drawn);
        let all = Stream::new(1, Purpose::Beside, 0).draw_share(1.0, 3);
        assert_eq!(all, [true; 3]);
    }

    /// Pearson's χ² of 64 equally likely values; 103.4 is exceeded once in a thousand times. The
    /// low bits and the quotient choose a leaf's and an aggregation switch's uplink.
    #[test]
    fn paths_are_uniform_at_either_tier_and_in_either_direction() {
        let paths = Paths::new(3);
        for reverse in [false, true] {
            let mut counts = [0_u32; 64];
            for flow in 0..64_000 {
                let path = paths.of(flow, reverse);
                counts[usize::from(path % 8) * 8 + usize::from(path / 8 % 8)] += 1;
            }
            let squares = counts.iter().map(|c| (f64::from(*c) - 1_000.0).powi(2));
            assert!(squares.sum::<f64>() / 1_000.0 < 103.4, "{counts:?}");
        }
        let same = |flow| paths.of(flow, false) % 8 == paths.of(flow, true) % 8;
        let both = (0..64_000).filter(|flow| same(*flow)).count();
        // An eighth by chance: 8,000 with a standard deviation of 84.
        assert!((7_700..8_300).contains(&both), "{both}");
    }
}
