//! Reliable delivery at an allocated rate: what Flowtune's hosts and the ideal scheme share.
//!
//! | file | what it holds |
//! |---|---|
//! | [`sender`] | window before the first rate, pacing after it, loss detection, retransmission |
//! | [`receiver`] | reassembly |
//!
//! Flowtune §5.3, *Servers*: a server starts a regular TCP connection and notifies the allocator in
//! parallel; with the first rate it opens the window and paces. So a [`PacedSender`] has two modes:
//! an acknowledgement-clocked window (slow start, halved once per window of loss), and a rate with
//! which the window no longer binds.
//!
//! Every data packet is acknowledged at once. An acknowledgement names the packet that caused it
//! beside the next byte expected, which is as informative as SACK blocks.

mod flows;
pub mod receiver;
pub mod sender;

#[cfg(test)]
mod tests;

pub use flows::FlowMap;
pub use receiver::PacedReceiver;
pub use sender::{PacedSegment, PacedSender, SenderConfig};

use crate::flow::FlowId;
use crate::packet::Packet;
use crate::time::Time;
use crate::transport::Context;

/// Takes a data packet at its receiver, counts the bytes that came in order, and returns the
/// acknowledgement that is due.
pub fn receive(
    cx: &mut Context<'_>,
    receivers: &mut FlowMap<PacedReceiver>,
    packet: &Packet,
) -> Packet {
    let flow: FlowId = packet.flow;
    let total = cx.flow(flow).bytes;
    let mut expected = total;
    // A flow that is complete has no state left; what still comes is acknowledged all the same.
    if cx.progress(flow).finished == Time::MAX {
        if receivers.get(flow).is_none() {
            receivers.insert(flow, PacedReceiver::default());
        }
        if let Some(receiver) = receivers.get_mut(flow) {
            let new = receiver.on_data(packet.seq, packet.end());
            expected = receiver.expected();
            if new > 0 {
                cx.delivered(flow, new);
            }
        }
        if expected >= total {
            receivers.remove(flow);
            cx.complete(flow);
        }
    }
    let mut reply = cx.reply(packet);
    reply.ack = expected;
    reply.seq = packet.seq;
    reply
}
