//! Keys and values that the release before had, and this one takes and passes over.
//!
//! A file that names one stays valid for one release: an upgrade of a fleet must not stop its
//! daemons. The daemon, `check-config` and `doctor` say which they are.

use serde::de::{Deserialize, Deserializer, IgnoredAny};

use super::{BackendChoice, Config};

/// A value of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retired;

impl<'de> Deserialize<'de> for Retired {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Retired)
    }
}

impl Config {
    /// Names what the file has and this release passes over, with what to do.
    #[must_use]
    pub fn retired(&self) -> Vec<&'static str> {
        let pacing = &self.pacing;
        let all = [
            (
                pacing.retired_max_burst_us.is_some(),
                "pacing.max_burst_us does nothing any more; remove it",
            ),
            (
                pacing.retired_procfs.is_some(),
                "pacing.procfs does nothing any more; remove it",
            ),
            (
                pacing.backend == BackendChoice::StructOps,
                "pacing.backend = \"struct_ops\" is no more, and counts as \"auto\"; write that",
            ),
        ];
        all.into_iter()
            .filter_map(|(present, note)| present.then_some(note))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::MINIMAL;
    use super::*;

    #[test]
    fn a_file_of_the_release_before_is_taken_and_what_it_has_too_much_is_named() {
        let old = format!(
            "{MINIMAL}\n[pacing]\nbackend = \"struct_ops\"\nmax_burst_us = 500\nprocfs = \"/proc\"\n"
        );
        let config = Config::from_toml_str(&old, "old.toml").unwrap();
        assert_eq!(config.pacing.backend.kind(), None);
        let notes = config.retired();
        for name in ["max_burst_us", "procfs", "struct_ops"] {
            let of_name = notes.iter().filter(|note| note.contains(name));
            assert_eq!(of_name.count(), 1, "{name}: {notes:?}");
        }
    }

    /// A unit's own command line outlives an upgrade, too.
    #[test]
    fn a_back_end_of_the_release_before_is_taken_on_the_command_line_and_named() {
        let choice = <BackendChoice as clap::ValueEnum>::from_str("struct_ops", false).unwrap();
        assert_eq!(choice.kind(), None);
        assert!(choice.retired().is_some());
        assert_eq!(BackendChoice::SockOps.retired(), None);
    }

    #[test]
    fn a_file_of_this_release_has_nothing_too_much() {
        let config = Config::from_toml_str(MINIMAL, "new.toml").unwrap();
        assert_eq!(config.retired(), [""; 0]);
    }

    #[test]
    fn a_key_that_never_was_is_refused() {
        let text = format!("{MINIMAL}\n[pacing]\nmax_burst_ms = 1\n");
        assert!(Config::from_toml_str(&text, "typo.toml").is_err());
    }
}
