//! The daemon: one loop on one thread joins the back end, the flow table and the session.
//!
//! After each wake-up, the loop does all work that follows from it before it waits again (`pump`).
//! Kernel events become session records and a datagram, and a datagram's rates reach the kernel, in
//! the same turn. Nothing waits for a tick. The timers are the protocol's own: an idle daemon wakes
//! for its keep-alives and for nothing else.

mod kernel;
mod members;
mod report;
mod second_line;
mod session;
mod telemetry;

use std::time::Duration;

use ratewright_io::tls::TlsError;
use ratewright_proto::client::{ClientConfig, ClientSession};
use ratewright_proto::control::{Refusal, RefusalCode, Welcome};
use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::admin::AdminRequest;
use crate::backend::left_behind::LeftOver;
use crate::backend::{BackendError, PacingBackend};
use crate::clock;
use crate::config::{Config, HotTransport, PacingMode};
use crate::flows::{FlowTable, PacingState};
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::readable;
use crate::samples::Samples;
use crate::second_line::peers::PeersError;
use crate::session_io::tls::{check_host_name, client_config};
use crate::session_io::{AllocatorConnection, ConnectionEvent, ConnectionFailure};
use crate::telemetry::Sampler;
use kernel::KernelSide;
use members::KnownMembers;
use second_line::DaemonSecondLine;

/// Command of the process to the running daemon.
#[derive(Debug)]
pub enum DaemonCommand {
    /// Take the policy, the idle gap and the certificates of this configuration.
    Reload(Box<Config>),
    /// Give all connections back and end.
    Stop,
}

/// Exit of a daemon without an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// A command stopped it.
    Stopped,
    /// Another daemon of this host has taken the session over.
    Superseded(String),
}

/// Error that ended a daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The certificates cannot be used.
    #[error("[tls]: {0}")]
    Tls(#[from] TlsError),
    /// The metrics could not be set up.
    #[error("metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// The daemon ends, and some of what it changed stays.
    #[error(
        "not everything was given back ({0}); the next daemon tries again, or ratewright-endpointd cleanup --yes without one"
    )]
    NotGivenBack(BackendError),
    /// The runtime cannot watch the back end's descriptor.
    #[error("cannot wait for the back end's events: {0}")]
    Events(std::io::Error),
    /// The second line cannot be opened.
    #[error("[second_line]: {0}")]
    SecondLine(#[from] PeersError),
    /// The allocator refuses this host, and another attempt would not help.
    #[error("the allocator refused this host ({code:?}): {reason}")]
    Refused {
        /// The kind.
        code: RefusalCode,
        /// Explanation by the allocator.
        reason: String,
    },
    /// No allocator accepts this host's certificate, or an allocator's own certificate is wrong.
    #[error("no allocator could be authenticated: {0}")]
    Certificate(ConnectionFailure),
}

/// Progress and failures of the session.
#[derive(Debug, Default)]
struct SessionHealth {
    welcome: Option<Welcome>,
    /// Hosts that have joined the allocator's network at run time.
    members: KnownMembers,
    topology_version: u32,
    /// Time of the last valid message from the allocator, and the liveness time-out.
    last_heard_ns: u64,
    liveness_timeout_ns: u64,
    last_error: Option<String>,
    /// Earliest time of the next warning about a failure to connect.
    next_warning_ns: u64,
    /// Consecutive attempts that failed over certificates.
    tls_failures: usize,
    ever_established: bool,
}

/// The endpoint daemon.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    kernel: KernelSide,
    flows: FlowTable,
    session: ClientSession,
    connection: AllocatorConnection,
    health: SessionHealth,
    first_paced: Samples,
    first_rate: Samples,
    metrics: Metrics,
    sampler: Sampler,
    second_line: Option<DaemonSecondLine>,
    started_ns: u64,
    /// Left-overs of other daemons at the start.
    left_overs: Vec<String>,
    /// Buffer of the datagram that is built, reused.
    outgoing: Vec<u8>,
}

