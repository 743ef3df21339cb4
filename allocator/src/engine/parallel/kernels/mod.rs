//! One FlowBlock's share of an iteration, for the instruction set at hand.

use super::dirty_links::LinkVector;
use super::flow_block::FlowBlock;
use super::lanes::{LANES, Lanes, Pairs, Words};
use super::link_block::{LinkBlock, LinkBlockCopy};
use super::price_update::{UpdateReport, UpdateRule};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod notify;
mod portable;

pub(super) use self::notify::Notification;
use self::notify::Rows;

/// An instruction set that the engine has kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Simd {
    /// Plain Rust, compiled for what every machine of the architecture has: on aarch64, NEON.
    Scalar,
    /// Plain Rust, compiled for AVX2 and FMA.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Simd {
    /// Those that this machine has, the best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut list = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                list.push(Self::Avx2);
            }
            if avx512::detected() {
                list.push(Self::Avx512);
            }
        }
        list
    }

    /// The best of this machine.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// What to do with each flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassSettings {
    /// F-NORM of the rates as they are, with the rooms as they are, and the threshold.
    pub(super) normalize: bool,
    /// New rates from the prices, and their sums.
    pub(super) rates: bool,
    /// A rate is told when it moved by more than this share.
    pub(super) threshold: f32,
    /// The worker's flows take more room than its caches have.
    pub(super) exceeds_cache: bool,
    /// Other workers write prices and read sums, so that their cache lines have to be fetched from there.
    pub(super) shared_links: bool,
    /// Many rates pass the threshold, as far as anybody knows.
    pub(super) many_updates: bool,
}

/// What one side of a FlowBlock looks up, and sums up.
pub(super) struct Side<'a> {
    pub(super) links: &'a LinkBlock,
    pub(super) copy: &'a mut LinkBlockCopy,
    /// The second level, if the flows go over the cores.
    pub(super) core: Option<CoreSide<'a>>,
}

/// The same of the second level.
pub(super) struct CoreSide<'a> {
    pub(super) links: &'a LinkBlock,
    pub(super) copy: &'a mut LinkBlockCopy,
    /// By the FlowBlock's table: the table of its pod.
    pub(super) tables: &'a [u32],
}

impl Side<'_> {
    /// Elastic loads are apart from loads in one of its sums.
    fn has_elastic(&self) -> bool {
        let of_core = self.core.as_ref().is_some_and(|core| core.copy.has_elastic);
        self.copy.has_elastic || of_core
    }

    fn split_elastic(&mut self) {
        self.copy.split_elastic();
        if let Some(core) = &mut self.core {
            core.copy.split_elastic();
        }
    }
}

/// Share of its elasticity that a flow at its demand has at a price that is the share `nearness` of its saturation price: all just
/// below it, and next to nothing far inside its demand. Not nothing: a link on which all flows are that far
/// inside, and are still too many, finds the price at which they react from the saturation prices that its sums then have.
#[inline(always)]
pub(super) fn at_demand(nearness: f32) -> f32 {
    let squared = nearness * nearness;
    let share = squared * squared;
    if share > LEAST_ELASTIC {
        share
    } else {
        LEAST_ELASTIC
    }
}

/// See [`at_demand`].
pub(super) const LEAST_ELASTIC: f32 = 1.0 / 8192.0;

/// A worker's buffers, by row.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// By upward row: price and room of the upward half of the path. With AVX-512 and flows beyond the caches, a
    /// rate takes the place of the price that it was computed from. Where flows have weights or demands, so do
    /// reactions and elastic rates.
    pub(super) pairs: Vec<Pairs>,
    /// By upward row: rates.
    pub(super) rates: Vec<Lanes>,
    /// By downward row: lanes whose rate passed the threshold.
    pub(super) notify: Vec<u16>,
    /// The same by joint row.
    pub(super) pair_notify: Vec<u16>,
    /// By place among the joint rows of a table: reactions and elastic rates of the flows, two in a word.
    pub(super) slopes: Vec<Words>,
    /// By place among the downward rows of a table: the same with their rates, flow by flow. They wait here until they
    /// are moved, since what was just written in one piece cannot be read in smaller ones without waiting.
    pub(super) responses: Vec<Pairs>,
}

