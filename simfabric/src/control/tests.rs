use super::*;

#[test]
fn a_bare_update_costs_a_minimum_frame() {
    // flowtune §6: 64-byte frames, preamble and gap make 84 bytes.
    assert_eq!(ethernet_bytes(datagram_ip_bytes(8)), 84);
    assert_eq!(ethernet_bytes(datagram_ip_bytes(38)), 18 + 28 + 38 + 20);
}