impl Daemon {
    /// Makes a daemon that is ready to [`run`](Self::run). Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the certificates cannot be read.
    pub fn new(config: Config, backend: Box<dyn PacingBackend>) -> Result<Self, DaemonError> {
        let client = client_config(&config.tls)?;
        let incarnation = clock::incarnation();
        let session = ClientSession::new(ClientConfig {
            host_name: config.host.clone(),
            incarnation,
            software: concat!("ratewright-endpointd ", env!("CARGO_PKG_VERSION")).to_owned(),
            max_flows: config.pacing.max_flows,
            sealed_udp: config.transport.hot == HotTransport::Udp,
            ..ClientConfig::default()
        });
        let mut flows = FlowTable::new(
            config.pacing.max_flows,
            config.pacing.idle_gap_us * 1_000,
            Policy::new(&config.policy),
        );
        flows.set_measures_demand(config.pacing.measure_demand);
        if config.pacing.mode == PacingMode::Observe {
            flows.begin_in(PacingState::Observe);
        }
        let kernel = KernelSide::new(backend);
        kernel.warn_of_missing(&flows.refresh_cgroups(kernel.cgroups()));
        Ok(Self {
            connection: AllocatorConnection::new(
                &config.allocator,
                &config.tls.server_name,
                client,
                &config.session,
                config.transport,
                incarnation,
            ),
            sampler: Sampler::new(&config.telemetry),
            second_line: DaemonSecondLine::open(&config, incarnation)?,
            config,
            kernel,
            flows,
            session,
            health: SessionHealth::default(),
            first_paced: Samples::default(),
            first_rate: Samples::default(),
            metrics: Metrics::new()?,
            started_ns: clock::now_ns(),
            left_overs: Vec::new(),
            outgoing: Vec::new(),
        })
    }

    /// Tells, in log, status and metrics, what other daemons have left on this host.
    pub fn tell_left_overs(&mut self, found: &[LeftOver]) {
        for left in found {
            tracing::warn!(
                instance = left.instance,
                "an earlier daemon could not give this back: {}; ratewright-endpointd cleanup --yes removes it while no daemon runs",
                left.what
            );
        }
        self.left_overs = found.iter().map(|left| left.what.clone()).collect();
    }

    /// Runs until a command stops it, or until the allocator refuses this host for good. In either
    /// case all connections are plain TCP again. Must be called within a `LocalRuntime` or a
    /// `LocalSet`.
    ///
    /// # Errors
    /// See [`DaemonError`].
    pub async fn run(
        mut self,
        mut commands: mpsc::Receiver<DaemonCommand>,
        mut requests: mpsc::Receiver<AdminRequest>,
    ) -> Result<Exit, DaemonError> {
        let result = self.turn_until_end(&mut commands, &mut requests).await;
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        // The ends go out before the connection closes: their capacity is free at once.
        self.flows.end_all();
        self.pump();
        self.connection.close().await;
        if let Err(left) = self.kernel.backend.shut_down() {
            // The worse of two: a refusal alone leaves nothing behind on this host.
            if let Err(error) = &result {
                tracing::error!("{error}");
            }
            return Err(DaemonError::NotGivenBack(left));
        }
        tracing::info!("all connections were given back");
        result
    }

