//! Arbitrary topology files: an error, or a topology that can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ratewright_topology::Topology;

fuzz_target!(|text: &str| {
    match Topology::from_toml_str(text, "fuzz.toml") {
        Ok(topology) => {
            let written = topology.to_toml_string();
            let again = Topology::from_toml_str(&written, "written.toml")
                .expect("what was written can be read");
            // Names and speeds may be written in another form; numbers of hosts and links may not
            // change.
            assert_eq!(again.hosts().len(), topology.hosts().len());
            assert_eq!(again.links().len(), topology.links().len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
