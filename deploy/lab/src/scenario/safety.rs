//! Hundreds of slow connections on busy cores, with rates that hold, that lapse (the allocator is
//! killed) and that are given back (the kill switch), for each back end: no connection may be
//! harmed.
//!
//! A third of the connections write as much as they can, a third set a pacing limit of their own,
//! and a third write little at a time. Limits are from 0.2 to 2 Mbit/s. What a connection carries
//! is what max-min fairness gives it in nine tenths of a run, so that all of them last about as
//! long as a run. Runs on the same network without Ratewright alternate with these.

use std::time::Duration;

use anyhow::Result;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};
use ratewright_cli::process::Process;

use super::figures::{Figures, SafetyRow, TimeQuantiles};
use super::outcome::{RunOutcome, ScenarioPhase};
use super::phases::with_offload;
use crate::lab::context::Lab;
use crate::lab::control::{Control, ControlKeys};
use crate::lab::preflight::working_backends;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, PORTS, Testbed, TransferSpec};
use crate::measure::backoff::BackoffWatch;
use crate::measure::recording::Recording;
use crate::net::plan::{NetworkPlan, payload_share};
use crate::options::{Backend, RateFate};
use crate::traffic::protocol::{Behaviour, HEADER_BYTES, Writing};

const SENDER: usize = 0;
const RECEIVER: usize = 1;
const HOSTS: usize = 2;
/// Length of the connections.
const SPAN: Duration = Duration::from_secs(60);
/// Connections have what max-min fairness gives them in this share of it.
const FILL: f64 = 0.9;
/// A connection that has not ended after twice a run and this is one that never ends: a time-out
/// takes two minutes at the most, but only after eight in a row, and no sender here is away for so
/// long.
const PATIENCE: Duration = Duration::from_secs(20);
const LEAD_NS: u64 = 200 * NS_PER_MS;
const REST_NS: u64 = 300 * NS_PER_MS;
const ABORT_PATIENCE: Duration = Duration::from_secs(5);
/// Limits of the connections that have one.
const LIMIT_BPS: (f64, f64) = (0.2e6, 2e6);
/// Interval between the writes of an application that writes little at a time.
const WRITE_EVERY_NS: u64 = 20 * NS_PER_MS;

impl SafetyRow {
    fn new(backend: Backend, fate: Option<RateFate>, v6: bool) -> SafetyRow {
        SafetyRow {
            backend: backend.name(),
            fate: fate.map_or("cubic", RateFate::name),
            family: if v6 { 6 } else { 4 },
            runs: 0,
            connections: 0,
            unfinished: 0,
            broken: 0,
            missing_bytes: 0,
            silent_backoff: 0,
            held: (backend != Backend::TcHtb).then_some(0),
            completion_s: None,
            samples_s: Vec::new(),
        }
    }

    fn count(&mut self, recording: &Recording, flows: &[(u32, u64)]) {
        self.runs += 1;
        self.connections += flows.len();
        for (flow, bytes) in flows {
            // One that left no trace has not ended either.
            let Some(record) = recording.flows.get(flow) else {
                self.unfinished += 1;
                self.missing_bytes += bytes;
                continue;
            };
            // A receiver without the end of the stream reports no total: all bytes count as
            // missing.
            let read = record.received_bytes.unwrap_or(0);
            self.missing_bytes += bytes.saturating_sub(read);
            // A broken connection may carry an end time too, so it is judged first.
            if record.failed.is_some() {
                self.broken += 1;
            } else if let (Some(from), Some(to)) = (record.started_ns, record.ended_ns) {
                self.samples_s
                    .push(to.saturating_sub(from) as f64 / NS_PER_S as f64);
            } else {
                self.unfinished += 1;
            }
        }
        self.completion_s = TimeQuantiles::of(&self.samples_s);
    }
}

