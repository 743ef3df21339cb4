//! A fleet that connects at once, against the allocator's admission queue, on a clock of its own:
//! the same seed gives the same run. It converges however slow the allocator's machine is, and its
//! time is not spent on hosts that have gone.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ratewright_allocator::service::admission::{
    Admission, AdmissionConfig, AdmissionStep, ConnectionAttempt, OfferOutcome, Ticket,
};
use ratewright_endpointd::session_io::backoff::{Failure, Persistence, PersistenceConfig};

const MS: u64 = 1_000_000;
/// Costs of the allocator on an ordinary machine, in nanoseconds: of a first packet without a
/// proven address, of one with it, of its first flight with the signature, of the client's
/// certificate with the Welcome, of a "busy", and of a stray packet.
const RETRY_NS: u64 = 15_000;
const TOKEN_NS: u64 = 10_000;
const BEGIN_NS: u64 = 250_000;
const FINISH_NS: u64 = 500_000;
const REFUSE_NS: u64 = 15_000;
const STRAY_NS: u64 = 3_000;
/// Packets that the socket holds.
const SOCKET: usize = 2_048;
/// Packets that are read before the queue is served.
const BATCH: usize = 32;
/// One-way delay through the network and the host.
const WAY_NS: u64 = 200_000;

/// A packet of a host's attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Packet {
    First,
    WithToken,
    Finished(Ticket),
    Close(Ticket),
}

/// Event at a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HostEvent {
    Begin,
    Repeat { pause_ns: u64 },
    Retry,
    Flight(Ticket),
    Busy,
    Welcome,
    GivesUp,
    Arrives(Packet),
}

struct HostModel {
    persistence: Persistence,
    attempt: u64,
    /// Time to wait for a turn, and the end of the attempt's wait.
    patience_ns: u64,
    gives_up_ns: u64,
    retried: bool,
    /// Its handshake, once the allocator has begun it.
    begun: Option<Ticket>,
    session_ns: Option<u64>,
}

/// Time, order, host, attempt and event.
type ScheduledEvent = (u64, u64, usize, u64, HostEvent);

struct StampedeModel {
    slow: u64,
    admission: Admission,
    socket: VecDeque<(usize, u64, Packet)>,
    /// Host and attempt of each ticket, by its number.
    tickets: Vec<(usize, u64)>,
    /// Attempts that wait or have begun.
    known: BTreeSet<(usize, u64)>,
    hosts: Vec<HostModel>,
    events: BinaryHeap<Reverse<ScheduledEvent>>,
    order: u64,
    now_ns: u64,
    begun: u64,
}

impl StampedeModel {
    fn new(hosts: usize, slow: u64) -> Self {
        let mut model = Self {
            slow,
            admission: Admission::new(AdmissionConfig::default()),
            socket: VecDeque::new(),
            tickets: vec![(0, 0)],
            known: BTreeSet::new(),
            hosts: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            now_ns: 0,
            begun: 0,
        };
        for at in 0..hosts {
            model.hosts.push(HostModel {
                persistence: Persistence::new(PersistenceConfig::default(), at as u64),
                attempt: 0,
                patience_ns: 0,
                gives_up_ns: 0,
                retried: false,
                begun: None,
                session_ns: None,
            });
            // Hosts notice a restart within 20 ms of each other.
            model.at(at as u64 * 20 * MS / hosts as u64, at, 0, HostEvent::Begin);
        }
        model
    }

    fn at(&mut self, at_ns: u64, host: usize, attempt: u64, event: HostEvent) {
        self.order += 1;
        self.events
            .push(Reverse((at_ns, self.order, host, attempt, event)));
    }

    fn send(&mut self, now_ns: u64, host: usize, packet: Packet) {
        let attempt = self.hosts[host].attempt;
        self.at(now_ns + WAY_NS, host, attempt, HostEvent::Arrives(packet));
    }

