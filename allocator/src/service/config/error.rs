//! Configuration errors: each names file, line, key and the expected value.

use std::path::PathBuf;

/// Error for a configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The text is not TOML, has an unknown key or a value of the wrong type.
    #[error("{origin}:{line}: {message} (in `{excerpt}`)")]
    Syntax {
        /// Name of the file.
        origin: String,
        /// Line, counted from one.
        line: usize,
        /// Message of the parser: what it found and expected.
        message: String,
        /// The line's text.
        excerpt: String,
    },
    /// A required key is missing.
    #[error("{origin}: {key} is missing: {expected}")]
    Missing {
        /// Name of the file.
        origin: String,
        /// The key, with its table.
        key: String,
        /// Description of a valid value.
        expected: String,
    },
    /// A value is out of its range.
    #[error("{origin}:{line}: {key} = {found}: {expected}")]
    Value {
        /// Name of the file.
        origin: String,
        /// Line, counted from one.
        line: usize,
        /// The key, with its table.
        key: String,
        /// The value in the file.
        found: String,
        /// Description of a valid value.
        expected: String,
    },
}

/// Returns the line, counted from one, of a byte offset in a text.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    1 + text.as_bytes()[..end]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// Converts a parser error, with the line that it points at.
pub(super) fn syntax_error(text: &str, origin: &str, error: &toml::de::Error) -> ConfigError {
    // An error of the whole document has no span: it is shown at the first line.
    let line = error.span().map_or(1, |span| line_of(text, span.start));
    ConfigError::Syntax {
        origin: origin.to_owned(),
        line,
        // One line per error, for logs and the command line.
        message: error.message().replace('\n', ", "),
        excerpt: text.lines().nth(line - 1).unwrap_or("").trim().to_owned(),
    }
}
