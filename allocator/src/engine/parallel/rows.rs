//! Rows of one side of a FlowBlock: up to fifteen flows each, laid out so that neither looking up
//! their links nor summing their rates needs a gather or a scatter.
//!
//! All flows of a row share one link table (a rack's 48 host links and 16 fabric links, four vector
//! registers). No host occurs twice in a row, and no fabric link more than twice. So
//!
//! - a look-up permutes the table by the flows' slots;
//! - a sum permutes the rates by the inverse: for each register of the table, the lane whose flow
//!   has this slot, and once more for fabric links that occur twice.
//!
//! Flows over the cores have a second table, their pod's: a register for each core link of an
//! aggregation switch, its plane, and in it a lane for each fabric slot (see `layout`). The lanes
//! of those registers follow from the flows' fabric slots and planes, so they take two more bits
//! per flow and no further maps.
//!
//! One 32-bit word per lane holds both directions:
//!
//! ```text
//! bits  0..4   fabric slot of the flow in this lane
//! bits  4..8   lane of the flow of host lane + 0      (15: none; lane 15 is empty, its rate 0)
//! bits  8..12  lane of the flow of host lane + 16
//! bits 12..16  lane of the flow of host lane + 32
//! bits 16..20  lane of a flow over fabric link `lane`
//! bits 20..24  lane of a second flow over fabric link `lane`
//! bits 24..26  plane of the flow in this lane, if over the cores
//! bits 26..32  host slot of the flow in this lane
//! ```

use super::cell::{Slots, cell_at, split};
use super::lanes::{CellIndex, HOST_SLOTS, LANES, Words, lanes_of};

/// Flows in a full row.
pub(super) const ROW_FLOWS: u32 = 15;
/// Rows of one side of a FlowBlock.
pub(super) const MAX_ROWS: usize = 1 << (CELL_BITS - LANES.ilog2());
/// Bits of a flow's location for its cell.
pub(super) const CELL_BITS: u32 = 18;
/// Rows that are added at once, so that the rows of a table lie together.
const RUN: usize = 2;

/// Changes after which a table is compacted: a fixed number, plus this fraction of its flows.
const MIN_CHANGES: usize = 12;
const CHANGES_SHARE: usize = 8;
/// Rows probed for a flow to displace. Many rows of a large table have a free lane that no flow
/// fits; every start would probe hundreds.
const MAX_DISPLACE_PROBES: usize = 128;
/// Rows probed for space. If a table has a row with space, one of its first tens has, but for a
/// host with very many flows.
const MAX_INSERT_PROBES: usize = 128;
/// Flows of a host from which on it gets no further row while more than half of all rows are in
/// use: the rest is kept for other hosts.
const FLOWS_OF_HOST: usize = 64;
/// Rows below which sorting is not worth its cost.
const MIN_DISORDER: usize = 64;
const NO_LANE: u32 = 15;
const FIRST_INVERSE: u32 = 4;
const FABRIC_INVERSE: [u32; 2] = [16, 20];
pub(super) const PLANE_SHIFT: u32 = 24;
const HOST_SHIFT: u32 = 26;
const EMPTY: Words = Words([0x00ff_fff0; LANES]);
const EVERY_LANE: u16 = (1 << ROW_FLOWS) - 1;

/// A flow's cell, and the row that it can move to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Displacement {
    pub(super) cell: CellIndex,
    to: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    /// A bit per host slot.
    hosts: [u16; HOST_SLOTS / LANES],
    fabric: [u16; 2],
    table: u16,
}

impl Occupancy {
    fn has(&self, host: u8) -> bool {
        self.hosts[usize::from(host) / LANES] >> (usize::from(host) % LANES) & 1 == 1
    }

    fn flip(&mut self, host: u8) {
        self.hosts[usize::from(host) / LANES] ^= 1 << (usize::from(host) % LANES);
    }
}