/// Runs every back end, fate and address family.
///
/// A lab that fails, or that the user ends, after its first run has results of the runs before.
///
/// # Errors
/// When the lab itself fails before; connections that are harmed are results.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let backends = match lab.options.backend {
        // Without daemons no probe is needed, and the programs need not be there.
        Backend::Auto if lab.options.only_baseline => vec![Backend::Auto],
        Backend::Auto => working_backends(&lab.binaries)?,
        one => vec![one],
    };
    let mut rows: Vec<SafetyRow> = Vec::new();
    let mut recording = Recording::new();
    let mut broken_off = None;
    for backend in &backends {
        match run_backend(lab, *backend, &mut rows) {
            Ok(of_backend) => recording = of_backend,
            // Runs of hours are not lost with their last minute.
            Err(error) if rows.iter().any(|row| row.runs > 0) => {
                broken_off = Some(format!("{error:#}"));
                break;
            }
            Err(error) => return Err(error),
        }
    }
    rows.retain(|row| row.runs > 0);
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
    let phase = |rows: Vec<SafetyRow>| {
        (!rows.is_empty()).then(|| ScenarioPhase {
            figures: Figures {
                connections_lost: Some(rows.iter().map(|row| row.unfinished + row.broken).sum()),
                safety: Some(rows),
                ..Figures::default()
            },
            recording: recording.clone(),
            first_paced_us: Vec::new(),
        })
    };
    let (without, with) = rows.into_iter().partition(|row| row.fate == "cubic");
    Ok(RunOutcome {
        with: phase(with),
        without: phase(without),
        broken_off,
        ..RunOutcome::empty(names.join(", "))
    })
}

fn run_backend(lab: &Lab, backend: Backend, rows: &mut Vec<SafetyRow>) -> Result<Recording> {
    let plan = NetworkPlan::big_switch(HOSTS, with_offload(lab, backend));
    let build = |name: &str| {
        let mut testbed = Testbed::build(lab, name, plan.clone(), &[SENDER], &[RECEIVER])?;
        testbed.watch_ports(&[RECEIVER])?;
        Ok::<_, anyhow::Error>(testbed)
    };
    lab.live
        .say(format!("building the networks for {}", backend.name()));
    let mut base = match lab.options.no_baseline {
        true => None,
        false => Some(build(&format!("base-{}", backend.name()))?),
    };
    let mut with = match lab.options.only_baseline {
        true => None,
        false => {
            let testbed = build(&format!("with-{}", backend.name()))?;
            let keys = ControlKeys {
                backend,
                ..ControlKeys::of(lab)
            };
            let control = Control::start_with(lab, &testbed, &keys)?;
            Some((testbed, control))
        }
    };
    // `None` stands for a run without Ratewright: at most one, as there is one baseline.
    let mut turns: Vec<Option<RateFate>> = base.iter().map(|_| None).collect();
    if with.is_some() {
        turns.extend(lab.options.fates.iter().copied().map(Some));
    }
    // Held to the end of the function: its drop frees the cores.
    let _busy = burn(lab)?;
    for run in 0..usize::from(lab.options.runs()) {
        for v6 in lab.options.family().each() {
            // The order changes from round to round.
            turns.rotate_left(run.min(1));
            for fate in &turns {
                let (testbed, control) = match (fate, &mut base, &mut with) {
                    (None, Some(testbed), _) => (testbed, None),
                    (Some(_), _, Some((testbed, control))) => (testbed, Some(control)),
                    _ => continue,
                };
                let name = SafetyRow::new(backend, *fate, *v6);
                lab.live.phase(
                    &format!(
                        "run {} of {}, {}, {}, IPv{}",
                        run + 1,
                        lab.options.runs(),
                        name.backend,
                        name.fate,
                        name.family
                    ),
                    &testbed.recording,
                );
                let at = rows
                    .iter()
                    .position(|row| {
                        (row.backend, row.fate, row.family)
                            == (name.backend, name.fate, name.family)
                    })
                    .unwrap_or_else(|| {
                        rows.push(name);
                        rows.len() - 1
                    });
                run_once(lab, testbed, control.zip(*fate), *v6, &mut rows[at])?;
            }
        }
    }
    let mut last = Recording::new();
    if let Some((testbed, control)) = with {
        control.stop();
        last = testbed.recording.lock().clone();
        testbed.tear_down();
    }
    if let Some(testbed) = base {
        testbed.tear_down();
    }
    Ok(last)
}

