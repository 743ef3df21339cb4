//! `ratewright-endpointd`: paces this host's TCP connections at the rates that the allocator gives.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory as _, Parser, Subcommand};
use ratewright_endpointd::admin::{self, LogFilter};
use ratewright_endpointd::backend::probe::ProbeResult;
use ratewright_endpointd::backend::{self, BackendKind};
use ratewright_endpointd::cleanup;
use ratewright_endpointd::config::{BackendChoice, Config, EXAMPLE};
use ratewright_endpointd::daemon::{Daemon, DaemonCommand, DaemonError, Exit};
use ratewright_endpointd::doctor;
use ratewright_endpointd::instance_lock::InstanceLock;
use ratewright_endpointd::session_io::tls::{check_host_name, client_config};
use ratewright_endpointd::status::backend_name;
use ratewright_io::admin::Listener;
use ratewright_io::log::{FlushAtEnd, LogWriter, RepeatLimit};
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Environment variable that sets the log filter at start.
const LOG_VARIABLE: &str = "RATEWRIGHT_LOG";
/// Configuration of the packaged daemon.
const DEFAULT_CONFIG: &str = "/etc/ratewright/endpointd.toml";
/// Longest wait for another daemon of this network namespace to end.
const OTHERS_END: Duration = Duration::from_secs(5);
/// Exit code for an unusable configuration.
const EXIT_CONFIG: u8 = 2;
/// Exit code after the allocator refused this host: a restart alone does not help.
const EXIT_REFUSED: u8 = 3;

/// Paces this host's TCP connections at the rates that the allocator gives.
#[derive(Parser)]
#[command(name = "ratewright-endpointd", version, about)]
struct Arguments {
    #[command(subcommand)]
    action: DaemonAction,
}

#[derive(Subcommand)]
enum DaemonAction {
    /// Run the daemon.
    Run {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// This host's name, instead of the configuration's.
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// The pacing mechanism, instead of the configuration's.
        #[arg(long, value_name = "MECHANISM")]
        backend: Option<BackendChoice>,
    },
    /// Check a configuration and its certificates, and say what is wrong.
    CheckConfig {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// This host's name, instead of the configuration's.
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
    },
    /// Show which pacing mechanisms this kernel offers, which one would be used, and why not the
    /// others.
    Probe,
    /// Check this host: kernel, limits, certificates, clock, allocator. Exits with 1 if the daemon
    /// cannot pace.
    Doctor {
        /// The configuration file.
        #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
        config: PathBuf,
        /// This host's name, instead of the configuration's.
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
    },
    /// Show what a killed daemon left in this network namespace: BPF programs, queue disciplines.
    /// With --yes, remove it; exits with 1 if some of it stays.
    Cleanup {
        /// The configuration file, which names the daemon's kernel objects.
        #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
        config: PathBuf,
        /// This host's name, instead of the configuration's.
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Remove it. Refused while a daemon runs.
        #[arg(long)]
        yes: bool,
    },
    /// Print a commented configuration.
    ExampleConfig,
}