/// Rows by link table.
#[derive(Debug)]
pub(super) struct FlowRows {
    /// Rows by table, in the order of passes.
    order: Vec<u16>,
    /// Begin of each table's rows in `order`, and the end of the last.
    starts: Vec<u16>,
    /// Look-up words by row.
    pub(super) words: Vec<Words>,
    /// Lanes in use by row.
    pub(super) used: Vec<u16>,
    occupancy: Vec<Occupancy>,
    free: Vec<u16>,
    /// True if all flows cross the cores; otherwise none does.
    over_cores: bool,
    /// Rows opened since the rows were last sorted.
    rows_opened: usize,
    /// Flows by table and host slot.
    of_hosts: Vec<u16>,
    /// Flows that came or went since a table's last compaction, by table.
    changes: Vec<u16>,
    /// A table may have changed enough for compaction.
    changed: bool,
}

/// Relative position in a list, in 65,536ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelativePos(u16);

impl RelativePos {
    /// Begin of the list.
    pub(super) const FIRST: Self = Self(0);

    /// Position of an item in a list of `length`.
    pub(super) fn new(index: usize, length: usize) -> Self {
        Self(((index << 16) / length) as u16)
    }

    /// Item at this position in a list of `length`; 0 if the list is empty.
    pub(super) fn of(self, length: usize) -> usize {
        (usize::from(self.0) * length) >> 16
    }
}

/// Positions of a list from `preferred` outward, alternating.
fn outward(preferred: usize, length: usize) -> impl Iterator<Item = usize> {
    (0..2 * length).filter_map(move |step| {
        let distance = step.div_ceil(2);
        let place = if step % 2 == 0 {
            preferred.checked_add(distance)?
        } else {
            preferred.checked_sub(distance)?
        };
        (place < length).then_some(place)
    })
}

impl FlowRows {
    /// Makes an empty set over `tables` link tables. Row 0 belongs to no table: empty cells point
    /// into it.
    pub(super) fn new(tables: usize, over_cores: bool) -> Self {
        Self {
            order: Vec::new(),
            starts: vec![0; tables + 1],
            words: vec![EMPTY],
            used: vec![0],
            occupancy: vec![Occupancy::default()],
            free: Vec::new(),
            over_cores,
            rows_opened: 0,
            of_hosts: vec![0; tables * HOST_SLOTS],
            changes: vec![0; tables],
            changed: false,
        }
    }

    /// Rows that exist, row 0 included.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns true if every list by row has an entry for each row.
    pub(super) fn has_whole_lists(&self) -> bool {
        self.used.len() >= self.len() && self.occupancy.len() >= self.len()
    }

    /// Tables.
    pub(super) fn tables(&self) -> usize {
        self.starts.len() - 1
    }

    /// The rows of a table.
    #[inline(always)]
    pub(super) fn rows_of(&self, table: usize) -> &[u16] {
        let (first, end) = (self.starts[table], self.starts[table + 1]);
        &self.order[usize::from(first)..usize::from(end)]
    }

    /// Takes a cell for a flow in the row nearest to `preferred` that has space, if one has.
    pub(super) fn insert(
        &mut self,
        table: usize,
        slots: Slots,
        preferred: RelativePos,
    ) -> Option<CellIndex> {
        let rows = self.rows_of(table);
        // Its host is in every row already, and no host occurs twice in a row.
        if usize::from(self.of_hosts[table * HOST_SLOTS + usize::from(slots.host)]) >= rows.len() {
            return None;
        }
        let row = outward(preferred.of(rows.len()), rows.len())
            .take(MAX_INSERT_PROBES)
            .map(|place| rows[place])
            .find(|&row| self.fits(row, slots))?;
        Some(self.take(table, row, slots))
    }

