//! Reverse path congestion marking (RPM, Baganal-Krishna et al. 2023 §III): a discipline's marks go
//! into acknowledgements that pass the switch, not through the receiver.
//!
//! Any discipline that marks decides on marks as by itself (§VI). A mark becomes one count in the
//! congestion state register of the packet's flow (Algorithm 1). The next acknowledgement of that
//! flow that comes by the other direction of the link takes one count and echoes it
//! ([`Tap::Marks`]). One mark is one echo.
//!
//! RPM needs acknowledgements that come back by the switch, and is off for flows whose do not
//! (§III-C). The register learns that from acknowledgements: marks of a flow wait only if one came
//! within the last [`patience`](Config::patience). Other marks go forward. So flows on
//! asymmetric paths fare exactly as under the discipline alone, and a path that changes costs a
//! flow the marks of one `patience` at most.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Table;

use super::codel;
use super::{Discipline, DisciplineConfig, MarkKeeper, Queue, QueueConfig, QueueContext};
use crate::flow::FlowId;
use crate::net::Tap;
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use crate::time::{Span, Time};
use crate::units::Delay;

/// Flows that share a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// A flow has its own (§III-B2).
    #[default]
    Flow,
    /// All flows of the port: any acknowledgement takes any flow's mark (§III-C).
    Port,
}

/// The discipline that decides on marks.
#[derive(Clone, PartialEq, Debug)]
pub struct Each(Box<QueueConfig>);

impl From<QueueConfig> for Each {
    fn from(queue: QueueConfig) -> Self {
        Self(Box::new(queue))
    }
}

impl Serialize for Each {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.table().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Each {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = Table::deserialize(deserializer)?;
        // Capacities are checked against packets later.
        let queue = QueueConfig::from_table(&table, 0).map_err(serde::de::Error::custom)?;
        Ok(queue.into())
    }
}

crate::parameters! {
    /// RPM: the marks of another discipline go into acknowledgements that come back by the link.
    pub struct Config {
        /// The discipline that decides on marks, with its keys (RPM §V-A: CoDel).
        each: Each = QueueConfig::Codel(codel::Config::default()).into(),
        /// Flows that share a register: "flow", each has its own (§III-B2), or "port" (§III-C).
        scope: Scope = Scope::Flow,
        /// Registers of a port. A flow that finds its own taken is marked forward (§III-C; the
        /// paper has no number).
        registers: u32 = 1 << 16,
        /// Time since a flow's last acknowledgement up to which its marks wait for the next
        /// (CoDel's longest round trip of the Internet, RFC 8289 §4.3).
        patience: Delay = Delay::from_ms(100),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "rpm";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        if self.registers == 0 {
            return Err(ParamError::of("registers", "there must be one"));
        }
        QueueConfig::from_table(&self.each.0.table(), packet_bytes)
            .map(|_| ())
            .map_err(|error| ParamError::of("each", error.to_string()))
    }

    fn build(&self, rate_bps: u64, rng: &mut Stream) -> Queue {
        Queue::Rpm(Box::new(Rpm {
            each: self.each.0.build(rate_bps, rng),
            registers: Registers {
                registers: Vec::new(),
                limit: self.registers.max(1),
                scope: self.scope,
                patience: self.patience.0,
            },
        }))
    }
}

/// One flow's marks that wait.
#[derive(Clone, Copy, Debug)]
struct Register {
    flow: FlowId,
    marks: u32,
    /// Time of the flow's last acknowledgement.
    heard: Time,
}

const FREE: Register = Register {
    flow: FlowId::NONE,
    marks: 0,
    heard: Time::ZERO,
};

/// Congestion state registers of a port.
#[derive(Debug)]
struct Registers {
    /// As many as flows came so far, up to the limit.
    registers: Vec<Register>,
    limit: u32,
    scope: Scope,
    patience: Span,
}

impl Registers {
    /// Returns a flow's register, which another flow may hold, and the holder's name in it.
    fn place(&self, flow: FlowId) -> (usize, FlowId) {
        match self.scope {
            // Numbers of flows are dense, so they are their own hash.
            Scope::Flow => ((flow.0 % self.limit) as usize, flow),
            Scope::Port => (0, FlowId(0)),
        }
    }

    /// Takes a mark for an acknowledgement of the flow, and notes that it came by.
    fn take(&mut self, now: Time, flow: FlowId) -> bool {
        let (index, holder) = self.place(flow);
        if self.registers.len() <= index {
            self.registers.resize(index + 1, FREE);
        }
        let register = &mut self.registers[index];
        if register.flow != holder {
            let idle = now.since(register.heard) > self.patience;
            if register.flow == FlowId::NONE || idle {
                *register = Register {
                    flow: holder,
                    marks: 0,
                    heard: now,
                };
            }
            return false;
        }
        register.heard = now;
        let waits = register.marks > 0;
        register.marks -= u32::from(waits);
        waits
    }
}

impl MarkKeeper for Registers {
    fn keep(&mut self, now: Time, flow: FlowId) -> bool {
        let (index, holder) = self.place(flow);
        let Some(register) = self.registers.get_mut(index) else {
            return false;
        };
        if register.flow != holder {
            return false;
        }
        if now.since(register.heard) > self.patience {
            // The acknowledgements take another way, and so must its marks. Those that wait are
            // replaced by this one, which goes forward.
            *register = FREE;
            return false;
        }
        register.marks += 1;
        true
    }
}

