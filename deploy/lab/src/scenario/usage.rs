//! Capacity goes to the flows that use it. Each case runs by turns with and without Ratewright.
//!
//! | case | what |
//! |---|---|
//! | reader | one download that is read beside 49 without a reader |
//! | bulk | one bulk flow beside four applications that write 310 bytes every 0.5 ms |
//! | redistribution | four of five flows go to a receiver that is stopped, loses power, or reads slowly |
//! | on and off | a source that sends its fair share 10 ms long and rests 10 ms; 1 ms and 3 ms |
//! | rise | an application that wrote little for 2 s, long enough for its demand to be lowered, writes as much as it can |
//!
//! All flows of a case leave one host, whose uplink is the bottleneck.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};

use super::figures::{Course, Courses, Figures, OnOff, Redistributed, Rise, round};
use super::outcome::{RunOutcome, ScenarioPhase};
use super::phases::with_offload;
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, Testbed, TransferSpec};
use crate::measure::recording::{PortRecord, Recording};
use crate::measure::response::{busy_share, rise_times_ms};
use crate::measure::stats::{mean, median, percentile};
use crate::net::plan::{NetworkPlan, payload_share};
use crate::traffic::protocol::{BIN_NS, Behaviour, Writing};

const HOSTS: usize = 6;
/// All flows leave this host.
const SERVER: usize = 0;
/// Reads whatever comes.
const READER: usize = 1;
/// Reads nothing, or writes little: the others of a case.
const OTHERS: usize = 2;
/// Is stopped.
const STOPPED: usize = 3;
/// Loses its interface.
const UNPLUGGED: usize = 4;
/// Reads slowly.
const SLOW: usize = 5;

const UNREAD: usize = 49;
const SMALL_WRITERS: usize = 4;
const SMALL_WRITE: Writing = Writing::Every {
    bytes: 310,
    every_ns: NS_PER_MS / 2,
};
/// Flows to the receiver that stops using its share.
const STALLED: usize = 4;
/// Rate at which a slow reader reads each of them.
const SLOW_READ_BPS: u64 = 1_000_000;
/// (on, off) in milliseconds.
const ON_OFF_MS: [(u64, u64); 2] = [(10, 10), (1, 3)];
/// Bulk flows beside the source that comes and goes.
const BULK_BESIDE: usize = 3;

const LEAD_NS: u64 = 100 * NS_PER_MS;
const REST_NS: u64 = 300 * NS_PER_MS;
const SETTLING: Duration = Duration::from_millis(1_500);
const MEASURED: Duration = Duration::from_secs(3);
/// Time-out of a redistribution.
const STALL: Duration = Duration::from_secs(3);
const RISES: Duration = Duration::from_secs(45);
/// Writes of an application whose demand is to rise: 2 Mbit/s, for longer than any hold of its
/// demand.
const SLOW_WRITE_BYTES: u32 = 125;
const SLOW_WRITE_EVERY_NS: u64 = NS_PER_MS / 2;
const SLOW_NS: u64 = 2 * NS_PER_S;
const FAST_NS: u64 = 60 * NS_PER_MS;
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Sinks report every 50 ms, ports are read every 10 ms.
const REPORT_LAG_NS: u64 = 120 * NS_PER_MS;
/// Share of a rate from which it counts as reached, over [`REACHED_BINS`] bins in a row taken
/// together.
const REACHED: f64 = 0.95;
const REACHED_BINS: u64 = 5;
/// Share of a link that the allocator hands out (the rest is its notification threshold).
const DERATING: f64 = 0.99;

/// The three ways not to use one's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stall {
    Stopped,
    Unplugged,
    Slow,
}

impl Stall {
    const ALL: [Stall; 3] = [Stall::Stopped, Stall::Unplugged, Stall::Slow];

    fn host(self) -> usize {
        match self {
            Stall::Stopped => STOPPED,
            Stall::Unplugged => UNPLUGGED,
            Stall::Slow => SLOW,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Stall::Stopped => "stopped",
            Stall::Unplugged => "loses power",
            Stall::Slow => "reads slowly",
        }
    }
}

