//! Arbitrary bundles and attachments between a relay and the allocator.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ratewright_proto::relay::{Attach, Bundle, Bundler};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(bundle) = Bundle::parse(bytes) {
        // Every byte belongs to an entry, and a bundle has one encoding only.
        let mut bundler = Bundler::default();
        for (channel, datagram) in bundle.entries() {
            let full = bundler.push(bytes.len(), channel, datagram);
            // The bundle's own length suffices for its entries.
            assert_eq!(full, Ok(None));
        }
        assert_eq!(bundler.take().unwrap_or_default(), bytes);
    }
    if let Ok(attach) = Attach::decode(bytes) {
        let frame = attach.to_frame();
        let mut decoder = ratewright_proto::control::FrameDecoder::new();
        decoder.push(&frame);
        let body = decoder.next_frame().expect("a frame").expect("whole");
        assert_eq!(Attach::decode(body), Ok(attach));
    }
});
