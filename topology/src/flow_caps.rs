//! Bounds on the rate of a single flow between two hosts.

use crate::ids::HostId;

/// The most groups that one host belongs to. It bounds the work of a look-up.
pub(crate) const MAX_GROUPS_OF_HOST: usize = 16;

/// Hosts among which a single flow has a bound of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostGroup {
    /// Unique name among groups.
    pub name: String,
    /// Most that one flow between two hosts of the group may have, in bit/s.
    pub max_flow_bps: u64,
    /// The hosts, in id order, each once.
    pub hosts: Vec<HostId>,
}

/// Bounds that the network sets to a single flow, whatever its links carry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FlowCaps {
    pub(crate) max_flow_bps: Option<u64>,
    pub(crate) groups: Vec<HostGroup>,
    /// By host: where its groups begin in `of_host`; empty without groups.
    starts: Vec<u32>,
    /// Indices of groups, ascending for each host.
    of_host: Vec<u32>,
}

/// A host that is in more groups than [`MAX_GROUPS_OF_HOST`].
pub(crate) struct TooManyGroups(pub(crate) HostId);

impl FlowCaps {
    /// Indexes groups by their hosts, in O(hosts + memberships).
    ///
    /// # Errors
    /// A host is in more than [`MAX_GROUPS_OF_HOST`] groups.
    pub(crate) fn new(
        max_flow_bps: Option<u64>,
        groups: Vec<HostGroup>,
        hosts: usize,
    ) -> Result<Self, TooManyGroups> {
        let mut caps = Self {
            max_flow_bps,
            groups,
            ..Self::default()
        };
        if caps.groups.is_empty() {
            return Ok(caps);
        }
        let mut counts = vec![0_usize; hosts];
        for host in caps.groups.iter().flat_map(|group| &group.hosts) {
            counts[host.index()] += 1;
            if counts[host.index()] > MAX_GROUPS_OF_HOST {
                return Err(TooManyGroups(*host));
            }
        }
        let mut end = 0;
        caps.starts.push(0);
        for count in counts {
            end += count as u32;
            caps.starts.push(end);
        }
        caps.of_host = vec![0; end as usize];
        let mut next = caps.starts.clone();
        for (index, group) in (0_u32..).zip(&caps.groups) {
            for host in &group.hosts {
                let place = &mut next[host.index()];
                caps.of_host[*place as usize] = index;
                *place += 1;
            }
        }
        Ok(caps)
    }

    fn groups_of(&self, host: HostId) -> &[u32] {
        match self.starts.get(host.index()..=host.index() + 1) {
            Some(&[start, end]) => &self.of_host[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Returns the bound of one flow between two hosts: the largest of the groups that hold both,
    /// else the one of the whole network.
    pub(crate) fn between(&self, a: HostId, b: HostId) -> Option<u64> {
        let (mut of_a, mut of_b) = (self.groups_of(a), self.groups_of(b));
        let mut largest = None;
        // Both are ascending: one walk finds the groups that they share.
        while let (Some((&first, rest_a)), Some((&second, rest_b))) =
            (of_a.split_first(), of_b.split_first())
        {
            if first == second {
                largest = largest.max(Some(self.groups[first as usize].max_flow_bps));
            }
            if first <= second {
                of_a = rest_a;
            }
            if second <= first {
                of_b = rest_b;
            }
        }
        largest.or(self.max_flow_bps)
    }
}
