//! Names of what is not as told: capacities, senders, paths, addresses and settings change under a
//! network that was right. The allocator has to name each on the right link or host within
//! [`NAMED_WITHIN_S`], to name nothing else, and to take the name back within
//! [`TAKEN_BACK_WITHIN_S`] after the change is undone.
//!
//! | case | change |
//! |---|---|
//! | capacity told 1.25 times too high | the receiver's link falls to 0.8 of its capacity |
//! | capacity told 1.25 times too low | it rises to 1.25, and a host without a daemon fills it |
//! | a sender without a daemon | one begins to send to the receiver |
//! | an address of another host | a host takes the second one's address, too |
//! | another default | a host's default congestion control is set anew |
//! | a wrong path | a leaf sends all flows over the first spine |
//!
//! Names are looked for where operators look: in `/status`, in `/explain`, in what the page shows,
//! and in the metrics, which the alerts are about.

mod judge;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};
use serde_json::Value;

use super::outcome::RunOutcome;
use super::phases::capacities;
use crate::lab::context::Lab;
use crate::lab::control::{Control, ControlKeys};
use crate::lab::testbed::{FIRST_PORT, FlowEnd, PORTS, Testbed, TransferSpec, ecmp_seed};
use crate::net::plan::{Capacities, NetworkPlan, Offload};
use crate::traffic::protocol::Behaviour;
pub use judge::{CheckRow, NAMED_WITHIN_S, TAKEN_BACK_WITHIN_S};
use judge::{CheckRun, Named, PLACES};

/// Hosts at one switch: two that are managed, one without a daemon, and the receiver.
const AT_ONE_SWITCH: usize = 4;
const MANAGED: [usize; 2] = [0, 1];
const UNMANAGED: usize = 2;
const RECEIVER: usize = 3;
/// Connections of the sender without a daemon.
const UNMANAGED_FLOWS: u16 = 2;
/// Two racks of three hosts, each of which sends to its like.
const RACK: usize = 3;
const SPINES: usize = 2;
/// Tries to have flows on both spines.
const PATH_TRIES: u32 = 30;

const LEAD_NS: u64 = 150 * NS_PER_MS;
/// Time that a case runs as told, from the start of its flows on.
const AS_TOLD: Duration = Duration::from_secs(4);
/// Time for which a change stands after it was named.
const STANDS: Duration = Duration::from_secs(2);
/// Names are asked for this often,
const POLL_NS: u64 = 100 * NS_PER_MS;
/// and waited for so many times as long as is promised: what is late is said, too.
const PATIENCE: f64 = 2.0;
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// Change of a network that was right.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    /// The receiver's link has this part of its capacity. True: a host without a daemon begins to
    /// send over it, too.
    Capacity(f64, bool),
    /// The first host takes the address of the second, too.
    Address,
    /// The first host's default congestion control is another.
    Default,
    /// The first leaf sends all flows over the first spine.
    Path,
}

struct Case {
    name: &'static str,
    change: Change,
    named: Named,
    /// State that may stand beside it, on the same link.
    beside: Option<&'static str>,
}

const AT_RECEIVER: &str = "->h4";

const CASES: [Case; 5] = [
    Case {
        name: "capacity told 1.25 times too high",
        change: Change::Capacity(0.8, false),
        named: Named::Link(AT_RECEIVER, "carries_less"),
        beside: None,
    },
    Case {
        name: "capacity told 1.25 times too low",
        change: Change::Capacity(1.25, true),
        named: Named::Link(AT_RECEIVER, "carries_more"),
        beside: Some("has_others_traffic"),
    },
    Case {
        name: "a sender without a daemon",
        change: Change::Capacity(1.0, true),
        named: Named::Link(AT_RECEIVER, "has_others_traffic"),
        beside: None,
    },
    Case {
        name: "an address of another host",
        change: Change::Address,
        named: Named::Host("h2", "prefix_of_several_hosts"),
        beside: None,
    },
    Case {
        name: "another default",
        change: Change::Default,
        named: Named::Host("h1", "congestion_control_changed"),
        beside: None,
    },
];

const WRONG_PATH: Case = Case {
    name: "a wrong path",
    change: Change::Path,
    named: Named::OfPaths("wrong_path"),
    beside: None,
};

