//! Slurm's `topology.yaml`: a list of topologies, of which one is imported.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::super::printable;
use super::{Group, GroupKind};

/// One topology. Types other than `tree` and `block` hold no racks.
#[derive(Deserialize)]
struct Topology {
    #[serde(rename = "topology")]
    name: String,
    #[serde(default)]
    cluster_default: bool,
    tree: Option<Tree>,
    block: Option<Blocks>,
}

#[derive(Deserialize)]
struct Tree {
    #[serde(default)]
    switches: Vec<Entry>,
}

#[derive(Deserialize)]
struct Blocks {
    #[serde(default)]
    blocks: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "switch", alias = "block")]
    name: Spanned<String>,
    nodes: Option<String>,
}

impl Topology {
    /// Returns its switches and blocks; `None` if it is flat.
    fn groups(self, path: &Path) -> Option<Vec<Group>> {
        let (kind, entries) = match (self.tree, self.block) {
            (Some(tree), _) => (GroupKind::Switch, tree.switches),
            (None, Some(block)) => (GroupKind::Block, block.blocks),
            (None, None) => return None,
        };
        let group = |entry: Entry| Group {
            place: format!("{}:{}", path.display(), entry.name.referenced.line()),
            kind,
            name: entry.name.value,
            nodes: entry.nodes,
        };
        Some(entries.into_iter().map(group).collect())
    }

    const fn is_flat(&self) -> bool {
        self.tree.is_none() && self.block.is_none()
    }
}

/// Returns true if a text can only be YAML: a line of `topology.conf` begins with a key.
pub(super) fn is_yaml(path: &Path, text: &str) -> bool {
    let named = path.extension().is_some_and(|extension| {
        extension.eq_ignore_ascii_case("yaml") || extension.eq_ignore_ascii_case("yml")
    });
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    named || first.is_some_and(|line| line.starts_with(['-', '[', '%']))
}

/// Returns the switches and blocks of the topology that is called `wanted`; without a name, of the
/// cluster's default, or of the only one that is not flat.
///
/// # Errors
/// The text is no `topology.yaml`, or no topology or several are meant.
pub(super) fn groups(path: &Path, text: &str, wanted: Option<&str>) -> Result<Vec<Group>> {
    let options = serde_saphyr::options! { with_snippet: false };
    let topologies: Vec<Topology> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().map(|at| format!(":{}", at.line()));
            anyhow!(
                "{}{} is no topology.yaml: {}",
                path.display(),
                line.unwrap_or_default(),
                printable_error(&error.to_string())
            )
        })?;
    let names = |of: &[Topology]| -> String {
        let names: Vec<String> = of
            .iter()
            .map(|topology| printable(&topology.name))
            .collect();
        printable(&names.join(", "))
    };
    let chosen = match wanted {
        Some(wanted) => {
            let all = names(&topologies);
            let mut named = topologies.into_iter().filter(|t| t.name == wanted);
            named.next().ok_or_else(|| {
                anyhow!(
                    "{} has no topology {:?}; it has {all}",
                    path.display(),
                    printable(wanted)
                )
            })?
        }
        None => {
            let mut racked: Vec<Topology> =
                topologies.into_iter().filter(|t| !t.is_flat()).collect();
            let default = racked.iter().position(|topology| topology.cluster_default);
            match default.or((racked.len() == 1).then_some(0)) {
                Some(at) => racked.swap_remove(at),
                None if racked.is_empty() => {
                    bail!("{} has no topology of type tree or block", path.display())
                }
                None => bail!(
                    "{} has several topologies and no cluster_default; name one of {} with --topology-name",
                    path.display(),
                    names(&racked)
                ),
            }
        }
    };
    let name = printable(&chosen.name);
    chosen.groups(path).ok_or_else(|| {
        anyhow!(
            "{}: topology {name} is of neither type, tree or block, and says nothing of racks",
            path.display()
        )
    })
}

