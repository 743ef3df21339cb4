//! Bounded queue of control messages to be written.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::control::ControlMessage;
use crate::error::SessionError;

/// A bounded queue of encoded frames.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    /// Frames, or pieces of frames, in the order in which they are written.
    frames: VecDeque<Bytes>,
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

    /// Encodes and queues `message`, unless the queue would exceed its bound:
    /// [`SessionError::Backlog`].
    pub(crate) fn push(&mut self, message: &ControlMessage) -> Result<(), SessionError> {
        self.push_frame(message.to_frame()?.into())
    }

    /// Queues an encoded frame, unless the queue would exceed its bound:
    /// [`SessionError::Backlog`].
    pub(crate) fn push_frame(&mut self, frame: Bytes) -> Result<(), SessionError> {
        // A peer that does not read its stream must not take this end's memory.
        if self.bytes + frame.len() > self.max_bytes {
            return Err(SessionError::Backlog {
                bytes: self.bytes,
                max: self.max_bytes,
            });
        }
        self.push_unbounded(frame);
        Ok(())
    }

    /// Queues a frame regardless of the bound: one that opens or ends a session, of which there are
    /// few.
    pub(crate) fn push_unbounded(&mut self, frame: impl Into<Bytes>) {
        let frame = frame.into();
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }
}
