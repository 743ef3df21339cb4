//! Deadlocks and storms of priority flow control.
//!
//! A switch that pauses a port waits until what came by it has left. If that waits for ports that
//! are paused themselves, and these in a circle for the first, nothing moves for ever (Hu et al.,
//! *Deadlocks in Datacenter Networks: Why Do They Form, and How to Avoid Them*, HotNets 2016). A
//! pause without a resume also comes from a broken host, and spreads from switch to switch
//! (Guo et al., SIGCOMM 2016, §4.3).
//!
//! Both are read off the state of ports and buffers: at multiples of [`Lossless::watchdog`], so
//! that runs without an end have one, and at the end of a run. Packets bear nothing of it.
//!
//! [`Lossless::watchdog`]: crate::net::mmu::Lossless::watchdog

use std::collections::{BTreeMap, BTreeSet};

use ratewright_topology::{LinkId, Topology};

use crate::net::mmu::{Mmu, index};
use crate::net::port::FarEnd;
use crate::net::queue::Discipline as _;
use crate::net::switch::Switch;
use crate::results::{PortEnds, core_of};
use crate::run::core::Core;
use crate::time::{Span, Time};

/// A class of a port, of which its far end lets nothing come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PausedClass {
    /// The port's link.
    pub link: LinkId,
    /// The class.
    pub class: u8,
}

impl PausedClass {
    /// Names the ends of the link and the class.
    #[must_use]
    pub fn name(self, topology: &Topology) -> String {
        let link = topology.links().get(self.link.index());
        let name = |end| topology.node_name(end);
        let ends = link.map_or_else(
            || self.link.to_string(),
            |link| format!("{}->{}", name(link.from), name(link.to)),
        );
        format!("{ends}, class {}", self.class)
    }
}

/// A deadlock of priority flow control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// A circle: what came by each port waits for the next one, and by the last for the first.
    pub cycle: Vec<PausedClass>,
    /// Ports and classes that will never send again, with those of the circle.
    pub stuck: usize,
}

/// A pause that lasted [too long](crate::net::mmu::Lossless::watchdog).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseStorm {
    /// The port that was paused, and the class.
    pub port: PausedClass,
    /// Begin of the pause. Where one storm spreads, the port with the earliest is its origin.
    pub since: Time,
    /// Length, as far as the run has come.
    pub lasted: Span,
}

/// Bytes that came by a port and wait, by the port that they are to leave by.
type Waits = BTreeMap<PausedClass, BTreeMap<PausedClass, u64>>;

/// A switch with its buffer and the partition that it is of.
struct Place<'a> {
    core: &'a Core,
    switch: &'a Switch,
    mmu: &'a Mmu,
}

