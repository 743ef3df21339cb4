//! Arbitrary allocator configurations: an error in words or a configuration.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ratewright_allocator::service::config::Config;

fuzz_target!(|text: &str| {
    if let Err(error) = Config::from_toml_str(text, "fuzz.toml", Path::new("/nonexistent")) {
        assert!(!error.to_string().is_empty());
    }
});
