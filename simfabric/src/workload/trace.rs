//! Traces: flows as CSV, `start_ns,src,dst,bytes` and, where they differ from the usual, `stop_ns`,
//! `weight`, `class`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::{FlowSpec, HostId, Time};

/// Reason that a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Reason.
        reason: String,
    },
    /// The file has no flow.
    #[error("{}: there is no flow in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// First line of every trace.
pub const HEADER: &str = "start_ns,src,dst,bytes,stop_ns,weight,class";

/// Writes flows as CSV. Starts and stops are exact: nanoseconds with up to three decimals.
///
/// # Errors
/// If the sink fails.
pub fn write(
    flows: impl IntoIterator<Item = FlowSpec>,
    sink: &mut impl Write,
) -> std::io::Result<u64> {
    writeln!(sink, "{HEADER}")?;
    let mut count = 0;
    for flow in flows {
        let bytes = match flow.bytes {
            FlowSpec::UNBOUNDED => "unbounded".to_owned(),
            bytes => bytes.to_string(),
        };
        let stop = match flow.stop {
            Time::MAX => String::new(),
            stop => nanoseconds(stop),
        };
        writeln!(
            sink,
            "{},{},{},{bytes},{stop},{},{}",
            nanoseconds(flow.start),
            flow.src.0,
            flow.dst.0,
            flow.weight,
            flow.class
        )?;
        count += 1;
    }
    Ok(count)
}

fn nanoseconds(time: Time) -> String {
    // Integers: a double would round picoseconds from 2⁵³ on, which are 2.5 hours.
    let (whole, rest) = (time.as_ps() / 1_000, time.as_ps() % 1_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}")
}

/// A trace file, checked from end to end when it is opened and then streamed line by line.
#[derive(Debug)]
pub struct FlowTrace {
    lines: std::io::Lines<BufReader<std::fs::File>>,
    flows: u64,
}

impl FlowTrace {
    /// Opens a trace among `hosts` hosts. Starts must ascend.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is wrong; the error names the line.
    pub fn open(path: &Path, hosts: u32) -> Result<Self, TraceError> {
        let mut flows = 0;
        let mut last = Time::ZERO;
        // The whole file is checked first: an error in the middle of a long run would come too
        // late.
        for (number, line) in lines(path)?.enumerate() {
            let line = line.map_err(|source| TraceError::Read {
                path: path.to_owned(),
                source,
            })?;
            let wrong = |reason: String| TraceError::Line {
                path: path.to_owned(),
                line: number + 1,
                reason,
            };
            let Some(flow) = parse(&line, number == 0).map_err(&wrong)? else {
                continue;
            };
            // The run draws flows while it goes on, so it could not sort them.
            if flow.start < last {
                return Err(wrong(
                    "starts before the flow above; sort the trace by start".into(),
                ));
            }
            for (end, host) in [("src", flow.src), ("dst", flow.dst)] {
                if host.0 >= hosts {
                    let most = hosts.saturating_sub(1);
                    return Err(wrong(format!(
                        "`{end}` is {}; hosts are 0 to {most}",
                        host.0
                    )));
                }
            }
            if flow.src == flow.dst {
                return Err(wrong(format!("host {} sends to itself", flow.src.0)));
            }
            last = flow.start;
            flows += 1;
        }
        if flows == 0 {
            return Err(TraceError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            lines: lines(path)?,
            flows,
        })
    }

    /// Returns the number of flows.
    #[must_use]
    pub const fn flows(&self) -> u64 {
        self.flows
    }
}

impl Iterator for FlowTrace {
    type Item = FlowSpec;

    /// Returns the next flow. If the file has changed since it was checked, the trace ends at the
    /// first line that is no flow.
    fn next(&mut self) -> Option<FlowSpec> {
        loop {
            let line = self.lines.next()?.ok()?;
            // `open` has refused headers below the first line.
            if let Some(flow) = parse(&line, true).ok()? {
                return Some(flow);
            }
        }
    }
}

/// Returns the lines of a file, without a byte-order mark before the first.
fn lines(path: &Path) -> Result<std::io::Lines<BufReader<std::fs::File>>, TraceError> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    let cannot = |source| TraceError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut reader = BufReader::new(file);
    if reader.fill_buf().map_err(cannot)?.starts_with(MARK) {
        reader.consume(MARK.len());
    }
    Ok(reader.lines())
}

