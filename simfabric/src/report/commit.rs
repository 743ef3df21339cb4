//! Which source a result came from.

/// The commit of the source that this program was built from, twelve digits, with `+` when the working tree had
/// changes then; `unknown` outside a checkout. A package sets `RATEWRIGHT_COMMIT` when it builds.
pub const COMMIT: &str = env!("RATEWRIGHT_COMMIT");
