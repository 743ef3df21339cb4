//! Closed loops: traffic reaches a link some time after its rate, and readings come back.

use super::*;

const MS: u64 = 1_000_000;
const CAPACITY_BPS: f64 = 1e10;

/// Queue that the link has room for, in bytes.
const BUFFER_BYTES: f64 = 4e6;

/// A host's uplink that carries scheduled traffic as it is handed out, late, and external traffic.
struct Link {
    topology: Topology,
    feeds: Feeds,
    now_ns: u64,
    delay_ns: u64,
    /// Capacity that the engine hands out, by the time from which traffic follows it.
    handed_out: Vec<(u64, f64)>,
    tx_bytes: f64,
    queue_bytes: f64,
    /// Time from a reading to its arrival.
    late_ns: u64,
    /// Readings say how late they are.
    tells_age: bool,
    /// Readings under way, by the time at which they arrive.
    under_way: VecDeque<(u64, Telemetry)>,
}

impl Link {
    fn new(delay_ns: u64) -> Self {
        let topology = topology();
        let mut feeds = Feeds::new(FeedsConfig::default(), &topology);
        let mut loads_bps: Vec<f64> = topology.links().iter().map(|_| CAPACITY_BPS).collect();
        feeds.observe(MS, &mut loads_bps);
        Self {
            feeds,
            topology,
            now_ns: MS,
            delay_ns,
            handed_out: vec![(0, CAPACITY_BPS)],
            tx_bytes: 0.0,
            queue_bytes: 0.0,
            late_ns: 0,
            tells_age: true,
            under_way: VecDeque::new(),
        }
    }

    fn newest_bps(&self) -> f64 {
        self.handed_out.last().expect("never empty").1
    }

    /// Runs until `end_ns` in steps of 50 µs. The reporter tells `lie` times what was sent; `None`
    /// says nothing. Returns the extremes of what was handed out.
    fn run(&mut self, end_ns: u64, external_bps: f64, lie: Option<f64>) -> (f64, f64) {
        let uplink = self.topology.host_uplink(HostId(1));
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        while self.now_ns < end_ns {
            self.now_ns += MS / 20;
            let now_ns = self.now_ns;
            let mut courses = self.handed_out.iter().rev();
            let managed_bps = courses
                .find(|(from_ns, _)| *from_ns <= now_ns)
                .map_or(0.0, |course| course.1);
            self.queue_bytes += (managed_bps + external_bps) / 8.0 * 50e-6;
            let sent_bytes = (CAPACITY_BPS / 8.0 * 50e-6).min(self.queue_bytes);
            self.queue_bytes = (self.queue_bytes - sent_bytes).min(BUFFER_BYTES);
            self.tx_bytes += sent_bytes;
            if self.feeds.wants_loads(now_ns) {
                let newest_bps = self.newest_bps();
                let links = self.topology.links().len();
                self.feeds.observe(now_ns, &mut vec![newest_bps; links]);
            }
            if now_ns.is_multiple_of(10 * MS)
                && let Some(lie) = lie
            {
                let mut told = link(OWN_UPLINK);
                told.links[0].managed_bytes = None;
                told.links[0].tx_bytes = (self.tx_bytes * lie) as u64;
                told.links[0].queue_bytes = self.queue_bytes as u64;
                told.links[0].timestamp_ns = now_ns;
                told.links[0].bandwidth_bps = CAPACITY_BPS as u64;
                if self.tells_age {
                    told.links[0].age_ns = self.late_ns;
                }
                self.under_way.push_back((now_ns + self.late_ns, told));
            }
            while let Some((_, told)) = self.under_way.pop_front_if(|next| next.0 <= now_ns) {
                let host = Reporter::Host(HostId(1));
                self.feeds
                    .take(now_ns, host, &told, &self.topology, |_| true);
            }
            if (self.feeds.next_due_ns()).is_some_and(|due_ns| due_ns <= now_ns) {
                self.feeds.apply(now_ns, &self.topology, &mut |_| {});
                let capacity_bps = self.feeds.external().capacity_bps(&self.topology, uplink);
                self.handed_out.push((now_ns + self.delay_ns, capacity_bps));
                let loads_bps: Vec<f64> = vec![capacity_bps; self.topology.links().len()];
                self.feeds.observe(now_ns, &mut loads_bps.clone());
            }
            least = least.min(self.newest_bps());
            most = most.max(self.newest_bps());
        }
        (least, most)
    }
}

