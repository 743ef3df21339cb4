//! Networks that are not as the topology file says, and hosts that nobody manages: the quick form
//! of `make lab SCENARIO=obey`, and the long cable and the lossy link that its whole form needs.

use std::net::UdpSocket;
use std::time::Duration;

use ratewright_cli::{clock, tool};
use ratewright_lab::net::loss;
use ratewright_lab::net::ns::{self, Netns};
use ratewright_lab::net::relay::Relay;
use serde_json::Value;

use crate::common::{number, require_control_plane, require_root, results};

fn numbers(value: &Value) -> Vec<f64> {
    let all = value.as_array().unwrap();
    all.iter().map(|one| one.as_f64().unwrap()).collect()
}

#[test]
fn nobody_is_worse_off_than_with_tcp_alone() {
    require_control_plane();
    // A lab whose cases miss something ends with an error, which this shows.
    let value = results(&["obey", "--quick"]);
    let cases = value["cases"].as_array().unwrap();
    for backend in ["sock_ops", "tc_htb"] {
        let of_backend = cases.iter().filter(|case| case["backend"] == backend);
        assert!(of_backend.count() >= 10, "{backend}: {value:#}");
    }
    for case in cases {
        let [with, without, fair] = ["with", "without", "fair"].map(|key| numbers(&case[key]));
        for i in 0..fair.len() {
            let due = fair[i].min(without[i]);
            assert!(due > 1.0, "plain TCP got nothing: {case}");
            assert!(with[i] >= 0.8 * due, "flow {i}: {case}");
        }
        let [lost, before] =
            ["retransmitted_with", "retransmitted_without"].map(|key| number(case, &[key]));
        assert!(lost <= (1.5 * before).max(500.0), "{case}");
    }
}

/// Two namespaces of a test; they go with it.
struct Pair([Netns; 2]);

impl Pair {
    fn new(name: &str) -> Pair {
        require_root();
        let create = |end: &str| {
            Netns::create(&format!("rwtest-{}-{name}{end}", std::process::id()), None).unwrap()
        };
        Pair([create("a"), create("b")])
    }

    /// Gives each end its address, once the devices are there.
    fn configure(&self) {
        for (end, netns) in self.0.iter().enumerate() {
            let batch = format!(
                "link set dev d0 up\naddr add 10.79.0.{}/24 dev d0\n",
                end + 1
            );
            tool::run_with_input("ip", &["-n", netns.name(), "-batch", "-"], &batch).unwrap();
        }
    }

    fn socket(&self, end: usize) -> UdpSocket {
        let address = format!("10.79.0.{}:7000", end + 1);
        let socket = self.0[end]
            .within(|| UdpSocket::bind(address).unwrap())
            .unwrap();
        socket.connect(format!("10.79.0.{}:7000", 2 - end)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        socket
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for netns in &self.0 {
            ns::delete(netns.name());
        }
    }
}

fn elapsed(since_ns: u64) -> Duration {
    Duration::from_nanos(clock::now_ns() - since_ns)
}

#[test]
fn a_long_cable_delays_both_directions() {
    let pair = Pair::new("cable");
    let delay = Duration::from_millis(20);
    let _relay = Relay::start([(&pair.0[0], "d0"), (&pair.0[1], "d0")], delay).unwrap();
    pair.configure();
    let (near, far) = (pair.socket(0), pair.socket(1));
    let mut buffer = [0; 64];
    // The first exchange waits for address resolution, which crosses the cable, too.
    for _ in 0..3 {
        let begin_ns = clock::now_ns();
        near.send(b"there").unwrap();
        assert_eq!(far.recv(&mut buffer).unwrap(), 5);
        assert!(elapsed(begin_ns) >= delay, "{:?}", elapsed(begin_ns));
        far.send(b"back").unwrap();
        assert_eq!(near.recv(&mut buffer).unwrap(), 4);
        assert!(elapsed(begin_ns) >= 2 * delay, "{:?}", elapsed(begin_ns));
    }
}

#[test]
fn a_lossy_link_drops_its_share_by_chance() {
    const SENT: usize = 20_000;
    const SHARE: f64 = 0.1;
    let pair = Pair::new("loss");
    tool::run_with_input(
        "ip",
        &["-n", pair.0[0].name(), "-batch", "-"],
        &format!(
            "link add name d0 type veth peer name d0 netns {}\n",
            pair.0[1].name()
        ),
    )
    .unwrap();
    pair.configure();
    loss::attach(&pair.0[0], "d0", SHARE).unwrap();
    let (near, far) = (pair.socket(0), pair.socket(1));
    // Until both ends know each other's address, which a lost frame delays.
    let mut buffer = [0; 64];
    while near.send(b"x").is_err() || far.recv(&mut buffer).is_err() {}
    far.set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let mut received = 0;
    for i in 0..SENT {
        // A datagram that the own host drops is reported as an error of some kind, or not at all.
        let _ = near.send(b"x");
        // The receiver's queue holds a hundred with ease.
        if i % 100 == 99 {
            far.set_nonblocking(true).unwrap();
            while far.recv(&mut buffer).is_ok() {
                received += 1;
            }
            far.set_nonblocking(false).unwrap();
        }
    }
    while far.recv(&mut buffer).is_ok() {
        received += 1;
    }
    let lost = (SENT - received) as f64;
    // Six standard deviations of a binomial distribution.
    let mean = SENT as f64 * SHARE;
    let bound = 6.0 * (mean * (1.0 - SHARE)).sqrt();
    assert!((lost - mean).abs() <= bound, "{lost} of {SENT} lost");
}
