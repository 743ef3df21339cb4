//! The kernels for AVX-512.
//!
//! A FlowBlock's share of an iteration is three walks: prices and rooms of the upward halves of the
//! paths, in upward order; the rest, in downward order, which fetches those pairs flow by flow and
//! leaves the rates flow by flow at their upward places; and the sums of those, in upward order. Apart from
//! the two transports, everything is arithmetic on whole registers (see `rows`).
#![allow(unsafe_code)]

mod dirty_links;
mod notify;
mod price_update;
mod rack_pair_rows;

pub(super) use dirty_links::step as step_touched;
pub(super) use notify::collect;
pub(super) use price_update::update;

use std::arch::x86_64::*;

use super::{LEAST_ELASTIC, Pass, Scratch, Side};
use crate::engine::parallel::flow_block::{FlowBlock, RowTerms};
use crate::engine::parallel::lanes::{Cell, Cells, LANES, Lanes, Pairs, TABLE_LANES, Table, Words};
use crate::engine::parallel::rows::{PLANE_SHIFT, ROW_FLOWS};

const ALL_LANES: __mmask16 = !0;
/// Tables by which requests for other workers' cache lines run ahead.
const AHEAD: usize = 2;
/// Lanes that may hold a flow.
const FLOW_LANES: __mmask16 = (1 << ROW_FLOWS) - 1;
/// The bit of a host slot that says that it is in the third register of the table.
const THIRD_REGISTER: i32 = 32;
/// The bit of a slot in a pod's table that says that it is in its upper two registers.
const HIGH_PLANES: i32 = 32;
/// Rows ahead of the one that is worked on, when they are fetched from beyond the second-level cache.
const ROWS_AHEAD: usize = 32;
/// Link tables likewise.
const TABLES_AHEAD: usize = 4;
const UPPER_HALF: i32 = !0xffff;
/// Bitwise: of the first where the third is set, else of the second.
const SELECT: i32 = 0xe4;

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("popcnt")
}

/// See [`super::Kernels::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn run(
    pass: Pass,
    plain: bool,
    block: &mut FlowBlock,
    sides: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    if pass.far {
        run_at::<true>(pass, plain, block, sides, scratch);
    } else {
        run_at::<false>(pass, plain, block, sides, scratch);
    }
}

/// `FAR` if the worker's flows are beyond its caches, so that fetching ahead pays.
#[target_feature(enable = "avx512f")]
fn run_at<const FAR: bool>(
    pass: Pass,
    plain: bool,
    block: &mut FlowBlock,
    sides: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    let of_cores = block.core_blocks.is_some();
    match (plain, of_cores, !plain && has_dot()) {
        (true, false, _) => walk::<true, false, FAR, false>(pass, block, sides, scratch),
        (true, true, _) => walk::<true, true, FAR, false>(pass, block, sides, scratch),
        (false, false, false) => walk::<false, false, FAR, false>(pass, block, sides, scratch),
        (false, false, true) => walk::<false, false, FAR, true>(pass, block, sides, scratch),
        (false, true, false) => walk::<false, true, FAR, false>(pass, block, sides, scratch),
        (false, true, true) => walk::<false, true, FAR, true>(pass, block, sides, scratch),
    }
}

/// The walks over a FlowBlock; `PLAIN` if all flows have weight 1, the same knee and no demand, and no sum has elastic
/// loads apart from loads; `CORE` if they go over the cores; `DOT` if elastic loads are added by [`add_elastic`]'s dot
/// product.
#[target_feature(enable = "avx512f")]
fn walk<const PLAIN: bool, const CORE: bool, const FAR: bool, const DOT: bool>(
    pass: Pass,
    block: &mut FlowBlock,
    [mut up, mut down]: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    let mut keep = [ALL_LANES; 2];
    if pass.rates {
        keep = [keep_first(&mut up), keep_first(&mut down)];
    }
    up_pairs::<CORE, FAR>(pass, block, &up, &mut scratch.pairs);
    match (pass.normalize, pass.rates) {
        (true, true) => {
            down_rows::<true, true, PLAIN, CORE, FAR, DOT>(
                pass, block, &mut down, keep[1], scratch,
            );
        }
        (false, true) => {
            down_rows::<false, true, PLAIN, CORE, FAR, DOT>(
                pass, block, &mut down, keep[1], scratch,
            );
        }
        (_, false) => {
            down_rows::<true, false, PLAIN, CORE, FAR, DOT>(
                pass, block, &mut down, keep[1], scratch,
            );
        }
    }
    if pass.rates {
        up_rates::<PLAIN, CORE, FAR, DOT>(pass, block, &mut up, keep[0], scratch);
    }
    if !CORE {
        rack_pair_rows::joint_rows::<PLAIN, DOT>(pass, block, [&mut up, &mut down], scratch);
    }
}