#[test]
fn measured_load_is_made_room_for_and_given_back_at_every_delay_up_to_a_millisecond() {
    for delay_ns in [0, MS / 4, MS / 2, MS] {
        let mut link = Link::new(delay_ns);
        link.run(500 * MS, 0.0, Some(1.0));
        assert_eq!(
            link.newest_bps(),
            CAPACITY_BPS,
            "{delay_ns}: nothing external"
        );
        link.run(2_000 * MS, 4e9, Some(1.0));
        let (least, most) = link.run(3_000 * MS, 4e9, Some(1.0));
        assert!(most <= 6.3e9, "{delay_ns}: {most}");
        assert!(least >= 5.0e9, "{delay_ns}: {least}");
        assert!(
            most - least <= 0.02 * CAPACITY_BPS,
            "{delay_ns}: it stands still"
        );
        link.run(3_500 * MS, 0.0, Some(1.0));
        assert!(link.newest_bps() >= 0.97 * CAPACITY_BPS, "{delay_ns}");
    }
}

#[test]
fn a_feed_that_falls_silent_is_forgotten_within_its_maximum_age() {
    let mut link = Link::new(MS);
    link.run(1_000 * MS, 4e9, Some(1.0));
    assert!(link.newest_bps() <= 0.7 * CAPACITY_BPS);
    link.run(1_120 * MS, 4e9, None);
    assert_eq!(link.newest_bps(), CAPACITY_BPS);
}

#[test]
fn a_reporter_that_doubles_or_hides_its_traffic_costs_at_most_the_share() {
    for lie in [0.0, 2.0, 1e9] {
        let mut link = Link::new(MS);
        let (least, most) = link.run(1_000 * MS, 1e9, Some(lie));
        assert!(most <= CAPACITY_BPS, "{lie}");
        assert!(least >= 0.5 * CAPACITY_BPS - 1.0, "{lie}: {least}");
    }
}

/// Checks that what was handed out and the external load together were never above the link's
/// capacity by more than the share, and that scheduled flows kept theirs.
fn assert_bounded((least, most): (f64, f64), external_bps: f64, case: &str) {
    let share_bps = FeedsConfig::default().max_share * CAPACITY_BPS;
    let excess_bps = most - (CAPACITY_BPS - external_bps);
    assert!(excess_bps <= share_bps, "{case}: {excess_bps}");
    assert!(least >= CAPACITY_BPS - share_bps - 1.0, "{case}: {least}");
}

#[test]
fn a_feed_that_flaps_costs_at_most_the_share_and_is_forgotten_in_time() {
    for (flap_ns, outlasts) in [(20 * MS, false), (50 * MS, false), (200 * MS, true)] {
        let case = format!("{flap_ns} ns");
        let mut link = Link::new(MS);
        link.run(1_000 * MS, 4e9, Some(1.0));
        let mut extremes = (f64::INFINITY, 0.0_f64);
        for flap in 0..10 {
            let told = (flap % 2 == 1).then_some(1.0);
            let (least, most) = link.run(link.now_ns + flap_ns, 4e9, told);
            extremes = (extremes.0.min(least), extremes.1.max(most));
        }
        assert_bounded(extremes, 4e9, &case);
        // The whole link is handed out only once a silence outlasts the maximum age.
        assert_eq!(extremes.1 == CAPACITY_BPS, outlasts, "{case}");
        link.run(link.now_ns + 120 * MS, 4e9, None);
        assert_eq!(link.newest_bps(), CAPACITY_BPS, "{case}");
    }
}

#[test]
fn a_feed_that_is_late_costs_at_most_the_share_and_is_forgotten_in_time() {
    for (late_ns, tells_age) in [(100 * MS, true), (100 * MS, false), (70 * MS, true)] {
        let case = format!("{late_ns} ns, tells its age: {tells_age}");
        let mut link = Link::new(MS);
        (link.late_ns, link.tells_age) = (late_ns, tells_age);
        let extremes = link.run(2_000 * MS, 4e9, Some(1.0));
        assert_bounded(extremes, 4e9, &case);
        let is_refused = tells_age && late_ns >= FeedsConfig::default().max_age_ns;
        assert_eq!(extremes.0 == CAPACITY_BPS, is_refused, "{case}");
        let figures = &link.feeds.status().feeds["int"];
        let too_old = figures.refused.get("too_old").copied().unwrap_or(0);
        assert_eq!(too_old > 0, is_refused, "{case}");
        // What is under way still comes.
        let extremes = link.run(link.now_ns + late_ns + 120 * MS, 4e9, None);
        assert_bounded(extremes, 4e9, &case);
        assert_eq!(link.newest_bps(), CAPACITY_BPS, "{case}");
    }
}
