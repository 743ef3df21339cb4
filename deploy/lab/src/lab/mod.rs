//! The lab itself: a run of a scenario from its first check to its clean-up.
//!
//! | module | what |
//! |---|---|
//! | [`options`] | the command line |
//! | [`preflight`] | refuses with one clear line when something is missing |
//! | [`site`] | one built network with its traffic programs and measurements |
//! | [`turn`] | one lab at a time |
//! | [`control`] | the allocator and the daemons of a site: starting, killing, asking |

pub mod control;
pub mod options;
pub mod preflight;
pub mod site;
pub mod turn;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use ratewright_cli::clock::{NS_PER_MS, now_ns, sleep_until_ns};
use ratewright_cli::output;

use crate::reaper::{self, Estate, Watchdog};
use crate::report;
use crate::scenario;
use crate::view::{Live, NobodyListens, View};
use options::LabOptions;
use preflight::Binaries;

/// Set once the user wants to leave.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the lab to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One run.
#[derive(Debug)]
pub struct Lab {
    /// The command line.
    pub options: LabOptions,
    /// Programs of the control plane, checked to be there.
    pub binaries: Binaries,
    /// Directory of this run: configurations, certificates, sockets, logs.
    pub run_dir: PathBuf,
    /// What the view shows.
    pub live: Arc<Live>,
    cancel: Cancel,
    estate: Estate,
}

impl Lab {
    /// The cgroup of a node of a site.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn cgroup(&self, site: &str, node: &str) -> Result<PathBuf> {
        crate::net::cgroup::create(&self.estate.cgroup(), &format!("{site}-{node}"))
    }

    /// What a site's namespaces are called.
    #[must_use]
    pub fn prefix(&self, site: &str) -> String {
        format!("{}{site}-", self.estate.prefix())
    }

    /// A span of the scenario's plan, scaled by `--duration-scale`.
    #[must_use]
    pub fn scaled(&self, span: Duration) -> u64 {
        (span.as_nanos() as f64 * self.options.duration_scale) as u64
    }

    /// Fails if the user wants to leave.
    ///
    /// # Errors
    /// Then.
    pub fn check(&self) -> Result<()> {
        if self.cancel.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Sleeps until `at_ns`, or fails early if the user wants to leave.
    ///
    /// # Errors
    /// Then.
    pub fn sleep_until(&self, at_ns: u64) -> Result<()> {
        while now_ns() < at_ns {
            self.check()?;
            sleep_until_ns(at_ns.min(now_ns() + 20 * NS_PER_MS));
        }
        self.check()
    }

    /// Waits until `condition` holds; false if it does not within `patience`.
    ///
    /// # Errors
    /// When the user wants to leave, or the condition fails.
    pub fn wait_for(
        &self,
        patience: Duration,
        mut condition: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let until = now_ns() + patience.as_nanos() as u64;
        while now_ns() < until {
            if condition()? {
                return Ok(true);
            }
            self.sleep_until(now_ns() + 10 * NS_PER_MS)?;
        }
        Ok(false)
    }
}

/// Runs a scenario and writes its results.
///
/// # Errors
/// When something is missing, or the scenario does not run to its end.
pub fn run(options: LabOptions) -> Result<()> {
    let binaries = preflight::check(&options)?;
    let _turn = turn::take()?;
    let cancel = Cancel::default();
    catch_signals(&cancel)?;

    let stale = reaper::remove_stale();
    let run_dir = reaper::run_dir(options.keep)?;
    let cgroup_root = crate::net::cgroup::root(&run_dir.join("cgroup2"))?;
    let estate = Estate {
        pid: std::process::id(),
        cgroup_root,
        run_dir: (!options.keep).then(|| run_dir.clone()),
    };
    let watchdog = Watchdog::start(&estate)?;
    reaper::allow_cubic()?;
    let live = Arc::new(Live::new(&options));
    for pid in stale {
        live.say(format!(
            "removed what the lab of dead process {pid} had left behind"
        ));
    }
    let view = View::start(&live, &cancel, options.plain);
    let lab = Lab {
        options,
        binaries,
        run_dir,
        live,
        cancel,
        estate,
    };
    let outcome = scenario::run(&lab);
    let result = view
        .finish()
        .map_err(Into::into)
        .and(outcome)
        .and_then(|outcome| report::publish(&lab, &outcome));
    let quietly = result
        .as_ref()
        .is_err_and(|error| error.is::<NobodyListens>());
    if !quietly && (result.is_err() || lab.options.keep) {
        match keep_logs(&lab) {
            Ok(logs) => output::complain(format_args!("logs: {}", logs.display())),
            Err(error) => output::complain(format_args!("the logs are lost: {error:#}")),
        }
    }
    lab.estate.remove();
    watchdog.release();
    result
}

/// Where the logs stay: the run directory if it is kept, else a copy of the logs of a failed run, in a
/// new directory that only root can enter.
fn keep_logs(lab: &Lab) -> Result<PathBuf> {
    if lab.options.keep {
        return Ok(lab.run_dir.clone());
    }
    let target = tempfile::Builder::new()
        .prefix("ratewright-lab-failed-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .tempdir()
        .context("creating a directory for the logs")?
        .keep();
    copy_logs(&lab.run_dir, &target);
    Ok(target)
}

fn copy_logs(from: &Path, to: &Path) {
    let Ok(entries) = std::fs::read_dir(from) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            copy_logs(&path, to);
        } else if let (true, Some(name)) = (
            path.extension().is_some_and(|e| e == "log"),
            path.file_name(),
        ) {
            let site = from.file_name().unwrap_or_default();
            let _ = std::fs::copy(
                &path,
                to.join(format!("{}-{}", site.display(), name.display())),
            );
        }
    }
}

/// SIGINT, SIGTERM and SIGHUP ask the lab to end. Must run before any thread starts.
fn catch_signals(cancel: &Cancel) -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    let cancel = cancel.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while signals.wait().is_ok() {
                cancel.set();
            }
        })
        .context("starting the signal thread")?;
    Ok(())
}