    /// Takes a cell for a flow in a new row, unless the side would have more than `limit` rows.
    pub(super) fn insert_in_new(
        &mut self,
        table: usize,
        slots: Slots,
        preferred: RelativePos,
        limit: usize,
    ) -> Option<CellIndex> {
        // Each further flow of a host that is in all rows would take a row of its own.
        let of_host = self.of_hosts[table * HOST_SLOTS + usize::from(slots.host)];
        let in_use = self.len() - self.free.len();
        if usize::from(of_host) >= FLOWS_OF_HOST && in_use > limit / 2 {
            return None;
        }
        let preferred = preferred.of(self.rows_of(table).len());
        let row = self.add_row(table, preferred, limit)?;
        Some(self.take(table, row, slots))
    }

    fn take(&mut self, table: usize, row: u16, slots: Slots) -> CellIndex {
        self.changes[table] = self.changes[table].saturating_add(1);
        self.changed = true;
        let lane = self.put(row, slots);
        cell_at(row, lane)
    }

    /// Finds a flow to displace, so that a row of the table gains space for another flow. Probes
    /// the rows nearest to `preferred` first.
    pub(super) fn find_displacement(
        &self,
        table: usize,
        slots: Slots,
        preferred: RelativePos,
    ) -> Option<Displacement> {
        let rows = self.rows_of(table);
        let is_full = |row: u16| self.used[usize::from(row)] == EVERY_LANE;
        let mut looks = MAX_DISPLACE_PROBES;
        for &to in rows.iter().filter(|&&row| !is_full(row)) {
            for place in outward(preferred.of(rows.len()), rows.len()) {
                let row = rows[place];
                looks -= 1;
                if looks == 0 {
                    return None;
                }
                // A row that loses its last flow would close.
                if row == to || self.used[usize::from(row)].count_ones() < 2 {
                    continue;
                }
                let mut lanes = self.blocking_lanes(row, slots);
                while lanes != 0 {
                    let cell = cell_at(row, lanes.trailing_zeros() as usize);
                    if self.fits(to, self.slots(cell)) {
                        return Some(Displacement { cell, to });
                    }
                    lanes &= lanes - 1;
                }
            }
        }
        None
    }

    /// Lanes of a row without space, any one of which would free space for a flow.
    fn blocking_lanes(&self, row: u16, slots: Slots) -> u16 {
        let index = usize::from(row);
        let (occupancy, words) = (&self.occupancy[index], &self.words[index].0);
        let mut lanes = EVERY_LANE & self.used[index];
        if occupancy.has(slots.host) {
            let word = words[usize::from(slots.host) % LANES];
            lanes &= 1 << (word >> host_shift(slots.host) & 0xf);
        }
        if occupancy.fabric[0] & occupancy.fabric[1] & fabric_bit(slots) != 0 {
            let word = words[usize::from(slots.fabric)];
            // Both maps of the fabric slot are in use; either flow frees one.
            lanes &= FABRIC_INVERSE
                .map(|shift| 1 << (word >> shift & 0xf))
                .iter()
                .sum::<u16>();
        }
        lanes
    }

    /// Moves a flow to a row of its table that has space for it, and returns its cell there. Its
    /// old row keeps other flows.
    pub(super) fn displace(&mut self, Displacement { cell, to }: Displacement) -> CellIndex {
        let slots = self.slots(cell);
        self.vacate(cell, slots);
        cell_at(to, self.put(to, slots))
    }

    /// True if a row has space for a flow.
    pub(super) fn fits(&self, row: u16, slots: Slots) -> bool {
        let occupancy = &self.occupancy[usize::from(row)];
        self.used[usize::from(row)] != EVERY_LANE
            && !occupancy.has(slots.host)
            && occupancy.fabric[0] & occupancy.fabric[1] & fabric_bit(slots) == 0
    }

