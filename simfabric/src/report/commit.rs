//! The commit that a result came from.

/// The commit that this program was built from: twelve digits, with `+` if the working tree had
/// changes, or `unknown` outside a checkout. A package sets `RATEWRIGHT_COMMIT` when it builds.
pub const COMMIT: &str = env!("RATEWRIGHT_COMMIT");
