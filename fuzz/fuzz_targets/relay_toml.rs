//! Arbitrary configurations of relays: an error in words or a configuration.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ratewright_allocator::service::config::RelayConfig;

fuzz_target!(|text: &str| {
    match RelayConfig::from_toml_str(text, "fuzz.toml", Path::new("/nonexistent")) {
        Ok(config) => {
            assert!(!config.allocators.is_empty());
            assert!((1..=100_000).contains(&config.max_hosts));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
