use super::*;
use ratewright_proto::sealed::Cipher;

const SESSION: u32 = 9;
const MS: u64 = 1_000_000;

struct SealedFixture {
    port: SealedPort,
    server_socket: BatchSocket,
    server: SealedSession,
    now_ns: u64,
}

fn fixture() -> SealedFixture {
    let any = "127.0.0.1:0".parse().expect("an address");
    let server_socket = BatchSocket::bind(any, Dscp::CS6).expect("a socket");
    let remote = server_socket.local_addr().expect("bound");
    let secret = Secret::new([5; Secret::BYTES]);
    let offer = SealedUdp {
        port: remote.port(),
        cipher: Cipher::default(),
        address: None,
    };
    let mut port = SealedPort::bind(any, PathConfig::default(), Dscp::CS6).expect("a socket");
    port.add_with(0, SESSION, remote, offer, &secret);
    SealedFixture {
        port,
        server_socket,
        server: SealedSession::new(
            SealedConfig::default(),
            SessionRole::Server,
            SESSION,
            &secret,
        ),
        now_ns: 0,
    }
}

impl SealedFixture {
    /// Opens the datagrams that reached the server.
    fn at_server(&mut self) -> Vec<Vec<u8>> {
        let count = self.server_socket.receive().expect("a socket");
        (0..count)
            .map(|index| {
                let (bytes, _) = self.server_socket.datagram(index);
                self.server
                    .open(bytes)
                    .expect("sealed by the client")
                    .to_vec()
            })
            .collect()
    }

    fn answer(&mut self, bytes: &[u8]) {
        let mut batch = SendBatch::default();
        self.server.seal(bytes, batch.buffer()).expect("small");
        self.post(batch);
    }

    fn post(&self, mut batch: SendBatch) {
        batch.push(self.port.socket.local_addr().expect("bound"));
        self.server_socket.send(&mut batch).expect("sent");
    }

    fn at_client(&mut self) -> Vec<Vec<u8>> {
        let mut texts = Vec::new();
        self.port
            .receive(self.now_ns, |session, text| {
                assert_eq!(session, SESSION);
                texts.push(text.to_vec());
            })
            .expect("a socket");
        texts
    }

    fn up(mut self) -> Self {
        self.now_ns = self.port.next_timeout().expect("a probe is due");
        self.port.on_timeout(self.now_ns);
        assert_eq!(self.at_server(), [Vec::<u8>::new()], "a probe");
        self.answer(b"");
        assert!(
            self.at_client().is_empty(),
            "an answer to a probe is nobody's datagram"
        );
        assert_eq!(self.port.path(SESSION), DatagramPath::Sealed);
        self
    }
}

/// Any bytes with the flag of the protocol's header that asks for an answer.
const ELICITING: &[u8] = &[1, 1, 0, 0];

#[test]
fn a_session_takes_the_sealed_path_once_a_probe_is_answered() {
    let mut fixture = fixture();
    assert_eq!(
        fixture.port.send(0, SESSION, ELICITING),
        SendOutcome::UseQuic
    );
    let mut fixture = {
        fixture.now_ns = 0;
        fixture.up()
    };
    assert_eq!(
        fixture.port.send(0, SESSION, ELICITING),
        SendOutcome::Sealed
    );
    fixture.port.request_key_update(SESSION);
    assert_eq!(
        fixture.port.send(0, SESSION, b"after an update"),
        SendOutcome::Sealed
    );
    fixture.port.flush();
    let sent = *fixture.port.counters();
    assert_eq!(
        fixture.at_server(),
        [ELICITING.to_vec(), b"after an update".to_vec()]
    );
    // The probe is one of them.
    let bytes = ELICITING.len() + b"after an update".len() + 3 * OVERHEAD_BYTES;
    assert_eq!((sent.sealed, sent.sealed_bytes), (3, bytes as u64));
    assert_eq!((sent.key_updates, sent.unsent), (1, 0));
    fixture.answer(b"rate");
    assert_eq!(fixture.at_client(), [b"rate".to_vec()]);
    assert_eq!(
        fixture.port.send(0, SESSION + 1, b"no such session"),
        SendOutcome::UseQuic
    );
}

#[test]
fn a_path_that_answers_no_more_is_given_up_and_found_again() {
    let mut fixture = fixture().up();
    assert_eq!(
        fixture.port.send(MS, SESSION, ELICITING),
        SendOutcome::Sealed
    );
    fixture.port.flush();
    assert_eq!(fixture.at_server().len(), 1, "and no answer");
    let mut at_ns = MS;
    while fixture.port.path(SESSION) == DatagramPath::Sealed {
        at_ns = fixture.port.next_timeout().expect("an answer is due");
        fixture.port.on_timeout(at_ns);
    }
    let answer_timeout_ns = PathConfig::default().answer_timeout_ns;
    assert!((MS + answer_timeout_ns..2 * answer_timeout_ns).contains(&at_ns));
    assert_eq!(
        fixture.port.send(at_ns, SESSION, ELICITING),
        SendOutcome::UseQuic
    );
    assert_eq!(fixture.port.fallbacks(), 1);
    assert_eq!(fixture.at_server(), [Vec::<u8>::new()], "a probe");
    fixture.answer(b"");
    fixture.at_client();
    assert_eq!(
        fixture.port.send(at_ns, SESSION, ELICITING),
        SendOutcome::Sealed
    );
}

#[test]
fn what_does_not_open_moves_one_counter_and_nothing_else() {
    let mut fixture = fixture().up();
    let mut sealed = Vec::new();
    fixture.server.seal(b"rate", &mut sealed).expect("small");
    let mut forged = sealed.clone();
    // Byte 14 lies in the cipher text, byte 4 in the session's number.
    forged[14] ^= 4;
    let mut stranger = sealed.clone();
    stranger[4] ^= 1;
    let posts = [
        sealed.clone(),
        sealed.clone(),
        forged,
        sealed[..20].to_vec(),
        vec![0xd1; 1_500],
        stranger,
    ];
    let mut seen = Vec::new();
    for bytes in posts {
        let mut batch = SendBatch::default();
        batch.buffer().extend_from_slice(&bytes);
        fixture.post(batch);
        seen.push(fixture.at_client().len());
    }
    // A forged copy of an opened number is turned down as a replay before the cipher runs.
    assert_eq!(seen, [1, 0, 0, 0, 0, 0]);
    let counters = fixture.port.counters();
    assert_eq!(
        (
            counters.replayed,
            counters.truncated,
            counters.oversized,
            counters.unknown_session
        ),
        (2, 1, 1, 1)
    );
    assert_eq!(counters.dropped_total(), 5);
    let mut fresh = SendBatch::default();
    fixture.server.seal(b"next", fresh.buffer()).expect("small");
    fresh.buffer()[13] ^= 1;
    fixture.post(fresh);
    assert!(fixture.at_client().is_empty());
    assert_eq!(fixture.port.counters().forged, 1);
    fixture.answer(b"still there");
    assert_eq!(fixture.at_client(), [b"still there".to_vec()]);
}

#[test]
fn only_the_allocators_address_is_listened_to() {
    let mut fixture = fixture().up();
    let stranger =
        BatchSocket::bind("127.0.0.1:0".parse().expect("an address"), Dscp::CS6).expect("a socket");
    let mut batch = SendBatch::default();
    fixture.server.seal(b"rate", batch.buffer()).expect("small");
    batch.push(fixture.port.socket.local_addr().expect("bound"));
    stranger.send(&mut batch).expect("sent");
    assert!(fixture.at_client().is_empty());
    assert_eq!(fixture.port.counters().wrong_address, 1);
}
