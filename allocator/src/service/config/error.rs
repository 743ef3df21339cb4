//! What is wrong with a configuration: always the file, the line, the key and what would be right.

use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The text is not TOML, has an unknown key or a value of the wrong type.
    #[error("{origin}:{line}: {message} (in `{excerpt}`)")]
    Syntax {
        /// Name of the file.
        origin: String,
        /// Line, counted from one.
        line: usize,
        /// What the parser found, and what it expected.
        message: String,
        /// The line's text.
        excerpt: String,
    },
    /// A key that has to be there is not.
    #[error("{origin}: {key} is missing: {expected}")]
    Missing {
        /// Name of the file.
        origin: String,
        /// The key, with its table.
        key: String,
        /// What would be right.
        expected: String,
    },
    /// A value that cannot be right.
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
        /// What would be right.
        expected: String,
    },
}

/// Line (from one) of a byte offset in a text.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    1 + text.as_bytes()[..end]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// A parser error with the line it points at.
pub(super) fn syntax_error(text: &str, origin: &str, error: &toml::de::Error) -> ConfigError {
    let line = error.span().map_or(1, |span| line_of(text, span.start));
    ConfigError::Syntax {
        origin: origin.to_owned(),
        line,
        message: error.message().replace('\n', ", "),
        excerpt: text.lines().nth(line - 1).unwrap_or("").trim().to_owned(),
    }
}