/// The lanes of a side's sums that are added to: all, or none if they are the last iteration's.
fn keep_first(side: &mut Side<'_>) -> __mmask16 {
    if let Some(core) = &mut side.core {
        // Racks of a pod share its table, so nobody is the first.
        core.sums.clear();
        core.sums.overwrite();
    }
    if side.sums.overwrite() { 0 } else { ALL_LANES }
}

/// Asks for a cache line that another worker had last, to be read or written.
#[inline(always)]
fn ask_for(lanes: &Lanes, to_write: bool) {
    let line = lanes.0.as_ptr();
    // SAFETY: these only move a cache line; every processor with AVX-512 knows both.
    unsafe {
        if to_write {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        } else {
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
    }
}

/// Asks for what a table's rows will look up and add to. The other worker has had half of it.
#[inline(always)]
fn ask_for_table(side: &Side<'_>, table: usize) {
    if table < side.links.prices.len() {
        for lanes in &side.links.prices[table] {
            ask_for(lanes, false);
        }
        for lanes in &side.links.rooms[table] {
            ask_for(lanes, false);
        }
    }
}

/// The same for what will be added to.
#[inline(always)]
fn ask_for_sums(side: &Side<'_>, table: usize) {
    if table < side.sums.load.len() {
        for lanes in &side.sums.load[table] {
            ask_for(lanes, true);
        }
        for lanes in &side.sums.reaction[table] {
            ask_for(lanes, true);
        }
    }
}

/// What belongs to a row.
#[inline(always)]
fn of<T>(list: &[T], row: usize) -> &T {
    debug_assert!(row < list.len());
    // SAFETY: rows are those of a FlowBlock's `RowSet`, which numbers them below its length; the
    // FlowBlock keeps every list by row at that length, and the scratch is fitted to it.
    unsafe { list.get_unchecked(row) }
}

#[inline(always)]
fn of_mut<T>(list: &mut [T], row: usize) -> &mut T {
    debug_assert!(row < list.len());
    // SAFETY: as in `of`.
    unsafe { list.get_unchecked_mut(row) }
}

/// Has the processor fetch what belongs to a row to come. Its own look-ahead ends with each page. Not past the
/// caches (`prefetchnta`), although it is not met again before the next walk: an Intel processor would not leave
/// it in the third-level cache then.
#[inline(always)]
fn fetch_ahead<T>(list: &[T], row: usize) {
    let there = list.as_ptr().wrapping_add(row).cast::<i8>();
    // SAFETY: a hint, which reads nothing wherever it points.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(there) }
}

/// The same for a link table to come.
#[inline(always)]
fn fetch_table_ahead(tables: &[Table], table: usize) {
    let lanes = tables.as_flattened();
    for lane in 0..TABLE_LANES {
        fetch_ahead(lanes, table * TABLE_LANES + lane);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &Lanes) -> __m512 {
    // SAFETY: `Lanes` is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_ps(lanes.0.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: &mut Lanes, value: __m512) {
    // SAFETY: `Lanes` is 64 writable bytes, aligned to 64.
    unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_words(words: &Words) -> __m512i {
    // SAFETY: `Words` is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_si512(words.0.as_ptr().cast()) }
}

/// A link table in registers.
#[derive(Clone, Copy)]
struct Registers([__m512; 4]);

impl Registers {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(table: &Table) -> Self {
        Self([
            load(&table[0]),
            load(&table[1]),
            load(&table[2]),
            load(&table[3]),
        ])
    }

    /// The values at the host slots `hosts`, and at the fabric slots in the low bits of `words`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn look_up(&self, hosts: __m512i, words: __m512i, third: __mmask16) -> (__m512, __m512) {
        let host = _mm512_permutex2var_ps(self.0[0], hosts, self.0[1]);
        (
            _mm512_mask_permutexvar_ps(host, third, hosts, self.0[2]),
            _mm512_permutexvar_ps(words, self.0[3]),
        )
    }
}

impl Registers {
    /// The values at slots of a pod's table.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn look_up_core(&self, slots: &RowSlots) -> __m512 {
        let low = _mm512_permutex2var_ps(self.0[0], slots.cores, self.0[1]);
        let high = _mm512_permutex2var_ps(self.0[2], slots.cores, self.0[3]);
        _mm512_mask_mov_ps(low, slots.high_planes, high)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn host_slots(words: __m512i) -> (__m512i, __mmask16) {
    let hosts = _mm512_srli_epi32::<26>(words);
    (
        hosts,
        _mm512_test_epi32_mask(hosts, _mm512_set1_epi32(THIRD_REGISTER)),
    )
}

/// Prices or rooms that a table's flows look up: the rack's, and with `CORE` the pod's.
#[derive(Clone, Copy)]
struct LookUp<const CORE: bool> {
    rack: Registers,
    pod: Registers,
}

impl<const CORE: bool> LookUp<CORE> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(rack: &Table, pod: &Table) -> Self {
        Self {
            rack: Registers::load(rack),
            pod: Registers::load(pod),
        }
    }
}

/// The pod's tables that the flows of a table look up, prices and rooms; without `CORE` any.
#[inline(always)]
fn pod_tables<'a, const CORE: bool>(side: &'a Side<'_>, table: usize) -> [&'a Table; 2] {
    match &side.core {
        Some(core) if CORE => {
            let pod = core.tables[table] as usize;
            [&core.links.prices[pod], &core.links.rooms[pod]]
        }
        _ => [&side.links.prices[table], &side.links.rooms[table]],
    }
}

/// Where the flows of a row look up.
struct RowSlots {
    words: __m512i,
    hosts: __m512i,
    third: __mmask16,
    /// The slot in the pod's table, in the low six bits.
    cores: __m512i,
    high_planes: __mmask16,
}

impl RowSlots {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of(words: __m512i) -> Self {
        let (hosts, third) = host_slots(words);
        // Fabric slot in bits 0 to 3, plane in bits 4 and 5.
        let cores = _mm512_ternarylogic_epi32::<SELECT>(
            words,
            _mm512_srli_epi32::<20>(words),
            _mm512_set1_epi32(0xf),
        );
        Self {
            words,
            hosts,
            third,
            cores,
            high_planes: _mm512_test_epi32_mask(cores, _mm512_set1_epi32(HIGH_PLANES)),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn price<const CORE: bool>(&self, prices: &LookUp<CORE>) -> __m512 {
        let (host, fabric) = prices.rack.look_up(self.hosts, self.words, self.third);
        let price = _mm512_add_ps(host, fabric);
        if CORE {
            _mm512_add_ps(price, prices.pod.look_up_core(self))
        } else {
            price
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn room<const CORE: bool>(&self, rooms: &LookUp<CORE>) -> __m512 {
        let (host, fabric) = rooms.rack.look_up(self.hosts, self.words, self.third);
        let room = _mm512_min_ps(host, fabric);
        if CORE {
            _mm512_min_ps(room, rooms.pod.look_up_core(self))
        } else {
            room
        }
    }
}

/// Sums over the flows of a table: host slots, then two maps of fabric slots or, with `CORE`, the planes.
struct Totals<const CORE: bool> {
    load: [__m512; 7],
    reaction: [__m512; 7],
    /// Without `PLAIN`.
    elastic: [__m512; 7],
}

impl<const CORE: bool> Totals<CORE> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        Self {
            load: [_mm512_setzero_ps(); 7],
            reaction: [_mm512_setzero_ps(); 7],
            elastic: [_mm512_setzero_ps(); 7],
        }
    }

    /// Adds a row. With `PLAIN`, reactions are the squares of rates and all of these is elastic; `slopes` is not
    /// read.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add<const PLAIN: bool, const DOT: bool>(
        &mut self,
        words: __m512i,
        rates: __m512,
        slopes: __m512i,
    ) {
        macro_rules! add {
            ($which:literal, $shift:literal) => {
                let lanes = _mm512_srli_epi32::<$shift>(words);
                let rate = _mm512_permutexvar_ps(lanes, rates);
                self.load[$which] = _mm512_add_ps(self.load[$which], rate);
                if PLAIN {
                    self.reaction[$which] = _mm512_fmadd_ps(rate, rate, self.reaction[$which]);
                } else {
                    let slope = _mm512_permutexvar_epi32(lanes, slopes);
                    let sums = (self.reaction[$which], self.elastic[$which]);
                    self.reaction[$which] = _mm512_add_ps(sums.0, reaction_of(slope));
                    self.elastic[$which] = add_elastic::<DOT>(sums.1, slope);
                }
            };
        }
        add!(0, 4);
        add!(1, 8);
        add!(2, 12);
        if CORE {
            // Written out, so that the totals stay in registers.
            macro_rules! add_plane {
                ($which:literal, $lanes:expr, $rate:ident, $slope:ident) => {
                    let of_plane = $lanes;
                    let (load, sum) = (self.load[$which], self.reaction[$which]);
                    self.load[$which] = _mm512_mask_add_ps(load, of_plane, load, $rate);
                    if PLAIN {
                        self.reaction[$which] = _mm512_mask3_fmadd_ps($rate, $rate, sum, of_plane);
                    } else {
                        let reaction = reaction_of($slope);
                        self.reaction[$which] = _mm512_mask_add_ps(sum, of_plane, sum, reaction);
                        let (sum, elastic) = (self.elastic[$which], elastic_of($slope));
                        self.elastic[$which] = _mm512_mask_add_ps(sum, of_plane, sum, elastic);
                    }
                };
            }
            macro_rules! add_planes {
                ($shift:literal, $planes:ident) => {
                    let lanes = _mm512_srli_epi32::<$shift>(words);
                    let rate = _mm512_permutexvar_ps(lanes, rates);
                    // A comparison for each plane: combining masks is done in other registers of the
                    // processor, and takes longer to move there and back.
                    let planes = _mm512_permutexvar_epi32(lanes, $planes);
                    let of_plane = |plane: i32| {
                        _mm512_cmpeq_epi32_mask(planes, _mm512_set1_epi32(plane << PLANE_SHIFT))
                    };
                    let slope = if PLAIN {
                        slopes
                    } else {
                        _mm512_permutexvar_epi32(lanes, slopes)
                    };
                    add_plane!(3, of_plane(0), rate, slope);
                    add_plane!(4, of_plane(1), rate, slope);
                    add_plane!(5, of_plane(2), rate, slope);
                    add_plane!(6, of_plane(3), rate, slope);
                };
            }
            let planes = _mm512_and_si512(words, _mm512_set1_epi32(3 << PLANE_SHIFT));
            add_planes!(16, planes);
            add_planes!(20, planes);
        } else {
            add!(3, 16);
            add!(4, 20);
        }
    }
}

/// Reactions and elastic rates, the upper sixteen bits of each. They say how far prices step and not where these come
/// to rest, so two digits do, and half as much has to be moved.
#[inline]
#[target_feature(enable = "avx512f")]
fn slopes_of(reactions: __m512, elastics: __m512) -> __m512i {
    let lower = _mm512_srli_epi32::<16>(_mm512_castps_si512(elastics));
    let upper = _mm512_castps_si512(reactions);
    _mm512_ternarylogic_epi32::<SELECT>(upper, lower, _mm512_set1_epi32(UPPER_HALF))
}

/// Takes the lower half as it stands: it adds less than a hundredth.
#[inline]
#[target_feature(enable = "avx512f")]
fn reaction_of(slopes: __m512i) -> __m512 {
    _mm512_castsi512_ps(slopes)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn elastic_of(slopes: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(slopes))
}

/// A pair of bfloat16 numbers: the lower one 1, the upper one 0.
const LOWER_HALF: i32 = 0x3f80;

/// Whether the processor multiplies pairs of bfloat16 numbers and adds them up. That takes the lower halves out of
/// slopes and adds them at once, without a shift: a walk waits for what permutes and shifts.
fn has_dot() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Adds the elastic rates of slopes to a sum; with `DOT` on a processor that [`has_dot`].
#[inline]
#[target_feature(enable = "avx512f")]
fn add_elastic<const DOT: bool>(sum: __m512, slopes: __m512i) -> __m512 {
    if !DOT {
        return _mm512_add_ps(sum, elastic_of(slopes));
    }
    let mut sum = sum;
    // SAFETY: arithmetic on registers, which the processor knows: `has_dot` chose this. Written as assembly, since a
    // function with this feature is not inlined into those without.
    unsafe {
        std::arch::asm!(
            "vdpbf16ps {sum}, {slopes}, {lower}",
            sum = inout(zmm_reg) sum,
            slopes = in(zmm_reg) slopes,
            lower = in(zmm_reg) _mm512_set1_epi32(LOWER_HALF),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Weights and knees of a list of rows; of all alike, if there are no lists.
#[derive(Clone, Copy)]
struct Terms<'a> {
    common_knee: f32,
    of_rows: Option<&'a RowTerms>,
}

/// Those of the flows of a row.
struct LaneTerms {
    weights: __m512,
    /// Without their signs.
    knees: __m512,
    of_demand: __mmask16,
    demands: __m512,
}

impl Terms<'_> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of_row<const PLAIN: bool>(&self, row: usize) -> LaneTerms {
        let common = LaneTerms {
            weights: _mm512_set1_ps(1.0),
            knees: _mm512_set1_ps(self.common_knee),
            of_demand: 0,
            demands: _mm512_set1_ps(f32::INFINITY),
        };
        let Some(terms) = self.of_rows.filter(|_| !PLAIN) else {
            return common;
        };
        let knees = load(of(&terms.knee, row));
        let sign = _mm512_set1_epi32(i32::MIN);
        LaneTerms {
            weights: load(of(&terms.weight, row)),
            knees: _mm512_abs_ps(knees),
            of_demand: _mm512_test_epi32_mask(_mm512_castps_si512(knees), sign),
            demands: load(of(&terms.demand, row)),
        }
    }
}

impl LaneTerms {
    /// The rates at path prices, and their slopes; with `PLAIN` without those.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn answer<const PLAIN: bool>(&self, prices: __m512) -> (__m512, __m512i) {
        let above = _mm512_max_ps(prices, self.knees);
        let guess = _mm512_rcp14_ps(above);
        let two = _mm512_set1_ps(2.0);
        let share = _mm512_mul_ps(guess, _mm512_fnmadd_ps(above, guess, two));
        if PLAIN {
            let rates = _mm512_maskz_mov_ps(FLOW_LANES, share);
            return (rates, _mm512_setzero_si512());
        }
        let rates = _mm512_maskz_mul_ps(FLOW_LANES, self.weights, share);
        // See `at_demand`.
        let nearness = _mm512_mul_ps(prices, share);
        let squared = _mm512_mul_ps(nearness, nearness);
        let least = _mm512_set1_ps(LEAST_ELASTIC);
        let part = _mm512_max_ps(_mm512_mul_ps(squared, squared), least);
        let elastics = _mm512_mask_mul_ps(rates, self.of_demand, rates, part);
        (rates, slopes_of(_mm512_mul_ps(elastics, share), elastics))
    }

    /// The rates that F-NORM leaves: of flows with a demand, that at most.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn fitting<const PLAIN: bool>(&self, rates: __m512, rooms: __m512) -> __m512 {
        let fits = _mm512_mul_ps(rates, rooms);
        if PLAIN {
            return fits;
        }
        _mm512_min_ps(fits, self.demands)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_words(words: &mut Words, value: __m512i) {
    // SAFETY: `Words` is 64 writable bytes, aligned to 64.
    unsafe { _mm512_store_si512(words.0.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn increase(lanes: &mut Lanes, keep: __mmask16, by: __m512) {
    // SAFETY: `Lanes` is 64 readable bytes, aligned to 64.
    let before = unsafe { _mm512_maskz_load_ps(keep, lanes.0.as_ptr()) };
    store(lanes, _mm512_add_ps(before, by));
}

/// Adds totals to four registers of a worker's sums. A macro, and written out, since otherwise all
/// totals would go through memory.
macro_rules! leave_four {
    ($table:expr, $keep:expr, $first:expr, $second:expr, $third:expr, $fourth:expr) => {
        let table: &mut Table = $table;
        increase(&mut table[0], $keep, $first);
        increase(&mut table[1], $keep, $second);
        increase(&mut table[2], $keep, $third);
        increase(&mut table[3], $keep, $fourth);
    };
}

/// Adds totals to a worker's sums.
macro_rules! leave {
    ($core:ident, $plain:ident, $totals:expr, $side:expr, $keep:expr, $table:expr) => {
        leave!(of $core, $totals.load, load, $side, $keep, $table);
        leave!(of $core, $totals.reaction, reaction, $side, $keep, $table);
        if !$plain {
            leave!(of $core, $totals.elastic, elastic, $side, $keep, $table);
        }
    };
    (of $core:ident, $sums:expr, $list:ident, $side:expr, $keep:expr, $table:expr) => {
        let mut fabric = _mm512_add_ps($sums[3], $sums[4]);
        if $core {
            fabric = _mm512_add_ps(fabric, _mm512_add_ps($sums[5], $sums[6]));
        }
        let table = &mut $side.sums.$list[$table];
        leave_four!(table, $keep, $sums[0], $sums[1], $sums[2], fabric);
        if $core && let Some(core) = &mut $side.core {
            let pod = &mut core.sums.$list[core.tables[$table] as usize];
            leave_four!(pod, ALL_LANES, $sums[3], $sums[4], $sums[5], $sums[6]);
        }
    };
}

/// A table without flows.
fn leave_nothing(side: &mut Side<'_>, keep: __mmask16, table: usize) {
    if keep == 0 {
        side.sums.load[table] = Table::default();
        side.sums.reaction[table] = Table::default();
        if side.sums.has_elastic {
            side.sums.elastic[table] = Table::default();
        }
    }
}

/// Prices and rooms of the upward halves of the paths.
#[target_feature(enable = "avx512f")]
fn up_pairs<const CORE: bool, const FAR: bool>(
    pass: Pass,
    block: &FlowBlock,
    side: &Side<'_>,
    pairs: &mut [Pairs],
) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for table in 0..block.up.tables() {
        if pass.contended && !FAR {
            ask_for_table(side, table + AHEAD);
        }
        let rows = block.up.rows_of(table);
        if rows.is_empty() {
            continue;
        }
        let pod = pod_tables::<CORE>(side, table);
        let prices = LookUp::<CORE>::load(&side.links.prices[table], pod[0]);
        let rooms = LookUp::<CORE>::load(&side.links.rooms[table], pod[1]);
        if FAR {
            fetch_table_ahead(&side.links.prices, table + TABLES_AHEAD);
            fetch_table_ahead(&side.links.rooms, table + TABLES_AHEAD);
        }
        for &row in rows {
            let row = usize::from(row);
            if FAR {
                fetch_ahead(&block.up.words, row + ROWS_AHEAD);
            }
            let slots = RowSlots::of(load_words(of(&block.up.words, row)));
            let price = slots.price(&prices);
            let room = slots.room(&rooms);
            let out = of_mut(pairs, row).0.as_flattened_mut().as_mut_ptr();
            // SAFETY: `Pairs` is 128 writable bytes, aligned to 64.
            unsafe {
                _mm512_store_ps(out, _mm512_permutex2var_ps(price, low, room));
                _mm512_store_ps(out.add(LANES), _mm512_permutex2var_ps(price, high, room));
            }
        }
    }
}

/// The pairs at sixteen cells, as two registers of eight.
///
/// # Safety
/// Every cell must be one of `pairs`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn fetch(cells: &Cells, pairs: *const f64) -> (__m512, __m512) {
    macro_rules! four {
        ($four:expr) => {{
            let [first, second] = [two_cells(cells, 2 * $four), two_cells(cells, 2 * $four + 1)];
            let at = |cell: u64| pairs.wrapping_add(cell as usize);
            // SAFETY: the caller's promise; a pair is eight bytes.
            let (low, high) = unsafe {
                let low = _mm_load_sd(at(first & LOW_CELL));
                let high = _mm_load_sd(at(second & LOW_CELL));
                (
                    _mm_loadh_pd(low, at(first >> Cell::BITS)),
                    _mm_loadh_pd(high, at(second >> Cell::BITS)),
                )
            };
            _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high)
        }};
    }
    macro_rules! eight {
        ($i:expr) => {{
            let low = _mm512_castpd256_pd512(four!($i / 4));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, four!($i / 4 + 1)))
        }};
    }
    (eight!(0), eight!(8))
}