/// Runs all cases, [`runs`](crate::options::LabOptions::runs) times.
///
/// # Errors
/// When the lab itself fails; a case that misses something is a result.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let mut rows: Vec<CheckRow> = Vec::new();
    let backend;
    {
        let plan = NetworkPlan::big_switch(AT_ONE_SWITCH, in_bursts(lab, 1));
        let senders: Vec<usize> = MANAGED.into_iter().chain([UNMANAGED]).collect();
        let mut side = Side::build(lab, "switch", plan, &senders, &[RECEIVER], &[UNMANAGED])?;
        backend = side.control.backend();
        side.run_all(lab, &CASES, &mut rows)?;
        side.finish();
    }
    let plan = NetworkPlan::two_tier(2, RACK, SPINES, in_bursts(lab, 2));
    let (senders, sinks): (Vec<usize>, Vec<usize>) =
        ((0..RACK).collect(), (RACK..2 * RACK).collect());
    let mut side = Side::build(lab, "clos", plan, &senders, &sinks, &[])?;
    side.run_all(lab, &[WRONG_PATH], &mut rows)?;
    side.finish();
    Ok(RunOutcome {
        missed: judge::verdict(&rows),
        checks: Some(rows),
        ..RunOutcome::empty(backend.unwrap_or_else(|| lab.options.backend.name().to_owned()))
    })
}

/// Capacities whose hosts send bursts, as a NIC does, at a part of the links' speed: packets of the
/// Clos cross more switches.
fn in_bursts(lab: &Lab, part: u64) -> Capacities {
    let capacities = capacities(lab);
    Capacities {
        host_bps: capacities.host_bps / part,
        fabric_bps: capacities.fabric_bps / part,
        shape_hosts: false,
        offload: Offload::Interfaces,
        ..capacities
    }
}

/// A network with its control plane.
struct Side {
    testbed: Testbed,
    control: Control,
    port: u16,
    /// Links between switches that the flows are told to cross.
    paths: BTreeSet<String>,
}

impl Side {
    fn build(
        lab: &Lab,
        name: &str,
        plan: NetworkPlan,
        senders: &[usize],
        sinks: &[usize],
        unmanaged: &[usize],
    ) -> Result<Self> {
        lab.live.say(format!("building the network `{name}`"));
        let testbed = Testbed::build(lab, name, plan, senders, sinks)?;
        let keys = ControlKeys {
            unmanaged,
            min_flowlet_bytes: None,
            ..ControlKeys::of(lab)
        };
        let control = Control::start_with(lab, &testbed, &keys)?;
        Ok(Self {
            testbed,
            control,
            port: 0,
            paths: BTreeSet::new(),
        })
    }

    fn finish(self) {
        self.control.stop();
        self.testbed.tear_down();
    }

    fn run_all(&mut self, lab: &Lab, cases: &[Case], rows: &mut Vec<CheckRow>) -> Result<()> {
        for case in cases {
            let mut runs = Vec::new();
            for run in 0..lab.options.runs() {
                let what = format!("{}, run {} of {}", case.name, run + 1, lab.options.runs());
                lab.live.phase(&what, &self.testbed.recording);
                let run = self.run_case(lab, case).with_context(|| case.name)?;
                lab.live.say(format!("{what}: {run}"));
                runs.push(run);
            }
            rows.push(CheckRow::new(case.name, case.named, &runs));
        }
        Ok(())
    }