    /// Applies an event at a host, or the arrival of its packet.
    fn happens(&mut self, now_ns: u64, host: usize, attempt: u64, event: HostEvent) {
        if let HostEvent::Arrives(packet) = event {
            if self.socket.len() < SOCKET {
                self.socket.push_back((host, attempt, packet));
            }
            return;
        }
        let this = &mut self.hosts[host];
        if this.session_ns.is_some() || (this.attempt != attempt && event != HostEvent::Begin) {
            return;
        }
        match event {
            HostEvent::Begin => {
                this.attempt += 1;
                let patience_ns = this.persistence.patience(now_ns).as_nanos() as u64;
                this.patience_ns = this.persistence.queue_patience(now_ns).as_nanos() as u64;
                this.gives_up_ns = now_ns + patience_ns;
                (this.retried, this.begun) = (false, None);
                let attempt = this.attempt;
                // Probe timeouts begin with three times the assumed round trip (RFC 9002, section
                // 6.2).
                let pause_ns = 9 * patience_ns / 25;
                self.send(now_ns, host, Packet::First);
                self.at(
                    now_ns + pause_ns,
                    host,
                    attempt,
                    HostEvent::Repeat { pause_ns },
                );
                self.at(now_ns + patience_ns, host, attempt, HostEvent::GivesUp);
            }
            HostEvent::Repeat { pause_ns } => {
                let packet = match (this.begun, this.retried) {
                    (Some(ticket), _) => Packet::Finished(ticket),
                    (None, true) => Packet::WithToken,
                    (None, false) => Packet::First,
                };
                self.send(now_ns, host, packet);
                let pause_ns = 2 * pause_ns;
                self.at(
                    now_ns + pause_ns,
                    host,
                    attempt,
                    HostEvent::Repeat { pause_ns },
                );
            }
            HostEvent::Retry if !this.retried => {
                this.retried = true;
                let more_ns = this.patience_ns;
                this.gives_up_ns = now_ns + more_ns;
                self.send(now_ns, host, Packet::WithToken);
                self.at(now_ns + more_ns, host, attempt, HostEvent::GivesUp);
            }
            HostEvent::Flight(ticket) => {
                this.begun = Some(ticket);
                let more_ns = this.persistence.welcome_patience(now_ns).as_nanos() as u64;
                this.gives_up_ns = now_ns + more_ns;
                self.send(now_ns, host, Packet::Finished(ticket));
                self.at(now_ns + more_ns, host, attempt, HostEvent::GivesUp);
            }
            HostEvent::Welcome => {
                this.session_ns = Some(now_ns);
                this.persistence.succeeded();
            }
            HostEvent::Busy => self.fails(now_ns, host, Failure::Busy),
            // It has heard of the allocator since.
            HostEvent::GivesUp if now_ns < this.gives_up_ns => {}
            HostEvent::GivesUp => self.fails(now_ns, host, Failure::Lost),
            HostEvent::Retry | HostEvent::Arrives(_) => {}
        }
    }

    fn fails(&mut self, now_ns: u64, host: usize, failure: Failure) {
        if let Some(ticket) = self.hosts[host].begun {
            self.send(now_ns, host, Packet::Close(ticket));
        }
        let this = &mut self.hosts[host];
        let pause = this.persistence.failed(now_ns, failure);
        // Events of the failed attempt are ignored from here on.
        this.attempt += 1;
        let attempt = this.attempt;
        self.at(
            now_ns + pause.as_nanos() as u64,
            host,
            attempt,
            HostEvent::Begin,
        );
    }

    /// Lets the allocator do one step, and returns its cost; `None` if there is nothing to do.
    fn works(&mut self, now_ns: u64, read: &mut usize) -> Option<u64> {
        if *read < BATCH
            && let Some((host, attempt, packet)) = self.socket.pop_front()
        {
            *read += 1;
            return Some(self.reads(now_ns, host, attempt, packet));
        }
        *read = 0;
        let mut spent_ns = 0;
        loop {
            let step = self.admission.next(now_ns + spent_ns);
            spent_ns += match step {
                Some(AdmissionStep::Begin { ticket, .. }) => {
                    let cost_ns = self.slow * BEGIN_NS;
                    self.begun += 1;
                    self.admission.record_cost(cost_ns);
                    let (host, attempt) = self.tickets[ticket.0 as usize];
                    let at_ns = now_ns + spent_ns + cost_ns + WAY_NS;
                    self.at(at_ns, host, attempt, HostEvent::Flight(ticket));
                    return Some(spent_ns + cost_ns);
                }
                Some(AdmissionStep::Refuse(ticket)) => self.refuses(now_ns + spent_ns, ticket),
                Some(AdmissionStep::Drop(ticket) | AdmissionStep::Close(ticket)) => {
                    self.known.remove(&self.tickets[ticket.0 as usize]);
                    self.slow * STRAY_NS
                }
                None if self.socket.is_empty() && spent_ns == 0 => return None,
                None => return Some(spent_ns),
            };
        }
    }

    fn refuses(&mut self, now_ns: u64, ticket: Ticket) -> u64 {
        let cost_ns = self.slow * REFUSE_NS;
        let (host, attempt) = self.tickets[ticket.0 as usize];
        self.known.remove(&(host, attempt));
        self.at(now_ns + cost_ns + WAY_NS, host, attempt, HostEvent::Busy);
        cost_ns
    }