impl Scratch {
    fn fit(&mut self, block: &FlowBlock) {
        let (up, down) = (block.up.len(), block.down.len());
        if self.pairs.len() < up {
            self.pairs.resize(up, Pairs::default());
            self.rates.resize(up, Lanes::default());
        }
        if self.notify.len() < down {
            self.notify.resize(down, 0);
        }
        let pairs = block.pairs.len();
        if self.pair_notify.len() < pairs {
            self.pair_notify.resize(pairs, 0);
        }
        if self.slopes.len() < pairs {
            self.slopes.resize(pairs, Words([0; LANES]));
        }
        if self.responses.len() < down {
            self.responses.resize(down, Pairs::default());
        }
    }
}

/// Kernels for an instruction set that has been found on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels(Simd);

impl Kernels {
    /// The kernels for `simd`, or the best that this machine has below it.
    pub(super) fn new(simd: Simd) -> Self {
        Self(simd.min(Simd::best()))
    }

    pub(super) fn simd(self) -> Simd {
        self.0
    }

    /// Works on every flow of a FlowBlock, and adds what it sums up to the sums of its LinkBlocks.
    #[allow(unsafe_code)]
    pub(super) fn run(
        self,
        pass: PassSettings,
        block: &mut FlowBlock,
        mut sides: [Side<'_>; 2],
        scratch: &mut Scratch,
    ) {
        scratch.fit(block);
        // Where elastic loads are added apart, all flows add theirs.
        let plain = block.is_plain() && !(pass.rates && sides.iter().any(Side::has_elastic));
        if pass.rates && !plain {
            sides.iter_mut().for_each(Side::split_elastic);
        }
        if pass.rates && self.0 != Simd::Avx512 {
            for side in &mut sides {
                side.copy.clear();
                side.copy.overwrite();
                if let Some(core) = &mut side.core {
                    core.copy.clear();
                    core.copy.overwrite();
                }
            }
        }
        match self.0 {
            Simd::Scalar => portable::run(pass, block, sides, scratch),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` lets only what was detected through.
            Simd::Avx2 => unsafe { avx2::run(pass, block, sides, scratch) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Simd::Avx512 => unsafe { avx512::run(pass, plain, block, sides, scratch) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => portable::run(pass, block, sides, scratch),
        }
    }

    /// Appends the flows whose rate passed the threshold in the last run over this FlowBlock.
    pub(super) fn collect(self, block: &FlowBlock, scratch: &Scratch, out: &mut Vec<Notification>) {
        let pairs = &block.pairs;
        let lists = [
            Rows {
                notify: &scratch.notify,
                used: &block.down.used,
                flow: &block.flow,
                notified: &block.notified,
            },
            Rows {
                notify: &scratch.pair_notify,
                used: &pairs.down.used,
                flow: &pairs.flow,
                notified: &pairs.notified,
            },
        ];
        for rows in lists {
            self.collect_rows(rows, out);
        }
    }

    #[allow(unsafe_code)]
    fn collect_rows(self, rows: Rows<'_>, out: &mut Vec<Notification>) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` lets only what was detected through.
            Simd::Avx512 => unsafe { avx512::collect(rows, out) },
            _ => notify::collect(rows, out),
        }
    }

    /// One step of the prices of links that events touch, on which all flows are log flows.
    #[allow(unsafe_code)]
    pub(super) fn step_dirty_links(self, vectors: &mut [LinkVector], only_newcomers: bool) {
        match self.0 {
            Simd::Scalar => portable::step_dirty_links(vectors, only_newcomers),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` lets only what was detected through.
            Simd::Avx2 => unsafe { avx2::step_dirty_links(vectors, only_newcomers) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Simd::Avx512 => unsafe { avx512::step_dirty_links(vectors, only_newcomers) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => portable::step_dirty_links(vectors, only_newcomers),
        }
    }

    /// Updates the prices of a LinkBlock.
    #[allow(unsafe_code)]
    pub(super) fn update(
        self,
        links: &mut LinkBlock,
        rule: UpdateRule,
        copies: &[&LinkBlockCopy],
    ) -> UpdateReport {
        match self.0 {
            Simd::Scalar => links.update(rule, copies),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` lets only what was detected through.
            Simd::Avx2 => unsafe { avx2::update(links, rule, copies) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Simd::Avx512 => unsafe { avx512::update(links, rule, copies) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => links.update(rule, copies),
        }
    }
}