    fn run_case(&mut self, lab: &Lab, case: &Case) -> Result<CheckRun> {
        let pairs: Vec<(usize, usize)> = if case.change == Change::Path {
            (0..RACK).map(|host| (host, RACK + host)).collect()
        } else {
            MANAGED.map(|host| (host, RECEIVER)).to_vec()
        };
        let mut flows = Vec::new();
        for &(from, to) in &pairs {
            flows.push(self.flow(from, to)?);
        }
        if case.change == Change::Path {
            self.paths = self.spread(lab, &pairs, &mut flows)?;
        }
        let mut run = CheckRun::default();
        let until_ns = now_ns() + LEAD_NS + lab.scaled(AS_TOLD);
        while now_ns() < until_ns {
            // Nothing is wrong yet, so that any name is.
            let names = self.watch(case, &mut run)?;
            run.others
                .extend(names.into_iter().map(|name| format!("{name} before")));
            lab.sleep_until(now_ns() + POLL_NS)?;
        }

        let changed_ns = now_ns();
        self.change(lab, case.change, &mut flows)?;
        let within_ns = (PATIENCE * NAMED_WITHIN_S * NS_PER_S as f64) as u64;
        while now_ns() < changed_ns + within_ns {
            let names = self.watch(case, &mut run)?;
            if names.iter().any(|name| case.named.is(name, &self.paths)) {
                run.named_s = Some(seconds(now_ns() - changed_ns));
                run.seen_in = self.places(case, &pairs)?;
                break;
            }
            lab.sleep_until(now_ns() + POLL_NS)?;
        }
        let until_ns = now_ns() + lab.scaled(STANDS);
        while now_ns() < until_ns {
            self.watch(case, &mut run)?;
            lab.sleep_until(now_ns() + POLL_NS)?;
        }

        let undone_ns = now_ns();
        self.undo(lab, case.change, &mut flows, pairs.len())?;
        let within_ns = (PATIENCE * TAKEN_BACK_WITHIN_S * NS_PER_S as f64) as u64;
        while now_ns() < undone_ns + within_ns {
            let names = self.watch(case, &mut run)?;
            if names.is_empty() {
                run.taken_back_s = Some(seconds(now_ns() - undone_ns));
                break;
            }
            lab.sleep_until(now_ns() + POLL_NS)?;
        }
        self.testbed.end_flows(lab, DRAIN_PATIENCE)?;
        self.control.check_alive()?;
        self.testbed.forget_flows();
        Ok(run)
    }

    fn flow(&mut self, from: usize, to: usize) -> Result<u32> {
        self.port = (self.port + 1) % PORTS;
        self.testbed.flow(TransferSpec {
            label: format!("h{}→h{}", from + 1, to + 1),
            from,
            to,
            port: FIRST_PORT + self.port,
            v6: false,
            start_ns: now_ns() + LEAD_NS,
            connect_ns: None,
            end: FlowEnd::Bytes(1 << 50),
            behaviour: Behaviour::default(),
        })
    }

    /// Starts the last pair's flow anew until not all flows are told to take one spine. Returns the
    /// links between switches that they are told to cross.
    fn spread(
        &mut self,
        lab: &Lab,
        pairs: &[(usize, usize)],
        flows: &mut [u32],
    ) -> Result<BTreeSet<String>> {
        for _ in 0..PATH_TRIES {
            // Until the allocator knows them.
            lab.sleep_until(now_ns() + 5 * LEAD_NS)?;
            let mut spines = BTreeSet::new();
            let mut are_known = true;
            for &pair in pairs {
                let (answer, links) = self.explain(pair)?;
                // A flow that has just ended took a spine that no flow of the case takes.
                are_known &= each(&answer["flows"]).count() == 1;
                spines.extend(links.into_iter().filter(|name| name.contains("spine")));
            }
            if !are_known {
                continue;
            }
            // Up and down the same one for all is two links.
            if spines.len() > 2 {
                return Ok(spines);
            }
            let (&(from, to), last) = pairs.last().zip(flows.last_mut()).context("no flows")?;
            self.testbed.abort_flow(*last)?;
            *last = self.flow(from, to)?;
        }
        bail!("all flows take one spine after {PATH_TRIES} tries")
    }

    /// Asks why a pair's flows have their rates: the answer, and the names of the flows' links.
    fn explain(&self, (from, to): (usize, usize)) -> Result<(Value, BTreeSet<String>)> {
        let nodes = &self.testbed.network.plan.nodes;
        let path = format!("/explain?from={}&to={}", nodes[from].name, nodes[to].name);
        let answer = self.ask(&path)?;
        let names = flow_links(&answer).filter_map(|link| Some(link["name"].as_str()?.to_owned()));
        let names = names.collect();
        Ok((answer, names))
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let body = self.control.ask_allocator(path)?;
        serde_json::from_str(&body).with_context(|| format!("{path} is no JSON"))
    }

    /// Returns what the allocator names now, and notes what it should not.
    fn watch(&self, case: &Case, run: &mut CheckRun) -> Result<BTreeSet<String>> {
        let names = names_in(
            &self.ask("/status")?,
            "links_not_as_told",
            "hosts_not_as_told",
        );
        for name in &names {
            let is_beside = || {
                let beside = case.beside?;
                let (link, state) = name.split_once(' ')?;
                (case.named.is_of(link, &self.paths) && state == beside).then_some(())
            };
            if !case.named.is(name, &self.paths) && is_beside().is_none() {
                run.others.insert(name.clone());
            }
        }
        Ok(names)
    }