/// F-NORM, threshold, new rates and their sums, table by table.
#[target_feature(enable = "avx512f")]
fn down_rows<
    const NORMALIZE: bool,
    const RATES: bool,
    const PLAIN: bool,
    const CORE: bool,
    const FAR: bool,
    const DOT: bool,
>(
    pass: Pass,
    block: &mut FlowBlock,
    side: &mut Side<'_>,
    keep: __mmask16,
    scratch: &mut Scratch,
) {
    for table in 0..block.down.tables() {
        if pass.contended && !FAR {
            ask_for_table(side, table + AHEAD);
            if RATES {
                ask_for_sums(side, table + AHEAD);
            }
        }
        if block.down.rows_of(table).is_empty() {
            leave_nothing(side, keep, table);
            continue;
        }
        if NORMALIZE && pass.moving {
            down_table::<NORMALIZE, RATES, PLAIN, CORE, FAR, true>(
                pass, block, side, table, scratch,
            );
        } else {
            down_table::<NORMALIZE, RATES, PLAIN, CORE, FAR, false>(
                pass, block, side, table, scratch,
            );
        }
        if RATES {
            let cells = if FAR {
                scratch.pairs.as_mut_ptr().cast::<u32>()
            } else {
                scratch.rates.as_mut_ptr().cast::<u32>()
            };
            let mut totals = Totals::<CORE>::new();
            for (place, &row) in block.down.rows_of(table).iter().enumerate() {
                let row = usize::from(row);
                let (rates, mates) = (of(&block.rate, row), of(&block.mate, row));
                let mut slopes = _mm512_setzero_si512();
                if PLAIN {
                    deliver::<FAR>(rates, mates, cells, scratch.pairs.len());
                } else {
                    let answers = of(&scratch.answers, place);
                    slopes = slopes_in(answers);
                    deliver_pairs(answers, mates, &mut scratch.pairs);
                }
                let words = load_words(of(&block.down.words, row));
                totals.add::<PLAIN, DOT>(words, load(rates), slopes);
            }
            leave!(CORE, PLAIN, totals, side, keep, table);
        }
    }
}