#[derive(Default)]
struct Measured {
    reader_mbps: Vec<f64>,
    bulk_mbps: Vec<f64>,
    stalls: Vec<(Stall, Option<f64>)>,
    on_off: Vec<(usize, f64)>,
    rises_ms: Vec<f64>,
    /// Demands that the daemon raised meanwhile.
    raised: Option<u64>,
    lost: usize,
    courses: Courses,
}

struct UsageSide {
    testbed: Testbed,
    control: Option<Control>,
    measured: Measured,
}

/// Alternates the cases on both networks.
///
/// # Errors
/// When a case does not run to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let plan = NetworkPlan::big_switch(HOSTS, with_offload(lab, lab.options.backend));
    let build = |name: &str| {
        let readers: Vec<usize> = (1..HOSTS).collect();
        let mut testbed = Testbed::build(lab, name, plan.clone(), &[SERVER], &readers)?;
        // Ports of hosts 1 and up, so the record of host h is at h - 1.
        testbed.watch_ports(&(1..HOSTS).collect::<Vec<_>>())?;
        Ok::<_, anyhow::Error>(testbed)
    };
    let mut contenders = Vec::new();
    let mut backend = lab.options.backend.name().to_owned();
    if !lab.options.no_baseline {
        lab.live.say("building the network for the baseline");
        contenders.push(UsageSide {
            testbed: build("base")?,
            control: None,
            measured: Measured::default(),
        });
    }
    if !lab.options.only_baseline {
        lab.live
            .say("building the network for Ratewright; starting the allocator and the daemons");
        let testbed = build("with")?;
        let control = Control::start(lab, &testbed, "")?;
        backend = control.backend().unwrap_or(backend);
        contenders.push(UsageSide {
            testbed,
            control: Some(control),
            measured: Measured::default(),
        });
    }
    // `both` is for the safety scenario; this one takes the first family.
    let v6 = lab.options.family().each()[0];
    type Case = fn(&mut UsageSide, &Lab, bool) -> Result<()>;
    let cases: [(&str, Case); 6] = [
        ("one of 50 downloads is read", UsageSide::reader),
        ("bulk beside small writes", UsageSide::bulk),
        ("receivers that stop using their share", UsageSide::stalls),
        ("10 ms on, 10 ms off", |c, lab, v6| c.on_off(lab, v6, 0)),
        ("1 ms on, 3 ms off", |c, lab, v6| c.on_off(lab, v6, 1)),
        ("demand that rises", UsageSide::rises),
    ];
    for run in 0..usize::from(lab.options.runs()) {
        for (name, case) in cases {
            // The order changes from case to case.
            contenders.rotate_left(1);
            for contender in &mut contenders {
                let with = if contender.control.is_some() {
                    "with Ratewright"
                } else {
                    "without Ratewright (Cubic)"
                };
                lab.live.phase(
                    &format!("run {} of {}: {name}, {with}", run + 1, lab.options.runs()),
                    &contender.testbed.recording,
                );
                case(contender, lab, v6)?;
                contender.end_case(lab)?;
            }
        }
    }
    let phases = contenders
        .into_iter()
        .map(|contender| (contender.control.is_some(), contender.finish()));
    Ok(RunOutcome::of(backend, phases))
}

impl UsageSide {
    fn flow(&mut self, to: usize, v6: bool, behaviour: Behaviour, end: FlowEnd) -> Result<u32> {
        self.testbed.flow(TransferSpec {
            label: self.testbed.network.plan.nodes[to].name.clone(),
            from: SERVER,
            to,
            port: FIRST_PORT,
            v6,
            start_ns: now_ns() + LEAD_NS,
            connect_ns: None,
            end,
            behaviour,
        })
    }

    fn long(&mut self, to: usize, v6: bool, behaviour: Behaviour) -> Result<u32> {
        // A number of bytes that is never reached: such a flow's writes need not be woken often.
        self.flow(to, v6, behaviour, FlowEnd::Bytes(1 << 50))
    }

    /// Returns the uplink's capacity for payload, in bit/s.
    fn payload_bps(&self, v6: bool) -> f64 {
        self.testbed.network.plan.capacities.host_bps as f64 * payload_share(v6)
    }