    /// Returns the places at which the case's name stands. Some pair's flow crosses each link that
    /// may be named.
    fn places(&self, case: &Case, pairs: &[(usize, usize)]) -> Result<BTreeSet<&'static str>> {
        let mut places = BTreeSet::from([PLACES[0]]);
        // Of a host, whoever asks about it is told.
        let of_hosts = [(MANAGED[0], MANAGED[1])];
        let asked_about = match case.named {
            Named::Host(..) => &of_hosts[..],
            Named::Link(..) | Named::OfPaths(_) => pairs,
        };
        let mut explained = BTreeSet::new();
        for &pair in asked_about {
            let (answer, _) = self.explain(pair)?;
            explained.extend(flow_links(&answer).filter_map(|link| {
                let state = link["check"]["state"].as_str()?;
                Some(format!("{} {state}", link["name"].as_str()?))
            }));
            for end in ["from", "to"] {
                explained.extend(names_in(&answer[end], "links", "faults"));
            }
        }
        let shown = names_in(&self.ask("/overview")?, "not_as_told", "faults");
        let metrics = self.control.ask_allocator("/metrics")?;
        let counted = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_default();
            name.contains("_not_as_told{")
                && name.contains(&format!("\"{}\"", case.named.label()))
                && value.parse::<f64>().is_ok_and(|count| count > 0.0)
        };
        let stands =
            |names: &BTreeSet<String>| (names.iter()).any(|name| case.named.is(name, &self.paths));
        for (place, is_there) in PLACES[1..].iter().zip([
            stands(&explained),
            stands(&shown),
            metrics.lines().any(counted),
        ]) {
            if is_there {
                places.insert(place);
            }
        }
        Ok(places)
    }

    fn change(&mut self, lab: &Lab, change: Change, flows: &mut Vec<u32>) -> Result<()> {
        match change {
            Change::Capacity(part, has_sender) => {
                self.testbed.network.scale_downlink(RECEIVER, part)?;
                if has_sender {
                    for _ in 0..UNMANAGED_FLOWS {
                        flows.push(self.flow(UNMANAGED, RECEIVER)?);
                    }
                }
                Ok(())
            }
            Change::Address => self.set_address("add"),
            Change::Default => self.set_default("reno"),
            Change::Path => self.testbed.network.route_by_ecmp(0, 1, ecmp_seed(lab)),
        }
    }

    /// Undoes a change; of the flows, the first `kept` go on.
    fn undo(&mut self, lab: &Lab, change: Change, flows: &mut Vec<u32>, kept: usize) -> Result<()> {
        for flow in flows.drain(kept..) {
            self.testbed.abort_flow(flow)?;
        }
        match change {
            Change::Capacity(..) => self.testbed.network.scale_downlink(RECEIVER, 1.0),
            Change::Address => self.set_address("del"),
            Change::Default => self.set_default("cubic"),
            Change::Path => self
                .testbed
                .network
                .route_by_ecmp(0, SPINES, ecmp_seed(lab)),
        }
    }

    fn set_address(&self, verb: &str) -> Result<()> {
        let network = &self.testbed.network;
        let address = network.plan.host_addr(MANAGED[1], false);
        network.ip(MANAGED[0], &format!("addr {verb} {address}/32 dev lo\n"))
    }

    fn set_default(&self, congestion: &str) -> Result<()> {
        let netns = self.testbed.network.netns(MANAGED[0]);
        netns.write_settings(&[("net/ipv4/tcp_congestion_control", congestion)])
    }
}

/// Elements of a list; none of anything else.
fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Links of the flows in an answer of `/explain`.
fn flow_links(answer: &Value) -> impl Iterator<Item = &Value> {
    each(&answer["flows"]).flat_map(|flow| each(&flow["links"]))
}

/// Names in an answer: `link state` and `host fault`.
fn names_in(answer: &Value, links: &str, hosts: &str) -> BTreeSet<String> {
    let pair = |object: &Value, who: &str, what: &str| {
        Some(format!(
            "{} {}",
            object[who].as_str()?,
            object[what].as_str()?
        ))
    };
    let of_links = each(&answer[links]).filter_map(|link| pair(link, "name", "state"));
    let of_hosts = each(&answer[hosts]).filter_map(|host| pair(host, "host", "fault"));
    of_links.chain(of_hosts).collect()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / NS_PER_S as f64
}
