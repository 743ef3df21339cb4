//! Words of hosts for the allocator's check of told capacities, by the daemon's own meter.
//!
//! A host looks at its sockets and at its interface every 100 ms, as the daemon does, each host at
//! its own phase. Whose packets have no flow in Ratewright counts by what arrives, as the daemon
//! sees it, and is named a sender. There is no UDP but control messages.

use std::collections::BTreeMap;

use ratewright_proto::telemetry::{
    ACCESS_INTERVAL_NS, AccessUseMeter, Moved, SendFacts, SendQueue, SenderName, Telemetry,
};
use ratewright_topology::HostId;

use super::{FlowtuneContext, FlowtuneHost, timer};
use crate::flow::FlowId;
use crate::host::{Measured, Timer};
use crate::time::{Span, Time};
use crate::transport::tcp::congestion::Congestion;

/// Time from one look to the next.
const INTERVAL: Span = Span::from_ns(ACCESS_INTERVAL_NS);

/// Knowledge of a host of its own links.
#[derive(Debug, Default)]
pub(super) struct OwnLinks {
    meter: AccessUseMeter,
    /// Payload that had arrived by the last look, by sender.
    received: BTreeMap<u32, u64>,
    /// Flows that it sent at the last look, by slot.
    sockets: Vec<Option<(FlowId, SendFacts)>>,
}

impl OwnLinks {
    /// Notes that the allocator knows nothing: the session is new.
    pub(super) fn begin_session(&mut self) {
        self.meter.begin_session();
    }
}

const fn look_timer() -> Timer {
    timer(Timer::MEASURE, Timer::RECEIVED)
}

/// Lets a host look at its own links from its phase on, if the allocator checks them.
pub(super) fn begin_host(cx: &mut FlowtuneContext<'_>) {
    if cx.shared.config.control.link_check.is_some() && cx.allocator().is_some() {
        let phase_ns = ACCESS_INTERVAL_NS * u64::from(cx.me().0) / u64::from(cx.hosts().max(1));
        cx.timer(Time::from_ns(phase_ns), look_timer());
    }
}

impl<C: Congestion> FlowtuneHost<C> {
    /// Looks at the host's own links, tells the allocator of them if something has changed, and
    /// looks again after the interval.
    pub(super) fn look(&mut self, cx: &mut FlowtuneContext<'_>, mut measured: Measured) {
        let Some(settings) = cx.shared.config.control.link_check else {
            return;
        };
        let now_ns = cx.now().as_ns();
        let [tx_bytes, rx_bytes] = own_bytes(cx);
        let speed_bps = if settings.speeds {
            cx.nic_rate_bps(cx.me())
        } else {
            0
        };
        let meter = &mut self.own_links.meter;
        meter.carry(now_ns, rx_bytes, tx_bytes, speed_bps);
        self.tcp.measure_received(&mut measured);
        self.count_received(measured);
        self.count_sent(cx);
        let meter = &mut self.own_links.meter;
        meter.look(now_ns, None, self.agent.access());
        if let Some(access_use) = meter.to_tell(now_ns, false) {
            let message = Telemetry {
                access_use: Some(Box::new(access_use.clone())),
                ..Telemetry::default()
            };
            if self.agent.report(message) {
                meter.told(now_ns, access_use);
            }
        }
        self.drive(cx);
        cx.timer_in(INTERVAL, look_timer());
    }

    fn count_received(&mut self, measured: Measured) {
        let OwnLinks {
            meter, received, ..
        } = &mut self.own_links;
        let now = measured.into_received().unwrap_or_default();
        for (&sender, &bytes) in &now {
            let before = received.get(&sender).copied().unwrap_or(0);
            meter.add(&Moved {
                name: SenderName::Host(sender),
                received_bytes: bytes.saturating_sub(before),
                acked_bytes: 0,
                queue: SendQueue::Idle,
            });
        }
        *received = now;
    }

    fn count_sent(&mut self, cx: &FlowtuneContext<'_>) {
        let OwnLinks { meter, sockets, .. } = &mut self.own_links;
        sockets.resize(self.ids.len(), None);
        for (slot, known) in (0..).zip(sockets) {
            let socket = self.tcp.socket(cx, slot);
            let now = socket.map(|socket| (socket.flow, socket.sending));
            let before = std::mem::replace(known, now);
            let Some(socket) = socket else { continue };
            let before = before.filter(|(flow, _)| *flow == socket.flow);
            let before = before.map(|(_, facts)| facts);
            let acked_before = before.map_or(0, |before| before.acked_bytes);
            meter.add(&Moved {
                name: SenderName::Host(socket.dst.0),
                received_bytes: 0,
                acked_bytes: socket.sending.acked_bytes - acked_before,
                queue: before.map_or(SendQueue::Idle, |before| {
                    SendQueue::between(&before, &socket.sending)
                }),
            });
        }
    }
}

/// Returns the bytes that the link from the host has carried so far, and the link to it.
fn own_bytes(cx: &mut FlowtuneContext<'_>) -> [u64; 2] {
    let me: HostId = cx.me();
    let topology = cx.topology();
    let links = [topology.host_uplink(me), topology.host_downlink(me)];
    links.map(|link| cx.core.read_port(link.0).tx_bytes)
}