    fn rate_mbps(&self, flow: u32, from: u64, to: u64) -> f64 {
        let recording = self.testbed.recording.lock();
        let record = &recording.flows[&flow];
        // Rates are exact on bin borders only.
        record.rate_bps(from.next_multiple_of(BIN_NS), to.next_multiple_of(BIN_NS)) / 1e6
    }

    /// Lets the flows of a case settle and then run; returns when it was measured from and to.
    fn settle_and_measure(&mut self, lab: &Lab) -> Result<(u64, u64)> {
        let from = now_ns() + LEAD_NS + lab.scaled(SETTLING);
        let to = from + lab.scaled(MEASURED);
        // The last bins of the interval are still with the sink until then.
        lab.sleep_until(to + REPORT_LAG_NS)?;
        Ok((from, to))
    }

    fn reader(&mut self, lab: &Lab, v6: bool) -> Result<()> {
        let unread = Behaviour {
            read_bps: Some(0),
            ..Behaviour::default()
        };
        for _ in 0..UNREAD {
            self.long(OTHERS, v6, unread)?;
        }
        // Their first windows must not cost the reader its first packet.
        lab.sleep_until(now_ns() + 5 * LEAD_NS)?;
        let read = self.long(READER, v6, Behaviour::default())?;
        let (from, to) = self.settle_and_measure(lab)?;
        let rate = self.rate_mbps(read, from, to);
        self.measured.reader_mbps.push(rate);
        Ok(())
    }

    fn bulk(&mut self, lab: &Lab, v6: bool) -> Result<()> {
        let small = Behaviour {
            writing: SMALL_WRITE,
            ..Behaviour::default()
        };
        for _ in 0..SMALL_WRITERS {
            self.long(OTHERS, v6, small)?;
        }
        lab.sleep_until(now_ns() + 5 * LEAD_NS)?;
        let bulk = self.long(READER, v6, Behaviour::default())?;
        let (from, to) = self.settle_and_measure(lab)?;
        let rate = self.rate_mbps(bulk, from, to);
        self.measured.bulk_mbps.push(rate);
        Ok(())
    }

    fn stalls(&mut self, lab: &Lab, v6: bool) -> Result<()> {
        for stall in Stall::ALL {
            self.stall(lab, v6, stall)?;
            self.end_case(lab)?;
        }
        Ok(())
    }

    fn stall(&mut self, lab: &Lab, v6: bool, stall: Stall) -> Result<()> {
        let host = stall.host();
        let read = self.long(READER, v6, Behaviour::default())?;
        let mut others = Vec::new();
        // A slow reader is no slower before: others take its place.
        let before = match stall {
            Stall::Slow => OTHERS,
            _ => host,
        };
        for _ in 0..STALLED {
            others.push(self.long(before, v6, Behaviour::default())?);
        }
        lab.sleep_until(now_ns() + LEAD_NS + lab.scaled(SETTLING))?;
        // Taken before the stall: signals and `ip` take effect after it.
        let at = now_ns();
        match stall {
            Stall::Stopped => self.testbed.signal_sink(host, Signal::SIGSTOP)?,
            Stall::Unplugged => self.testbed.network.unplug(host)?,
            Stall::Slow => {
                let slow = Behaviour {
                    read_bps: Some(SLOW_READ_BPS),
                    ..Behaviour::default()
                };
                for flow in others {
                    self.testbed.abort_flow(flow)?;
                }
                for _ in 0..STALLED {
                    self.long(host, v6, slow)?;
                }
            }
        }
        self.testbed
            .recording
            .event(format!("the receiver {}", stall.name()));
        lab.sleep_until(at + lab.scaled(STALL) + REPORT_LAG_NS)?;
        let used_bps = match stall {
            Stall::Slow => (STALLED as u64 * SLOW_READ_BPS) as f64,
            _ => 0.0,
        };
        {
            let recording = self.testbed.recording.lock();
            // The ports were watched from host 1 on.
            let port = &recording.ports[host - 1];
            let took = redistribution_ms(
                &recording,
                port,
                read,
                at,
                at + lab.scaled(STALL),
                used_bps,
                self.payload_bps(v6),
            );
            let course = course(&recording, read, at, at + lab.scaled(STALL));
            eprintln!("TRY {stall:?} took {took:?} at {}", at / 1_000_000);
            for w in (0..100u64)
                .map(|w| at.next_multiple_of(BIN_NS) - 100 * NS_PER_MS + w * 20 * NS_PER_MS)
            {
                let p = (port.bytes_at(w + 20 * NS_PER_MS) - port.bytes_at(w)) * 8.0 / 20e6 * 1e3;
                let r = recording.flows[&read].rate_bps(w, w + 20 * NS_PER_MS) / 1e6;
                eprintln!(
                    "  {:>6} ms port {:>6.1} reader {:>6.1}",
                    (w as i64 - at as i64) / 1_000_000,
                    p,
                    r
                );
            }
            self.measured.stalls.push((stall, took));
            // The first run's stalls are drawn; those of later runs look alike.
            if self.measured.courses.len() < Stall::ALL.len() {
                self.measured.courses.push((stall.name(), course));
            }
        }
        match stall {
            Stall::Stopped => self.testbed.signal_sink(host, Signal::SIGCONT)?,
            Stall::Unplugged => {
                self.testbed.network.plug(host)?;
                if let Some(control) = &mut self.control {
                    // A daemon that lost its session meanwhile would miss the next case.
                    control.wait_host(lab, host)?;
                }
            }
            Stall::Slow => {}
        }
        Ok(())
    }