/// Leaves the rates of a row at their upward cells. As integers: the processor stores two of those
/// in a cycle, but one floating-point number.
///
/// With `FAR` in the place of the price that was fetched from there. A worker with so many flows has FlowBlocks of
/// so many sources that one line of each fills the first-level cache: lines for rates alone would throw those
/// with prices out. `up_rates` needs a permutation more per row, which would cost 1 % where both fit.
#[inline(always)]
fn deliver<const FAR: bool>(rates: &Lanes, mates: &Cells, cells: *mut u32, rows: usize) {
    let rates = rates.0.as_ptr().cast::<u32>();
    for two in 0..LANES / 2 {
        let mut cells_of = two_cells(mates, two);
        for lane in 2 * two..(2 * two + 2).min(ROW_FLOWS as usize) {
            let cell = (cells_of & LOW_CELL) as usize;
            cells_of >>= Cell::BITS;
            debug_assert!(cell / LANES < rows);
            // SAFETY: a FlowBlock's mates are cells of its upward rows, of which the scratch has at
            // least as many as the block, of pairs as of rates; empty cells point at cell 0, which
            // exists and carries no flow. A row of rates has more lanes than a row has flows.
            unsafe {
                let place = if FAR {
                    cells.cast::<[u32; 2]>().add(cell).cast::<u32>()
                } else {
                    cells.add(cell)
                };
                *place = *rates.add(lane);
            }
        }
    }
}