    async fn turn_until_end(
        &mut self,
        commands: &mut mpsc::Receiver<DaemonCommand>,
        requests: &mut mpsc::Receiver<AdminRequest>,
    ) -> Result<Exit, DaemonError> {
        let events =
            readable::watch(self.kernel.backend.event_fd()).map_err(DaemonError::Events)?;
        let mut watchdog = Watchdog::new();
        let timer = sleep_until(clock::instant_now());
        tokio::pin!(timer);
        let mut armed_ns = None;
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        self.on_kernel_events();
        loop {
            if let Some(refusal) = self.pump() {
                return refused(refusal);
            }
            let deadline_ns = self.next_timeout();
            // Most turns leave the deadline as it is, and to set the timer costs more than this
            // comparison.
            if deadline_ns != armed_ns
                && let Some(deadline_ns) = deadline_ns
            {
                timer.as_mut().reset(clock::instant_at(deadline_ns));
            }
            armed_ns = deadline_ns;
            tokio::select! {
                // Kernel events have priority: a start does not wait behind datagrams and requests.
                biased;
                ready = events.readable() => {
                    ready.map_err(DaemonError::Events)?.clear_ready();
                    self.on_kernel_events();
                }
                event = self.connection.next() => self.on_connection_event(event)?,
                () = &mut timer, if armed_ns.is_some() => {
                    armed_ns = None;
                    self.on_timeout();
                }
                event = second_line::next(&mut self.second_line) => self.on_peer_event(event),
                command = commands.recv() => match command {
                    Some(DaemonCommand::Reload(config)) => self.reload(&config),
                    // Without a sender, no later command could stop the daemon.
                    Some(DaemonCommand::Stop) | None => return Ok(Exit::Stopped),
                },
                Some(request) = requests.recv() => self.answer(request),
                () = watchdog.due() => watchdog.feed(),
            }
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent) -> Result<(), DaemonError> {
        match event {
            ConnectionEvent::Datagrams => {
                self.on_datagrams();
                Ok(())
            }
            ConnectionEvent::Control(frame) => {
                self.on_control(&frame);
                Ok(())
            }
            ConnectionEvent::Connected => {
                self.on_connected();
                Ok(())
            }
            ConnectionEvent::Down(error) => self.on_down(error),
        }
    }

    /// Does all work that follows from the last wake-up: session events and flow actions in order,
    /// then the sending. Returns a refusal that ends the daemon.
    fn pump(&mut self) -> Option<Refusal> {
        let now_ns = clock::now_ns();
        loop {
            // Actions come before the next event: an event may build on a table that they have
            // changed.
            while let Some(action) = self.flows.poll_action() {
                self.act(now_ns, &action);
            }
            let Some(event) = self.session.poll_event() else {
                if self.turn_second_line(now_ns) {
                    continue;
                }
                break;
            };
            if let Some(refusal) = self.on_session_event(now_ns, event) {
                return Some(refusal);
            }
        }
        // All rates of the turn are in: a back end that batches changes makes one system call of
        // them.
        self.kernel.flush(now_ns);
        while let Some(frame) = self.session.poll_control() {
            self.connection.send_control(frame);
        }
        if let Some(max_bytes) = self.connection.max_datagram_bytes() {
            while self
                .session
                .poll_datagram(now_ns, max_bytes, &mut self.outgoing)
            {
                self.connection.send_datagram(now_ns, &self.outgoing);
            }
            self.connection.flush();
        }
        None
    }

    fn next_timeout(&self) -> Option<u64> {
        let timeouts = [
            self.session.next_timeout(),
            self.liveness_deadline(),
            self.connection.next_timeout(),
            self.flows.next_timeout(),
            self.flows.next_usage_ns(),
            self.kernel.next_timeout(),
            self.sampler.next_timeout(),
            self.second_line_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    fn on_timeout(&mut self) {
        // A resume may wait in the ring: a late timer must not end a flowlet that has resumed.
        self.on_kernel_events();
        let now_ns = clock::now_ns();
        self.session.on_timeout(now_ns);
        self.connection.on_timeout(now_ns);
        if self
            .liveness_deadline()
            .is_some_and(|at_ns| at_ns <= now_ns)
        {
            self.on_liveness_timeout();
        }
        self.flows.on_timeout(now_ns);
        self.look_at_usage(now_ns);
        self.sample_if_due(now_ns);
        if self
            .kernel
            .next_timeout()
            .is_some_and(|at_ns| at_ns <= now_ns)
        {
            self.refresh_cgroups_if_due(now_ns);
        }
    }

    fn reload(&mut self, config: &Config) {
        self.config.policy.clone_from(&config.policy);
        self.config.pacing.idle_gap_us = config.pacing.idle_gap_us;
        self.reload_mode(config.pacing.mode);
        self.reload_certificates(config);
        self.config.tls.clone_from(&config.tls);
        // The parts that were applied are equal by now: any difference needs a restart.
        if *config != self.config {
            tracing::warn!(
                "only [[policy]], pacing.mode, pacing.idle_gap_us and [tls] change at run time; restart for the rest"
            );
        }
        self.flows
            .set_idle_gap_ns(config.pacing.idle_gap_us * 1_000);
        // The ids are read before the policy is in force: no flow is decided by rules without
        // cgroups.
        let mut policy = Policy::new(&config.policy);
        self.kernel
            .warn_of_missing(&policy.refresh_cgroups(self.kernel.cgroups()));
        self.flows.set_policy(policy);
        tracing::info!(rules = config.policy.len(), "the policy was reloaded");
    }

    /// Begins to pace or to observe. The session repeats the rates that hold.
    fn reload_mode(&mut self, mode: PacingMode) {
        if self.config.pacing.mode == mode {
            return;
        }
        self.config.pacing.mode = mode;
        self.flows.set_pacing_state(self.wanted_state());
        self.session.repeat_rates();
        tracing::info!(mode = ?self.flows.pacing_state(), "pacing changed");
    }

    /// Reads the certificates again, for later connections. The present session was authenticated
    /// when it began, and continues.
    fn reload_certificates(&mut self, config: &Config) {
        let checked = check_host_name(&config.tls, &self.config.host)
            .and_then(|()| client_config(&config.tls));
        match checked {
            Ok(client) => {
                self.connection.set_client(client, &config.tls.server_name);
                self.reload_second_line(config);
            }
            Err(error) => {
                tracing::error!("[tls]: {error}; the certificates of before stay in force");
            }
        }
    }
}

fn refused(refusal: Refusal) -> Result<Exit, DaemonError> {
    let Refusal { code, reason, .. } = refusal;
    match code {
        RefusalCode::Superseded => Ok(Exit::Superseded(reason)),
        code => Err(DaemonError::Refused { code, reason }),
    }
}

/// Reports to the service manager that the loop turns, if it asks for that.
struct Watchdog {
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    fn new() -> Self {
        // Twice per interval, as sd_watchdog_enabled(3) recommends.
        let every = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        Self {
            every,
            next: clock::instant_now(),
        }
    }

    async fn due(&self) {
        match self.every {
            Some(_) => sleep_until(self.next).await,
            None => std::future::pending().await,
        }
    }

    fn feed(&mut self) {
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        self.next = clock::instant_now() + self.every.unwrap_or_default();
    }
}
