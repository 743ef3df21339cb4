use std::collections::BTreeSet;

use super::*;

#[test]
fn expansion_finds_the_nearest_number() {
    for near in [
        0u64,
        1,
        5,
        0x7fff_ffff,
        0xffff_fff0,
        0x1_0000_0000,
        0x7_ffff_fffe,
    ] {
        for delta in [-1_000_000i64, -70, -1, 0, 1, 70, 1_000_000] {
            let Some(seq) = near.checked_add_signed(delta) else {
                continue;
            };
            assert_eq!(expand(seq as u32, near), seq, "{near:#x} {delta}");
        }
    }
}

/// Compares the window with a set of all received numbers.
#[test]
fn the_window_remembers_sixty_four_numbers_behind_the_newest() {
    // A fixed walk that jumps ahead, falls behind and repeats itself.
    let mut step = 1u64;
    let mut window = RecvWindow::default();
    let mut seen = BTreeSet::new();
    let mut met = [0; 3];
    for round in 0..20_000u64 {
        step = step
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let jump = (step >> 33) % 100;
        let largest = seen.last().copied();
        let newest = largest.unwrap_or(1_000);
        let at = match round % 5 {
            0..2 => newest + jump % 4,
            2..4 => newest.saturating_sub(jump).max(1),
            _ => newest + jump / 90 * 70,
        };
        let expected = match largest {
            Some(largest) if at < largest && largest - at > ACK_WINDOW => SeqStatus::TooOld,
            _ if seen.contains(&at) => SeqStatus::Duplicate,
            _ => SeqStatus::New,
        };
        assert_eq!(window.classify(at), expected, "{at}, newest {largest:?}");
        met[expected as usize] += 1;
        if expected == SeqStatus::New {
            window.insert(at);
            seen.insert(at);
            // What is the newest already, and what the window has left behind, is no news.
            let newest = window.largest().unwrap_or_default();
            window.insert(newest);
            if let Some(behind) = newest.checked_sub(ACK_WINDOW + 1) {
                window.insert(behind);
            }
        }
        let newest = *seen.last().unwrap();
        assert_eq!(window.largest(), Some(newest));
        for bit in 0..ACK_WINDOW {
            let received = (newest - 1)
                .checked_sub(bit)
                .is_some_and(|seq| seen.contains(&seq));
            assert_eq!(window.bitmap() >> bit & 1 == 1, received, "bit {bit}");
        }
    }
    assert!(met.iter().all(|&times| times > 1_000), "{met:?}");
}

#[test]
fn jumps_of_the_windows_size_keep_or_drop_the_last_bit() {
    for (jump, bitmap) in [(1, 1), (63, 1 << 62), (64, 1 << 63), (65, 0), (1 << 40, 0)] {
        let mut window = RecvWindow::default();
        window.insert(10);
        window.insert(10 + jump);
        assert_eq!(window.bitmap(), bitmap, "jump {jump}");
    }
}