    /// Takes a lane for a flow in a row that has space for it.
    pub(super) fn put(&mut self, row: u16, slots: Slots) -> usize {
        debug_assert_eq!(slots.plane.is_some(), self.over_cores);
        debug_assert!(self.fits(row, slots));
        let index = usize::from(row);
        // Lane 15 stays empty, so the lowest free lane is below 15 where the row has space.
        let lane = (!self.used[index]).trailing_zeros();
        self.used[index] |= 1 << lane;
        let occupancy = &mut self.occupancy[index];
        occupancy.flip(slots.host);
        let of_table = usize::from(occupancy.table) * HOST_SLOTS;
        self.of_hosts[of_table + usize::from(slots.host)] += 1;
        let words = &mut self.words[index].0;
        let word = &mut words[lane as usize];
        // The inverse maps of other slots share these words, so only the flow's own bits change.
        *word = *word & !(0x3f << HOST_SHIFT | 3 << PLANE_SHIFT | 0xf)
            | u32::from(slots.host) << HOST_SHIFT
            | u32::from(slots.plane.unwrap_or(0)) << PLANE_SHIFT
            | u32::from(slots.fabric);
        set_lane(
            words,
            usize::from(slots.host) % LANES,
            host_shift(slots.host),
            lane,
        );
        let fabric = fabric_bit(slots);
        if fabric != 0 {
            // The first map is in use by another flow over this link: this is the second.
            let which = usize::from(occupancy.fabric[0] & fabric != 0);
            occupancy.fabric[which] |= fabric;
            set_lane(
                words,
                usize::from(slots.fabric),
                FABRIC_INVERSE[which],
                lane,
            );
        }
        lane as usize
    }

    /// Frees a cell, and its row with the last flow.
    pub(super) fn remove(&mut self, cell: CellIndex) {
        let (row, _) = split(cell);
        let table = self.table_of(cell);
        self.changes[table] = self.changes[table].saturating_add(1);
        self.changed = true;
        self.vacate(cell, self.slots(cell));
        if self.used[row] == 0 {
            self.close_row(table, row as u16);
        }
    }

    fn vacate(&mut self, cell: CellIndex, slots: Slots) {
        let (row, lane) = split(cell);
        self.used[row] &= !(1 << lane);
        let occupancy = &mut self.occupancy[row];
        occupancy.flip(slots.host);
        let of_table = usize::from(occupancy.table) * HOST_SLOTS;
        self.of_hosts[of_table + usize::from(slots.host)] -= 1;
        let words = &mut self.words[row].0;
        // A slot that no flow has points at lane 15, whose rate is always 0.
        set_lane(
            words,
            usize::from(slots.host) % LANES,
            host_shift(slots.host),
            NO_LANE,
        );
        let fabric = usize::from(slots.fabric);
        for (which, shift) in FABRIC_INVERSE.into_iter().enumerate() {
            if words[fabric] >> shift & 0xf == lane as u32 {
                set_lane(words, fabric, shift, NO_LANE);
                occupancy.fabric[which] &= !(1 << fabric);
            }
        }
    }

    /// Frees a row.
    fn close_row(&mut self, table: usize, row: u16) {
        let first = usize::from(self.starts[table]);
        // A rack has a few dozen rows, so the search costs little beside the move below.
        if let Some(place) = self.rows_of(table).iter().position(|&r| r == row) {
            self.order.remove(first + place);
            self.starts[table + 1..].iter_mut().for_each(|s| *s -= 1);
        }
        self.free.push(row);
    }

    /// Frees the rows of a table that hold no flow.
    pub(super) fn close_empty(&mut self, table: usize) {
        let empty = |row: &u16| self.used[usize::from(*row)] == 0;
        let rows: Vec<u16> = self.rows_of(table).iter().copied().filter(empty).collect();
        for row in rows {
            self.close_row(table, row);
        }
    }

