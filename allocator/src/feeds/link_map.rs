//! Map from links to values, dense: a link's number is its place.

use ratewright_topology::LinkId;

/// Map from links to values. Memory is in proportion to the largest link that ever had one.
#[derive(Debug, Clone)]
pub(super) struct LinkMap<T> {
    values: Vec<Option<T>>,
    /// A bit for each link with a value, so that a walk skips 64 links without one at a time.
    present: Vec<u64>,
    len: usize,
}

impl<T> Default for LinkMap<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            present: Vec::new(),
            len: 0,
        }
    }
}

impl<T: PartialEq> PartialEq for LinkMap<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.from(LinkId(0)).eq(other.from(LinkId(0)))
    }
}

impl<T> LinkMap<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&T> {
        self.values.get(link.index())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, link: LinkId) -> Option<&mut T> {
        self.values.get_mut(link.index())?.as_mut()
    }

    /// Returns the value of a link, which becomes the default if it has none.
    pub(super) fn or_default(&mut self, link: LinkId) -> &mut T
    where
        T: Default,
    {
        let at = link.index();
        if at >= self.values.len() {
            self.values.resize_with(at + 1, || None);
            self.present.resize(at / 64 + 1, 0);
        }
        let value = &mut self.values[at];
        if value.is_none() {
            self.present[at / 64] |= 1 << (at % 64);
            self.len += 1;
        }
        value.get_or_insert_default()
    }

    pub(super) fn insert(&mut self, link: LinkId, value: T)
    where
        T: Default,
    {
        *self.or_default(link) = value;
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<T> {
        let value = self.values.get_mut(link.index())?.take()?;
        self.present[link.index() / 64] &= !(1 << (link.index() % 64));
        self.len -= 1;
        Some(value)
    }

    /// Returns the links from `from` on that have a value, in their order.
    pub(super) fn links_from(&self, from: LinkId) -> impl Iterator<Item = LinkId> {
        let first = from.index() / 64;
        let words = self.present.iter().enumerate().skip(first);
        words.flat_map(move |(at, &word)| {
            let before = if at == first { from.index() % 64 } else { 0 };
            Ones(word & (u64::MAX << before)).map(move |bit| LinkId(at as u32 * 64 + bit))
        })
    }

    /// Returns the values of the links from `from` on, in their order.
    pub(super) fn from(&self, from: LinkId) -> impl Iterator<Item = (LinkId, &T)> {
        self.links_from(from)
            .filter_map(|link| Some((link, self.get(link)?)))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().flatten()
    }

    /// Takes all values out, in the order of their links.
    pub(super) fn take(&mut self) -> Vec<(LinkId, T)> {
        let taken = std::mem::take(self);
        let values = taken.values.into_iter().enumerate();
        values
            .filter_map(|(at, value)| Some((LinkId(u32::try_from(at).ok()?), value?)))
            .collect()
    }
}

/// Iterator over the numbers of the bits that are set.
struct Ones(u64);

impl Iterator for Ones {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_tree_map_holds(
            steps in proptest::collection::vec((0..200_u32, any::<bool>()), 0..200),
            from in 0..260_u32,
        ) {
            let (mut map, mut oracle) = (LinkMap::default(), BTreeMap::new());
            for (at, (link, stays)) in steps.into_iter().enumerate() {
                let link = LinkId(link);
                if stays {
                    map.insert(link, at);
                    oracle.insert(link, at);
                } else {
                    prop_assert_eq!(map.remove(link), oracle.remove(&link));
                }
                prop_assert_eq!(map.len(), oracle.len());
                prop_assert_eq!(map.get(link), oracle.get(&link));
            }
            let from = LinkId(from);
            prop_assert!(map.from(from).eq(oracle.range(from..).map(|(&link, at)| (link, at))));
            prop_assert_eq!(map.take(), oracle.into_iter().collect::<Vec<_>>());
            prop_assert!(map.is_empty());
        }
    }
}