    fn on_off(&mut self, lab: &Lab, v6: bool, index: usize) -> Result<()> {
        let (on_ms, off_ms) = ON_OFF_MS[index];
        // The uplink is shared by the source and the bulk flows, all of one weight.
        let fair_bps = self.payload_bps(v6) / (BULK_BESIDE + 1) as f64;
        // At its fair rate the source needs `on_ms` for one burst.
        let bytes = (fair_bps / 8.0 * on_ms as f64 / 1e3) as u32;
        for _ in 0..BULK_BESIDE {
            self.long(OTHERS, v6, Behaviour::default())?;
        }
        lab.sleep_until(now_ns() + LEAD_NS + lab.scaled(SETTLING))?;
        let source = Behaviour {
            writing: Writing::Every {
                bytes,
                every_ns: (on_ms + off_ms) * NS_PER_MS,
            },
            trace: true,
            ..Behaviour::default()
        };
        let end = now_ns() + LEAD_NS + lab.scaled(MEASURED);
        let flow = self.flow(READER, v6, source, FlowEnd::At(end))?;
        lab.sleep_until(end + REPORT_LAG_NS)?;
        self.wait_ended(lab, flow)?;
        let recording = self.testbed.recording.lock();
        let record = &recording.flows[&flow];
        if let Some(rate_bps) = busy_share(&record.marks, &record.arrivals, bytes.into()) {
            self.measured.on_off.push((index, rate_bps / fair_bps));
        }
        Ok(())
    }

    fn rises(&mut self, lab: &Lab, v6: bool) -> Result<()> {
        self.long(OTHERS, v6, Behaviour::default())?;
        lab.sleep_until(now_ns() + LEAD_NS + lab.scaled(SETTLING))?;
        let source = Behaviour {
            writing: Writing::Alternating {
                bytes: SLOW_WRITE_BYTES,
                every_ns: SLOW_WRITE_EVERY_NS,
                slow_ns: SLOW_NS,
                fast_ns: FAST_NS,
            },
            trace: true,
            ..Behaviour::default()
        };
        let raised_before = self.raised_demands()?;
        let end = now_ns() + LEAD_NS + lab.scaled(RISES);
        let flow = self.flow(READER, v6, source, FlowEnd::At(end))?;
        lab.sleep_until(end + REPORT_LAG_NS)?;
        self.wait_ended(lab, flow)?;
        // Half of the allocated capacity: one bulk flow is beside the source.
        let fair_bps = self.payload_bps(v6) * DERATING / 2.0;
        let rises_ms = {
            let recording = self.testbed.recording.lock();
            let record = &recording.flows[&flow];
            rise_times_ms(&record.marks, &record.arrivals, fair_bps, FAST_NS)
        };
        if let (Some(before), Some(now)) = (raised_before, self.raised_demands()?) {
            let raised = now.saturating_sub(before);
            // A demand that was never lowered does not rise: its time would say nothing.
            if raised < rises_ms.len() as u64 {
                bail!(
                    "the daemon raised {raised} demands in {} rises",
                    rises_ms.len()
                );
            }
            *self.measured.raised.get_or_insert(0) += raised;
        }
        self.measured.rises_ms.extend(rises_ms);
        Ok(())
    }

