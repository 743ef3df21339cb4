//! Groups of flows by size, as an experiment or a plan chooses them.

/// Payload of a full packet, 1,460 bytes as in flowtune's ns-2 runs: [`BY_PACKETS`] counts in
/// these.
const PACKET_BYTES: u64 = 1_460;

/// Groups of flowtune fig. 12, smallest first: the name, and the largest number of full packets
/// that a flow fills.
pub const BY_PACKETS: [(&str, u64); 5] = [
    ("1 packet", 1),
    ("1-10 packets", 10),
    ("10-100 packets", 100),
    ("100-1000 packets", 1_000),
    ("large", u64::MAX),
];

/// Groups of flows by their bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeGroups {
    /// Name and largest size of each, smallest first. The last has no bound.
    groups: Vec<(String, u64)>,
}

impl Default for SizeGroups {
    /// Makes the groups of [`BY_PACKETS`].
    fn default() -> Self {
        let group =
            |(name, packets): (&str, u64)| (name.to_owned(), packets.saturating_mul(PACKET_BYTES));
        Self {
            groups: BY_PACKETS.map(group).into(),
        }
    }
}

impl SizeGroups {
    /// Makes a group up to each of these sizes, in bytes, and one for what is larger. Returns
    /// `None` unless sizes rise from at least 1.
    #[must_use]
    pub fn up_to(bytes: &[u64]) -> Option<Self> {
        let mut groups = Vec::with_capacity(bytes.len() + 1);
        let mut before = 0;
        for &most in bytes {
            if most <= before {
                return None;
            }
            groups.push((format!("{}-{most} bytes", before + 1), most));
            before = most;
        }
        groups.push((format!("over {before} bytes"), u64::MAX));
        (before > 0).then_some(Self { groups })
    }

    /// Returns the number of the group that flows of this size are in.
    #[must_use]
    pub fn of(&self, bytes: u64) -> usize {
        self.groups.partition_point(|(_, most)| *most < bytes)
    }

    /// Returns the names of the groups, smallest first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte counts as a packet, and a last packet that is not full does, too.
    #[test]
    fn boundaries_belong_to_the_smaller_group() {
        let groups = SizeGroups::default();
        for (bytes, group) in [
            (0, 0),
            (1_460, 0),
            (1_461, 1),
            (14_600, 1),
            (14_601, 2),
            (146_000, 2),
            (1_460_000, 3),
            (1_460_001, 4),
            (u64::MAX, 4),
        ] {
            assert_eq!(groups.of(bytes), group, "{bytes}");
        }
    }

    /// SIRD's groups: below a packet, below the bandwidth-delay product, below eight of it.
    #[test]
    fn groups_are_those_that_were_chosen() {
        let groups = SizeGroups::up_to(&[1_457, 100_000, 800_000]).unwrap();
        let names: Vec<&str> = groups.names().collect();
        assert_eq!(names[1..3], ["1458-100000 bytes", "100001-800000 bytes"]);
        let found = [1, 1_457, 1_458, 800_000].map(|bytes| groups.of(bytes));
        assert_eq!(found, [0, 0, 1, 2]);
        assert_eq!((names.len(), groups.of(800_001)), (4, 3));
        assert_eq!(SizeGroups::up_to(&[]), None);
        assert_eq!(SizeGroups::up_to(&[0, 5]), None);
        assert_eq!(SizeGroups::up_to(&[5, 5]), None);
    }
}
