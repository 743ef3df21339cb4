use super::*;
use proptest::prelude::*;

/// Bundles these datagrams; at most `max_bytes` each.
fn bundles(max_bytes: usize, datagrams: &[(u32, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut bundler = Bundler::default();
    let mut bundles = Vec::new();
    for (channel, datagram) in datagrams {
        bundles.extend(bundler.push(max_bytes, *channel, datagram).expect("fits"));
    }
    bundles.extend(bundler.take());
    assert!(bundler.is_empty());
    bundles
}

fn unbundled(bundles: &[Vec<u8>]) -> Vec<(u32, Vec<u8>)> {
    bundles
        .iter()
        .flat_map(|bytes| Bundle::parse(bytes).expect("well-formed").entries())
        .map(|(channel, datagram)| (channel, datagram.to_vec()))
        .collect()
}

fn datagrams() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let channel = prop_oneof![0..200u32, any::<u32>()];
    let datagram = prop::collection::vec(any::<u8>(), 1..400);
    prop::collection::vec((channel, datagram), 0..40)
}

proptest! {
    #[test]
    fn what_was_bundled_comes_out_in_order_and_no_bundle_is_too_large(
        sent in datagrams(),
        // At least the longest datagram of the strategy with its overhead.
        max_bytes in 410..1_500usize,
    ) {
        let bundles = bundles(max_bytes, &sent);
        prop_assert_eq!(unbundled(&bundles), sent);
        prop_assert!(bundles.iter().all(|bytes| (1..=max_bytes).contains(&bytes.len())));
        // No bundle but the last has space for the entry that comes after it.
        for pair in bundles.windows(2) {
            let (channel, first) = unbundled(&pair[1..])[0].clone();
            let entry = length_of(channel) + length_of(first.len() as u32) + first.len();
            prop_assert!(pair[0].len() + entry > max_bytes);
        }
    }

    #[test]
    fn bytes_that_parse_are_what_bundling_their_entries_makes(
        bytes in prop::collection::vec(prop_oneof![0..6u8, any::<u8>()], 0..64),
    ) {
        if let Ok(bundle) = Bundle::parse(&bytes) {
            let entries: Vec<_> = bundle.entries().map(|(c, d)| (c, d.to_vec())).collect();
            prop_assert_eq!(bundles(64, &entries).concat(), bytes);
        }
    }

    #[test]
    fn a_bundle_that_lost_its_end_is_dropped_as_a_whole(sent in datagrams(), cut in any::<prop::sample::Index>()) {
        for bytes in bundles(1_000, &sent) {
            let mut ends = vec![0];
            for (channel, datagram) in Bundle::parse(&bytes).expect("well-formed").entries() {
                ends.push(ends[ends.len() - 1] + length_of(channel) + length_of(datagram.len() as u32) + datagram.len());
            }
            let at = cut.index(bytes.len());
            prop_assert_eq!(Bundle::parse(&bytes[..at]).is_ok(), ends.contains(&at));
        }
    }
}

#[test]
fn the_bytes_are_these() {
    let sent = [(0, vec![7]), (300, vec![1, 2]), (1, vec![9; 130])];
    // Channel 300 and length 130 take two bytes each, lowest seven bits first.
    let mut expected = vec![0, 1, 7, 0xac, 0x02, 2, 1, 2, 1, 0x82, 0x01];
    expected.extend([9; 130]);
    assert_eq!(bundles(1_000, &sent), [expected]);
}

#[test]
fn malformed_bundles_say_what_is_wrong() {
    let cases: [(&[u8], BundleError); 9] = [
        (&[0], BundleError::Truncated),
        (&[0, 2, 1], BundleError::Truncated),
        (&[0x80, 0x80], BundleError::Truncated),
        (&[0, 0], BundleError::Empty),
        // Zero in two bytes is not the shortest form, neither as a channel nor as a length.
        (&[0x80, 0, 1, 1], BundleError::Number),
        (&[0, 0x81, 0, 1], BundleError::Number),
        // 2^33 − 1, which five bytes can hold and a u32 cannot; then a sixth byte.
        (&[0xff, 0xff, 0xff, 0xff, 0x1f, 1, 1], BundleError::Number),
        (&[0x80, 0x80, 0x80, 0x80, 0x80, 1, 1], BundleError::Number),
        (&[0, 0x80, 0x80, 1, 1], BundleError::Number),
    ];
    for (bytes, expected) in cases {
        assert_eq!(Bundle::parse(bytes).err(), Some(expected), "{bytes:?}");
    }
    assert_eq!(
        Bundle::parse(&[]).expect("well-formed").entries().count(),
        0
    );
}

#[test]
fn what_cannot_be_bundled_changes_nothing() {
    let mut bundler = Bundler::default();
    assert_eq!(bundler.push(100, 5, &[1; 20]), Ok(None));
    for datagram in [&[][..], &[0; 99], &[0; MAX_ENTRY_DATAGRAM_BYTES + 1]] {
        let max_bytes = 100;
        let bytes = datagram.len();
        assert_eq!(
            bundler.push(max_bytes, 5, datagram),
            Err(DatagramTooLarge { bytes, max_bytes })
        );
    }
    assert_eq!(bundler.len(), 1);
    assert_eq!(
        bundler.push(100, 5, &[2; 98]).map(|full| full.is_some()),
        Ok(true)
    );
}

#[test]
fn numbers_have_the_length_that_is_reckoned_with() {
    for value in [0, 1, 127, 128, 16_383, 16_384, u32::MAX >> 4, u32::MAX] {
        let mut bytes = Vec::new();
        put(&mut bytes, value);
        assert_eq!(bytes.len(), length_of(value));
        assert_eq!(number(&bytes), Ok((value, &[][..])));
    }
    let longest = length_of(u32::MAX) + length_of(MAX_ENTRY_DATAGRAM_BYTES as u32);
    assert_eq!(longest, MAX_ENTRY_OVERHEAD_BYTES);
}

#[test]
fn an_attach_survives_the_wire_and_nonsense_does_not() {
    let attach = Attach {
        certificate: vec![0x30; 700],
        intermediates: vec![vec![0x31; 20], vec![0x32; 30]],
        address: "[2001:db8::1]:40000".parse().expect("an address"),
    };
    let mut decoder = crate::control::FrameDecoder::new();
    decoder.push(&attach.to_frame());
    let body = decoder
        .next_frame()
        .expect("a frame")
        .expect("whole")
        .to_vec();
    assert_eq!(Attach::decode(&body), Ok(attach));
    let body_of = |attach: wire::RelayAttach| attach.encode_to_vec();
    let good = wire::RelayAttach {
        certificate: vec![1],
        address: "1.2.3.4:5".to_owned(),
        intermediates: Vec::new(),
    };
    assert!(Attach::decode(&body_of(good.clone())).is_ok());
    let mut nowhere = good.clone();
    nowhere.address = "h1:7600".to_owned();
    let mut nobody = good.clone();
    nobody.certificate.clear();
    let mut huge = good;
    huge.certificate = vec![0; MAX_ATTACH_BYTES];
    for bad in [nowhere, nobody, huge] {
        assert!(Attach::decode(&body_of(bad)).is_err());
    }
    assert!(Attach::decode(&[0xff]).is_err());
}