    /// Returns the number of demands that the server's daemon has raised; `None` without one.
    fn raised_demands(&self) -> Result<Option<u64>> {
        let Some(control) = &self.control else {
            return Ok(None);
        };
        control
            .daemon_status(SERVER)
            .and_then(|status| status["counters"]["demands_raised"].as_u64())
            .map(Some)
            .context("the server's daemon does not tell its raised demands")
    }

    fn wait_ended(&mut self, lab: &Lab, flow: u32) -> Result<()> {
        let recording = self.testbed.recording.clone();
        let ended = lab.wait_for(DRAIN_PATIENCE, || {
            let recording = recording.lock();
            let record = &recording.flows[&flow];
            Ok(record.ended_ns.is_some() || record.failed.is_some())
        })?;
        if !ended {
            bail!("a flow did not end within {} s", DRAIN_PATIENCE.as_secs());
        }
        Ok(())
    }

    /// Resets what still runs, so that the next case finds the network empty.
    fn end_case(&mut self, lab: &Lab) -> Result<()> {
        self.testbed.end_flows(lab, DRAIN_PATIENCE)?;
        self.testbed.check_alive()?;
        if let Some(control) = &mut self.control {
            control.check_alive()?;
        }
        // Counted before the flows are forgotten.
        self.measured.lost += self.testbed.recording.lock().connections_lost();
        self.testbed.forget_flows();
        lab.sleep_until(now_ns() + REST_NS)
    }

    fn finish(self) -> ScenarioPhase {
        if let Some(control) = self.control {
            control.stop();
        }
        let recording = self.testbed.recording.lock().clone();
        self.testbed.tear_down();
        let measured = self.measured;
        let times = |stall: Stall| {
            let all = measured.stalls.iter();
            all.filter(|(kind, _)| *kind == stall)
                .map(|(_, ms)| ms.map(round))
                .collect::<Vec<_>>()
        };
        let all: Vec<Option<f64>> = measured.stalls.iter().map(|(_, ms)| *ms).collect();
        let on_off = ON_OFF_MS
            .iter()
            .enumerate()
            .filter_map(|(index, (on_ms, off_ms))| {
                let shares: Vec<f64> = measured
                    .on_off
                    .iter()
                    .filter(|(at, _)| *at == index)
                    .map(|(_, share)| *share)
                    .collect();
                Some(OnOff {
                    on_ms: *on_ms,
                    off_ms: *off_ms,
                    share: round(mean(&shares)?),
                })
            })
            .collect();
        let figures = Figures {
            reader_mbps: median(&measured.reader_mbps).map(round),
            bulk_mbps: median(&measured.bulk_mbps).map(round),
            redistributed_ms: Some(Redistributed {
                p50: quantile_of_tries(&all, 50.0).map(round),
                max: quantile_of_tries(&all, 100.0).map(round),
                count: all.len(),
                never: all.iter().filter(|ms| ms.is_none()).count(),
                stopped: times(Stall::Stopped),
                unplugged: times(Stall::Unplugged),
                slow: times(Stall::Slow),
            }),
            on_off: Some(on_off),
            rise_ms: percentile(&measured.rises_ms, 50.0)
                .zip(percentile(&measured.rises_ms, 99.0))
                .map(|(p50, p99)| Rise {
                    p50: round(p50),
                    p99: round(p99),
                    count: measured.rises_ms.len(),
                    raised: measured.raised,
                }),
            connections_lost: Some(measured.lost),
            courses: measured.courses,
            ..Figures::default()
        };
        ScenarioPhase {
            figures,
            recording,
            first_paced_us: Vec::new(),
        }
    }
}

/// A percentile of times of which some never came: none if it falls among those.
fn quantile_of_tries(tries: &[Option<f64>], p: f64) -> Option<f64> {
    // Infinity sorts behind every time that was measured.
    let values: Vec<f64> = tries.iter().map(|ms| ms.unwrap_or(f64::INFINITY)).collect();
    percentile(&values, p).filter(|ms| ms.is_finite())
}

