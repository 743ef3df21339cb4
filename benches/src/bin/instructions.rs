//! Counts the instructions of the engines' kernels, and of a start's way through the allocator,
//! under valgrind. Holds them against the counts in `benches/instructions.txt`: a count says the
//! same on a busy machine and on an idle one.
//!
//! `instructions check` fails if a case takes over 3 % more than is written there; `instructions
//! update` writes the counts of now. Valgrind knows AVX2 and not AVX-512, so those kernels are not
//! counted. Counts are of the profile that this program was built with: `make nightly` takes `dev`,
//! compiled as a whole (`CARGO_INCREMENTAL=0`): the smaller units of an incremental compilation
//! count otherwise.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ratewright_allocator::engine::RateEngine;
use ratewright_allocator::engine::parallel::Simd;
use ratewright_bench::parallel::{Busy, three_tiers, two_tiers};
use ratewright_bench::start_path::StartPath;
use ratewright_bench::{Size, clos, warm_engine};

/// Growth of a count that is allowed, as a share.
const TOLERANCE: f64 = 0.03;
/// Rounds of the two runs whose difference is divided by that of the rounds: what comes before and
/// after them cancels out.
const ROUNDS: [u32; 2] = [8, 40];
/// Rounds of starts, one of each host: hash tables differ from run to run, by more than 32 starts.
const START_ROUNDS: [u32; 2] = [8, HOSTS];
const HOSTS: u32 = 384;
const FLOWS: u32 = 3_072;

/// A case to count.
#[derive(Clone, Copy)]
struct CountedCase {
    name: &'static str,
    what: &'static str,
    /// Sets up, and runs the given number of rounds.
    run: fn(Simd, u32),
    rounds: [u32; 2],
    /// There is one for each instruction set.
    vector: bool,
}

const CASES: [CountedCase; 7] = [
    CountedCase {
        name: "iteration",
        what: "3,072 flows at rest: F-NORM, new rates, sums, prices",
        run: |simd, rounds| two_tier_rounds(FLOWS, simd, rounds, |busy| busy.iterate()),
        rounds: ROUNDS,
        vector: true,
    },
    CountedCase {
        name: "iteration-after-events",
        what: "the same after one flow was replaced: two walks, and the replacement",
        run: |simd, rounds| {
            two_tier_rounds(FLOWS, simd, rounds, |busy| {
                busy.replace();
                busy.iterate();
            });
        },
        rounds: ROUNDS,
        vector: true,
    },
    CountedCase {
        name: "prices",
        what: "16 flows: next to nothing but the price update of all links",
        run: |simd, rounds| two_tier_rounds(16, simd, rounds, |busy| busy.iterate()),
        rounds: ROUNDS,
        vector: true,
    },
    CountedCase {
        name: "three-tiers",
        what: "3,072 flows of a three-tier network at rest",
        run: |simd, rounds| {
            let topology = three_tiers(HOSTS);
            let mut busy = Busy::new(&topology, FLOWS, simd);
            (0..rounds).for_each(|_| busy.iterate());
        },
        rounds: ROUNDS,
        vector: true,
    },
    CountedCase {
        name: "replace-100-flows",
        what: "the ends of 100 flows and the starts of as many others",
        run: |simd, rounds| {
            two_tier_rounds(FLOWS, simd, rounds, |busy| {
                (0..100).for_each(|_| busy.replace());
            });
        },
        rounds: ROUNDS,
        vector: false,
    },
    CountedCase {
        name: "start-to-datagram",
        what: "one flowlet's start: session, hub, engine, and the datagram with its first rate",
        run: |simd, rounds| {
            let topology = two_tiers(HOSTS);
            let mut path = StartPath::new(&topology, FLOWS / HOSTS, simd);
            (0..rounds).for_each(|_| {
                path.start();
            });
        },
        rounds: START_ROUNDS,
        vector: true,
    },
    CountedCase {
        name: "reference-iteration",
        what: "the f64 reference, 3,072 flows at rest",
        run: |_, rounds| reference_rounds(rounds),
        rounds: ROUNDS,
        vector: false,
    },
];

