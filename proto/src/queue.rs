//! Control messages that wait to be written, bounded.

use std::collections::VecDeque;

use crate::control::ControlMessage;
use crate::error::SessionError;

/// A bounded queue of encoded frames.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    max_bytes: usize,
}

impl ControlQueue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    /// Encodes and queues `message`, unless that passes the bound.
    pub(crate) fn push(&mut self, message: &ControlMessage) -> Result<(), SessionError> {
        let frame = message.to_frame()?;
        if self.bytes + frame.len() > self.max_bytes {
            return Err(SessionError::Backlog {
                bytes: self.bytes,
                max: self.max_bytes,
            });
        }
        self.push_unbounded(frame);
        Ok(())
    }

    /// Queues a frame that ends or opens a session, of which there are few.
    pub(crate) fn push_unbounded(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }
}
