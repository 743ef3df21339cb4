use super::*;
use crate::control::{ControlMessage, Refusal, RefusalCode};

fn message(length: usize) -> ControlMessage {
    ControlMessage::Refused(Refusal {
        code: RefusalCode::Draining,
        reason: "x".repeat(length),
        retry: true,
    })
}

#[test]
fn frames_survive_any_cut_of_the_stream() {
    let messages = [message(0), message(5), message(300), message(1024)];
    let stream: Vec<u8> = messages
        .iter()
        .flat_map(|m| m.to_frame().unwrap())
        .collect();
    for chunk in [1, 2, 3, 7, 100, 5_000] {
        let mut decoder = FrameDecoder::new();
        let mut received = Vec::new();
        for bytes in stream.chunks(chunk) {
            decoder.push(bytes);
            while let Some(body) = decoder.next_frame().unwrap() {
                received.push(ControlMessage::decode(body).unwrap());
            }
        }
        assert_eq!(received, messages, "chunks of {chunk}");
    }
}

#[test]
fn lengths_beyond_the_bound_are_refused_before_any_body() {
    for prefix in [
        [0x81u8, 0x80, 0x40].as_slice(),
        &[0xff, 0xff, 0x7f],
        &[0x80, 0x80, 0x80],
        &[0xff, 0xff, 0xff, 0xff],
    ] {
        let mut decoder = FrameDecoder::new();
        decoder.push(prefix);
        let result = decoder.next_frame();
        assert!(
            matches!(result, Err(SessionError::FrameTooLarge { .. })),
            "{prefix:?}: {result:?}"
        );
    }
    // The largest body that is allowed.
    let mut decoder = FrameDecoder::new();
    decoder.push(&[0x80, 0x80, 0x40]);
    assert_eq!(decoder.next_frame(), Ok(None));
    decoder.push(&vec![0; MAX_FRAME_BYTES]);
    assert_eq!(
        decoder.next_frame().unwrap().map(<[u8]>::len),
        Some(MAX_FRAME_BYTES)
    );
    assert_eq!(decoder.next_frame(), Ok(None));
}

#[test]
fn a_message_beyond_the_bound_is_not_encoded() {
    let too_large = wire::ControlMessage {
        body: Some(wire::control_message::Body::Refused(wire::Refused {
            reason: "x".repeat(MAX_FRAME_BYTES),
            ..wire::Refused::default()
        })),
    };
    assert!(matches!(
        encode_frame(&too_large),
        Err(SessionError::FrameTooLarge { .. })
    ));
}

#[test]
fn a_smaller_bound_holds_until_it_is_raised() {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_bytes(MAX_HELLO_BYTES);
    decoder.push(&frame_of(&[1; MAX_HELLO_BYTES]));
    assert_eq!(
        decoder.next_frame(),
        Ok(Some(&[1; MAX_HELLO_BYTES][..])),
        "as large as may be"
    );
    decoder.push(&frame_of(&[2; MAX_HELLO_BYTES + 1])[..2]);
    let refused = SessionError::FrameTooLarge {
        bytes: MAX_HELLO_BYTES + 1,
        max: MAX_HELLO_BYTES,
    };
    assert_eq!(decoder.next_frame(), Err(refused), "before its body came");
    let mut known = FrameDecoder::new();
    known.set_max_bytes(MAX_HELLO_BYTES);
    known.set_max_bytes(usize::MAX);
    known.push(&frame_of(&[3; MAX_HELLO_BYTES + 1]));
    assert_eq!(known.next_frame(), Ok(Some(&[3; MAX_HELLO_BYTES + 1][..])));
}
