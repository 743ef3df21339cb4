//! Slurm's `topology.conf`, in the grammar of all its configuration files.
//!
//! | text | meaning |
//! |---|---|
//! | `Key=Value`, `KEY = "a value"` | a pair; a quoted value may hold blanks |
//! | `#` | begins a comment, in quotes too |
//! | `\` at the end of a line | the next line continues it, without a blank between |
//! | `\` before another character | that character itself, so `\#` begins no comment |
//! | `Include FILE` | the lines of a file; a relative name starts from this file's folder |

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::super::{MAX_INPUT_BYTES, printable, read};
use super::{Group, GroupKind};

/// Maximum number of files that include each other in turn.
const MAX_DEPTH: usize = 16;

/// Maximum number of files of one topology.
const MAX_FILES: usize = 1_024;

/// Returns the switches and blocks of a file and of those that it includes.
///
/// # Errors
/// The text breaks the grammar or has another key, or an included file cannot be read. Files are
/// too many or too long.
pub(super) fn groups(path: &Path, text: &str) -> Result<Vec<Group>> {
    let mut reader = Reader::default();
    reader.read_text(path, text, 1)?;
    Ok(reader.groups)
}

#[derive(Default)]
struct Reader {
    groups: Vec<Group>,
    files: usize,
    bytes: u64,
}

impl Reader {
    fn read_text(&mut self, path: &Path, text: &str, depth: usize) -> Result<()> {
        self.files += 1;
        self.bytes += text.len() as u64;
        if depth > MAX_DEPTH {
            bail!("more than {MAX_DEPTH} files include each other; does one include itself?");
        }
        if self.files > MAX_FILES || self.bytes > MAX_INPUT_BYTES {
            bail!("more than {MAX_FILES} files or 1 GiB are included; put them into one file");
        }
        for (line, text) in lines(text) {
            let place = format!("{}:{line}", path.display());
            if let Some(name) = included(&text) {
                let file = included_file(path, name).with_context(|| place.clone())?;
                let text = read(&file).with_context(|| place.clone())?;
                // Its own lines say where they are.
                self.read_text(&file, &text, depth + 1)?;
            } else if let Some(group) = group(&text, &place).with_context(|| place.clone())? {
                self.groups.push(group);
            }
        }
        Ok(())
    }
}

/// Lines with their numbers: without comments and escapes, with what continues them.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_comment(line);
        let (line, more) = match without_continuation(line) {
            Some(line) => (line, true),
            None => (line, false),
        };
        match all.last_mut().filter(|_| continues) {
            Some((_, entry)) => entry.push_str(line),
            None => all.push((number, line.to_owned())),
        }
        continues = more;
    }
    for (_, line) in &mut all {
        *line = without_escapes(line);
    }
    all.retain(|(_, line)| !line.trim().is_empty());
    all
}

/// Returns a line up to the first `#` that no `\` takes as itself.
fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            '#' if !escaped => return &line[..at],
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    line
}

/// Returns a line without the `\` at its end; `None` if the next one does not continue it.
fn without_continuation(line: &str) -> Option<&str> {
    let line = line.trim_end();
    let backslashes = line.bytes().rev().take_while(|byte| *byte == b'\\').count();
    // An even number stands for half as many characters.
    line.strip_suffix('\\').filter(|_| backslashes % 2 == 1)
}

fn without_escapes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

/// Returns what a line includes.
fn included(line: &str) -> Option<&str> {
    const WORD: &str = "include";
    let line = line.trim();
    let (word, name) = line.split_at_checked(WORD.len())?;
    let is_include = word.eq_ignore_ascii_case(WORD) && name.starts_with(char::is_whitespace);
    // `Include = a` is a pair of an unknown key.
    is_include
        .then_some(name.trim())
        .filter(|name| !name.starts_with('='))
}

fn included_file(from: &Path, name: &str) -> Result<PathBuf> {
    if name.contains(char::is_whitespace) {
        bail!("Include takes one file, not {:?}", printable(name));
    }
    if name.contains("%c") {
        bail!(
            "the name of the cluster, for which %c stands in {:?}, is not known here; write it out",
            printable(name)
        );
    }
    Ok(from.parent().unwrap_or(Path::new("")).join(name))
}

/// Splits a line into its pairs.
fn pairs(line: &str) -> Result<Vec<(&str, &str)>> {
    let mut all = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        let (key, after) = rest.split_at(rest.find(|c| !is_of_key(c)).unwrap_or(rest.len()));
        let value = after.trim_start().strip_prefix('=');
        let Some(value) = value.filter(|_| !key.is_empty()) else {
            let word = rest.split_whitespace().next().unwrap_or_default();
            bail!("{:?} is no KEY=VALUE", printable(word));
        };
        let value = value.trim_start();
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted
                .split_once('"')
                .filter(|(_, after)| after.is_empty() || after.starts_with(char::is_whitespace))
                .with_context(|| format!("the quotes after {} do not end", printable(key)))?,
            None => value.split_at(value.find(char::is_whitespace).unwrap_or(value.len())),
        };
        if value.is_empty() {
            bail!("{} has no value", printable(key));
        }
        all.push((key, value));
        rest = after.trim_start();
    }
    Ok(all)
}

