//! Files of results: JSON, and the errors of files and of pictures.

use std::path::{Path, PathBuf};

use ratewright_plot::PictureError;
use ratewright_plot::file::{WriteError, write_text};
use serde::Serialize;

/// A result that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or directory.
    #[error(transparent)]
    File(#[from] WriteError),
    /// Not the JSON of a result.
    #[error("{} is not the JSON of a result", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: serde_json::Error,
    },
    /// A picture.
    #[error(transparent)]
    Picture(#[from] PictureError),
}

/// Returns a name with a dash for every character that is not an ASCII letter or digit, a dash, a
/// dot or an underscore: file systems differ in their forms of other letters.
#[must_use]
pub fn file_stem(name: &str) -> String {
    let keep = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '-'
        }
    };
    name.chars().map(keep).collect()
}

/// Writes `value` as indented JSON with a final newline, making the directory if it is missing.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), ReportError> {
    // Indented: results are compared in diffs.
    let mut text = serde_json::to_string_pretty(value).map_err(|source| ReportError::Json {
        path: path.to_owned(),
        source,
    })?;
    text.push('\n');
    Ok(write_text(path, &text)?)
}
