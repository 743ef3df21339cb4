//! Mutations of the project's plans: each is a valid plan or one error with its place, never a
//! panic.

use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use ratewright_simfabric::plan::{Overrides, RunPlan};

/// Words of plans, and values that no plan should have.
const WORDS: [&str; 48] = [
    "0",
    "1",
    "-1",
    "1e308",
    "nan",
    "inf",
    "4294967296",
    "18446744073709551615",
    "9223372036854775807",
    "true",
    "\"\"",
    "\"0us\"",
    "\"1ns\"",
    "\"99999999s\"",
    "\"10Gbit/s\"",
    "\"1bit/s\"",
    "\"ö\"",
    "[]",
    "{}",
    "[[]]",
    "[queue]",
    "[nic_queue]",
    "[packet]",
    "[measure]",
    "[topology]",
    "[run]",
    "[[transport]]",
    "[[workload]]",
    "\"flowtune\"",
    "\"xcp\"",
    "\"pfabric\"",
    "\"ideal\"",
    "\"poisson\"",
    "\"incast\"",
    "\"permutation\"",
    "\"all-to-all\"",
    "\"staggered\"",
    "\"trace\"",
    "\"file\"",
    "\"dumbbell\"",
    "\"fat-tree\"",
    "\"leaf-spine\"",
    "\"classes\"",
    "\"red\"",
    "discipline = \"codel\"",
    "limit_bytes = 1538",
    "mss_bytes = 65535",
    "classes = [{ discipline = \"red\", weight = 2 }]",
];

/// A mutation of a plan's text.
#[derive(Clone, Debug)]
enum Edit {
    /// Removes a line.
    Drop(Index),
    /// Inserts a line of this or another plan before a line.
    Insert(Index, Index, Index),
    /// Replaces the text after a line's first equals sign by a word.
    Value(Index, &'static str),
    /// Inserts a word before a line.
    Word(Index, &'static str),
    /// Replaces a character.
    Character(Index, char),
    /// Cuts the text off.
    Cut(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    let word = || select(&WORDS[..]);
    prop_oneof![
        // Values weigh most: they lead past the TOML reader into the checks behind it.
        2 => at().prop_map(Edit::Drop),
        2 => (at(), at(), at()).prop_map(|(to, plan, line)| Edit::Insert(to, plan, line)),
        4 => (at(), word()).prop_map(|(line, word)| Edit::Value(line, word)),
        2 => (at(), word()).prop_map(|(line, word)| Edit::Word(line, word)),
        1 => (at(), any::<char>()).prop_map(|(at, c)| Edit::Character(at, c)),
        1 => at().prop_map(Edit::Cut),
    ]
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans")
}

/// Texts of the project's plans, in the order of their names.
fn shipped() -> Vec<String> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    // Directories come in any order, and a saved failure must mean the same plan again.
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

fn altered(plans: &[String], which: Index, edits: &[Edit]) -> String {
    let mut lines: Vec<String> = which.get(plans).lines().map(str::to_owned).collect();
    for edit in edits {
        // An index into nothing would panic in the test itself.
        if lines.is_empty() {
            break;
        }
        match edit {
            Edit::Drop(at) => {
                lines.remove(at.index(lines.len()));
            }
            Edit::Insert(to, plan, line) => {
                let from: Vec<&str> = plan.get(plans).lines().collect();
                lines.insert(to.index(lines.len()), (*line.get(&from)).to_owned());
            }
            Edit::Value(at, word) => {
                let line = at.get(&lines).clone();
                if let Some((key, _)) = line.split_once('=') {
                    let at = at.index(lines.len());
                    lines[at] = format!("{key}= {word}");
                }
            }
            Edit::Word(at, word) => lines.insert(at.index(lines.len()), (*word).to_owned()),
            Edit::Character(at, c) => {
                let mut text: Vec<char> = lines.join("\n").chars().collect();
                if !text.is_empty() {
                    let at = at.index(text.len());
                    text[at] = *c;
                }
                let text: String = text.into_iter().collect();
                lines = text.split('\n').map(str::to_owned).collect();
            }
            Edit::Cut(at) => lines.truncate(at.index(lines.len())),
        }
    }
    lines.join("\n")
}

/// Asserts that a text is a plan whose first flows come in order, or an error that begins with the
/// plan's name.
fn check(text: &str) {
    match RunPlan::parse(text, "altered.toml", &directory(), &Overrides::default()) {
        Ok(plan) => {
            // A hundred flows: an altered plan may have billions.
            let flows = plan.flows().unwrap();
            let starts: Vec<_> = flows.take(100).map(|flow| flow.start).collect();
            assert!(!starts.is_empty() && starts.is_sorted(), "{starts:?}");
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with("altered.toml:"), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn an_altered_plan_is_a_plan_or_an_error(which: Index, edits in vec(edit(), 1..4)) {
        check(&altered(&shipped(), which, &edits));
    }

    #[test]
    fn any_text_is_a_plan_or_an_error(text in "(\\PC|\n){0,200}") {
        check(&text);
    }
}