/// Returns the switch or block that a line describes; `None` for sizes of blocks.
fn group(line: &str, place: &str) -> Result<Option<Group>> {
    let (mut named, mut nodes) = (None, None);
    for (key, value) in pairs(line)? {
        let kind = match key.to_ascii_lowercase().as_str() {
            "switchname" => GroupKind::Switch,
            "blockname" => GroupKind::Block,
            "nodes" => {
                nodes = Some(value.to_owned());
                continue;
            }
            "switches" | "linkspeed" | "blocksizes" | "comment" => continue,
            _ => bail!(
                "there is no key {:?}; known are SwitchName, BlockName, Nodes, Switches, LinkSpeed, BlockSizes",
                printable(key)
            ),
        };
        if named.replace((kind, value)).is_some() {
            bail!("a line describes one switch or block");
        }
    }
    match named {
        Some((kind, name)) => Ok(Some(Group {
            place: place.to_owned(),
            kind,
            name: name.to_owned(),
            nodes,
        })),
        None if nodes.is_some() => bail!("Nodes without SwitchName or BlockName"),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Vec<(String, Option<String>)>> {
        let found = groups(Path::new("none/t.conf"), text)?;
        Ok(found.into_iter().map(|g| (g.name, g.nodes)).collect())
    }

    #[test]
    fn pairs_are_read_as_slurm_reads_them() {
        for text in [
            "SwitchName=s Nodes=a,b",
            "  switchname =s\tNODES= a,b  # c",
            "SwitchName = \"s\" Nodes = \"a,b\"",
            "SwitchName=s Nodes=a,\\\nb",
            "SwitchName=s \\  \n  Nodes=a,b\n",
            "# SwitchName=x \\\nSwitchName=s Nodes=a,b",
            "SwitchName=s Nodes=\\a,b Comment=\\#1",
            "\r\nSwitchName=s Nodes=a,b LinkSpeed=9\r\n",
            "SwitchName=s Nodes=x Nodes=a,b",
        ] {
            let expected = [("s".to_owned(), Some("a,b".to_owned()))];
            assert_eq!(read(text).expect(text), expected, "{text}");
        }
        let spaced = read("BlockName=\"a b\" Nodes=\"n1, n2\"\nBlockSizes=1,2").expect("blocks");
        assert_eq!(spaced, [("a b".to_owned(), Some("n1, n2".to_owned()))]);
    }

    #[test]
    fn what_is_no_pair_is_refused_with_its_line() {
        for (text, why) in [
            ("\nSwitchName", "t.conf:2: \"SwitchName\" is no KEY=VALUE"),
            ("SwitchName=s Nodes+=a", "\"Nodes+=a\" is no KEY=VALUE"),
            ("=s", "\"=s\" is no KEY=VALUE"),
            ("SwitchName=\"s Nodes=a", "do not end"),
            ("SwitchName=\"s\"t", "do not end"),
            ("SwitchName=", "SwitchName has no value"),
            ("SwitchName=\"\"", "SwitchName has no value"),
            ("SwitchName=s BlockName=b", "one switch or block"),
            ("Nodes=a", "Nodes without"),
            ("Include=a", "no key \"Include\""),
            ("Include a b", "one file"),
            ("Include %c.conf", "write it out"),
            ("Include gone.conf", "none/gone.conf"),
        ] {
            let refused = format!("{:#}", read(text).expect_err(text));
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn included_files_are_read_in_their_place_and_none_includes_itself() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        std::fs::create_dir(dir.path().join("rows")).expect("a directory");
        write(
            "rows/b.conf",
            "\u{feff}SwitchName=b Nodes=n2\nINCLUDE c.conf",
        );
        write("rows/c.conf", "SwitchName=c Nodes=n3");
        let text = "SwitchName=a Nodes=n1\ninclude\trows/b.conf # more\nSwitchName=d Nodes=n4";
        let found = groups(&dir.path().join("t.conf"), text).expect("groups");
        let names: Vec<&str> = found.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert!(
            found[2].place.ends_with("rows/c.conf:1"),
            "{}",
            found[2].place
        );

        let itself = write("loop.conf", "Include loop.conf");
        let refused = groups(&itself, "Include loop.conf").expect_err("a loop");
        assert!(refused.to_string().contains("include each other"));
        // Each file includes the next one twice.
        for depth in 0..14 {
            let next = format!("Include {}.conf\n", depth + 1).repeat(2);
            write(&format!("{depth}.conf"), &next);
        }
        write("14.conf", "");
        let refused = groups(&dir.path().join("t.conf"), "Include 0.conf").expect_err("a tree");
        assert!(
            refused.to_string().contains("more than 1024 files"),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([a-zA-Z]{0,9}[ =\"#\\\\\n\t,\\[\\]0-9]{0,4}){0,12}") {
            let _ = read(&text);
        }

        #[test]
        fn blanks_quotes_and_case_say_nothing(
            name in "[a-z0-9-]{1,8}",
            nodes in "[a-z0-9,-]{1,12}",
            blanks in prop::collection::vec("[ \t]{0,3}", 6),
            quoted in any::<[bool; 2]>(),
            upper in any::<bool>(),
        ) {
            let value = |text: &str, quoted| match quoted {
                true => format!("\"{text}\""),
                false => text.to_owned(),
            };
            let key = |text: &str| match upper {
                true => text.to_ascii_uppercase(),
                false => text.to_owned(),
            };
            let text = format!(
                "{}{}{}={}{} \\\n{}{}{}={}{}",
                blanks[0], key("SwitchName"), blanks[1], blanks[2], value(&name, quoted[0]),
                blanks[3], key("Nodes"), blanks[4], blanks[5], value(&nodes, quoted[1]),
            );
            prop_assert_eq!(read(&text).expect("a switch"), [(name, Some(nodes))]);
        }
    }
}
