//! One built network with its traffic programs and its measurements.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratewright_cli::process::Process;

use super::context::Lab;
use crate::measure::ports::PortSampler;
use crate::measure::recording::{FlowRecord, SharedRecording};
use crate::net::build::BuiltNetwork;
use crate::net::ns;
use crate::net::plan::NetworkPlan;
use crate::proc::{self, Placement, Work};
use crate::traffic::protocol::{self, Behaviour, FlowPlan, Report};

/// Ports that sinks listen on: data flows by weight class, and short flows.
pub const FIRST_PORT: u16 = 5001;
/// Number of those ports.
pub const PORTS: u16 = 8;

/// A traffic program in a host.
#[derive(Debug)]
struct Program {
    process: Process,
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

/// Condition on which a flow ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEnd {
    /// After this number of payload bytes.
    Bytes(u64),
    /// At this time.
    At(u64),
    /// At the scenario's command.
    Told,
}

/// A flow to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferSpec {
    /// Name in the legend.
    pub label: String,
    /// Sending host.
    pub from: usize,
    /// Receiving host.
    pub to: usize,
    /// Receiver's port.
    pub port: u16,
    /// Over IPv6.
    pub v6: bool,
    /// Time at which the sender begins to write, in nanoseconds of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Time of the connect, if it is before that.
    pub connect_ns: Option<u64>,
    /// Condition on which the flow ends.
    pub end: FlowEnd,
    /// Special behaviour of its two ends.
    pub behaviour: Behaviour,
}

/// The network of one phase.
#[derive(Debug)]
pub struct Testbed {
    /// `base`, `with` or the like.
    pub name: String,
    /// The namespaces and links.
    pub network: BuiltNetwork,
    /// Measurements of the testbed's flows and ports.
    pub recording: SharedRecording,
    /// Directory for configurations, sockets and logs.
    pub dir: PathBuf,
    cgroups: Vec<PathBuf>,
    senders: IndexMap<usize, Program>,
    sinks: IndexMap<usize, Program>,
    samplers: Vec<PortSampler>,
    flows: IndexMap<u32, usize>,
    last_flow: u32,
}

impl Testbed {
    /// Builds the network and starts a sender in each of `senders` and a sink in each of `sinks`.
    ///
    /// # Errors
    /// When something cannot be built; the lab's clean-up removes the rest.
    pub fn build(
        lab: &Lab,
        name: &str,
        plan: NetworkPlan,
        senders: &[usize],
        sinks: &[usize],
    ) -> Result<Testbed> {
        let dir = lab.run_dir.join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let cgroups = plan
            .nodes
            .iter()
            .map(|node| lab.cgroup(name, &node.name))
            .collect::<Result<Vec<_>>>()?;
        let network = BuiltNetwork::build(plan, &lab.prefix(name), ecmp_seed(lab))
            .context("building the network")?;
        let mut testbed = Testbed {
            name: name.to_owned(),
            network,
            recording: SharedRecording::default(),
            dir,
            cgroups,
            senders: IndexMap::new(),
            sinks: IndexMap::new(),
            samplers: Vec::new(),
            flows: IndexMap::new(),
            last_flow: 0,
        };
        // Sinks first: a sender may connect as soon as it is started.
        for host in sinks {
            let program = testbed.start_program(&lab.binaries.lab, *host, "lab-sink")?;
            testbed.sinks.insert(*host, program);
        }
        for host in senders {
            let program = testbed.start_program(&lab.binaries.lab, *host, "lab-traffic")?;
            testbed.senders.insert(*host, program);
        }
        // Only for the error's text: any sink's address shows which network failed.
        let port = testbed
            .network
            .plan
            .host_addr(sinks.first().copied().unwrap_or(0), false);
        lab.check()?;
        testbed
            .wait_listening(lab)
            .with_context(|| format!("waiting for the sink at {port}"))?;
        Ok(testbed)
    }

