//! Sixteen values side by side: one cache line, one 512-bit register.

/// Host links of a table.
pub(super) const HOST_SLOTS: usize = 48;
/// Fabric links of a table.
pub(super) const FABRIC_SLOTS: usize = 16;
/// Slots of a table.
pub(super) const TABLE_SLOTS: usize = HOST_SLOTS + FABRIC_SLOTS;
/// Values in a [`Lanes`].
pub(super) const LANES: usize = 16;
/// [`Lanes`] of a link table.
pub(super) const TABLE_LANES: usize = TABLE_SLOTS / LANES;

/// Sixteen `f32` in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; LANES]);

/// Sixteen `u32` in one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Words(pub(super) [u32; LANES]);

/// A flow's cell: the number of its row times sixteen, and its lane.
pub(super) type CellIndex = u32;

/// The low halves of sixteen cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub(super) struct Halves(pub(super) [u16; LANES]);

/// Sixteen cells in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Cells(pub(super) [CellIndex; LANES]);

/// Sixteen pairs in two cache lines: (price, F-NORM scale) or (rate, slopes).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Pairs(pub(super) [[f32; 2]; LANES]);

/// One value for each slot of a link table.
pub(super) type LinkTable = [Lanes; TABLE_LANES];

/// The value at a flat index.
#[inline]
pub(super) fn at(lanes: &[Lanes], index: usize) -> f32 {
    lanes[index / LANES].0[index % LANES]
}

/// The value at a flat index, for writing.
#[inline]
pub(super) fn at_mut(lanes: &mut [Lanes], index: usize) -> &mut f32 {
    &mut lanes[index / LANES].0[index % LANES]
}

/// Lanes whose bits are set, from the lowest on.
pub(super) fn lanes_of(mut set: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        lane
    })
}
