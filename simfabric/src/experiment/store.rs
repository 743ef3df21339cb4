//! Folder of runs' results: a long experiment that was stopped goes on where it was.
//!
//! A result is written when its run ends, under a key of all that the run depends on, and read in
//! place of a run of the same key. The commit is in the file and not in the key; a check reads
//! nothing but what its own commit wrote.

use std::path::{Path, PathBuf};

use ratewright_plot::commit::{commit, is_definite};
use ratewright_plot::file::{WriteError, write_text};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::report::file::ReportError;

/// A folder of runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunStore {
    /// The folder.
    pub dir: PathBuf,
    /// True if a run of another commit, or of changes since one, is as good as missing.
    pub same_commit: bool,
}

/// A run's file.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    key: String,
    commit: String,
    sample: T,
}

impl RunStore {
    /// Returns the file of a run: its name, and a hash (FNV-1a) of its key.
    #[must_use]
    pub fn path(&self, name: &str, key: &str) -> PathBuf {
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.dir.join(format!("{name}-{hash:016x}.json"))
    }

    /// Reads a result, and its commit if that is not this program's. `None` if there is no result,
    /// not a whole one, or one of another key.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self, path: &Path, key: &str) -> Option<(T, Option<String>)> {
        let text = std::fs::read_to_string(path).ok()?;
        let stored: Stored<T> = serde_json::from_str(&text).ok()?;
        let is_own = stored.commit == commit() && is_definite(commit());
        let other = (stored.commit != commit()).then_some(stored.commit);
        (stored.key == key && (is_own || !self.same_commit)).then_some((stored.sample, other))
    }

    /// Writes a result.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write<T: Serialize>(path: &Path, key: &str, sample: &T) -> Result<(), ReportError> {
        let stored = Stored {
            key: key.to_owned(),
            commit: commit().to_owned(),
            sample,
        };
        let text = serde_json::to_string(&stored).map_err(|source| ReportError::Json {
            path: path.to_owned(),
            source,
        })?;
        // Renamed into place, so that a stop leaves no half of a file.
        let part = path.with_extension("part");
        write_text(&part, &text)?;
        let failed = |source| WriteError {
            path: path.to_owned(),
            source,
        };
        Ok(std::fs::rename(&part, path).map_err(failed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_under_its_own_key_and_in_whole() {
        let dir = std::env::temp_dir().join(format!("simfabric-store-{}", std::process::id()));
        let store = RunStore {
            dir: dir.clone(),
            same_commit: false,
        };
        let path = store.path("run", "key");
        assert_ne!(path, store.path("run", "another key"));
        assert_eq!(store.read::<f64>(&path, "key"), None);
        RunStore::write(&path, "key", &(1.0_f64 / 3.0)).unwrap();
        assert_eq!(store.read(&path, "key"), Some((1.0_f64 / 3.0, None)));
        assert_eq!(store.read::<f64>(&path, "another key"), None);
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 2]).unwrap();
        assert_eq!(store.read::<f64>(&path, "key"), None);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