/// Rates and their slopes, flow by flow: within each four lanes, the first two pairs are in the first register, the
/// others in the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_pairs(pairs: &mut Pairs, rates: __m512, slopes: __m512i) {
    let slopes = _mm512_castsi512_ps(slopes);
    let out = pairs.0.as_flattened_mut().as_mut_ptr();
    // SAFETY: `Pairs` is 128 writable bytes, aligned to 64.
    unsafe {
        _mm512_store_ps(out, _mm512_unpacklo_ps(rates, slopes));
        _mm512_store_ps(out.add(LANES), _mm512_unpackhi_ps(rates, slopes));
    }
}

/// The slopes among such pairs.
#[inline]
#[target_feature(enable = "avx512f")]
fn slopes_in(pairs: &Pairs) -> __m512i {
    let from = pairs.0.as_flattened().as_ptr();
    // SAFETY: `Pairs` is 128 readable bytes, aligned to 64.
    let (first, second) = unsafe { (_mm512_load_ps(from), _mm512_load_ps(from.add(LANES))) };
    _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(first, second))
}

/// Delivers such pairs as `deliver` does, in the places of those that were fetched from there.
#[inline(always)]
fn deliver_pairs(from: &Pairs, mates: &Cells, pairs: &mut [Pairs]) {
    let from = from.0.as_ptr().cast::<u64>();
    let rows = pairs.len();
    let to = pairs.as_mut_ptr().cast::<u64>();
    for two in 0..LANES / 2 {
        let mut cells_of = two_cells(mates, two);
        for lane in 2 * two..(2 * two + 2).min(ROW_FLOWS as usize) {
            let cell = (cells_of & LOW_CELL) as usize;
            cells_of >>= Cell::BITS;
            debug_assert!(cell / LANES < rows);
            // SAFETY: as in `deliver`; a pair is eight bytes, aligned to eight, and there are sixteen.
            unsafe { *to.add(cell) = *from.add(lane / 4 * 2 + lane % 2 + lane % 4 / 2 * 8) };
        }
    }
}