/// Parses a line. Returns `None` for an empty line, a comment, or the header where one may stand.
fn parse(line: &str, header_allowed: bool) -> Result<Option<FlowSpec>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') || (header_allowed && line.starts_with("start_ns"))
    {
        return Ok(None);
    }
    let mut fields = line.split(',').map(str::trim);
    let mut required = |name: &str| {
        let found = fields.next().filter(|f| !f.is_empty());
        found.ok_or_else(|| format!("`{name}` is missing; a line is {HEADER}"))
    };
    let start = time("start_ns", required("start_ns")?)?;
    let src = integer("src", required("src")?)?;
    let dst = integer("dst", required("dst")?)?;
    let bytes = match required("bytes")? {
        "unbounded" => FlowSpec::UNBOUNDED,
        text => integer("bytes", text)?,
    };
    if bytes == 0 {
        return Err("`bytes` is 0; a flow has at least one byte".to_owned());
    }
    let mut flow = FlowSpec::new(HostId(src), HostId(dst), bytes, start);
    // An empty field keeps the default, so that later ones can be given alone.
    let mut optional = || fields.next().filter(|f| !f.is_empty());
    if let Some(text) = optional() {
        flow.stop = time("stop_ns", text)?;
    }
    if let Some(text) = optional() {
        let weight = text
            .parse::<f32>()
            .ok()
            .filter(|w| w.is_finite() && *w > 0.0);
        flow.weight =
            weight.ok_or_else(|| format!("`weight` is {text:?}; it must be a positive number"))?;
    }
    if let Some(text) = optional() {
        flow.class = integer("class", text)?;
    }
    match fields.next() {
        Some(extra) => Err(format!(
            "{extra:?} is one field too many; a line is {HEADER}"
        )),
        None => Ok(Some(flow)),
    }
}

fn integer<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    let parsed = text.parse();
    parsed.map_err(|_| format!("`{name}` is {text:?}; it must be a whole number"))
}

/// Parses nanoseconds with at most three decimals.
fn time(name: &str, text: &str) -> Result<Time, String> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    // Integers again: times that were written must be read back exactly.
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let ps = (digits(decimals) && decimals.len() <= 3)
        .then(|| {
            let whole: u64 = whole.parse().ok()?;
            let rest: u64 = format!("{decimals:0<3}").parse().ok()?;
            whole.checked_mul(1_000)?.checked_add(rest)
        })
        .flatten();
    let ps = ps.ok_or_else(|| {
        format!("`{name}` is {text:?}; it must be nanoseconds with at most three decimals")
    })?;
    Ok(Time::from_ps(ps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Poisson, SizeDistribution};

    #[test]
    fn what_is_written_reads_back() {
        let sizes = SizeDistribution::published("hadoop").unwrap();
        let span = (Time::ZERO, Time::from_ms(1));
        let mut flows: Vec<FlowSpec> = Poisson::new(16, 10_000_000_000, 0.7, sizes, span, 1)
            .unwrap()
            .collect();
        flows[3].bytes = FlowSpec::UNBOUNDED;
        flows[3].stop = Time::from_ps(5_000_000_001);
        flows[4].weight = 2.5;
        flows[5].class = 7;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flows.csv");
        let mut file = std::fs::File::create(&path).unwrap();
        assert_eq!(write(flows.clone(), &mut file).unwrap(), flows.len() as u64);
        let trace = FlowTrace::open(&path, 16).unwrap();
        assert_eq!(trace.flows(), flows.len() as u64);
        assert!(flows.len() > 20 && trace.eq(flows));
    }

    #[test]
    fn the_short_form_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flows.csv");
        let text = "0,0,1,100\n\n# by hand\n12.5,1,0,unbounded\n";
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
        let marked: Vec<FlowSpec> = FlowTrace::open(&path, 2).unwrap().collect();
        std::fs::write(&path, text).unwrap();
        let flows: Vec<FlowSpec> = FlowTrace::open(&path, 2).unwrap().collect();
        assert_eq!(marked, flows, "a byte-order mark says nothing");
        assert_eq!(
            flows[0],
            FlowSpec::new(HostId(0), HostId(1), 100, Time::ZERO)
        );
        assert_eq!(
            (flows[1].start, flows[1].bytes),
            (Time::from_ps(12_500), FlowSpec::UNBOUNDED)
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flows.csv");
        for (text, part) in [
            ("0,0,1\n", ":1: `bytes` is missing"),
            ("", ": there is no flow in it"),
            ("start_ns,src,dst,bytes\n", ": there is no flow in it"),
            ("0,0,1,10\n-1,0,1,10\n", ":2: `start_ns` is \"-1\""),
            ("0.1234,0,1,10\n", ":1: `start_ns` is"),
            ("5,0,1,10\n4,0,1,10\n", ":2: starts before"),
            ("5,0,2,10\n", ":1: `dst` is 2; hosts are 0 to 1"),
            ("5,1,1,10\n", ":1: host 1 sends to itself"),
            ("5,0,1,0\n", ":1: `bytes` is 0"),
            ("5,0,1,1,,0\n", ":1: `weight` is \"0\""),
            ("5,0,1,1,,1,0,9\n", ":1: \"9\" is one field too many"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = FlowTrace::open(&path, 2).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