/// Returns an error of the reader on one line.
fn printable_error(text: &str) -> String {
    printable(text.lines().next().unwrap_or_default().trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, wanted: Option<&str>) -> Result<Vec<(String, Option<String>)>> {
        let found = groups(Path::new("t.yaml"), text, wanted)?;
        Ok(found.into_iter().map(|g| (g.name, g.nodes)).collect())
    }

    const THREE: &str = "\
# Comment
- topology: all
  cluster_default: False
  flat: true
- topology: rows
  tree:
    switches:
    - {switch: top, children: 'row[1-2]'}
    - switch: row1
      nodes: n[1-2]
    - switch: row2
      nodes: n3
- topology: pods
  block:
    block_sizes: [2, 4]
    blocks:
    - block: 7
      nodes: n[1-3]
";

    #[test]
    fn the_named_topology_or_the_clusters_default_or_the_only_one_is_read() {
        let rows = [
            ("top".to_owned(), None),
            ("row1".to_owned(), Some("n[1-2]".to_owned())),
            ("row2".to_owned(), Some("n3".to_owned())),
        ];
        let pods = [("7".to_owned(), Some("n[1-3]".to_owned()))];
        assert_eq!(read(THREE, Some("rows")).expect("rows"), rows);
        assert_eq!(read(THREE, Some("pods")).expect("pods"), pods);
        let default = THREE.replace(
            "- topology: pods",
            "- topology: pods\n  cluster_default: true",
        );
        assert_eq!(read(&default, None).expect("the default"), pods);
        // A default that is flat says nothing of racks.
        let flat = THREE.replace("False", "True");
        let (one, _) = flat.split_once("- topology: pods").expect("the third");
        assert_eq!(read(one, None).expect("the only one"), rows);
        let marked = format!("\u{feff}---\n{one}");
        assert_eq!(read(&marked, None).expect("a byte-order mark"), rows);
        let place = groups(Path::new("t.yaml"), THREE, Some("rows")).expect("rows");
        assert_eq!(place[1].place, "t.yaml:9");
    }

    #[test]
    fn a_switch_may_have_a_long_list_of_nodes() {
        let nodes: Vec<String> = (0..4_000).map(|number| format!("n{number}")).collect();
        let text = format!(
            "- topology: a\n  tree: {{switches: [{{switch: s, nodes: \"{0}\"}}]}}\n\
             - topology: b\n  tree:\n    switches:\n    - switch: s\n      nodes: {0}\n",
            nodes.join(",")
        );
        for topology in ["a", "b"] {
            let found = read(&text, Some(topology)).expect("a switch");
            assert_eq!(found[0].1, Some(nodes.join(",")));
        }
    }

    #[test]
    fn what_is_not_meant_is_one_clear_error() {
        let aliases = (1..30).fold("- &a0 [x, x]\n".to_owned(), |text, level| {
            let before = level - 1;
            format!("{text}- &a{level} [*a{before}, *a{before}]\n")
        });
        for (text, wanted, why) in [
            (THREE, None, "name one of rows, pods with --topology-name"),
            (
                THREE,
                Some("rings"),
                "no topology \"rings\"; it has all, rows, pods",
            ),
            (THREE, Some("all"), "says nothing of racks"),
            (
                "- topology: a\n  flat: true",
                None,
                "no topology of type tree or block",
            ),
            ("[]", None, "no topology of type tree or block"),
            (
                "- tree: {}\n",
                None,
                "t.yaml:1 is no topology.yaml: missing field `topology`",
            ),
            ("- topology: a\n  tree: [", None, "is no topology.yaml"),
            ("switches:\n", None, "is no topology.yaml"),
            (&"[".repeat(100_000), None, "is no topology.yaml"),
            (&aliases, None, "is no topology.yaml"),
        ] {
            let refused = format!("{:#}", read(text, wanted).expect_err(why));
            assert!(refused.contains(why), "{why}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }

    #[test]
    fn yaml_is_told_by_its_name_or_its_first_line() {
        for (path, text, yaml) in [
            ("topology.conf", "# c\n\n---\n", true),
            ("topology", "- topology: a", true),
            ("t.YAML", "x", true),
            ("topology.conf", "# - a\nSwitchName=a", false),
            ("topology.conf", "", false),
        ] {
            assert_eq!(is_yaml(Path::new(path), text), yaml, "{path} {text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([a-z:\\[\\]{}&*!|>'\"#% \n-]{0,6}(topology|tree|switches|nodes)?){0,10}") {
            let _ = read(&text, None);
        }
    }
}
