//! Arbitrary bytes on the control stream: cut into frames, decoded, given to both ends in every
//! state, and encoded again where they are valid messages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ratewright_fuzz::SessionEnds;
use ratewright_proto::control::{ControlMessage, FrameDecoder};

fn deliver(bodies: &[Vec<u8>], mut pair: SessionEnds) {
    for body in bodies {
        let _ = pair.client.on_control(pair.now_ns, body);
        let _ = pair.server.on_control(pair.now_ns, body);
        pair.check();
    }
    while pair.client.poll_control().is_some() {}
    while pair.server.poll_control().is_some() {}
}

fuzz_target!(|bytes: &[u8]| {
    let mut whole = FrameDecoder::new();
    whole.push(bytes);
    let mut bodies = Vec::new();
    while let Ok(Some(body)) = whole.next_frame() {
        bodies.push(body.to_vec());
    }
    // Frames must not depend on the chunks in which the stream arrives.
    let mut pieces = FrameDecoder::new();
    let mut again = Vec::new();
    'stream: for piece in bytes.chunks(3) {
        pieces.push(piece);
        loop {
            match pieces.next_frame() {
                Ok(Some(body)) => again.push(body.to_vec()),
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    assert_eq!(bodies, again);
    for body in bodies.iter().map(Vec::as_slice).chain([bytes]) {
        if let Ok(message) = ControlMessage::decode(body)
            && let Ok(frame) = message.to_frame()
        {
            let mut frames = FrameDecoder::new();
            frames.push(&frame);
            let body = frames.next_frame().unwrap().unwrap();
            assert_eq!(ControlMessage::decode(body).unwrap(), message);
        }
    }
    // The whole input as one body, which reaches the decoder even without a valid frame.
    bodies.push(bytes.to_vec());
    let mut connecting = SessionEnds::new();
    connecting.connect();
    // Before the connection, before the Hello, and in an established session.
    deliver(&bodies, SessionEnds::new());
    deliver(&bodies, connecting);
    deliver(&bodies, SessionEnds::busy());
});