/// From the moment at which the receiver behind `port` first uses no more than it will (`used_bps`)
/// until the reader has what that leaves it of the allocated share of the uplink (`payload_bps`):
/// milliseconds, or none if not by `until`. A stopped receiver's buffer may take more now and then;
/// that is nothing that the reader could have.
fn redistribution_ms(
    recording: &Recording,
    port: &PortRecord,
    reader: u32,
    at: u64,
    until: u64,
    used_bps: f64,
    payload_bps: f64,
) -> Option<f64> {
    // Single bins of 10 ms hold too few packets to judge a rate.
    let window = REACHED_BINS * BIN_NS;
    let bins = |from: u64| (from.next_multiple_of(BIN_NS)..until - window).step_by(BIN_NS as usize);
    // Headers and retransmissions are counted, too.
    let idle_bps = used_bps * 1.5 + payload_bps * 0.02;
    let taken_bps = |from: u64| {
        (port.bytes_at(from + window) - port.bytes_at(from)) * 8.0 / window as f64 * 1e9
    };
    let unused = bins(at).find(|from| taken_bps(*from) <= idle_bps)?;
    let record = recording.flows.get(&reader)?;
    let reached = bins(unused).find(|from| {
        let left = 1.0 - taken_bps(*from).max(used_bps) / port.capacity_bps as f64;
        record.rate_bps(*from, from + window) >= REACHED * DERATING * payload_bps * left
    })?;
    Some((reached - unused) as f64 / NS_PER_MS as f64)
}

fn course(recording: &Recording, reader: u32, at: u64, until: u64) -> Course {
    const BEFORE_NS: u64 = NS_PER_S / 2;
    let Some(record) = recording.flows.get(&reader) else {
        return Vec::new();
    };
    (at.next_multiple_of(BIN_NS) - BEFORE_NS..until)
        // Two bins a point smooth the curve.
        .step_by(2 * BIN_NS as usize)
        .map(|from| {
            let seconds = (from as f64 - at as f64) / NS_PER_S as f64;
            (seconds, record.rate_bps(from, from + 2 * BIN_NS) / 1e6)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::recording::FlowRecord;

    /// Time from 1 s on that a reader takes which has half of the link, and from 1.5 s on `bytes`
    /// per bin of 10 ms, beside a port of 1.6 Mbit/s with these (time, bytes so far).
    fn took(port: &[(u64, u64)], bytes: u64) -> Option<f64> {
        let mut recording = Recording::new();
        let bins = (0..300).map(|bin| if bin < 150 { 1_000 } else { bytes });
        recording.flows.insert(
            1,
            FlowRecord {
                bins: bins.collect(),
                ..FlowRecord::default()
            },
        );
        let port = PortRecord {
            name: "p2".into(),
            capacity_bps: 1_600_000,
            samples: port
                .iter()
                .map(|(ms, bytes)| (ms * NS_PER_MS, *bytes))
                .collect(),
        };
        redistribution_ms(&recording, &port, 1, NS_PER_S, 3 * NS_PER_S, 0.0, 1.6e6)
    }

    /// The other receiver's port carries nothing from 1.2 s on.
    #[test]
    fn redistribution_counts_from_the_end_of_use() {
        let port = [(0, 0), (1_200, 120_000), (3_000, 120_000)];
        let ms = took(&port, 2_000).unwrap();
        assert!((290.0..=310.0).contains(&ms), "{ms}");
        assert_eq!(took(&port, 1_000), None, "half of the link stays unused");
    }

    /// From 1.4 s on the port takes a quarter of the link again.
    #[test]
    fn what_the_other_receiver_still_takes_is_not_the_reader_s_to_have() {
        let port = [(0, 0), (1_200, 120_000), (1_400, 120_000), (3_000, 200_000)];
        let ms = took(&port, 1_500).unwrap();
        assert!((250.0..=310.0).contains(&ms), "{ms}");
    }

    #[test]
    fn a_time_that_never_came_is_the_largest() {
        let tries = [Some(1.0), None, Some(3.0)];
        assert_eq!(quantile_of_tries(&tries, 50.0), Some(3.0));
        assert_eq!(quantile_of_tries(&tries, 100.0), None);
        assert_eq!(quantile_of_tries(&[], 50.0), None);
    }
}
