//! Hosts that tell a state: when each was heard, and which of its words stand.

use ratewright_topology::HostId;

/// Times and generations by host. The times stand by themselves, so that a look at all of them
/// touches nothing else.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// Time of the last word of each host; 0: none, or so long ago that nothing of it counts.
    heard_ns: Vec<u64>,
    /// Grows whenever a host takes back all that it told before; at least 1.
    generations: Vec<u32>,
    /// Time of the last word of any host.
    newest_ns: u64,
}

impl Hosts {
    pub(super) fn new(hosts: usize) -> Self {
        Self {
            heard_ns: vec![0; hosts],
            generations: vec![1; hosts],
            newest_ns: 0,
        }
    }

    /// Notes a word of a host. Returns true if its words before had begun to fade.
    pub(super) fn hear(&mut self, now_ns: u64, host: HostId, fresh_ns: u64) -> bool {
        self.newest_ns = now_ns;
        let Some(heard_ns) = self.heard_ns.get_mut(host.index()) else {
            return false;
        };
        std::mem::replace(heard_ns, now_ns).saturating_add(fresh_ns) < now_ns
    }

    /// Takes back what a host told before.
    pub(super) fn take_back(&mut self, host: HostId) {
        if let Some(generation) = self.generations.get_mut(host.index()) {
            *generation = generation.checked_add(1).unwrap_or(1);
        }
    }

    /// Returns the generation of a host's present words; 0 of an unknown host.
    pub(super) fn generation(&self, host: HostId) -> u32 {
        self.generations.get(host.index()).copied().unwrap_or(0)
    }

    /// Returns the time up to which a measurement counts as made: of one that stands, the last
    /// word of its host.
    pub(super) fn known_ns(&self, host: HostId, generation: u32, at_ns: u64) -> u64 {
        if generation > 0 && generation == self.generation(host) {
            at_ns.max(self.heard_ns[host.index()])
        } else {
            at_ns
        }
    }

    /// Returns the time of the last word of any host.
    pub(super) fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    /// Calls `stale` for each host whose last word is older than `fresh_ns`. A host for which it
    /// returns false is not looked at again before it is heard.
    pub(super) fn find_stale(
        &mut self,
        now_ns: u64,
        fresh_ns: u64,
        mut stale: impl FnMut(HostId) -> bool,
    ) {
        let Some(before_ns) = now_ns.checked_sub(fresh_ns).filter(|&at_ns| at_ns > 0) else {
            return;
        };
        for (host, heard_ns) in self.heard_ns.iter_mut().enumerate() {
            // 0 becomes the largest number.
            if heard_ns.wrapping_sub(1) < before_ns - 1 {
                #[allow(clippy::cast_possible_truncation, reason = "hosts have 32-bit numbers")]
                let host = HostId(host as u32);
                if !stale(host) {
                    *heard_ns = 0;
                }
            }
        }
    }
}
