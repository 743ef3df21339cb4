//! Time for which a client waits for its handshake, carried by its first packet.
//!
//! An overloaded server should work for clients that still wait. A client therefore encodes its
//! time-out in the connection ID that it chooses for the server (RFC 9000 §7.2, which asks for 8
//! unpredictable bytes; 16 are). The value is not authenticated: a client that lies is served like
//! those that wait as long.

/// Length of such a connection ID in bytes, the most that QUIC version 1 allows.
pub const CONNECTION_ID_BYTES: usize = 20;

/// Unpredictable bytes at its front.
pub const RANDOM_BYTES: usize = 16;

/// Resolution of the time-out on the wire: 10 ms.
const UNIT_NS: u64 = 10_000_000;

/// Checksum that distinguishes a connection ID with a time-out from a random one.
fn check(head: &[u8]) -> [u8; 2] {
    // FNV-1a.
    let mut hash: u32 = 0x811c_9dc5;
    for &byte in head {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    ((hash >> 16) as u16 ^ hash as u16).to_be_bytes()
}

/// Makes a connection ID that carries the client's time-out, to 10 ms and up to 655 s.
pub fn connection_id(random: [u8; RANDOM_BYTES], timeout_ns: u64) -> [u8; CONNECTION_ID_BYTES] {
    let mut id = [0; CONNECTION_ID_BYTES];
    // Rounded down: a server that believes the value stops too early rather than too late.
    let units = u16::try_from(timeout_ns / UNIT_NS).unwrap_or(u16::MAX);
    id[..RANDOM_BYTES].copy_from_slice(&random);
    id[RANDOM_BYTES..RANDOM_BYTES + 2].copy_from_slice(&units.to_be_bytes());
    let check = check(&id[..RANDOM_BYTES + 2]);
    id[RANDOM_BYTES + 2..].copy_from_slice(&check);
    id
}

/// Reads the time-out from a connection ID, or `None` if it carries none. One random ID in 65,536
/// seems to carry one.
pub fn of_connection_id(id: &[u8]) -> Option<u64> {
    let (head, last) = id.split_at_checked(RANDOM_BYTES + 2)?;
    // Other clients choose random IDs, which must not be read as a time-out.
    if last != check(head) {
        return None;
    }
    let units = u16::from_be_bytes([head[RANDOM_BYTES], head[RANDOM_BYTES + 1]]);
    Some(u64::from(units) * UNIT_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard_to_10_ms() {
        for timeout_ns in [0, 250_000_000, 1_234_567_890, 4_000_000_000] {
            let id = connection_id([7; RANDOM_BYTES], timeout_ns);
            let heard_ns = of_connection_id(&id).expect("it says");
            assert_eq!(heard_ns, timeout_ns / 10_000_000 * 10_000_000);
        }
        let id = connection_id([7; RANDOM_BYTES], u64::MAX);
        assert_eq!(of_connection_id(&id), Some(655_350_000_000));
    }

    #[test]
    fn others_say_nothing() {
        assert_eq!(of_connection_id(&[]), None);
        assert_eq!(of_connection_id(&[1; 8]), None);
        let id = connection_id([9; RANDOM_BYTES], 250_000_000);
        assert_eq!(of_connection_id(&id[..19]), None);
        for at in 0..CONNECTION_ID_BYTES {
            let mut other = id;
            other[at] ^= 0x10;
            assert_eq!(of_connection_id(&other), None, "byte {at}");
        }
    }
}