const LOW_CELL: u64 = Cell::MAX as u64;

/// Two cells in one register: fewer loads, of which a row has many others. A volatile read, since the
/// compiler makes two loads of any other.
#[inline(always)]
fn two_cells(cells: &Cells, two: usize) -> u64 {
    debug_assert!(two < LANES / 2);
    let first = cells.0.as_ptr().cast::<u64>();
    // SAFETY: `Cells` is 64 readable bytes, aligned to 64, thus eight times these eight.
    unsafe { first.add(two).read_volatile() }
}

/// `MOVING` if many rates are expected to pass the threshold. Where about half of the rows have one that does, the
/// branch around the store is guessed wrong and costs more than a store for every row, which costs more where
/// next to none has.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn down_table<
    const NORMALIZE: bool,
    const RATES: bool,
    const PLAIN: bool,
    const CORE: bool,
    const FAR: bool,
    const MOVING: bool,
>(
    pass: Pass,
    block: &mut FlowBlock,
    side: &Side<'_>,
    table: usize,
    scratch: &mut Scratch,
) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    let pod = pod_tables::<CORE>(side, table);
    let prices = LookUp::<CORE>::load(&side.links.prices[table], pod[0]);
    let rooms = LookUp::<CORE>::load(&side.links.rooms[table], pod[1]);
    let threshold = _mm512_set1_ps(pass.threshold);
    let terms = Terms {
        common_knee: block.common_knee,
        of_rows: block.terms.as_ref().map(|terms| &terms.down),
    };
    let pairs = scratch.pairs.as_ptr().cast::<f64>();
    if FAR {
        fetch_table_ahead(&side.links.prices, table + TABLES_AHEAD);
        fetch_table_ahead(&side.links.rooms, table + TABLES_AHEAD);
        fetch_table_ahead(&side.sums.load, table + TABLES_AHEAD);
        fetch_table_ahead(&side.sums.reaction, table + TABLES_AHEAD);
    }
    for (place, &row) in block.down.rows_of(table).iter().enumerate() {
        let row = usize::from(row);
        if FAR {
            fetch_ahead(&block.mate, row + ROWS_AHEAD);
            fetch_ahead(&block.down.words, row + ROWS_AHEAD);
            fetch_ahead(&block.rate, row + ROWS_AHEAD);
            fetch_ahead(&block.told, row + ROWS_AHEAD);
            if let Some(terms) = terms.of_rows.filter(|_| !PLAIN) {
                fetch_ahead(&terms.weight, row + ROWS_AHEAD);
                fetch_ahead(&terms.knee, row + ROWS_AHEAD);
                fetch_ahead(&terms.demand, row + ROWS_AHEAD);
            }
        }
        let terms = terms.of_row::<PLAIN>(row);
        // SAFETY: a FlowBlock's mates are cells of its upward rows (see `deliver`).
        let (first, second) = unsafe { fetch(of(&block.mate, row), pairs) };
        let slots = RowSlots::of(load_words(of(&block.down.words, row)));
        let rate = of_mut(&mut block.rate, row);
        if NORMALIZE {
            let room = _mm512_permutex2var_ps(first, odd, second);
            let room = _mm512_min_ps(room, slots.room(&rooms));
            let told = of_mut(&mut block.told, row);
            let fits = terms.fitting::<PLAIN>(load(rate), room);
            let last = load(told);
            let distance = _mm512_abs_ps(_mm512_sub_ps(fits, last));
            let far = _mm512_mul_ps(threshold, last);
            let moved = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(distance, far);
            if MOVING || moved != 0 {
                store(told, _mm512_mask_mov_ps(last, moved, fits));
            }
            *of_mut(&mut scratch.moved, row) = moved;
        } else {
            *of_mut(&mut scratch.moved, row) = 0;
        }
        if RATES {
            let price = _mm512_permutex2var_ps(first, even, second);
            let price = _mm512_add_ps(price, slots.price(&prices));
            let (rates, slopes) = terms.answer::<PLAIN>(price);
            store(rate, rates);
            if !PLAIN {
                store_pairs(of_mut(&mut scratch.answers, place), rates, slopes);
            }
        }
    }
}

