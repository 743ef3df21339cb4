//! A core of its own for the thread of an allocator that spins.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::SwarmOptions;

const SELF: Pid = Pid::from_raw(0);

/// Reserves a core for the core's thread of an allocator that is started here with `--busy-poll`.
/// Keeps this process, and its children, off the first core that it may use, and returns that core.
/// A spinning thread and the sessions' thread delay each other by milliseconds if the scheduler
/// puts both onto one core.
///
/// None where there is nothing to give: one core only, several ports, or a `pin_core` that
/// was asked for.
///
/// # Errors
/// If the kernel does not say or does not take which cores may be used. Call it before other
/// threads are started.
pub fn for_shard(options: &SwarmOptions) -> Result<Option<usize>> {
    let spins_here = options.busy_poll && options.allocator.is_none() && options.shards == 1;
    if !spins_here || options.is_set("pin_core") {
        return Ok(None);
    }
    let mut cores = sched_getaffinity(SELF).context("asking which cores may be used")?;
    let mut allowed = (0..CpuSet::count()).filter(|core| cores.is_set(*core).unwrap_or(false));
    // A second core must remain for this process.
    let (Some(first), Some(_)) = (allowed.next(), allowed.next()) else {
        return Ok(None);
    };
    cores.unset(first).context("leaving out a core")?;
    sched_setaffinity(SELF, &cores).context("leaving a core to the allocator")?;
    Ok(Some(first))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: SwarmOptions,
    }

    /// Returns the core that [`for_shard`] gives out on a new thread, and the cores that the thread
    /// may use before and after.
    fn given(args: &'static [&'static str]) -> (Option<usize>, Vec<usize>, Vec<usize>) {
        let usable = || {
            let cores = sched_getaffinity(SELF).expect("known");
            (0..CpuSet::count())
                .filter(|core| cores.is_set(*core).expect("in range"))
                .collect::<Vec<_>>()
        };
        let try_it = move || {
            let line = ["swarm"].iter().chain(args);
            let options = CommandLine::try_parse_from(line).expect("valid").options;
            let before = usable();
            (for_shard(&options).expect("allowed"), before, usable())
        };
        std::thread::spawn(try_it).join().expect("done")
    }

    #[test]
    fn a_shard_that_spins_has_a_core_that_the_hosts_keep_off() {
        let (core, before, after) = given(&["--busy-poll"]);
        if let [first, rest @ ..] = before.as_slice()
            && !rest.is_empty()
        {
            assert_eq!((core, after.as_slice()), (Some(*first), rest));
        } else {
            assert_eq!((core, &after), (None, &before), "there is one core only");
        }
    }

    #[test]
    fn nobody_else_is_moved() {
        for args in [
            &[][..],
            &["--busy-poll", "--shards", "2"],
            &["--busy-poll", "--set", "pin_core = 1"],
        ] {
            let (core, before, after) = given(args);
            assert_eq!((core, after), (None, before), "{args:?}");
        }
    }
}
