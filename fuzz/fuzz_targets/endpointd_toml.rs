//! Arbitrary daemon configurations, policies included: an error in words or a configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ratewright_endpointd::config::Config;

fuzz_target!(|text: &str| {
    if let Err(error) = Config::from_toml_str(text, "fuzz.toml") {
        assert!(!error.to_string().is_empty());
    }
});
