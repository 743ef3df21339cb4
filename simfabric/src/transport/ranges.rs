//! Sets of bytes of a flow as disjoint ranges: bytes that a receiver holds out of order, and those
//! that a sender knows to have arrived (RFC 2018, RFC 6675 §4).

/// Disjoint, non-adjacent ranges [first, end) in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<(u64, u64)>,
    bytes: u64,
}

impl RangeSet {
    /// Returns true if the set is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the ranges in order.
    #[must_use]
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Returns the byte after the last one; 0 if the set is empty.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.1)
    }

    /// Returns the index of the first range that ends at or after `at`.
    fn first_reaching(&self, at: u64) -> usize {
        // Almost always the last one grows.
        match self.ranges.last() {
            Some(last) if last.1 < at => self.ranges.len(),
            Some(last) if last.0 <= at => self.ranges.len() - 1,
            _ => self.ranges.partition_point(|range| range.1 < at),
        }
    }

    /// Adds [first, end) and returns the range that holds it. O(ranges) at worst, O(1) at the end.
    pub fn insert(&mut self, first: u64, end: u64) -> (u64, u64) {
        if first >= end {
            return (first, first);
        }
        let from = self.first_reaching(first);
        let mut merged = (first, end);
        let mut to = from;
        while let Some(range) = self.ranges.get(to).filter(|range| range.0 <= end) {
            merged = (merged.0.min(range.0), merged.1.max(range.1));
            self.bytes -= range.1 - range.0;
            to += 1;
        }
        self.bytes += merged.1 - merged.0;
        // No range touches the new one; otherwise the first of those that do is replaced in place,
        // which moves nothing in the usual case of one.
        if to == from {
            self.ranges.insert(from, merged);
        } else {
            self.ranges[from] = merged;
            self.ranges.drain(from + 1..to);
        }
        merged
    }

    /// Removes all bytes before `at`. If `at` is in a range, that range begins there.
    pub fn remove_before(&mut self, at: u64) {
        let mut gone = 0;
        for range in &mut self.ranges {
            if range.1 <= at {
                self.bytes -= range.1 - range.0;
                gone += 1;
            } else {
                if range.0 < at {
                    self.bytes -= at - range.0;
                    range.0 = at;
                }
                break;
            }
        }
        self.ranges.drain(..gone);
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    /// Returns the end of the range that holds `at`, if one does.
    #[must_use]
    pub fn covering_end(&self, at: u64) -> Option<u64> {
        let index = self.ranges.partition_point(|range| range.1 <= at);
        self.ranges
            .get(index)
            .filter(|range| range.0 <= at)
            .map(|range| range.1)
    }

    /// Returns the first gap at or after `from`: its first byte, and the byte after its last one,
    /// which is `None` behind the last range.
    #[must_use]
    pub fn gap_from(&self, from: u64) -> (u64, Option<u64>) {
        let index = self.ranges.partition_point(|range| range.1 <= from);
        match self.ranges.get(index) {
            Some(range) if range.0 <= from => {
                (range.1, self.ranges.get(index + 1).map(|next| next.0))
            }
            Some(range) => (from, Some(range.0)),
            None => (from, None),
        }
    }

    /// Returns the number of the set's bytes before `at`.
    #[must_use]
    pub fn bytes_before(&self, at: u64) -> u64 {
        self.ranges
            .iter()
            .take_while(|range| range.0 < at)
            .map(|range| range.1.min(at) - range.0)
            .sum()
    }

    /// Returns the largest `at` with at least `bytes` bytes of the set from it on. Missing bytes
    /// before it count as lost (RFC 6675 §4, `IsLost`). Returns `None` if the set has fewer bytes.
    #[must_use]
    pub fn edge_with_above(&self, bytes: u64) -> Option<u64> {
        let mut above = 0;
        for range in self.ranges.iter().rev() {
            above += range.1 - range.0;
            if above >= bytes {
                return Some(range.0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// A set of single bytes is the oracle.
        #[test]
        fn a_range_set_is_a_set(
            steps in proptest::collection::vec((0u64..60, 1u64..12, 0u8..6), 1..60),
            probe in 0u64..80,
            amount in 1u64..30,
        ) {
            let mut set = RangeSet::default();
            let mut oracle = BTreeSet::new();
            for (first, length, kind) in steps {
                if kind == 0 {
                    set.remove_before(first);
                    oracle = oracle.split_off(&first);
                } else {
                    let held = set.insert(first, first + length);
                    oracle.extend(first..first + length);
                    prop_assert!((held.0..held.1).all(|byte| oracle.contains(&byte)));
                    prop_assert!(held.0 <= first && held.1 >= first + length);
                }
                let bytes: BTreeSet<u64> =
                    set.ranges().iter().flat_map(|range| range.0..range.1).collect();
                prop_assert_eq!(&bytes, &oracle);
                prop_assert_eq!(set.bytes(), oracle.len() as u64);
                prop_assert!(set.ranges().windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
            prop_assert_eq!(set.bytes_before(probe), oracle.range(..probe).count() as u64);
            prop_assert_eq!(set.covering_end(probe).is_some(), oracle.contains(&probe));
            let (gap, end) = set.gap_from(probe);
            prop_assert_eq!(gap, (probe..).find(|byte| !oracle.contains(byte)).unwrap_or(probe));
            prop_assert_eq!(end, oracle.range(gap..).next().copied());
            let edge = set.edge_with_above(amount);
            let above = |at: u64| oracle.range(at..).count() as u64;
            prop_assert_eq!(edge.is_some(), oracle.len() as u64 >= amount);
            if let Some(edge) = edge {
                prop_assert!(above(edge) >= amount);
                // A missing byte further up has fewer above it.
                let next = (edge..80).find(|byte| !oracle.contains(byte));
                prop_assert!(next.is_none_or(|byte| above(byte) < amount));
            }
        }
    }
}
