//! Kernels: passes over one FlowBlock and price updates of one LinkBlock, by instruction set.

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
    /// Plain Rust, compiled for the architecture's baseline: on aarch64, NEON.
    Scalar,
    /// Plain Rust, compiled for AVX2 and FMA.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Simd {
    /// Instruction sets of this machine, the best last.
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

    /// Best instruction set of this machine.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// Name of the instruction set.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Settings of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassSettings {
    /// Normalise the present rates by the present scales (F-NORM), and apply the threshold.
    pub(super) normalize: bool,
    /// Compute new rates from the prices, and their sums.
    pub(super) rates: bool,
    /// Relative change above which a rate is notified (flowtune §5.3.2).
    pub(super) threshold: f32,
    /// The worker's flows exceed its caches.
    pub(super) exceeds_cache: bool,
    /// Other workers write prices and read sums, so that their cache lines have to be fetched.
    pub(super) shared_links: bool,
    /// Many rates are expected to pass the threshold.
    pub(super) many_updates: bool,
}

/// Links that one side of a FlowBlock looks up, and sums that it adds to.
pub(super) struct Side<'a> {
    pub(super) links: &'a LinkBlock,
    pub(super) copy: &'a mut LinkBlockCopy,
    /// The second level, if the flows cross the cores.
    pub(super) core: Option<CoreSide<'a>>,
}

/// Links and sums of the second level.
pub(super) struct CoreSide<'a> {
    pub(super) links: &'a LinkBlock,
    pub(super) copy: &'a mut LinkBlockCopy,
    /// Table of the pod, by the FlowBlock's table.
    pub(super) tables: &'a [u32],
}

impl Side<'_> {
    /// True if one of its sums has elastic loads apart from loads.
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

/// Share of its elasticity that a flow at its demand has, at a price that is `nearness` times its
/// saturation price. It is all just below that price and next to nothing far inside the demand. It
/// is never 0: a link with too many flows that are all far inside their demands finds the price at
/// which they respond, from the saturation prices in its sums.
#[inline(always)]
pub(super) fn at_demand(nearness: f32) -> f32 {
    let squared = nearness * nearness;
    let share = squared * squared;
    // A comparison rather than `f32::max`: it compiles to one instruction, and no operand is NaN.
    if share > LEAST_ELASTIC {
        share
    } else {
        LEAST_ELASTIC
    }
}

/// Least share that [`at_demand`] returns.
pub(super) const LEAST_ELASTIC: f32 = 1.0 / 8192.0;

/// Buffers of a worker, by row.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Price and F-NORM scale of the upward half of each path, by upward row. AVX-512 overwrites
    /// them: a rate takes its price's place if the flows exceed the caches, and rate and slopes
    /// take both places if flows have terms.
    pub(super) pairs: Vec<Pairs>,
    /// Rates, by upward row.
    pub(super) rates: Vec<Lanes>,
    /// Lanes whose rate passed the threshold, by downward row.
    pub(super) notify: Vec<u16>,
    /// Lanes whose rate passed the threshold, by rack-pair row.
    pub(super) pair_notify: Vec<u16>,
    /// Slopes and elastic rates of the flows, two in a word, by position among a table's rack-pair
    /// rows.
    pub(super) slopes: Vec<Words>,
    /// Rates and slopes flow by flow, by position among a table's downward rows. They wait here
    /// until the exchange: a line that was just written whole cannot be read in smaller parts
    /// without a stall.
    pub(super) responses: Vec<Pairs>,
}

impl Scratch {
    fn fit(&mut self, block: &FlowBlock) {
        // Buffers only grow: FlowBlocks of a worker differ in size, and are passed over in turn.
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

/// Kernels of an instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels(Simd);

impl Kernels {
    /// Kernels of `simd`, or of the best set below it that this machine has.
    pub(super) fn new(simd: Simd) -> Self {
        Self(simd.min(Simd::best()))
    }

    pub(super) fn simd(self) -> Simd {
        self.0
    }

    /// Passes over every flow of a FlowBlock, and adds to the sums of its LinkBlocks.
    #[allow(unsafe_code)]
    pub(super) fn run(
        self,
        pass: PassSettings,
        block: &mut FlowBlock,
        mut sides: [Side<'_>; 2],
        scratch: &mut Scratch,
    ) {
        block.check_lists();
        scratch.fit(block);
        // Once elastic loads are apart in a sum, every flow has to add its own.
        let plain = block.is_plain() && !(pass.rates && sides.iter().any(Side::has_elastic));
        if pass.rates && !plain {
            sides.iter_mut().for_each(Side::split_elastic);
        }
        // The AVX-512 kernels overwrite stale sums table by table; the others only add.
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

    /// Appends the notifications of the last pass over this FlowBlock.
    pub(super) fn collect(self, block: &FlowBlock, scratch: &Scratch, out: &mut Vec<Notification>) {
        let pairs = &block.pairs;
        block.check_lists();
        assert!(
            scratch.notify.len() >= block.down.len() && scratch.pair_notify.len() >= pairs.len(),
            "a pass over this FlowBlock comes first"
        );
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
        // Notified rates are those of the pass: it has stored them where it set the masks.
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

    /// One step of dirty links' prices, where all flows are log flows.
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
