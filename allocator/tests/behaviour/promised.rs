//! Names in an answer against those that were promised. The daemon's tests have this file, too.

use std::collections::BTreeSet;

use serde_json::Value;

/// Labels whose values are all there from the start. Reasons have a series once they occur.
const LABELS: [&str; 7] = [
    "cause",
    "direction",
    "event",
    "fault",
    "feed",
    "result",
    "state",
];

/// Adds each member as `path member.member`; elements of an array count as one.
pub(crate) fn collect(value: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let separator = if prefix.ends_with(' ') { "" } else { "." };
                let path = format!("{prefix}{separator}{name}");
                collect(member, &path, names);
                names.insert(path);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                collect(element, prefix, names);
            }
        }
        _ => {}
    }
}

/// Adds the names of metrics, and their series by one of [`LABELS`].
pub(crate) fn collect_metrics(text: &str, path: &str, names: &mut BTreeSet<String>) {
    for line in text.lines() {
        let (series, _) = line.rsplit_once(' ').unwrap_or_default();
        if let Some(name) = series.strip_prefix("# TYPE ") {
            names.insert(format!("{path} {name}"));
        } else if let Some((_, labels)) = series.split_once('{')
            && LABELS.iter().any(|label| {
                let value = labels.strip_prefix(label);
                value.is_some_and(|value| value.starts_with('='))
            })
        {
            names.insert(format!("{path} {series}"));
        }
    }
}

/// Adds the metrics that `source` names in full: `prefix` and what follows. A family by reason has
/// no series, and so no line in an answer, before its first one.
pub(crate) fn collect_families(
    source: &str,
    prefix: &str,
    path: &str,
    names: &mut BTreeSet<String>,
) {
    let is_name = |byte| matches!(byte, b'a'..=b'z' | b'_');
    for literal in source.split('"') {
        if literal.starts_with(prefix) && literal.bytes().all(is_name) {
            names.insert(format!("{path} {literal}"));
        }
    }
}

/// Fails if a promised name is gone, or a name is not promised in the list, which is `file`.
pub(crate) fn assert_kept(promised: &str, file: &str, names: &BTreeSet<String>) {
    let promised: BTreeSet<String> = promised.lines().map(str::to_owned).collect();
    let gone: Vec<_> = promised.difference(names).collect();
    assert!(
        gone.is_empty(),
        "keep them for a release (docs/operating/compatibility.md): {gone:#?}"
    );
    let new: Vec<_> = names.difference(&promised).collect();
    assert!(new.is_empty(), "add them to {file}: {new:#?}");
}
