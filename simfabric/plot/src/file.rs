//! Files that are written as a whole.

use std::path::{Path, PathBuf};

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: std::io::Error,
}

/// Writes `text`, making the directory if it is missing.
///
/// # Errors
/// If the file cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), WriteError> {
    let failed = |source| WriteError {
        path: path.to_owned(),
        source,
    };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