    /// Slots of the flow in a cell.
    pub(super) fn slots(&self, cell: CellIndex) -> Slots {
        let (row, lane) = split(cell);
        let words = &self.words[row].0;
        let word = words[lane];
        let fabric = (word & 0xf) as usize;
        // A flow without a fabric link is in no inverse map.
        let adds = |shift: &u32| words[fabric] >> shift & 0xf == lane as u32;
        Slots {
            host: (word >> HOST_SHIFT) as u8,
            fabric: fabric as u8,
            no_fabric: !FABRIC_INVERSE.iter().any(adds),
            plane: self.over_cores.then_some((word >> PLANE_SHIFT & 3) as u8),
        }
    }

    /// Table of the flow in a cell.
    pub(super) fn table_of(&self, cell: CellIndex) -> usize {
        usize::from(self.occupancy[split(cell).0].table)
    }

    /// Finds a table with enough changes for compaction, from `first` on, and clears its changes.
    pub(super) fn changed_table(&mut self, first: usize) -> Option<usize> {
        if !self.changed {
            return None;
        }
        let worth = |&table: &usize| {
            let share = self.rows_of(table).len() * ROW_FLOWS as usize / CHANGES_SHARE;
            usize::from(self.changes[table]) >= MIN_CHANGES + share
        };
        let first = first.min(self.tables());
        let found = (first..self.tables()).chain(0..first).find(worth);
        match found {
            Some(table) => self.changes[table] = 0,
            None => self.changed = false,
        }
        found
    }

    /// Clears the changes of a table.
    pub(super) fn clear_changes(&mut self, table: usize) {
        self.changes[table] = 0;
    }

    /// True if a fifth or more of a table's rows could be spared, and one row more.
    pub(super) fn is_underfilled(&self, table: usize) -> bool {
        let rows = self.rows_of(table);
        let spares = |needed: u32| (rows.len().saturating_sub(1) as u32) * 8 > needed * 10;
        let used = rows.iter().map(|&row| self.used[usize::from(row)]);
        let by_lanes = used.map(u16::count_ones).sum::<u32>().div_ceil(ROW_FLOWS);
        // The count by slot is costly, and can only raise the need.
        spares(by_lanes) && spares(self.rows_by_slots(table))
    }

    /// Lower bound of the rows that a table's flows need: no host occurs twice in a row, no fabric
    /// link more than twice.
    fn rows_by_slots(&self, table: usize) -> u32 {
        let mut hosts = [0u32; HOST_SLOTS];
        let mut fabric = [0u32; LANES];
        for &row in self.rows_of(table) {
            let occupancy = &self.occupancy[usize::from(row)];
            for (of_register, counts) in occupancy.hosts.iter().zip(hosts.chunks_exact_mut(LANES)) {
                lanes_of(*of_register).for_each(|slot| counts[slot] += 1);
            }
            for once in occupancy.fabric {
                lanes_of(once).for_each(|slot| fabric[slot] += 1);
            }
        }
        let by_hosts = hosts.into_iter().max().unwrap_or(0);
        let by_fabric = fabric.into_iter().max().unwrap_or(0).div_ceil(2);
        by_hosts.max(by_fabric)
    }