fn run_once(
    lab: &Lab,
    testbed: &mut Testbed,
    mut control: Option<(&mut Control, RateFate)>,
    v6: bool,
    row: &mut SafetyRow,
) -> Result<()> {
    testbed.forget_flows();
    let span_ns = lab.scaled(SPAN);
    let begin = now_ns() + LEAD_NS;
    // One size for both families: that of IPv6.
    let payload_bps = testbed.network.plan.capacities.host_bps as f64 * payload_share(true);
    let mut flows = Vec::new();
    let planned = connections(lab.options.connections.into(), payload_bps);
    let own_bytes_per_s = planned
        .iter()
        .filter_map(|planned| planned.behaviour.max_rate_bps)
        .map(|limit_bps| limit_bps / 8)
        .collect();
    for (i, planned) in planned.into_iter().enumerate() {
        // Bits per second to bytes; FILL leaves headroom, so that all can end within the span.
        let bytes = (planned.share_bps / 8.0 * span_ns as f64 / NS_PER_S as f64 * FILL) as u64;
        // The sink counts the header as payload, and cannot name a flow without it.
        let bytes = bytes.max(HEADER_BYTES as u64);
        let flow = testbed.flow(TransferSpec {
            label: planned.label.to_owned(),
            from: SENDER,
            to: RECEIVER,
            port: FIRST_PORT + i as u16 % PORTS,
            v6,
            start_ns: begin,
            connect_ns: None,
            end: FlowEnd::Bytes(bytes),
            behaviour: planned.behaviour,
        })?;
        flows.push((flow, bytes));
    }
    // Only the sender's sockets: a receiver sends no data that could be in back-off.
    let watch = BackoffWatch::start(
        testbed.network.netns(SENDER),
        FIRST_PORT..=FIRST_PORT + PORTS - 1,
        own_bytes_per_s,
    )?;
    // In the middle of the run, when every connection has its rate and still has bytes to send.
    lab.sleep_until(begin + span_ns / 2)?;
    if let Some((control, fate)) = &mut control {
        control.check_alive()?;
        match fate {
            RateFate::Leased => {}
            RateFate::Lapsed => control.kill_allocator(),
            RateFate::Released => control.release(true)?,
        }
        testbed
            .recording
            .event(format!("rates are {}", fate.name()));
    }
    // Half of the span has passed: twice a run in all, as PATIENCE says.
    let patience = Duration::from_nanos(span_ns * 3 / 2) + PATIENCE;
    testbed.wait_flows(lab, patience)?;
    // Before open connections are reset: what they do then is no result.
    let seen = watch.finish()?;
    row.silent_backoff += seen.silent;
    row.held = row.held.map(|held| held + seen.held);
    row.count(&testbed.recording.lock(), &flows);

    let open: Vec<u32> = {
        let recording = testbed.recording.lock();
        let is_open = |flow: &u32| {
            recording
                .flows
                .get(flow)
                .is_none_or(|record| record.ended_ns.is_none() && record.failed.is_none())
        };
        flows
            .iter()
            .map(|(flow, _)| *flow)
            .filter(is_open)
            .collect()
    };
    if !open.is_empty() {
        lab.live.say(format!(
            "{} of {} connections have not ended after {} s",
            open.len(),
            flows.len(),
            (now_ns() - begin) / NS_PER_S
        ));
        // The next run must find no connection of this one: their bytes would share its link.
        for flow in open {
            testbed.abort_flow(flow)?;
        }
        testbed.wait_flows(lab, ABORT_PATIENCE)?;
    }
    if let Some((control, fate)) = control {
        match fate {
            RateFate::Leased => {}
            // Undone here, so that every run begins with rates in force.
            RateFate::Lapsed => control.revive_allocator(lab, testbed)?,
            RateFate::Released => control.release(false)?,
        }
        control.check_alive()?;
    }
    lab.sleep_until(now_ns() + REST_NS)
}

/// A connection to be.
struct Planned {
    label: &'static str,
    /// Max-min fair rate of the connection.
    share_bps: f64,
    behaviour: Behaviour,
}

