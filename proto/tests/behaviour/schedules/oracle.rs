//! Oracle of everything that must hold at a surfaced rate.

use std::collections::BTreeMap;

use ratewright_proto::RateCode;

/// A flowlet's identity beyond its flow id: unique within a schedule.
pub(crate) type Instance = u32;
/// The allocator's incarnation.
pub(crate) type Epoch = u64;

/// The truth about rates, in global time.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    next_version: u64,
    /// Versions, in the order of all decisions, at which the service set a code for a flowlet in a
    /// session; ascending.
    versions: BTreeMap<(Instance, Epoch, u32, u16), Vec<u64>>,
    /// The version that each flowlet's rate was surfaced with last.
    surfaced: BTreeMap<(Instance, Epoch, u32), u64>,
    pub(crate) coverage: Coverage,
}

/// Counts of the exercised cases, so that a schedule that tests nothing does not pass unnoticed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Coverage {
    pub(crate) rates_surfaced: u64,
    pub(crate) sessions: u64,
    pub(crate) expired: u64,
    pub(crate) stale: u64,
    pub(crate) lost: u64,
    pub(crate) wrong_session: u64,
    pub(crate) duplicates: u64,
    pub(crate) releases: u64,
    /// Datagrams that a partition took.
    pub(crate) cut: u64,
    pub(crate) clock_faults: u64,
    /// Sealed datagrams that were opened, by either side.
    pub(crate) opened: u64,
    /// Sealed datagrams that were not: of another session or incarnation, or received before.
    pub(crate) not_opened: u64,
    pub(crate) key_updates: u64,
    /// Times that the client gave the sealed path up.
    pub(crate) fallbacks: u64,
}

/// A rate as the client surfaced it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surfaced {
    pub(crate) instance: Instance,
    pub(crate) epoch: Epoch,
    pub(crate) session: u32,
    pub(crate) rate_bps: u64,
    pub(crate) now_ns: u64,
    /// The claimed expiry, in global time.
    pub(crate) expires_ns: u64,
    /// Expiry that follows from the sending time of the newest accepted datagram, in global time.
    pub(crate) true_expiry_ns: u64,
}

impl Oracle {
    /// The service set a rate.
    pub(crate) fn decided(
        &mut self,
        instance: Instance,
        epoch: Epoch,
        session: u32,
        code: RateCode,
    ) {
        self.versions
            .entry((instance, epoch, session, code.0))
            .or_default()
            .push(self.next_version);
        self.next_version += 1;
    }

    /// The client surfaced a rate.
    pub(crate) fn check(&mut self, surfaced: Surfaced) -> Result<(), String> {
        let code = RateCode::encode(surfaced.rate_bps);
        let fail = |what: &str| Err(format!("{what}: {surfaced:?}"));
        let Surfaced {
            instance,
            epoch,
            session,
            ..
        } = surfaced;
        let Some(versions) = self.versions.get(&(instance, epoch, session, code.0)) else {
            return fail("a rate that nobody set for this flowlet in this epoch and session");
        };
        // A rate can be set several times: the earliest use that the order allows is meant.
        let newest = self.surfaced.entry((instance, epoch, session)).or_default();
        let Some(&version) = versions.iter().find(|&version| version >= newest) else {
            return fail("a rate older than one surfaced before");
        };
        // From here on, an older decision for this flowlet is stale.
        *newest = version;
        if surfaced.now_ns >= surfaced.expires_ns {
            return fail("surfaced after its expiry");
        }
        if surfaced.expires_ns > surfaced.true_expiry_ns {
            return fail("claims to hold beyond the lease");
        }
        self.coverage.rates_surfaced += 1;
        Ok(())
    }
}

impl Coverage {
    pub(crate) fn add(&mut self, other: Self) {
        self.rates_surfaced += other.rates_surfaced;
        self.sessions += other.sessions;
        self.expired += other.expired;
        self.stale += other.stale;
        self.lost += other.lost;
        self.wrong_session += other.wrong_session;
        self.duplicates += other.duplicates;
        self.releases += other.releases;
        self.cut += other.cut;
        self.clock_faults += other.clock_faults;
        self.opened += other.opened;
        self.not_opened += other.not_opened;
        self.key_updates += other.key_updates;
        self.fallbacks += other.fallbacks;
    }
}