impl<'a> Place<'a> {
    fn of(cores: &[&'a Core], switch: u32) -> Option<Self> {
        let core = core_of(cores, switch as usize);
        let switch = &core.fabric.switches[switch as usize];
        let mmu = switch.mmu.as_deref()?;
        Some(Self { core, switch, mmu })
    }

    /// Sums up what waits at the switch and came by `stuck` ports.
    fn add_waits(&self, stuck: &BTreeSet<PausedClass>, waits: &mut Waits) {
        for (egress, port) in self.switch.egress.iter().enumerate() {
            let queue = &self.core.fabric.ports[*port as usize].queue;
            queue.visit(&self.core.shared.packets, &mut |packet| {
                let place = self.mmu.place(packet, egress as u16);
                let came_by = self.switch.ingress.get(usize::from(place.ingress));
                let paused = |port: u32, class| PausedClass {
                    link: LinkId(port),
                    class,
                };
                let Some(from) = came_by.map(|from| paused(*from, place.ingress_class)) else {
                    return;
                };
                if stuck.contains(&from) {
                    let to = waits.entry(from).or_default();
                    *to.entry(paused(*port, place.class)).or_default() +=
                        u64::from(place.wire_bytes);
                }
            });
        }
    }

    /// Returns the bytes of each place in the buffer that will never leave.
    fn stuck_bytes(&self, stuck: &BTreeSet<PausedClass>, waits: &Waits) -> Vec<u64> {
        let mut bytes = vec![0; self.mmu.places()];
        for (ingress, link) in self.switch.ingress.iter().enumerate() {
            let link = LinkId(*link);
            let all = PausedClass { link, class: 0 }..=PausedClass {
                link,
                class: u8::MAX,
            };
            for (from, to) in waits.range(all) {
                let never = to.iter().filter(|(to, _)| stuck.contains(to));
                bytes[index(ingress as u16, from.class)] = never.map(|(_, bytes)| bytes).sum();
            }
        }
        bytes
    }
}

/// Looks for a deadlock; all ports have been advanced to the present.
pub(crate) fn deadlock(cores: &[&Core]) -> Option<Deadlock> {
    // Ports that a switch pauses and has not resumed yet; the switch, and the port's number there.
    let mut stuck = BTreeSet::new();
    let mut ingresses = BTreeMap::new();
    for (number, port) in PortEnds::all(cores).enumerate() {
        let paused = port.near.paused();
        let (FarEnd::Switch(switch), Some(ingress)) = (port.near.far(), port.near.far_ingress())
        else {
            continue;
        };
        let is_quiet = |core: &Core| core.fabric.pauses.is_quiet(number as u32);
        if paused.is_empty() || !cores.iter().all(|core| is_quiet(core)) {
            continue;
        }
        let place = Place::of(cores, switch)?;
        for class in paused.iter().map(|class| class as u8) {
            if place.mmu.is_paused(ingress, class) {
                let link = LinkId(number as u32);
                stuck.insert(PausedClass { link, class });
                ingresses.insert(link, (switch, ingress));
            }
        }
    }
    let switches: BTreeSet<u32> = ingresses.values().map(|(switch, _)| *switch).collect();
    let mut waits = Waits::new();
    for switch in &switches {
        Place::of(cores, *switch)?.add_waits(&stuck, &mut waits);
    }
    // All that could leave is taken to leave. Ports that are resumed then are not stuck, and nor is
    // what waits for them.
    loop {
        let mut resumed = Vec::new();
        for switch in &switches {
            let place = Place::of(cores, *switch)?;
            let bytes = place.stuck_bytes(&stuck, &waits);
            let here = stuck
                .iter()
                .filter(|port| ingresses[&port.link].0 == *switch);
            resumed.extend(here.filter(|port| {
                let (_, ingress) = ingresses[&port.link];
                !place.mmu.stays_paused(ingress, port.class, &bytes)
            }));
        }
        if resumed.is_empty() {
            break;
        }
        resumed.iter().for_each(|port| {
            stuck.remove(port);
        });
    }
    // Each of the rest waits for another one of them.
    let next = |port: &PausedClass| {
        let to = waits.get(port)?;
        to.keys().find(|to| stuck.contains(to)).copied()
    };
    let mut way: Vec<PausedClass> = stuck.first().copied().into_iter().collect();
    loop {
        let to = next(way.last()?)?;
        if let Some(first) = way.iter().position(|port| *port == to) {
            let mut cycle = way.split_off(first);
            let least = (0..cycle.len()).min_by_key(|i| cycle[*i]).unwrap_or(0);
            cycle.rotate_left(least);
            let stuck = stuck.len();
            return Some(Deadlock { cycle, stuck });
        }
        way.push(to);
    }
}

/// Returns true if a class of any port has been paused since a time or longer.
pub(crate) fn is_paused_since(cores: &[&Core], time: Time) -> bool {
    PortEnds::all(cores).any(|port| port.near.is_paused_since(time))
}

/// Lists the pauses that lasted too long, the earliest first.
pub(crate) fn storms(cores: &[&Core], watchdog: Option<Span>) -> Vec<PauseStorm> {
    let Some(watchdog) = watchdog else {
        return Vec::new();
    };
    let of_port = |(number, port): (usize, PortEnds<'_>)| {
        let longest = port.near.stats().pauses().longest?;
        (longest.span >= watchdog).then_some(PauseStorm {
            port: PausedClass {
                link: LinkId(number as u32),
                class: longest.class,
            },
            since: longest.since,
            lasted: longest.span,
        })
    };
    let ports = PortEnds::all(cores).enumerate();
    let mut storms: Vec<PauseStorm> = ports.filter_map(of_port).collect();
    storms.sort_by_key(|storm| (storm.since, storm.port));
    storms
}
