//! Arbitrary datagrams to a server in the middle of a session.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ratewright_fuzz::{SessionEnds, aim};

fuzz_target!(|datagrams: Vec<Vec<u8>>| {
    let mut pair = SessionEnds::busy();
    for mut bytes in datagrams {
        let before = *pair.server.counters();
        let result = pair.server.on_datagram(pair.now_ns, &bytes, |_| ());
        let dropped = pair.server.counters().since(&before).dropped_total();
        // Each refused datagram counts exactly once, an accepted one never.
        assert_eq!(dropped, u64::from(result.is_err()));
        // Random headers seldom name the session: the second try gets past that check.
        aim(&mut bytes);
        let _ = pair.server.on_datagram(pair.now_ns, &bytes, |_| ());
        pair.check();
        pair.now_ns += 100_000;
    }
});