fn connections(count: usize, payload_bps: f64) -> Vec<Planned> {
    let (low, high) = LIMIT_BPS;
    // Log-uniform over the range: all decades have the same number of connections.
    let limit = |i: usize| low * (high / low).powf((i as f64 + 0.5) / count as f64);
    // Neighbours have limits far from each other: the order in which they connect says nothing.
    let limits: Vec<f64> = (0..count)
        .map(|i| match i % 3 {
            0 => f64::INFINITY,
            // 7 has no factor in common with the usual counts, so no limit occurs twice.
            _ => limit(i * 7 % count),
        })
        .collect();
    let level = max_min_level(&limits, payload_bps);
    limits
        .into_iter()
        .enumerate()
        .map(|(i, limit_bps)| {
            let (label, behaviour) = match i % 3 {
                0 => ("bulk", Behaviour::default()),
                1 => (
                    "own pacing limit",
                    Behaviour {
                        max_rate_bps: Some(limit_bps as u64),
                        ..Behaviour::default()
                    },
                ),
                _ => (
                    "little at a time",
                    Behaviour {
                        writing: Writing::Every {
                            bytes: (limit_bps / 8.0 * WRITE_EVERY_NS as f64 / NS_PER_S as f64)
                                as u32,
                            every_ns: WRITE_EVERY_NS,
                        },
                        ..Behaviour::default()
                    },
                ),
            };
            Planned {
                label,
                share_bps: limit_bps.min(level),
                behaviour,
            }
        })
        .collect()
}

/// The rate of those that no limit holds back: water rises until the capacity is used up.
fn max_min_level(limits: &[f64], capacity: f64) -> f64 {
    let mut sorted = limits.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut left = capacity;
    for (i, limit) in sorted.iter().enumerate() {
        let level = left / (sorted.len() - i) as f64;
        // All limits from here on are above the level: none of them binds.
        if *limit >= level {
            return level;
        }
        left -= limit;
    }
    f64::INFINITY
}

/// Keeps cores busy until the result is dropped: all of them, unless told otherwise.
fn burn(lab: &Lab) -> Result<Vec<Process>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..lab.options.busy.map_or(cores, usize::from))
        .map(|program| {
            let mut command = std::process::Command::new(&lab.binaries.lab);
            command.arg("lab-burn").arg((program % cores).to_string());
            let log = lab.run_dir.join("burn.log");
            Process::start_here("the busy program", command, &log)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_max_min_fair_and_fill_the_link() {
        assert_eq!(max_min_level(&[f64::INFINITY; 4], 100.0), 25.0);
        assert_eq!(max_min_level(&[10.0, 90.0, f64::INFINITY], 100.0), 45.0);
        assert_eq!(max_min_level(&[10.0, 20.0], 100.0), f64::INFINITY);
        for count in [30, 150, 300] {
            let planned = connections(count, 180e6);
            let sum: f64 = planned.iter().map(|p| p.share_bps).sum();
            assert!((sum / 180e6 - 1.0).abs() < 1e-9, "{count}: {sum}");
        }
        for planned in connections(300, 180e6) {
            assert!((0.19e6..2.1e6).contains(&planned.share_bps));
        }
    }

    #[test]
    fn a_connection_that_never_ends_counts_and_so_do_its_bytes() {
        let mut recording = Recording::new();
        for flow in 1..=3 {
            recording.announce(flow, "bulk");
        }
        let end = |record: &mut crate::measure::recording::FlowRecord, bytes| {
            record.started_ns = Some(0);
            record.ended_ns = Some(2 * NS_PER_S);
            record.received_bytes = Some(bytes);
        };
        end(&mut recording.flows[&1], 100);
        end(&mut recording.flows[&2], 99);
        let mut row = SafetyRow::new(Backend::SockOps, Some(RateFate::Leased), false);
        // Of the fourth nothing was ever heard.
        row.count(&recording, &[(1, 100), (2, 100), (3, 100), (4, 100)]);
        assert_eq!((row.connections, row.unfinished, row.broken), (4, 2, 0));
        assert_eq!(row.missing_bytes, 201);
        assert_eq!(row.completion_s.unwrap().p50, 2.0);
    }
}
