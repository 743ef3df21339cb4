//! Readings of links that stand and hold managed traffic which their host cannot tell apart.
//!
//! Such a reading says what arrived. What of it is external depends on what was handed out, and
//! that may move while the reading stands. A quarter of the links is compared in every interval.

use ratewright_topology::{LinkId, Topology};

use super::Feeds;
use super::links::{Bounds, host_of};

/// Intervals in which every link is compared once.
const TURNS: usize = 4;

/// Intervals that what was handed out has been over before it is compared. Within them, a host
/// that saw another load because of it has said so.
const LAG: u64 = 2;

/// Slack of a link that is to be read again in any case.
const ALWAYS: f32 = -1.0;

/// Of one link, what is compared with the load that was handed out. Links stand side by side, and
/// nothing else is touched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    arrived_bps: f32,
    external_bps: f32,
    /// Difference of the external load at which the link is read again; infinite unless a reading
    /// stands.
    slack_bps: f32,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            arrived_bps: 0.0,
            external_bps: 0.0,
            slack_bps: f32::INFINITY,
        }
    }
}

impl Standing {
    fn differs(&self, load_bps: f64, granted_bps: f32) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "a ten-millionth is enough")]
        let handed_out_bps = (load_bps as f32 - granted_bps).max(0.0);
        let external_bps = (self.arrived_bps - handed_out_bps).max(0.0);
        (external_bps - self.external_bps).abs() > self.slack_bps
    }
}

impl Feeds {
    /// Notes what the host's reading of a link says, if it stands and holds managed traffic.
    /// `is_settled` says that reading it again changes nothing while what is handed out stands.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a ten-millionth of a load below 2^53 bit/s is enough"
    )]
    pub(super) fn stand(&mut self, link: LinkId, topology: &Topology, is_settled: bool) {
        let reading = &self.links[link.index()].host;
        let standing = &mut self.standing[link.index()];
        let stood = standing.slack_bps.is_finite();
        *standing = if reading.generation > 0 && reading.holds_managed() {
            let capacity_bps = topology.effective_capacity_bps(link) as f64;
            Standing {
                arrived_bps: reading.arrived_bps as f32,
                external_bps: reading.external_bps as f32,
                slack_bps: if is_settled {
                    (self.config.hysteresis / 2.0 * capacity_bps) as f32
                } else {
                    ALWAYS
                },
            }
        } else {
            Standing::default()
        };
        self.standing_links += usize::from(standing.slack_bps.is_finite());
        self.standing_links -= usize::from(stood);
    }

    /// Compares the next quarter of the links with what was handed out, and reads those again that
    /// differ. O(links / 4), in a few operations each.
    pub(super) fn compare_standing(&mut self, now_ns: u64, topology: &Topology) {
        if self.standing_links == 0 {
            return;
        }
        let interval_ns = self.config.interval_ns;
        let loads_bps = self
            .handed_out
            .at(now_ns.saturating_sub(LAG * interval_ns + interval_ns / 2));
        let part = self.standing.len().div_ceil(TURNS);
        let begin = part * self.turn;
        let end = (begin + part).min(self.standing.len());
        self.turn = (self.turn + 1) % TURNS;
        let Some(loads_bps) = loads_bps.get(begin..end) else {
            // Nothing has been observed of this topology yet.
            return;
        };
        let standing = &self.standing[begin..end];
        let granted_bps = self.external.granted_bps();
        let granted_bps = granted_bps.get(begin..).unwrap_or(&[]);
        let known = granted_bps.len().min(end - begin);
        let mut differing = std::mem::take(&mut self.differing);
        let (first, last) = standing.split_at(known);
        for (at, ((standing, &load_bps), &granted_bps)) in
            first.iter().zip(loads_bps).zip(granted_bps).enumerate()
        {
            if standing.differs(load_bps, granted_bps) {
                differing.push(begin + at);
            }
        }
        for (at, (standing, &load_bps)) in last.iter().zip(&loads_bps[known..]).enumerate() {
            if standing.differs(load_bps, 0.0) {
                differing.push(begin + known + at);
            }
        }
        for at in differing.drain(..) {
            let link = topology.links()[at].id;
            self.read_again(now_ns, link, topology);
        }
        self.differing = differing;
    }

    /// Takes a standing reading of a link once more, with what was handed out before the last
    /// [`LAG`] intervals. That interval lies behind the last change of the external load and the
    /// longest delay of traffic, so that the loop has no delay, and settles in one step.
    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    pub(super) fn read_again(&mut self, now_ns: u64, link: LinkId, topology: &Topology) {
        let capacity_bps = topology.effective_capacity_bps(link) as f64;
        let generation = host_of(link, topology).map_or(0, |host| self.hosts.generation(host));
        let reading = &self.links[link.index()].host;
        if capacity_bps == 0.0 || !(reading.stands(generation) && reading.holds_managed()) {
            self.standing_links -= usize::from(self.standing[link.index()].slack_bps.is_finite());
            self.standing[link.index()] = Standing::default();
            return;
        }
        let interval_ns = self.config.interval_ns;
        let window_ns = (LAG + 1) * interval_ns;
        let is_behind = reading
            .changed_ns
            .saturating_add(window_ns + self.config.max_delay_ns)
            <= now_ns;
        let known_ns = host_of(link, topology).map_or(0, |host| {
            self.hosts.known_ns(host, reading.generation, reading.at_ns)
        });
        let is_fresh = known_ns.saturating_add(self.config.fresh_ns) >= now_ns;
        // Before the first observation nothing is known.
        let observed = self.handed_out.newest_ns() > 0;
        if !(is_behind && is_fresh && observed) {
            return;
        }
        let from_ns = now_ns.saturating_sub(window_ns);
        let handed_out_bps = self.handed_out_bps(link, from_ns, from_ns + interval_ns);
        let bounds = Bounds {
            hysteresis: self.config.hysteresis,
            max_share: self.config.max_share,
            of_host: true,
        };
        let readings = &mut self.links[link.index()];
        let external_bps = readings.host.arrived_bps - handed_out_bps;
        let external_bps = external_bps.clamp(0.0, capacity_bps);
        readings.host.external_bps = external_bps;
        readings.host.changed_ns = now_ns;
        let moved = readings.judge(external_bps, capacity_bps, bounds);
        let is_settled = readings.is_settled;
        if moved {
            self.mark(link);
        }
        self.stand(link, topology, is_settled);
    }
}
