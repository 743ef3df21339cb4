//! One lab at a time: two would share the machine's cores, and each would measure the other. Labs
//! whose results are to hold on busy cores run beside each other.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use ratewright_cli::output;

use crate::options::ScenarioKind;

const LOCK: &str = "/run/ratewright-lab.lock";

/// Held while a lab runs; the kernel lets go of it however the lab ends.
#[derive(Debug)]
pub struct LabLock(#[allow(dead_code, reason = "held for its lock")] File);

/// Which labs may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// None
    Alone,
    /// Others of this kind
    Shared,
}

impl Company {
    /// Returns which labs may run beside one of this scenario: safety keeps all cores busy by
    /// itself, and what it asserts has to hold then.
    #[must_use]
    pub fn of(scenario: ScenarioKind) -> Self {
        match scenario {
            ScenarioKind::Safety => Company::Shared,
            _ => Company::Alone,
        }
    }
}

/// Waits for the lab that runs now, if there is one that this one cannot run beside.
///
/// # Errors
/// When the lock cannot be had at all.
pub fn take(company: Company) -> Result<LabLock> {
    take_at(Path::new(LOCK), company)
}

fn take_at(path: &Path, company: Company) -> Result<LabLock> {
    let context = || format!("locking {}", path.display());
    let mut file = File::options()
        .create(true)
        .read(true)
        .write(true)
        // Another lab's number is still in the file while it holds the lock.
        .truncate(false)
        .open(path)
        .with_context(context)?;
    let tried = match company {
        Company::Alone => file.try_lock(),
        Company::Shared => file.try_lock_shared(),
    };
    match tried {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = std::fs::read_to_string(path).unwrap_or_default();
            output::complain(format_args!(
                "another lab is running (process {}): waiting for its end",
                holder.trim()
            ));
            match company {
                Company::Alone => file.lock(),
                Company::Shared => file.lock_shared(),
            }
            .with_context(context)?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(context),
    }
    // Only a holder writes: a longer number must not leave its digits behind.
    file.set_len(0).with_context(context)?;
    write!(file, "{}", std::process::id()).with_context(context)?;
    Ok(LabLock(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A lab for free cores begins when the one that holds this lock has ended, and not before.
    fn waits_for(running: LabLock, path: PathBuf) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let alone = std::thread::spawn(move || {
            let lock = take_at(&path, Company::Alone).unwrap();
            sender.send(()).unwrap();
            drop(lock);
        });
        let early = receiver.recv_timeout(std::time::Duration::from_millis(100));
        assert!(early.is_err(), "both labs run at once");
        drop(running);
        receiver.recv().unwrap();
        alone.join().unwrap();
    }

    #[test]
    fn the_second_lab_waits_for_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = take_at(&path, Company::Alone).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            std::process::id().to_string()
        );
        waits_for(first, path);
    }

    #[test]
    fn labs_for_busy_cores_run_beside_each_other_and_beside_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = take_at(&path, Company::Shared).unwrap();
        let second = take_at(&path, Company::Shared).unwrap();
        drop(first);
        waits_for(second, path);
    }
}
