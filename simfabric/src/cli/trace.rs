//! `simfabric trace`: writes the flows of a plan as CSV, which another plan reads with
//! `kind = "trace"`.

use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ratewright_simfabric::plan::{Overrides, RunPlan};
use ratewright_simfabric::workload::trace;

/// Arguments of `trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// The plan.
    plan: PathBuf,
    /// The file to write; standard output if it is left out.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replaces the plan's seed.
    #[arg(long)]
    seed: Option<u64>,
}

impl TraceArgs {
    /// Writes the flows.
    pub(crate) fn run(&self) -> Result<()> {
        let plan = RunPlan::load(
            &self.plan,
            &Overrides {
                seed: self.seed,
                ..Overrides::default()
            },
        )?;
        let flows = plan.flows()?;
        let Some(path) = &self.out else {
            let written = trace::write(flows, &mut BufWriter::new(std::io::stdout().lock()));
            return match written {
                // A reader such as `head` that has seen enough is no failure.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                other => other.map(drop).context("cannot write the trace"),
            };
        };
        let file = match std::fs::File::create(path) {
            Ok(file) => file,
            Err(e) => bail!("{}: {e}", path.display()),
        };
        let mut sink = BufWriter::new(file);
        // A full disk may show only when the buffer is flushed.
        let count = trace::write(flows, &mut sink)
            .and_then(|count| sink.flush().map(|()| count))
            .with_context(|| path.display().to_string())?;
        say!("{count} flows in {}", path.display());
        Ok(())
    }
}
