//! Slurm's lists of hosts: `node[1-4,07],gpu[1-2]-ib`.

use anyhow::{Context as _, Result, bail};

/// The most hosts of one list, which is the most of a topology.
const MAX_HOSTS: usize = ratewright_topology::builders::MAX_HOSTS as usize;

/// The most bytes of a name. A host's has fewer; the bound is for the memory of a whole list.
const MAX_NAME_BYTES: usize = 255;

/// Writes out a list of hosts, in its order.
///
/// # Errors
/// A bracket is not closed, a range is not of numbers or runs backwards, a name is too long, or
/// there are more hosts than a topology holds.
pub(super) fn expand(list: &str) -> Result<Vec<String>> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(list)? {
        let item = item.trim();
        if !item.is_empty() {
            expand_item(item, &mut hosts)?;
        }
    }
    Ok(hosts)
}

/// Splits at commas that stand in no bracket.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>> {
    let (mut items, mut start, mut open) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if open => bail!("a bracket within a bracket"),
            '[' => open = true,
            ']' if !open => bail!("`]` without `[`"),
            ']' => open = false,
            ',' if !open => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        bail!("`[` without `]`");
    }
    items.push(&list[start..]);
    Ok(items)
}

/// Writes out one item, bracket after bracket from the left.
fn expand_item(item: &str, hosts: &mut Vec<String>) -> Result<()> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        // Brackets are paired: the list was split by them.
        let (inside, after) = after.split_once(']').context("`[` without `]`")?;
        let numbers = numbers(inside)?;
        if hosts.len() + names.len().saturating_mul(numbers.len()) > MAX_HOSTS {
            bail!("more than {MAX_HOSTS} hosts");
        }
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| format!("{name}{before}{number}"))
            })
            .collect();
        check_length(&names)?;
        rest = after;
    }
    if hosts.len() + names.len() > MAX_HOSTS {
        bail!("more than {MAX_HOSTS} hosts");
    }
    let first = hosts.len();
    hosts.extend(names.into_iter().map(|name| name + rest));
    check_length(&hosts[first..])
}

/// Checks the length of names, of which the first and the last have the fewest and most digits.
fn check_length(names: &[String]) -> Result<()> {
    if names.last().is_some_and(|name| name.len() > MAX_NAME_BYTES) {
        bail!("a name of more than {MAX_NAME_BYTES} bytes");
    }
    Ok(())
}

/// Writes out `1-4,07`. The first number of a range says how wide numbers are.
fn numbers(ranges: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let parsed = text.parse::<u64>().ok().filter(|_| is_number);
            parsed.with_context(|| format!("{text:?} is no number"))
        };
        let (low, high) = (number(first)?, number(last)?);
        if high < low {
            bail!("{range:?} runs backwards");
        }
        if high - low >= MAX_HOSTS as u64 || all.len() + (high - low) as usize >= MAX_HOSTS {
            bail!("more than {MAX_HOSTS} hosts");
        }
        let width = first.len();
        all.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

/// Writes hosts as a list: numbers that follow each other are a range.
pub(super) fn compress(hosts: &[String]) -> String {
    // Name before the number, first number as it is written, and the last one.
    let mut runs: Vec<(&str, &str, Option<u64>)> = Vec::new();
    for host in hosts {
        let stem = host.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &host[stem.len()..];
        let number: Option<u64> = digits.parse().ok();
        if let (Some(number), Some((before, first, Some(last)))) = (number, runs.last_mut())
            && *before == stem
            && last.checked_add(1) == Some(number)
            && format!("{number:0width$}", width = first.len()) == digits
        {
            *last = number;
        } else {
            runs.push((stem, digits, number));
        }
    }
    let write = |(stem, first, last): &(&str, &str, Option<u64>)| match last {
        Some(last) if first.parse() != Ok(*last) => {
            let width = first.len();
            format!("{stem}[{first}-{last:0width$}]")
        }
        _ => format!("{stem}{first}"),
    };
    runs.iter().map(write).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_written_out_as_slurm_does() {
        for (list, hosts) in [
            ("a", "a"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-10],m", "n08 n09 n10 m"),
            ("n[1,3-4]-ib", "n1-ib n3-ib n4-ib"),
            ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ] {
            assert_eq!(expand(list).expect(list).join(" "), hosts);
        }
    }

    #[test]
    fn bad_and_endless_lists_are_refused() {
        for (list, why) in [
            ("n[1-3", "without"),
            ("n1]", "without"),
            ("n[1[2]]", "within"),
            ("n[x]", "no number"),
            ("n[-3]", "no number"),
            ("n[3-1]", "backwards"),
            ("n[0-99999999999]", "more than"),
            ("n[1-99999]m[1-99999]", "more than"),
            ("n[0-18446744073709551615]", "more than"),
        ] {
            let refused = format!("{:#}", expand(list).expect_err(list));
            assert!(refused.contains(why), "{list}: {refused}");
        }
    }

    #[test]
    fn endless_names_are_refused() {
        let long = "x".repeat(300);
        for list in [
            format!("{long}[1-3]"),
            format!("n[1-3]{long}"),
            format!("n[{}1-2]", "0".repeat(300)),
        ] {
            let refused = expand(&list).expect_err(&list).to_string();
            assert!(refused.contains("more than 255 bytes"), "{refused}");
        }
    }

    #[test]
    fn hosts_in_a_row_are_a_range() {
        for (hosts, list) in [
            ("n1 n2 n3 m", "n[1-3],m"),
            ("n09 n10 n11 n012", "n[09-11],n012"),
            ("n1 n3", "n1,n3"),
            ("a-ib b-ib", "a-ib,b-ib"),
        ] {
            let hosts: Vec<String> = hosts.split(' ').map(str::to_owned).collect();
            assert_eq!(compress(&hosts), list);
        }
    }

    proptest! {
        #[test]
        fn what_is_compressed_is_expanded_again(
            hosts in prop::collection::vec("[ab]?-?[0-9]{0,3}x?", 0..20),
        ) {
            let hosts: Vec<String> = hosts.into_iter().filter(|host| !host.is_empty()).collect();
            prop_assert_eq!(expand(&compress(&hosts)).expect("a list"), hosts);
        }

        #[test]
        fn any_list_is_expanded_or_refused(list in "[a-z0-9,\\[\\]-]{0,30}") {
            let _ = expand(&list);
        }
    }
}