/// Sums of the rates in upward order.
#[target_feature(enable = "avx512f")]
fn up_rates<const PLAIN: bool, const CORE: bool, const FAR: bool, const DOT: bool>(
    pass: Pass,
    block: &FlowBlock,
    side: &mut Side<'_>,
    keep: __mmask16,
    scratch: &Scratch,
) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    for table in 0..block.up.tables() {
        if pass.contended && !FAR {
            ask_for_sums(side, table + AHEAD);
        }
        let rows = block.up.rows_of(table);
        if rows.is_empty() {
            leave_nothing(side, keep, table);
            continue;
        }
        let mut totals = Totals::<CORE>::new();
        if FAR {
            fetch_table_ahead(&side.sums.load, table + TABLES_AHEAD);
            fetch_table_ahead(&side.sums.reaction, table + TABLES_AHEAD);
        }
        for &row in rows {
            let row = usize::from(row);
            if FAR {
                fetch_ahead(&block.up.words, row + ROWS_AHEAD);
            }
            let words = load_words(of(&block.up.words, row));
            let mut slopes = _mm512_setzero_si512();
            let rates = if FAR || !PLAIN {
                let pairs = of(&scratch.pairs, row).0.as_flattened().as_ptr();
                // SAFETY: `Pairs` is 128 readable bytes, aligned to 64.
                let (first, second) =
                    unsafe { (_mm512_load_ps(pairs), _mm512_load_ps(pairs.add(LANES))) };
                // The last lane stands for no flow, but its pair is that of some links.
                if !PLAIN {
                    let of_flows = _mm512_maskz_permutex2var_ps(FLOW_LANES, first, odd, second);
                    slopes = _mm512_castps_si512(of_flows);
                }
                _mm512_maskz_permutex2var_ps(FLOW_LANES, first, even, second)
            } else {
                load(of(&scratch.rates, row))
            };
            totals.add::<PLAIN, DOT>(words, rates, slopes);
        }
        leave!(CORE, PLAIN, totals, side, keep, table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elastic_rates_add_up_to_the_same_with_and_without_the_dot_product() {
        if !(detected() && has_dot()) {
            eprintln!("skipped: this machine has no bfloat16 dot product");
            return;
        }
        // SAFETY: both features were found.
        unsafe { compare() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn compare() {
        let mut sums = [Lanes::default(), Lanes::default()];
        let mut seed = 1u32;
        for row in 0..1000 {
            let mut slopes = Words([0; LANES]);
            for word in &mut slopes.0 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // A rate of any size beside a reaction of any size; some flows have neither.
                let rate = (f64::from(seed >> 16) / 65_536.0 * 60.0 - 40.0).exp2() as f32;
                let reaction = (f64::from(seed & 0xffff) / 65_536.0 * 120.0 - 60.0).exp2() as f32;
                if row % 7 != seed % 7 {
                    *word = reaction.to_bits() & 0xffff_0000 | rate.to_bits() >> 16;
                }
            }
            let slopes = load_words(&slopes);
            let plain = add_elastic::<false>(load(&sums[0]), slopes);
            let dot = add_elastic::<true>(load(&sums[1]), slopes);
            store(&mut sums[0], plain);
            store(&mut sums[1], dot);
            assert_eq!(sums[0].0.map(f32::to_bits), sums[1].0.map(f32::to_bits));
        }
        assert!(sums[0].0.iter().all(|sum| sum.is_finite() && *sum > 0.0));
    }
}