/// A queue whose marks go to acknowledgements.
#[derive(Debug)]
pub struct Rpm {
    each: Queue,
    registers: Registers,
}

impl Discipline for Rpm {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        self.each.enqueue(&mut q.keeping(&mut self.registers), id);
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        self.each.dequeue(&mut q.keeping(&mut self.registers))
    }

    fn tap(&self) -> Tap {
        Tap::Marks
    }

    fn take_mark(&mut self, now: Time, flow: FlowId) -> bool {
        self.registers.take(now, flow)
    }

    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        self.each.visit(packets, each);
    }

    fn packets(&self) -> u32 {
        self.each.packets()
    }

    fn bytes(&self) -> u64 {
        self.each.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::queue::ecn_threshold;
    use crate::net::queue::testing::{Bench, packet};
    use crate::packet::Flags;
    use crate::rng::Purpose;

    /// A queue that marks every packet that finds another.
    fn marking(scope: Scope, registers: u32) -> Bench<Queue> {
        let each = ecn_threshold::Config {
            mark_bytes: Some(1),
            ..ecn_threshold::Config::default()
        };
        let config = Config {
            each: QueueConfig::EcnThreshold(each).into(),
            scope,
            registers,
            patience: Delay::from_ms(10),
        };
        let mut stream = Stream::new(1, Purpose::Test, 0);
        let mut bench = Bench::new(config.build(10_000_000_000, &mut stream));
        // A packet that waits, so that all that follow find a queue.
        bench.put(packet(63, 0, 1_000));
        bench
    }

    /// Sends a packet of a flow through the queue. Returns true if it leaves marked.
    fn is_marked(bench: &mut Bench<Queue>, flow: u32) -> bool {
        bench.put(packet(flow, 0, 1_000));
        bench.take();
        let sent = bench.take().expect("it waits");
        bench.put(packet(63, 0, 1_000));
        assert_eq!(sent.flow, FlowId(flow));
        sent.flags.contains(Flags::CE)
    }

    fn ack(bench: &mut Bench<Queue>, flow: u32) -> bool {
        bench.queue.take_mark(bench.now, FlowId(flow))
    }

    #[test]
    fn the_discipline_that_marks_is_read_from_a_table_and_checked() {
        let read = |text: &str, packet_bytes| {
            QueueConfig::from_table(&text.parse().expect("a table"), packet_bytes)
        };
        let text = r#"discipline = "rpm"
            each = { discipline = "codel", target = "1ms", limit_bytes = 1_000 }"#;
        let queue = read(text, 1_000).expect("a queue");
        assert_eq!(read(&queue.table().to_string(), 1_000), Ok(queue));
        assert!(read(text, 1_500).is_err(), "it would hold no packet");
        let unknown = r#"discipline = "rpm"
            each = { discipline = "codel", goal = "1ms" }"#;
        assert!(read(unknown, 1_500).is_err());
    }

    #[test]
    fn one_mark_is_one_echo_of_the_same_flow() {
        let mut bench = marking(Scope::Flow, 1 << 10);
        assert!(!ack(&mut bench, 1) && !ack(&mut bench, 2));
        for _ in 0..3 {
            assert!(!is_marked(&mut bench, 1));
        }
        assert!(!ack(&mut bench, 2), "flow 2 has none");
        let echoes: Vec<bool> = (0..5).map(|_| ack(&mut bench, 1)).collect();
        assert_eq!(echoes, [true, true, true, false, false]);
    }

    #[test]
    fn marks_of_flows_whose_acknowledgements_go_elsewhere_go_forward() {
        let mut bench = marking(Scope::Flow, 1 << 10);
        assert!(is_marked(&mut bench, 1), "none was ever seen");
        assert!(!ack(&mut bench, 1));
        assert!(!is_marked(&mut bench, 1));
        // The path changed: after the patience marks go forward, and nothing is left of before.
        bench.now += Span::from_us(10_001);
        assert!(is_marked(&mut bench, 1) && is_marked(&mut bench, 1));
        assert!(!ack(&mut bench, 1));
        assert!(!is_marked(&mut bench, 1));
        assert!(ack(&mut bench, 1));
    }

    #[test]
    fn a_flow_without_a_register_is_marked_forward_until_one_is_idle() {
        let mut bench = marking(Scope::Flow, 1);
        assert!(!ack(&mut bench, 1) && !ack(&mut bench, 2));
        assert!(!is_marked(&mut bench, 1));
        assert!(is_marked(&mut bench, 2));
        bench.now += Span::from_us(10_001);
        assert!(!ack(&mut bench, 2));
        assert!(!is_marked(&mut bench, 2) && is_marked(&mut bench, 1));
    }

    #[test]
    fn flows_of_a_port_share_their_marks_if_the_register_is_the_ports() {
        let mut bench = marking(Scope::Port, 1);
        assert!(!ack(&mut bench, 1));
        assert!(!is_marked(&mut bench, 2));
        assert!(ack(&mut bench, 3), "whichever comes first");
        assert!(!ack(&mut bench, 2));
    }
}
