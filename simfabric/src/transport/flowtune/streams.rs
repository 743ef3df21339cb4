//! Control traffic over TCP: a connection between every host and the allocator.
//!
//! Sessions are unaware of it. Their datagrams are written as messages, and delivered when the last
//! byte has arrived in order, as with ns-2's `TcpApp` (flowtune §5.3). Segments are packets like
//! any other. Connections are open when a run begins, as the sessions are.

use ratewright_topology::HostId;

use crate::control::{ControlTraffic, segment_ip_bytes};
use crate::ext::StreamSegment;
use crate::host::Timer;
use crate::packet::{Packet, PacketKind};
use crate::time::Time;
use crate::transport::tcp::stream::{StreamConfig, StreamCounts, StreamEnd};
use crate::transport::{Context, TimerId};

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Host = 0,
    Allocator = 1,
}

#[derive(Debug)]
struct StreamState {
    stream: StreamEnd,
    timer: Option<TimerId>,
}

#[derive(Debug)]
struct ControlConnection {
    ends: [StreamState; 2],
    number: u32,
}

/// The connections of all hosts.
#[derive(Debug)]
pub(super) struct Streams {
    config: StreamConfig,
    class: u8,
    connections: Vec<ControlConnection>,
    /// Traffic by the [`End`] that sends.
    traffic: [ControlTraffic; 2],
    /// Counts of connections that were closed.
    closed: StreamCounts,
}

impl Streams {
    pub(super) fn new(hosts: u32, config: StreamConfig, class: u8) -> Self {
        Self {
            config,
            class,
            connections: (0..hosts)
                .map(|_| ControlConnection::new(config, 0))
                .collect(),
            traffic: [ControlTraffic::default(); 2],
            closed: StreamCounts::default(),
        }
    }

    /// Closes the connection of a host without a message to its other end, and opens the next one.
    pub(super) fn reopen<S>(&mut self, cx: &mut Context<'_, S>, host: HostId) {
        let old = &mut self.connections[host.index()];
        for end in &mut old.ends {
            if let Some(timer) = end.timer.take() {
                cx.cancel(timer);
            }
            // Counts of a run include connections that are gone.
            let counts = end.stream.counts();
            self.closed.retransmits += counts.retransmits;
            self.closed.time_outs += counts.time_outs;
        }
        *old = ControlConnection::new(self.config, old.number + 1);
    }

    /// Writes a message.
    pub(super) fn write(&mut self, side: End, host: HostId, message: &[u8]) {
        self.connections[host.index()].ends[side as usize]
            .stream
            .write(message);
    }

    /// Sends the segments that an end's window allows, and acknowledgements that are due. `timer`
    /// is the end's.
    pub(super) fn flush<S>(
        &mut self,
        cx: &mut Context<'_, S>,
        side: End,
        host: HostId,
        timer: Timer,
    ) {
        let Some(allocator) = cx.allocator() else {
            return;
        };
        let (src, dst) = match side {
            End::Host => (host, allocator),
            End::Allocator => (allocator, host),
        };
        let connection = &mut self.connections[host.index()];
        let end = &mut connection.ends[side as usize];
        loop {
            let buffer = cx.extensions().buffer();
            let mut segment = match end.stream.poll_segment(cx.now(), buffer) {
                Ok(segment) => segment,
                Err(buffer) => {
                    cx.extensions().recycle(buffer);
                    break;
                }
            };
            segment.connection = connection.number;
            let payload_bytes = segment.bytes.len();
            self.traffic[side as usize].count_segment(payload_bytes);
            let ip_bytes = segment_ip_bytes(payload_bytes);
            let mut packet = Packet {
                kind: PacketKind::Control,
                src,
                dst,
                // A connection keeps to one spine.
                path_hash: host.0 as u16,
                wire_bytes: cx.framing().ip_wire_bytes(ip_bytes),
                class: self.class,
                ..Packet::default()
            };
            let extension = cx.extensions().segment(segment);
            cx.attach_extension(&mut packet, extension);
            cx.send(packet);
        }
        // RFC 6298 §5.1: the timer runs while anything is unacknowledged.
        if end.timer.is_none()
            && let Some(span) = end.stream.time_out()
        {
            end.timer = Some(cx.timer_in(span, timer));
        }
    }

    /// Takes a segment at one end. Its messages can then be read, and [`flush`](Self::flush) is
    /// due.
    pub(super) fn on_segment<S>(
        &mut self,
        cx: &mut Context<'_, S>,
        side: End,
        host: HostId,
        segment: &StreamSegment,
    ) {
        let connection = &mut self.connections[host.index()];
        // A segment of the closed connection that was still in the fabric.
        if connection.number != segment.connection {
            return;
        }
        let end = &mut connection.ends[side as usize];
        let before = end.stream.acknowledged();
        end.stream.on_segment(cx.now(), segment);
        // RFC 6298 §5.3: every advance restarts the timer.
        if end.stream.acknowledged() > before
            && let Some(timer) = end.timer.take()
        {
            if let Some(span) = end.stream.time_out() {
                end.timer = cx.move_timer(timer, cx.now() + span);
            } else {
                cx.cancel(timer);
            }
        }
    }

    /// Reads the next message at one end. A stream that cannot be cut into messages yields none any
    /// more: its session times out, and its successor gets another connection.
    pub(super) fn read(&mut self, side: End, host: HostId) -> Option<&[u8]> {
        let end = &mut self.connections[host.index()].ends[side as usize];
        end.stream.read().ok().flatten()
    }

    /// Handles an end's retransmission timer.
    pub(super) fn on_timer(&mut self, now: Time, side: End, host: HostId) {
        let end = &mut self.connections[host.index()].ends[side as usize];
        end.timer = None;
        end.stream.on_time_out(now);
    }

    /// Returns the traffic that the hosts sent, and the allocator's.
    pub(super) fn traffic(&self) -> [ControlTraffic; 2] {
        self.traffic
    }

    /// Returns the sum of the counts of all connections.
    pub(super) fn counts(&self) -> StreamCounts {
        let ends = self.connections.iter().flat_map(|of| &of.ends);
        ends.fold(self.closed, |sum, end| {
            let counts = end.stream.counts();
            StreamCounts {
                retransmits: sum.retransmits + counts.retransmits,
                time_outs: sum.time_outs + counts.time_outs,
            }
        })
    }
}

impl ControlConnection {
    fn new(config: StreamConfig, number: u32) -> Self {
        let end = || StreamState {
            stream: StreamEnd::new(config),
            timer: None,
        };
        Self {
            ends: [end(), end()],
            number,
        }
    }
}
