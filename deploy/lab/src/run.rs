//! A run of a scenario from its first check to its clean-up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use ratewright_cli::output;

use crate::cancel::Cancel;
use crate::cleanup::{self, LabResources, Watchdog};
use crate::lab::context::Lab;
use crate::lab::lock::{self, Company};
use crate::lab::preflight;
use crate::net::cgroup;
use crate::options::LabOptions;
use crate::view::live::Live;
use crate::view::{LiveView, NobodyListens};
use crate::{report, scenario};

/// Runs a scenario and writes its results.
///
/// # Errors
/// When something is missing, or the scenario does not run to its end.
pub fn run(options: LabOptions) -> Result<()> {
    // Before the lock: a lab that cannot run need not wait for another one.
    let binaries = preflight::check(&options)?;
    let _lock = lock::take(Company::of(options.scenario))?;
    let cancel = Cancel::default();
    // Before any other thread, which inherits the blocked signals.
    catch_signals(&cancel)?;

    let stale = cleanup::remove_stale();
    let run_dir = cleanup::run_dir(options.keep)?;
    let cgroup_root = cgroup::root(&run_dir.join("cgroup2"))?;
    let resources = LabResources {
        pid: std::process::id(),
        cgroup_root,
        run_dir: (!options.keep).then(|| run_dir.clone()),
    };
    // Before anything is built: from here on nothing is left behind.
    let watchdog = Watchdog::start(&resources)?;
    cleanup::allow_cubic()?;
    let live = Arc::new(Live::new(&options));
    for pid in stale {
        live.say(format!(
            "removed what the lab of dead process {pid} had left behind"
        ));
    }
    let view = LiveView::start(&live, &cancel, options.plain);
    let lab = Lab {
        options,
        binaries,
        run_dir,
        live,
        cancel,
        resources,
    };
    let outcome = scenario::run(&lab);
    let result = view
        .finish()
        .map_err(Into::into)
        // A closed terminal comes first: the scenario then failed because of it.
        .and(outcome)
        .and_then(|outcome| {
            report::publish(&lab.options, &outcome)?;
            match (outcome.broken_off, outcome.missed) {
                (None, None) => Ok(()),
                (Some(why), _) => bail!("ended before the last run: {why}"),
                (None, Some(missed)) => bail!("{missed}"),
            }
        });
    // A lab whose output is closed cannot report where its logs are.
    let quietly = result
        .as_ref()
        .is_err_and(|error| error.is::<NobodyListens>());
    if !quietly && (result.is_err() || lab.options.keep) {
        match keep_logs(&lab) {
            Ok(logs) => output::complain(format_args!("logs: {}", logs.display())),
            Err(error) => output::complain(format_args!("the logs are lost: {error:#}")),
        }
    }
    // Before the watchdog is released, which would do it if this process died meanwhile.
    lab.resources.remove();
    watchdog.release();
    result
}

/// Returns the directory of the logs: the run directory if it is kept, else a copy of the logs of a
/// failed run, in a new directory that only root can enter.
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
            let testbed = from.file_name().unwrap_or_default();
            let _ = std::fs::copy(
                &path,
                to.join(format!("{}-{}", testbed.display(), name.display())),
            );
        }
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP end the lab in order. Must run before any thread starts.
fn catch_signals(cancel: &Cancel) -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    // Blocked, so that only the thread below receives them, by `wait`.
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
