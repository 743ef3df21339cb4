//! Arbitrary and altered sealed datagrams: those that do not open change nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ratewright_proto::datagram::SessionRole;
use ratewright_proto::sealed::{SealedConfig, SealedSession, Secret};

fuzz_target!(|steps: Vec<(Vec<u8>, u16, u8)>| {
    let secret = Secret::new([7; Secret::BYTES]);
    let config = SealedConfig::default();
    let mut client = SealedSession::new(config, SessionRole::Client, 1, &secret);
    let mut server = SealedSession::new(config, SessionRole::Server, 1, &secret);
    let mut sealed = Vec::new();
    for (mut bytes, at, bits) in steps {
        let before = server.fingerprint();
        // No key is known to the fuzzer: arbitrary bytes never open.
        assert!(server.open(&mut bytes).is_err());
        assert!(server.fingerprint() == before);
        if bits & 1 == 1 {
            client.request_key_update();
        }
        // Within the largest datagram that can be sealed.
        bytes.truncate(1_000);
        client.seal(&bytes, &mut sealed).expect("small enough");
        let mut altered = sealed.clone();
        let at = usize::from(at) % altered.len();
        altered[at] ^= bits;
        let mut whole = sealed.clone();
        // An alteration by 0 bits is the datagram itself.
        if bits != 0 {
            assert!(server.open(&mut altered).is_err());
            assert!(server.fingerprint() == before);
        }
        assert_eq!(server.open(&mut whole).expect("the true one opens"), bytes);
    }
});