    /// Cells of a table's flows.
    pub(super) fn cells(&self, table: usize) -> impl Iterator<Item = CellIndex> + '_ {
        self.rows_of(table)
            .iter()
            .flat_map(|&row| self.cells_of(row))
    }

    /// Cells of a row's flows.
    pub(super) fn cells_of(&self, row: u16) -> impl Iterator<Item = CellIndex> + use<> {
        let used = self.used[usize::from(row)];
        lanes_of(used).map(move |lane| cell_at(row, lane))
    }

    /// True if many rows lie apart from their table's others, which costs cache misses.
    pub(super) fn lost_table_order(&self) -> bool {
        self.rows_opened > MIN_DISORDER && self.rows_opened * 4 > self.len()
    }

    /// Sorts rows by table and drops free ones. Returns the new number of each old row, and the
    /// number of rows.
    pub(super) fn sort_by_table(&mut self) -> (Vec<u16>, usize) {
        let mut now = vec![0; self.len()];
        // Row 0 stays row 0: empty cells point into it.
        let mut next = 1u16;
        for &row in &self.order {
            now[usize::from(row)] = next;
            next += 1;
        }
        self.renumber(&now, usize::from(next));
        (now, usize::from(next))
    }

    /// Renumbers the rows as `now` says, by old row.
    pub(super) fn renumber(&mut self, now: &[u16], rows: usize) {
        self.order.shrink_to_fit();
        for row in &mut self.order {
            *row = now[usize::from(*row)];
        }
        self.words = reorder(&self.words, now, rows);
        // `reorder` fills with row 0's value; its own entries start empty again.
        self.words[0] = EMPTY;
        self.used = reorder(&self.used, now, rows);
        self.used[0] = 0;
        self.occupancy = reorder(&self.occupancy, now, rows);
        self.free = Vec::new();
        self.rows_opened = 0;
    }

    /// Bytes of everything but the look-up words.
    pub(super) fn state_bytes(&self) -> usize {
        (self.order.capacity() + self.starts.capacity()) * 2
            + self.used.capacity() * 2
            + self.occupancy.capacity() * size_of::<Occupancy>()
            + self.free.capacity() * 2
            + (self.changes.capacity() + self.of_hosts.capacity()) * 2
    }

    /// Opens a row for a table as the `place`-th of its rows, unless there would be more than
    /// `limit` rows.
    pub(super) fn add_row(&mut self, table: usize, place: usize, limit: usize) -> Option<u16> {
        if self.free.is_empty() {
            let first = self.len();
            let last = (first + RUN).min(limit.max(first));
            if last > self.words.capacity() {
                self.words.reserve_exact(growth(first));
                self.used.reserve_exact(growth(first));
                self.occupancy.reserve_exact(growth(first));
            }
            self.words.resize(last, EMPTY);
            self.used.resize(last, 0);
            self.occupancy.resize(last, Occupancy::default());
            self.free.extend((first..last).rev().map(|row| row as u16));
        }
        let row = self.free.pop()?;
        self.rows_opened += 1;
        self.words[usize::from(row)] = EMPTY;
        self.occupancy[usize::from(row)] = Occupancy {
            table: table as u16,
            ..Occupancy::default()
        };
        if self.order.len() == self.order.capacity() {
            self.order.reserve_exact(growth(self.order.len()));
        }
        // Moves a few KiB, once for some fifteen flows. One list for all tables lets a pass find
        // rows without a miss per table.
        self.order
            .insert(usize::from(self.starts[table]) + place, row);
        self.starts[table + 1..].iter_mut().for_each(|s| *s += 1);
        Some(row)
    }
}

/// Rows to allocate at once: a sixteenth of the present ones. Doubling would leave much of a large
/// table unused.
pub(super) fn growth(rows: usize) -> usize {
    rows / 16 + 2 * RUN
}

/// Moves entries by row to their rows' new numbers.
pub(super) fn reorder<T: Copy>(list: &[T], now: &[u16], rows: usize) -> Vec<T> {
    let mut moved = vec![list[0]; rows];
    for (value, &row) in list.iter().zip(now) {
        if row != 0 {
            moved[usize::from(row)] = *value;
        }
    }
    moved
}

/// Bit of the flow's fabric slot, or 0 if nothing is added to it.
fn fabric_bit(slots: Slots) -> u16 {
    if slots.no_fabric {
        0
    } else {
        1 << slots.fabric
    }
}

fn host_shift(host: u8) -> u32 {
    debug_assert!(usize::from(host) < HOST_SLOTS);
    FIRST_INVERSE + 4 * u32::from(host / LANES as u8)
}

fn set_lane(words: &mut [u32; LANES], slot: usize, shift: u32, lane: u32) {
    words[slot] = words[slot] & !(0xf << shift) | lane << shift;
}
