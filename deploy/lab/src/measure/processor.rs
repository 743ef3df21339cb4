//! Processor time of the whole machine: what softirqs take belongs to no process.

use anyhow::{Context, Result};

/// Hertz of the counters in /proc/stat, on every architecture that the lab runs on (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// Seconds of processor time since the machine started, idle time left out, all cores together.
///
/// # Errors
/// When /proc/stat cannot be read.
pub fn busy_s() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    busy_in(&text).context("/proc/stat has no line of all cores")
}

/// The columns of `cpu`: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
fn busy_in(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    let at = |column: usize| ticks.get(column).copied().unwrap_or(0);
    let busy = at(0) + at(1) + at(2) + at(5) + at(6);
    Some(busy as f64 / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_not_busy() {
        let text = "cpu  100 20 30 5000 7 4 6 900 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_in(text), Some(1.6));
        assert_eq!(busy_in("intr 1\n"), None);
    }
}
