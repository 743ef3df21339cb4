//! The text of a plan, and errors that point into it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Table};

use crate::parameters::ParamError;

/// A mistake in a plan, with its place and a remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanError {
    /// The file.
    pub origin: String,
    /// Line and column, counted from 1, if the mistake has a place.
    pub place: Option<(usize, usize)>,
    /// The mistake, and a remedy.
    pub message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

impl std::error::Error for PlanError {}

/// Place of what is not in the text: a value that was set.
pub(super) const NOWHERE: Range<usize> = usize::MAX..usize::MAX;

/// A table of the plan, whose keys know their places.
pub(super) type TomlTable<'a> = DeTable<'a>;

/// A plan's text.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    pub(super) origin: &'a str,
    /// Directory that the plan's relative paths begin at.
    pub(super) dir: &'a Path,
}

impl<'a> Source<'a> {
    /// An error about the text at `span`.
    pub(super) fn error(
        &self,
        span: Option<Range<usize>>,
        message: impl Into<String>,
    ) -> PlanError {
        PlanError {
            origin: self.origin.to_owned(),
            place: span.filter(|s| *s != NOWHERE).map(|s| self.place(s.start)),
            message: message.into(),
        }
    }

    /// Line and column of a byte of the text, in characters.
    fn place(&self, offset: usize) -> (usize, usize) {
        // An offset within a character, or past the end, counts as the end: an error about an error
        // would hide the first.
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.rfind('\n').map_or(0, |i| i + 1);
        let column = before.get(line..).unwrap_or_default().chars().count() + 1;
        (before.bytes().filter(|b| *b == b'\n').count() + 1, column)
    }

    /// An error of the TOML reader, with its place in this text.
    pub(super) fn toml_error(&self, error: &toml::de::Error) -> PlanError {
        self.error(error.span(), error.message().trim())
    }

    /// A path of the plan, relative to the plan's own directory.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    /// Reads a table as a section.
    pub(super) fn section<T: DeserializeOwned>(
        &self,
        table: TomlTable<'a>,
        span: Range<usize>,
    ) -> Result<T, PlanError> {
        // Read from the parsed document, not from text, so that places stay those of the file.
        let value = Spanned::new(span, DeValue::Table(table));
        T::deserialize(ValueDeserializer::from(value)).map_err(|e| self.toml_error(&e))
    }

    /// The table as parameters, with the places of its keys.
    pub(super) fn parameters(
        &self,
        table: TomlTable<'a>,
        span: &Range<usize>,
    ) -> Result<(Table, Places), PlanError> {
        let keys = table.iter();
        let keys = keys.map(|(key, value)| (key.get_ref().to_string(), [key.span(), value.span()]));
        let places = Places {
            whole: span.clone(),
            keys: keys.collect(),
        };
        Ok((self.section(table, span.clone())?, places))
    }

    /// The value as a table.
    pub(super) fn table(
        &self,
        key: &str,
        value: Spanned<DeValue<'a>>,
    ) -> Result<(TomlTable<'a>, Range<usize>), PlanError> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Ok((table, span)),
            _ => Err(self.error(Some(span), format!("`{key}` must be a table"))),
        }
    }

    /// One table, or several of an array of tables.
    pub(super) fn tables(
        &self,
        key: &str,
        value: Spanned<DeValue<'a>>,
    ) -> Result<Vec<(TomlTable<'a>, Range<usize>)>, PlanError> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Ok(vec![(table, span)]),
            // An empty array is a mistake of its own, not a plan without such tables.
            DeValue::Array(array) if !array.is_empty() => {
                array.into_iter().map(|v| self.table(key, v)).collect()
            }
            _ => {
                let message = format!("`{key}` must be a table [{key}] or several [[{key}]]");
                Err(self.error(Some(span), message))
            }
        }
    }

    /// Takes the text under `key` out of a table, one of `known`.
    pub(super) fn choice(
        &self,
        table: &mut TomlTable<'a>,
        span: Range<usize>,
        key: &str,
        known: &[&'static str],
    ) -> Result<(&'static str, Range<usize>), PlanError> {
        let list = known.join(", ");
        let Some(value) = take(table, key) else {
            return Err(self.error(
                Some(span),
                format!("`{key}` is missing; it is one of {list}"),
            ));
        };
        let at = value.span();
        let found = match value.get_ref() {
            DeValue::String(text) => known.iter().find(|k| **k == text.as_ref()),
            _ => None,
        };
        // As written, quotation marks and all: the value may be no text at all.
        let written = self.text.get(at.clone()).unwrap_or_default();
        let found = found.ok_or_else(|| {
            self.error(
                Some(at.clone()),
                format!("`{key}` is {written}; it must be one of {list}"),
            )
        })?;
        Ok((found, at))
    }
}

/// Places of a table's keys and values: readers of parameters know none.
pub(super) struct Places {
    whole: Range<usize>,
    keys: Vec<(String, [Range<usize>; 2])>,
}

impl Places {
    /// An error of a reader of parameters, with its place.
    pub(super) fn error(&self, source: &Source<'_>, error: ParamError) -> PlanError {
        let of_key = |key: &str| self.keys.iter().find(|(known, _)| known == key);
        let place = error.key.as_deref().and_then(of_key);
        let place = place.map_or(
            &self.whole,
            |(_, [key, value])| {
                if error.unknown { key } else { value }
            },
        );
        source.error(Some(place.clone()), error.message)
    }
}

/// Reads a value that is not in the plan's text, so that errors about it have no place there.
pub(super) fn value_from_elsewhere(text: &str) -> Result<Spanned<DeValue<'_>>, toml::de::Error> {
    Ok(without_places(DeValue::parse(text)?))
}

fn without_places(value: Spanned<DeValue<'_>>) -> Spanned<DeValue<'_>> {
    let value = match value.into_inner() {
        DeValue::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                let key = Spanned::new(NOWHERE, key.into_inner());
                (key, without_places(value))
            });
            DeValue::Table(entries.collect())
        }
        other => other,
    };
    Spanned::new(NOWHERE, value)
}

/// Puts a value into a table, under the path of its key.
pub(super) fn set<'a>(
    table: &mut TomlTable<'a>,
    path: &'a str,
    value: Spanned<DeValue<'a>>,
) -> Result<(), String> {
    let (key, rest) = path
        .split_once('.')
        .map_or((path, None), |(k, r)| (k, Some(r)));
    let value = match rest {
        None => value,
        Some(rest) => {
            let mut inner = match take(table, key).map(Spanned::into_inner) {
                None => TomlTable::new(),
                Some(DeValue::Table(inner)) => inner,
                Some(_) => return Err(format!("`{key}` is no table")),
            };
            set(&mut inner, rest, value)?;
            Spanned::new(NOWHERE, DeValue::Table(inner))
        }
    };
    take(table, key);
    table.insert(Spanned::new(NOWHERE, key.into()), value);
    Ok(())
}

/// Puts a table of the plan back under its key.
pub(super) fn put<'a>(
    document: &mut TomlTable<'a>,
    key: &'a str,
    (table, span): (TomlTable<'a>, Range<usize>),
) {
    let key = Spanned::new(NOWHERE, key.into());
    document.insert(key, Spanned::new(span, DeValue::Table(table)));
}

/// Takes a value out of a table. What is left goes to a reader that refuses unknown keys.
pub(super) fn take<'a>(table: &mut TomlTable<'a>, key: &str) -> Option<Spanned<DeValue<'a>>> {
    let found = table.keys().find(|k| k.get_ref() == key)?.clone();
    table.remove(&found)
}