    fn reads(&mut self, now_ns: u64, host: usize, attempt: u64, packet: Packet) -> u64 {
        let slow = self.slow;
        match packet {
            Packet::First => {
                let cost_ns = slow * RETRY_NS;
                self.at(now_ns + cost_ns + WAY_NS, host, attempt, HostEvent::Retry);
                cost_ns
            }
            // A repeated packet of an attempt that waits or has begun.
            Packet::WithToken if self.known.contains(&(host, attempt)) => slow * STRAY_NS,
            Packet::WithToken => {
                let source: IpAddr = Ipv4Addr::from(0x0a00_0000 + host as u32).into();
                let offered = self.admission.offer(
                    now_ns,
                    ConnectionAttempt {
                        source,
                        validated: true,
                        is_host: true,
                        patience_ns: Some(self.hosts[host].patience_ns),
                        id: (host as u64) << 32 | attempt,
                    },
                );
                let mut cost_ns = slow * TOKEN_NS;
                if offered == OfferOutcome::Rejected {
                    return slow * STRAY_NS;
                }
                if let OfferOutcome::Waits { ticket, displaced } = offered {
                    assert_eq!(ticket.0 as usize, self.tickets.len());
                    self.tickets.push((host, attempt));
                    self.known.insert((host, attempt));
                    if let Some(other) = displaced {
                        cost_ns += self.refuses(now_ns, other);
                    }
                }
                cost_ns
            }
            Packet::Finished(ticket) if self.admission.is_under_way(ticket) => {
                let cost_ns = slow * FINISH_NS;
                self.admission.finish(ticket);
                let at_ns = now_ns + cost_ns + WAY_NS;
                self.at(at_ns, host, attempt, HostEvent::Welcome);
                cost_ns
            }
            Packet::Close(ticket) => {
                self.admission.finish(ticket);
                slow * STRAY_NS
            }
            Packet::Finished(_) => slow * STRAY_NS,
        }
    }

    /// Runs the model until all hosts have a session, or until the given time.
    fn play(&mut self, until: Duration) {
        let until_ns = until.as_nanos() as u64;
        let (mut now_ns, mut read) = (self.now_ns, 0);
        while now_ns < until_ns && self.hosts.iter().any(|host| host.session_ns.is_none()) {
            while let Some(&Reverse((at_ns, _, host, attempt, event))) = self.events.peek()
                && at_ns <= now_ns
            {
                self.events.pop();
                self.happens(at_ns, host, attempt, event);
            }
            match self.works(now_ns, &mut read) {
                Some(cost_ns) => now_ns += cost_ns,
                None => {
                    let event_ns = self.events.peek().map(|Reverse(next)| next.0);
                    let next_ns = [event_ns, self.admission.next_timeout()];
                    let next_ns = next_ns.into_iter().flatten().min();
                    now_ns = next_ns.unwrap_or(until_ns).max(now_ns + 1);
                }
            }
        }
        self.now_ns = now_ns;
    }

    /// Returns the times at which hosts got their sessions, in order.
    fn sessions_ns(&self) -> Vec<u64> {
        let mut sessions: Vec<_> = self
            .hosts
            .iter()
            .filter_map(|host| host.session_ns)
            .collect();
        sessions.sort_unstable();
        sessions
    }
}

/// Returns the cost of the fleet's handshakes alone.
fn least_ns(hosts: usize, slow: u64) -> u64 {
    hosts as u64 * slow * (RETRY_NS + TOKEN_NS + BEGIN_NS + FINISH_NS)
}

fn converges(hosts: usize, slow: u64, times_least: f64) {
    let mut model = StampedeModel::new(hosts, slow);
    let least_ns = least_ns(hosts, slow);
    model.play(Duration::from_nanos(10 * least_ns) + Duration::from_secs(30));
    let sessions = model.sessions_ns();
    assert_eq!(sessions.len(), hosts, "all have a session");
    let most = sessions[hosts * 99 / 100 - 1];
    // The best schedule needs `least_ns`; pauses and repeated packets may add a factor.
    let bound_ns = (least_ns as f64 * times_least) as u64;
    let summary = format!(
        "{slow} times as slow: 99 % after {:.2} s, all after {:.2} s, at least {:.2} s; {:.2} signatures for each",
        most as f64 / 1e9,
        sessions[hosts - 1] as f64 / 1e9,
        least_ns as f64 / 1e9,
        model.begun as f64 / hosts as f64,
    );
    println!("{summary}");
    assert!(most <= bound_ns, "{summary}");
    assert!(
        model.begun <= hosts as u64 * 5 / 4,
        "signatures for nobody: {summary}"
    );
    // Once it has begun, no quarter of the least time passes with less than a fifth of what there
    // could be.
    let window_ns = least_ns / 4;
    let could_be = hosts / 4;
    let mut from_ns = sessions[0];
    while from_ns + window_ns < most {
        let within = sessions
            .iter()
            .filter(|&&at_ns| (from_ns..from_ns + window_ns).contains(&at_ns))
            .count();
        assert!(
            within >= could_be / 5,
            "{within} of {could_be} from {from_ns} ns on; {summary}"
        );
        from_ns += window_ns / 2;
    }
}

#[test]
fn a_fleet_that_comes_at_once_is_served_at_the_machines_speed() {
    converges(4_096, 1, 2.0);
}

#[test]
fn a_machine_ten_times_as_slow_serves_it_at_its_own_speed() {
    converges(4_096, 10, 2.0);
}

#[test]
fn a_small_fleet_converges_on_a_machine_a_hundred_times_as_slow() {
    converges(256, 100, 2.5);
}
