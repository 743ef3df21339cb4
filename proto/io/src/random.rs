//! The operating system's randomness.

use ring::rand::{SecureRandom as _, SystemRandom};

/// Returns bytes that nobody can predict.
///
/// # Panics
/// When the operating system has no randomness, without which no key can be made either.
#[must_use]
pub fn bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the operating system has randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_byte_is_drawn_anew() {
        let draws: Vec<[u8; 16]> = (0..256).map(|_| super::bytes()).collect();
        for at in 0..16 {
            let values: BTreeSet<u8> = draws.iter().map(|draw| draw[at]).collect();
            // 162 in the mean, with a standard deviation of 5.
            assert!(values.len() > 100, "byte {at}: {} values", values.len());
        }
    }
}