    /// Returns the namespace, cgroup and cores of a node's processes.
    #[must_use]
    pub fn place(&self, node: usize, work: Work) -> Placement<'_> {
        Placement {
            work,
            netns: self.network.netns(node),
            cgroup: &self.cgroups[node],
        }
    }

    /// The cgroup of a node.
    #[must_use]
    pub fn cgroup(&self, node: usize) -> &Path {
        &self.cgroups[node]
    }

    /// Watches the switch's ports towards `hosts`; the first is the bottleneck.
    ///
    /// # Errors
    /// When the switch's namespace cannot be entered.
    pub fn watch_ports(&mut self, hosts: &[usize]) -> Result<()> {
        for host in hosts {
            // Links of hosts come first in the plan, in the hosts' order.
            let link = &self.network.plan.links[*host];
            let device = (
                link.upper.device.clone(),
                self.network.plan.capacities.host_bps,
            );
            let sampler = PortSampler::start(
                self.network.netns(link.upper.node),
                &[device],
                &self.recording,
            )?;
            self.samplers.push(sampler);
        }
        Ok(())
    }

    /// Plans a flow; returns its number.
    ///
    /// # Errors
    /// When its sender is gone.
    pub fn flow(&mut self, spec: TransferSpec) -> Result<u32> {
        self.last_flow += 1;
        let flow = self.last_flow;
        let to = (self.network.plan.host_addr(spec.to, spec.v6), spec.port).into();
        let (bytes, stop_ns) = match spec.end {
            FlowEnd::Bytes(bytes) => (Some(bytes), None),
            FlowEnd::At(at) => (None, Some(at)),
            FlowEnd::Told => (None, None),
        };
        self.flows.insert(flow, spec.from);
        // Announced before the command is sent: the sender's first report may come at once.
        self.recording.lock().announce(flow, spec.label);
        self.tell(
            spec.from,
            &protocol::SenderCommand::Start(FlowPlan {
                flow,
                to,
                start_ns: spec.start_ns,
                connect_ns: spec.connect_ns,
                bytes,
                stop_ns,
                behaviour: spec.behaviour,
            }),
        )?;
        Ok(flow)
    }

    /// Ends a long flow.
    ///
    /// # Errors
    /// When its sender is gone.
    pub fn stop_flow(&mut self, flow: u32) -> Result<()> {
        let host = *self.flows.get(&flow).context("no such flow")?;
        self.tell(host, &protocol::SenderCommand::Stop { flow })
    }

    /// Forgets flows that are over and what was measured of them: long scenarios keep figures only.
    pub fn forget_flows(&mut self) {
        self.flows.clear();
        self.recording.lock().flows.clear();
    }

    /// Resets a flow's connection, which then counts as ended, not as lost.
    ///
    /// # Errors
    /// When its sender is gone.
    pub fn abort_flow(&mut self, flow: u32) -> Result<()> {
        let host = *self.flows.get(&flow).context("no such flow")?;
        if let Some(record) = self.recording.lock().flows.get_mut(&flow) {
            // Set before the command: both ends report the reset as a failure.
            record.aborted = true;
        }
        self.tell(host, &protocol::SenderCommand::Abort { flow })
    }

    /// Sends a signal to a host's receiver.
    ///
    /// # Errors
    /// When there is none.
    pub fn signal_sink(&self, host: usize, signal: Signal) -> Result<()> {
        let program = self.sinks.get(&host).context("no sink in this host")?;
        kill(Pid::from_raw(program.process.id() as i32), signal)
            .with_context(|| format!("sending {signal} to the {}", program.process.name()))
    }

    /// Resets the connections of all flows that still run, and waits for their ends.
    ///
    /// # Errors
    /// When a sender is gone, a flow does not end within `patience`, or the user wants to leave.
    pub fn end_flows(&mut self, lab: &Lab, patience: Duration) -> Result<()> {
        let is_open = |record: &FlowRecord| {
            record.ended_ns.is_none() && record.failed.is_none() && !record.aborted
        };
        let open: Vec<u32> = {
            let recording = self.recording.lock();
            let flows = recording.flows.iter();
            flows
                .filter(|(_, record)| is_open(record))
                .map(|(flow, _)| *flow)
                .collect()
        };
        for flow in open {
            self.abort_flow(flow)?;
        }
        if !self.wait_flows(lab, patience)? {
            bail!("a flow did not end within {} s", patience.as_secs());
        }
        Ok(())
    }

    fn tell(&mut self, host: usize, command: &protocol::SenderCommand) -> Result<()> {
        let program = self
            .senders
            .get_mut(&host)
            .context("no sender in this host")?;
        let input = program
            .input
            .as_mut()
            .context("the sender was told to end")?;
        let mut line = serde_json::to_string(command).context("writing a command")?;
        line.push('\n');
        input
            .write_all(line.as_bytes())
            .with_context(|| format!("the {} died: see its log", program.process.name()))
    }

    /// Waits until every planned flow has ended or failed; false if not within `patience`.
    ///
    /// # Errors
    /// When the user wants to leave, or a traffic program died.
    pub fn wait_flows(&mut self, lab: &Lab, patience: Duration) -> Result<bool> {
        let recording = self.recording.clone();
        lab.wait_for(patience, || {
            self.check_alive()?;
            let recording = recording.lock();
            Ok(recording
                .flows
                .values()
                .all(|flow| flow.ended_ns.is_some() || flow.failed.is_some()))
        })
    }

    /// Fails if a traffic program died.
    ///
    /// # Errors
    /// Then.
    pub fn check_alive(&mut self) -> Result<()> {
        for program in self.senders.values_mut().chain(self.sinks.values_mut()) {
            if let Some(status) = program.process.exited() {
                bail!("{} ended ({status}): see its log", program.process.name());
            }
        }
        Ok(())
    }

    /// Ends traffic and measurement and removes the namespaces.
    pub fn tear_down(mut self) {
        // Dropping a sampler joins its thread, which holds a switch's namespace open.
        self.samplers.clear();
        for mut program in std::mem::take(&mut self.senders)
            .into_values()
            .chain(std::mem::take(&mut self.sinks).into_values())
        {
            // Closed input asks the program to end; the kill below does not wait for its flows.
            program.input = None;
            program.process.kill();
            if let Some(reader) = program.reader.take() {
                let _ = reader.join();
            }
        }
        for node in 0..self.network.plan.nodes.len() {
            // The name goes now, the namespace itself when its last descriptor is closed.
            ns::delete(self.network.netns(node).name());
        }
    }

    fn start_program(&self, program: &Path, host: usize, what: &str) -> Result<Program> {
        let node = &self.network.plan.nodes[host].name;
        let name = format!("{what} of {node}");
        let log = self.dir.join(format!("{what}-{node}.log"));
        let mut command = Command::new(program);
        command
            .arg(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // Senders take no arguments: their flows come through standard input.
        if what == "lab-sink" {
            command.args((FIRST_PORT..FIRST_PORT + PORTS).map(|port| port.to_string()));
        }
        let mut process = proc::start(&name, command, &self.place(host, Work::Data), &log)?;
        let input = process.child().stdin.take();
        let output = process
            .child()
            .stdout
            .take()
            .context("a child without standard output")?;
        let recording = self.recording.clone();
        let read = move || {
            // Ends with the program's standard output, so that `tear_down` can join this thread.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match serde_json::from_str::<Report>(&line) {
                    Ok(report) => recording.lock().take(report),
                    Err(error) => recording.event(format!("{name} said nonsense: {error}")),
                }
            }
        };
        let reader = std::thread::Builder::new()
            .name(what.to_owned())
            .spawn(read)
            .context("starting a reader")?;
        Ok(Program {
            process,
            input,
            reader: Some(reader),
        })
    }

    fn wait_listening(&mut self, lab: &Lab) -> Result<()> {
        let hosts = self.sinks.len();
        let recording = self.recording.clone();
        let ready = lab.wait_for(Duration::from_secs(10), || {
            self.check_alive()?;
            Ok(recording.lock().listening >= hosts)
        })?;
        if !ready {
            bail!("a sink does not listen within 10 s");
        }
        Ok(())
    }
}

/// Seed of the path hash, in the topology file and in the leaves alike.
#[must_use]
pub fn ecmp_seed(lab: &Lab) -> u32 {
    // Not the seed itself, which the cross traffic's generator uses.
    lab.options.seed as u32 ^ 0x5eed
}
