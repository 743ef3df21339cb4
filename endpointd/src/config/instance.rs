//! Names of kernel objects.

/// Returns true if the kernel accepts the name, with room for a prefix.
pub(super) fn is_instance_name(name: &str) -> bool {
    (1..=8).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Derives a short name for kernel objects: the host's own name if it fits, else its beginning and
/// a hash.
pub(super) fn instance_name(host: &str) -> String {
    if is_instance_name(host) {
        return host.to_owned();
    }
    // FNV-1a; five digits of base 36 hold 60 million values.
    let mut hash = host.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut name: String = host
        .chars()
        .map(|letter| letter.to_ascii_lowercase())
        .filter(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        // Three letters and five digits make the eight characters of an instance name.
        .take(3)
        .collect();
    for _ in 0..5 {
        let digit = u32::try_from(hash % 36).unwrap_or(0);
        name.push(char::from_digit(digit, 36).unwrap_or('0'));
        hash /= 36;
    }
    name
}
