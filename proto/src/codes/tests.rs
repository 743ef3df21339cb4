use super::*;

const FIRST_EXACT_EXPONENT: u16 = 2;

#[test]
fn every_rate_code_decodes_in_order() {
    let mut before = 0;
    for code in 0..=u16::MAX {
        let rate_bps = RateCode(code).decode();
        assert!(rate_bps >= before, "{code}");
        // From the third exponent on, codes lie more than 1 bit/s apart.
        if code >> 11 >= FIRST_EXACT_EXPONENT {
            assert!(rate_bps > before, "{code}");
        }
        before = rate_bps;
    }
    assert_eq!(RateCode(0).decode(), 0);
    assert_eq!(RateCode(1).decode(), 1_000);
    assert_eq!(RateCode::MAX.decode(), 4_293_918_720_000);
}

#[test]
fn every_rate_code_survives_a_round_trip() {
    for code in 0..=u16::MAX {
        let rate_bps = RateCode(code).decode();
        let again = RateCode::encode(rate_bps);
        assert_eq!(again.decode(), rate_bps, "{code}");
        if code == 0 || code >> 11 >= FIRST_EXACT_EXPONENT {
            assert_eq!(again.0, code);
        }
    }
}

/// Encoding of one below, at and one above every code's rate: the largest code that does not exceed
/// it.
#[test]
fn encoding_never_rounds_up_and_loses_less_than_a_code() {
    for code in 1..=u16::MAX {
        let at_bps = RateCode(code).decode();
        for rate_bps in [at_bps - 1, at_bps, at_bps + 1] {
            let encoded = RateCode::encode(rate_bps);
            assert!(encoded.decode() <= rate_bps, "{rate_bps}");
            if encoded != RateCode::MAX {
                assert!(RateCode(encoded.0 + 1).decode() > rate_bps, "{rate_bps}");
            }
        }
    }
}

#[test]
fn the_relative_error_is_below_two_to_the_minus_eleven() {
    let mut rate_bps = 1_000_000;
    while rate_bps < 4_000_000_000_000 {
        let lost_bps = rate_bps - RateCode::encode(rate_bps).decode();
        // One bit per second is what whole numbers cost on top.
        assert!(lost_bps * 2_048 < rate_bps + 2_048, "{rate_bps}");
        rate_bps += rate_bps / 1_003 + 1;
    }
}

#[test]
fn rates_beyond_the_range_go_to_its_ends() {
    assert_eq!(RateCode::encode(0), RateCode::NONE);
    assert_eq!(RateCode::encode(999), RateCode::NONE);
    assert!(RateCode::encode(1_000).decode() == 1_000);
    assert_eq!(RateCode::encode(u64::MAX), RateCode::MAX);
}

#[test]
fn every_weight_code_survives_a_round_trip() {
    for code in 1..=u8::MAX {
        let weight = WeightCode(code).decode();
        assert_eq!(WeightCode::encode(weight).0, code);
        assert_eq!(WeightCode::encode(weight * 1.04).0, code);
    }
    assert!((WeightCode::encode(1.0).decode() - 1.0).abs() < 1e-12);
    assert!((WeightCode::encode(2.0).decode() - 2.0).abs() < 1e-12);
    assert!((WeightCode::CLASS_DEFAULT.decode() - 1.0).abs() < 1e-12);
}

#[test]
fn odd_weights_go_to_the_ends_or_to_the_class() {
    assert_eq!(WeightCode::encode(f64::NAN), WeightCode::CLASS_DEFAULT);
    assert_eq!(WeightCode::encode(f64::INFINITY).0, 255);
    assert_eq!(WeightCode::encode(0.0).0, 1);
    assert_eq!(WeightCode::encode(-3.0).0, 1);
}
