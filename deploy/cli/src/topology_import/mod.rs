//! `ratewright topology from-ec2` and `from-slurm`: topology files out of what other systems know.
//!
//! | module | holds |
//! |---|---|
//! | `network` | hosts by rack, and the file that is written of them |
//! | `ec2` | the AWS CLI's JSON |
//! | `slurm` | Slurm's `topology.conf` and `topology.yaml` |

mod ec2;
mod network;
mod slurm;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

pub use ec2::Ec2Inputs;
pub use network::ImportedNetwork;
pub use slurm::SlurmInputs;

/// The most bytes of one input file: four times what the largest network takes.
const MAX_INPUT_BYTES: u64 = 1 << 30;

/// Reads an input file, without the byte-order mark that some editors put before a text.
fn read(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(cannot)?;
    // One byte more than is allowed, so that a longer file is told from one that just fits.
    file.take(MAX_INPUT_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(cannot)?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        bail!("{} is larger than 1 GiB; split it", path.display());
    }
    let text = String::from_utf8(bytes);
    let text = text.with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// Returns text of others as it may stand in a comment or a message: short, and on one line.
fn printable(text: &str) -> String {
    const LONGEST: usize = 100;
    text.chars()
        .take(LONGEST)
        .map(|c| {
            if c.is_control() || !c.is_ascii() {
                '?'
            } else {
                c
            }
        })
        .collect()
}
