//! Progress in lines, for logs and pipes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratewright_cli::clock::{self, NS_PER_MS, NS_PER_S, now_ns};
use ratewright_cli::output;

use super::live::{Live, Moment, moment};

const EVERY_NS: u64 = NS_PER_S;
/// More flows than this are summed up.
const MAX_FLOWS_SHOWN: usize = 12;

/// Prints progress until `stop` is set.
///
/// # Errors
/// When standard output is closed.
pub fn show(live: &Live, stop: &AtomicBool) -> io::Result<()> {
    let begin = now_ns();
    let (mut said, mut last_event_ns) = (0, begin);
    let mut next = begin + EVERY_NS;
    let line = |at_ns: u64, text: &str| {
        let seconds = at_ns.saturating_sub(begin) as f64 / 1e9;
        output::line(format_args!("{seconds:8.2} s  {text}"))
    };
    output::line(format_args!("{}", live.title))?;
    loop {
        // Read before the messages, so that the last ones are printed in a last round.
        let ending = stop.load(Ordering::Relaxed);
        let stage = live.stage().clone();
        // The log only grows: what was said before is not said again.
        for (at, text) in &stage.log[said..] {
            line(*at, text)?;
        }
        said = stage.log.len();
        if let Some(recording) = &stage.recording {
            let recording = recording.lock();
            for (at, text) in recording
                .events
                .iter()
                .filter(|(at, _)| *at > last_event_ns)
            {
                line(*at, text)?;
            }
            last_event_ns = recording
                .events
                .iter()
                .map(|(at, _)| *at)
                // A new phase brings a new recording, whose events are later ones.
                .fold(last_event_ns, u64::max);
            let now = now_ns();
            if now >= next {
                next = now + EVERY_NS;
                let moment = moment(&recording, now);
                if !moment.flows.is_empty() {
                    line(now, &summary(&moment))?;
                }
            }
        }
        if ending {
            return Ok(());
        }
        clock::sleep(Duration::from_nanos(100 * NS_PER_MS));
    }
}

fn summary(moment: &Moment) -> String {
    let rates = if moment.flows.len() <= MAX_FLOWS_SHOWN {
        let each: Vec<String> = moment
            .flows
            .iter()
            .map(|(label, rate)| format!("{label} {:.1}", rate / 1e6))
            .collect();
        format!("{} Mbit/s", each.join("  "))
    } else {
        let total: f64 = moment.flows.iter().map(|(_, rate)| rate).sum();
        format!("{} flows, {:.1} Mbit/s", moment.flows.len(), total / 1e6)
    };
    let jain = moment
        .jain
        .map_or(String::new(), |j| format!("  Jain {j:.3}"));
    format!("{rates}  link {:.0} %{jain}", moment.utilization * 100.0)
}
