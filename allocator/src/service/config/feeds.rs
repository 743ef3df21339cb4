//! Table `[feeds]`.

use super::check::Checker;
use super::error::ConfigError;
use super::raw::RawFeeds;
use crate::feeds::FeedsConfig;

const MS: u64 = 1_000_000;

pub(super) fn checked(check: &Checker<'_>, raw: RawFeeds) -> Result<FeedsConfig, ConfigError> {
    let default = FeedsConfig::default();
    // A network that says nothing of feeds is run by the allocator's own flows alone.
    let on = |field: super::raw::Field<bool>| field.is_some_and(toml::Spanned::into_inner);
    let (receivers, credit, int) = (on(raw.receivers), on(raw.credit), on(raw.int));
    // Somebody who turns a reading on has chosen how traffic of others is treated.
    let shared = (raw.shared).map_or(!(receivers || credit || int), toml::Spanned::into_inner);
    let max_lowering = check.within(
        raw.max_lowering,
        default.max_lowering,
        "feeds.max_lowering",
        |share| (0.0..=0.9).contains(&share),
        "must be from 0 to 0.9, a share of a link's capacity, or 0: links that carry less are \
         only named; 0.5 is the default",
    )?;
    let interval_ms = check.within(
        raw.interval_ms,
        default.interval_ns / MS,
        "feeds.interval_ms",
        |ms| (1..=1_000).contains(&ms),
        "must be 1 to 1000 milliseconds; 10 is the default",
    )?;
    let least_fresh = interval_ms * 2;
    let fresh_ms = check.within(
        raw.fresh_ms,
        (default.fresh_ns / MS).max(least_fresh),
        "feeds.fresh_ms",
        |ms| ms >= least_fresh && ms <= 10_000,
        &format!("must be from two intervals ({least_fresh}) to 10000 milliseconds"),
    )?;
    let max_age_ms = check.within(
        raw.max_age_ms,
        (default.max_age_ns / MS).max(fresh_ms * 2),
        "feeds.max_age_ms",
        |ms| ms > fresh_ms && ms <= 60_000,
        &format!("must be more than feeds.fresh_ms ({fresh_ms}) and at most 60000 milliseconds"),
    )?;
    let max_delay_us = check.within(
        raw.max_delay_us,
        default.max_delay_ns / 1_000,
        "feeds.max_delay_us",
        |us| (1..=100_000).contains(&us),
        "must be 1 to 100000 microseconds; 1000 is the default",
    )?;
    let max_share = check.within(
        raw.max_share,
        default.max_share,
        "feeds.max_share",
        |share| (0.0..=0.99).contains(&share),
        "must be from 0 to 0.99, a share of a link's capacity; 0.5 is the default",
    )?;
    let hysteresis = check.within(
        raw.hysteresis,
        default.hysteresis,
        "feeds.hysteresis",
        |share| (0.001..=0.2).contains(&share),
        "must be from 0.001 to 0.2, a share of a link's capacity; 0.01 is the default",
    )?;
    let state_hysteresis = check.within(
        raw.state_hysteresis,
        default.state_hysteresis,
        "feeds.state_hysteresis",
        |share| share == 0.0 || (0.001..=0.2).contains(&share),
        "must be from 0.001 to 0.2, a share of a link's bandwidth, or 0: hosts repeat their \
         measurements; 0.01 is the default",
    )?;
    Ok(FeedsConfig {
        receivers,
        credit,
        int,
        shared,
        max_lowering,
        interval_ns: interval_ms * MS,
        fresh_ns: fresh_ms * MS,
        max_age_ns: max_age_ms * MS,
        max_delay_ns: max_delay_us * 1_000,
        max_share,
        state_hysteresis,
        hysteresis,
        ..default
    })
}
