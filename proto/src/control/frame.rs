//! Length-delimited frames on the reliable stream.

use prost::Message as _;

use crate::error::SessionError;
use crate::wire;

/// The largest frame body.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Longest length prefix: a length below 2^21 takes three bytes as a varint.
const MAX_PREFIX_BYTES: usize = 3;

/// Encodes `message` with its length in front.
pub fn encode_frame(message: &wire::ControlMessage) -> Result<Vec<u8>, SessionError> {
    let bytes = message.encoded_len();
    if bytes > MAX_FRAME_BYTES {
        return Err(SessionError::FrameTooLarge {
            bytes,
            max: MAX_FRAME_BYTES,
        });
    }
    Ok(message.encode_length_delimited_to_vec())
}

/// Makes a frame of a body that was cut from a stream.
pub fn frame_of(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(MAX_PREFIX_BYTES + body.len());
    append_frame(&mut frame, body);
    frame
}

/// Appends a frame of `body` to bytes that are still to be sent.
pub fn append_frame(out: &mut impl Extend<u8>, body: &[u8]) {
    let mut length = body.len();
    while length >= 0x80 {
        out.extend([length as u8 | 0x80]);
        length >>= 7;
    }
    out.extend([length as u8]);
    out.extend(body.iter().copied());
}

/// Largest body of a client's Hello. It bounds the memory that a server spends on an unknown
/// client.
pub const MAX_HELLO_BYTES: usize = 4 << 10;

/// Decoder that cuts a byte stream into frame bodies. It buffers at most one frame and the bytes
/// pushed last.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that were handed out already.
    consumed: usize,
    /// The largest body that is waited for.
    max_bytes: usize,
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self {
            buffer: Vec::new(),
            consumed: 0,
            max_bytes: MAX_FRAME_BYTES,
        }
    }
}

impl FrameDecoder {
    /// An empty decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses frames with a larger body than `max_bytes` from now on, at most [`MAX_FRAME_BYTES`].
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes.min(MAX_FRAME_BYTES);
    }

    /// Takes bytes read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.consumed > 0 {
            // Bodies are handed out in place, so they can only be removed at the next call.
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame's body. An error is final: the stream cannot be
    /// cut into frames any more and is to be closed.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, SessionError> {
        let waiting = &self.buffer[self.consumed..];
        let mut length = 0usize;
        for (index, &byte) in waiting.iter().take(MAX_PREFIX_BYTES).enumerate() {
            // protobuf varints have the lowest seven bits first.
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 != 0 {
                continue;
            }
            // Refused before the body is waited for: the peer cannot make this end buffer it.
            if length > self.max_bytes {
                return Err(too_large(length, self.max_bytes));
            }
            let start = self.consumed + index + 1;
            return Ok(match self.buffer.get(start..start + length) {
                Some(body) => {
                    self.consumed = start + length;
                    Some(body)
                }
                None => None,
            });
        }
        // The prefix goes on beyond three bytes: the body has 2^21 bytes or more.
        if waiting.len() >= MAX_PREFIX_BYTES {
            let length = length | 1 << (7 * MAX_PREFIX_BYTES);
            return Err(too_large(length, self.max_bytes));
        }
        Ok(None)
    }
}

fn too_large(bytes: usize, max: usize) -> SessionError {
    SessionError::FrameTooLarge { bytes, max }
}

#[cfg(test)]
mod tests;