fn two_tier_rounds(flows: u32, simd: Simd, rounds: u32, round: impl Fn(&mut Busy<'_>)) {
    let topology = two_tiers(HOSTS);
    let mut busy = Busy::new(&topology, flows, simd);
    (0..rounds).for_each(|_| round(&mut busy));
}

fn reference_rounds(rounds: u32) {
    let size = Size {
        hosts: HOSTS,
        flows: FLOWS,
    };
    let mut engine = warm_engine(&clos(size), size);
    for _ in 0..rounds {
        engine.iterate();
        engine.drain_updates(&mut |_| {});
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["check"] => check(),
        ["update"] => update(),
        ["run", case, simd, rounds] => run(case, simd, rounds.parse()?),
        _ => bail!("usage: instructions check | update"),
    }
}

fn run(case: &str, simd: &str, rounds: u32) -> Result<()> {
    let case = CASES
        .iter()
        .find(|c| c.name == case)
        .context("no such case")?;
    let simd = Simd::available()
        .into_iter()
        .find(|s| s.name() == simd)
        .context("valgrind's machine has no such instruction set")?;
    (case.run)(simd, rounds);
    Ok(())
}

/// What is counted: each case with the instruction sets that this machine and valgrind have.
fn counted() -> Vec<(CountedCase, Simd)> {
    let sets: Vec<Simd> = Simd::available()
        .into_iter()
        .filter(|simd| *simd <= Simd::Avx2)
        .collect();
    let of_case = |case: CountedCase| {
        let count = if case.vector { sets.len() } else { 1 };
        let sets = sets[..count].to_vec();
        sets.into_iter().map(move |simd| (case, simd))
    };
    CASES.into_iter().flat_map(of_case).collect()
}

/// The instructions of one round.
fn count(case: &CountedCase, simd: Simd) -> Result<u64> {
    let [few, many] = case.rounds;
    let of = |rounds| total(case.name, simd, rounds);
    let difference = of(many)?.checked_sub(of(few)?);
    let difference = difference.context("more rounds took fewer instructions")?;
    Ok(difference / u64::from(many - few))
}

/// The instructions of a whole run, by valgrind's cachegrind without its caches.
fn total(case: &str, simd: Simd, rounds: u32) -> Result<u64> {
    let file = tempfile::NamedTempFile::new()?;
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--branch-sim=no"])
        .arg(format!("--cachegrind-out-file={}", file.path().display()))
        .arg(std::env::current_exe()?)
        .args(["run", case, simd.name(), &rounds.to_string()])
        .output()
        .context("starting valgrind, which `scripts/setup.sh valgrind` installs")?;
    ensure!(
        output.status.success(),
        "{case}, {}: {}",
        simd.name(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(file.path())?;
    let summary = text.lines().find_map(|line| line.strip_prefix("summary:"));
    let summary = summary.context("cachegrind wrote no summary")?.trim();
    summary.parse().context("cachegrind's summary")
}

/// Counts everything, in two threads: one valgrind keeps one core busy.
fn count_all() -> Result<Vec<(CountedCase, Simd, u64)>> {
    let work = counted();
    let every_other = |first: usize| -> Result<Vec<u64>> {
        let of = |(case, simd): &(CountedCase, Simd)| count(case, *simd);
        work.iter().skip(first).step_by(2).map(of).collect()
    };
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| every_other(1));
        let even = every_other(0)?;
        let odd = odd.join().map_err(|_| anyhow!("a thread panicked"))??;
        anyhow::Ok((even, odd))
    })?;
    let of = |(i, &(case, simd)): (usize, &(CountedCase, Simd))| {
        let counts = if i % 2 == 0 { &even } else { &odd };
        (case, simd, counts[i / 2])
    };
    Ok(work.iter().enumerate().map(of).collect())
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
}

fn update() -> Result<()> {
    let mut text = String::from(
        "# Instructions of one round of each case, counted by valgrind in the dev profile.\n\
         # Written by `CARGO_INCREMENTAL=0 cargo run -p ratewright-bench --bin instructions update`.\n",
    );
    for (case, simd, count) in count_all()? {
        let line = format!("{:<24} {:<8} {count:>10}", case.name, simd.name());
        println!("{line}  {}", case.what);
        writeln!(text, "{line}")?;
    }
    std::fs::write(file(), text)?;
    Ok(())
}

fn baseline() -> Result<BTreeMap<(String, String), u64>> {
    let path = file();
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [case, simd, count] = words[..] else {
                bail!("{}: not a case, a set and a count: {line}", path.display());
            };
            Ok(((case.to_owned(), simd.to_owned()), count.parse()?))
        })
        .collect()
}

fn check() -> Result<()> {
    let baseline = baseline()?;
    let mut regressions = 0;
    for (case, simd, count) in count_all()? {
        let key = (case.name.to_owned(), simd.name().to_owned());
        let Some(&before) = baseline.get(&key) else {
            bail!("{} {} has no count: run update", case.name, simd.name());
        };
        let change = count as f64 / before as f64 - 1.0;
        let verdict = if change > TOLERANCE {
            regressions += 1;
            "  REGRESSION"
        } else if change < -TOLERANCE {
            "  better: run update to keep it so"
        } else {
            ""
        };
        println!(
            "{:<24} {:<8} {count:>10} {:>+7.2} %{verdict}",
            case.name,
            simd.name(),
            change * 100.0
        );
    }
    ensure!(
        regressions == 0,
        "{regressions} cases take over {:.0} % more instructions than {} says; if that is meant, run update",
        TOLERANCE * 100.0,
        file().display()
    );
    Ok(())
}