fn main() -> ExitCode {
    if let Some(code) = ratewright_pages::write_if_asked(Arguments::command()) {
        return code;
    }
    match act(Arguments::parse().action) {
        Ok(code) => code,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints an error as one line, each cause once.
fn complain(error: &anyhow::Error) {
    eprintln!("ratewright-endpointd: {}", one_line(error));
}

/// Joins an error and its causes, without those that the text contains already.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line.replace('\n', " ")
}

/// Reads a configuration and the files it names.
fn load(path: &Path, host: Option<&str>) -> anyhow::Result<Config> {
    let config = Config::load(path, host)?;
    let tls = &config.tls;
    check_host_name(tls, &config.host)
        .and_then(|()| client_config(tls))
        .with_context(|| format!("{}: [tls]", path.display()))?;
    Ok(config)
}

/// Prints the findings about this host; an error if the daemon cannot pace.
fn examine(config: &Path, host: Option<&str>) -> ExitCode {
    let findings = doctor::examine(config, host);
    for finding in &findings {
        println!("{finding}");
    }
    let worst = findings.iter().map(|finding| finding.verdict).max();
    ExitCode::from(u8::from(worst == Some(doctor::Verdict::Fail)))
}

/// Shows or removes what a killed daemon left.
fn clean_up(config: &Path, host: Option<&str>, yes: bool) -> anyhow::Result<ExitCode> {
    let places = Config::load(config, host)
        .map(|config| cleanup::Places::from(&config.backend_config()))
        .unwrap_or_default();
    if yes {
        let removed = cleanup::clean_up(&places)?;
        for left in &removed {
            println!("removed: {}", left.what);
        }
        println!("{} left-overs removed", removed.len());
        return Ok(ExitCode::SUCCESS);
    }
    if cleanup::daemon_runs()? {
        return Err(cleanup::CleanupError::Running.into());
    }
    let found = cleanup::left_overs(&places);
    for left in &found {
        println!("would remove: {}", left.what);
    }
    println!("{} left-overs; --yes removes them", found.len());
    Ok(ExitCode::SUCCESS)
}

fn act(action: DaemonAction) -> anyhow::Result<ExitCode> {
    match action {
        DaemonAction::Doctor { config, host } => Ok(examine(&config, host.as_deref())),
        DaemonAction::Cleanup { config, host, yes } => clean_up(&config, host.as_deref(), yes),
        DaemonAction::Run {
            config,
            host,
            backend,
        } => run(config, host, backend),
        DaemonAction::CheckConfig { config: path, host } => {
            let checked = load(&path, host.as_deref()).and_then(|config| {
                backend::check(config.pacing.backend.kind(), &config.backend_config())
                    .with_context(|| format!("{}: [pacing]", path.display()))?;
                Ok(config)
            });
            match checked {
                Ok(config) => {
                    println!(
                        "{}: valid; host {}, {} policy rules",
                        path.display(),
                        config.host,
                        config.policy.len()
                    );
                    for note in config.retired() {
                        println!("{}: {note}", path.display());
                    }
                    Ok(ExitCode::SUCCESS)
                }
                Err(error) => {
                    complain(&error);
                    Ok(ExitCode::from(EXIT_CONFIG))
                }
            }
        }
        DaemonAction::Probe => {
            let results = backend::probe::probe();
            print!("{}", probe_table(&results));
            let any = results.iter().any(|result| result.usable);
            Ok(if any {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        DaemonAction::ExampleConfig => {
            print!("{EXAMPLE}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Logs what the configuration has and this release passes over.
fn tell_retired(config: &Config) {
    for note in config.retired() {
        tracing::warn!("{note}");
    }
}

fn run(
    path: PathBuf,
    host: Option<String>,
    choice: Option<BackendChoice>,
) -> anyhow::Result<ExitCode> {
    let log = start_logging()?;
    let config = match load(&path, host.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            complain(&error);
            return Ok(ExitCode::from(EXIT_CONFIG));
        }
    };
    tell_retired(&config);
    // Before anything of a daemon that runs could be replaced. The runtime ends before it, and with
    // it the admin interface: a successor needs its address.
    let _lock = InstanceLock::take_within(OTHERS_END)
        .context("cannot find out whether another daemon runs")?
        .context(
            "another ratewright-endpointd runs in this network namespace, and serves all of it; stop that one first",
        )?;
    // Tasks that wake each other on a local runtime cost no system call, as they would on a
    // `LocalSet`.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The back end is not `Send`: it lives on the runtime's one thread.
        .build_local(LocalOptions::default())?;
    runtime
        .block_on(async { tokio::task::spawn_local(serve(path, host, config, choice, log)).await? })
}

async fn serve(
    path: PathBuf,
    host: Option<String>,
    config: Config,
    choice: Option<BackendChoice>,
    log: Arc<dyn LogFilter>,
) -> anyhow::Result<ExitCode> {
    // Dropped last: log lines of everything below are written before the process ends.
    let _last_words = FlushAtEnd;
    let (requests, asked) = admin::channel();
    if let Some(address) = &config.admin {
        let listener = Listener::bind(address)
            .with_context(|| format!("admin = \"{address}\": cannot listen"))?;
        tokio::task::spawn_local(listener.serve(admin::router(requests, Some(log))));
    }
    let (commands, commanded) = mpsc::channel(4);
    // The signals are caught before the back end installs anything that is to be undone.
    let mut stop = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    ];
    let mut reload = signal(SignalKind::hangup())?;
    tokio::task::spawn_local(async move {
        let [terminate, interrupt] = &mut stop;
        loop {
            let command = tokio::select! {
                _ = terminate.recv() => DaemonCommand::Stop,
                _ = interrupt.recv() => DaemonCommand::Stop,
                _ = reload.recv() => match Config::load(&path, host.as_deref()) {
                    Ok(config) => {
                        tell_retired(&config);
                        DaemonCommand::Reload(Box::new(config))
                    }
                    Err(error) => {
                        // A bad file must not stop a daemon that works.
                        tracing::error!(%error, "the configuration was not reloaded; the old one stays");
                        continue;
                    }
                },
            };
            if commands.send(command).await.is_err() {
                return;
            }
        }
    });

    if let Some(note) = choice.and_then(BackendChoice::retired) {
        tracing::warn!("{note}");
    }
    let kind = choice.unwrap_or(config.pacing.backend).kind();
    let backend = backend::open(kind, &config.backend_config())?;
    tracing::info!(
        host = config.host,
        backend = backend_name(backend.kind()),
        adopted = backend.stats().adopted,
        "the daemon starts"
    );
    let left = cleanup::left_by_others(backend.kind(), config.pacing.device.as_deref());
    let mut daemon = Daemon::new(config, backend)?;
    daemon.tell_left_overs(&left);
    match daemon.run(commanded, asked).await {
        Ok(Exit::Stopped) => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        Ok(Exit::Superseded(reason)) => {
            tracing::info!(reason, "another daemon of this host took over");
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ (DaemonError::Refused { .. } | DaemonError::Certificate(_))) => {
            tracing::error!("{error}");
            Ok(ExitCode::from(EXIT_REFUSED))
        }
        Err(error) => Err(error.into()),
    }
}

/// The log filter of the process, behind the admin interface.
struct Filter(reload::Handle<EnvFilter, Registry>);

impl LogFilter for Filter {
    fn get(&self) -> String {
        self.0
            .with_current(EnvFilter::to_string)
            .unwrap_or_default()
    }

    fn set(&self, filter: &str) -> Result<(), String> {
        let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
        self.0.reload(filter).map_err(|error| error.to_string())
    }
}

fn start_logging() -> anyhow::Result<Arc<dyn LogFilter>> {
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(text) => EnvFilter::try_new(&text).with_context(|| format!("{LOG_VARIABLE}={text}"))?,
        Err(_) => EnvFilter::new("info"),
    };
    let (layer, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry()
        .with(layer)
        .with(RepeatLimit::standard_error())
        .with(
            tracing_subscriber::fmt::layer()
                .with_ansi(std::io::stderr().is_terminal())
                .with_writer(LogWriter::standard_error),
        )
        .try_init()
        .context("cannot set up logging")?;
    Ok(Arc::new(Filter(handle)))
}

/// Formats one line per mechanism, the preferred one first.
fn probe_table(results: &[ProbeResult]) -> String {
    let chosen: Option<BackendKind> = results
        .iter()
        .find(|result| result.usable)
        .map(|result| result.kind);
    let mut table = format!(
        "{:<12} {:<7} {:<7} {}\n",
        "mechanism", "usable", "chosen", "remarks"
    );
    let yes = |condition: bool| if condition { "yes" } else { "no" };
    for result in results {
        let taken = result.taken.as_deref().filter(|_| result.usable);
        let line = format!(
            "{:<12} {:<7} {:<7} {}",
            backend_name(result.kind),
            yes(result.usable),
            yes(chosen == Some(result.kind)),
            taken.map_or_else(|| result.reasons.join("; "), str::to_owned)
        );
        table += line.trim_end();
        table.push('\n');
    }
    if chosen.is_none() {
        table += "no mechanism is usable: connections stay plain TCP\n";
    }
    table
}
