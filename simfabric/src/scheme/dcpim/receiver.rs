//! A receiver: requests, accepts, and tokens.

use rand::RngExt as _;
use ratewright_topology::HostId;

use super::{DcpimConfig, DcpimHost, Numbers, PROMPT, RECEIVER_STAGE, TOKEN};
use crate::flow::FlowId;
use crate::host::Timer;
use crate::packet::{Packet, PacketKind};
use crate::time::{Span, Time};
use crate::transport::message::{Arrival, Incoming};
use crate::transport::{Context, TimerId};

/// State of a message at its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Number of its sender among [`Receiver::sources`].
    source: u32,
    /// Place among [`Receiver::waiting`]; `None` of a short one.
    place: Option<u32>,
    /// Byte from which the next token is looked for.
    cursor: u64,
    /// Packets from there on that have had no token.
    untokened: u64,
    last_token_at: Time,
}

/// A sender, as a receiver sees it.
#[derive(Clone, Copy, Debug)]
struct Source {
    host: HostId,
    /// Slot of the message that gets the next token.
    current: Option<u32>,
    /// Packets without tokens of all messages, and of the shortest: between two stages of no
    /// meaning.
    untokened: u64,
    shortest: Option<(u64, u32, u32)>,
    /// Place in the first round: twice the packets of the shortest, and one more if the sender is
    /// matched in the present data phase. So messages of one length take turns.
    order: u64,
    /// Number of the latest token for it, and time at which it went out.
    issued: u64,
    issued_at: Time,
    /// Largest number of a token whose data came: those behind it are on their way.
    returned: u64,
}

impl Source {
    /// Returns the tokens on their way, whichever data phase they are of: what waits in the network
    /// is part of the window.
    fn under_way(&self) -> u64 {
        self.issued - self.returned
    }
}

/// A match: channels on which a sender may send in a data phase.
#[derive(Clone, Copy, Debug)]
struct Match {
    source: u32,
    links: u32,
    /// Those of them that are used before the data phase.
    prompt: u32,
    next_at: Time,
    /// Tokens that are left in the data phase: whole packets of each channel.
    left: u64,
    /// End of the data phase.
    until: Time,
    /// The window is full.
    is_blocked: bool,
}

/// A sender's grant that waits for the end of the round.
#[derive(Clone, Copy, Debug)]
struct Granted {
    /// Place of its sender in the first round; a random number in others.
    order: u64,
    source: u32,
    links: u32,
    prompt: u32,
}

/// The receiving part of a host.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    sources: Vec<Source>,
    /// Numbers of hosts among the sources.
    numbers: Numbers,
    /// Messages that need tokens and are not complete.
    waiting: Vec<u32>,
    /// Matching that goes on, its matches, and those of the data phase.
    epoch: u64,
    matched: Vec<Match>,
    active: Vec<Match>,
    grants: Vec<Granted>,
    /// Sources that ask in this stage; between two of no meaning.
    asking: Vec<u32>,
    stage_timer: Option<TimerId>,
    pub(super) token_timer: Option<TimerId>,
    token_timer_at: Time,
    /// No token leaves before.
    held_until: Time,
    /// Counters.
    pub(super) tokens: u64,
    pub(super) requested: u64,
    pub(super) accepted: u64,
    pub(super) most_links: u32,
}

impl Receiver {
    /// Returns the number of a sender.
    fn source(&mut self, host: HostId) -> u32 {
        let next = self.sources.len() as u32;
        let number = *self.numbers.entry(host).or_insert(next);
        if number == next {
            self.sources.push(Source {
                host,
                current: None,
                untokened: 0,
                shortest: None,
                order: 0,
                issued: 0,
                issued_at: Time::ZERO,
                returned: 0,
            });
        }
        number
    }

    /// Takes a message out of those that wait.
    fn leave(&mut self, place: u32) -> Option<u32> {
        self.waiting.swap_remove(place as usize);
        self.waiting.get(place as usize).copied()
    }

    fn links(matches: &[Match]) -> u32 {
        matches.iter().map(|each| each.links).sum()
    }
}

impl DcpimHost {
    /// Takes data, a notification or a probe, any of which may be the first that comes of a
    /// message.
    pub(super) fn on_data(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        let (receiver, now) = (&mut self.receiver, cx.now());
        let mut is_new = false;
        let arrival = self.messages.on_data(cx, packet, |_| {
            is_new = true;
            let received = Received {
                source: receiver.source(packet.src),
                place: None,
                cursor: 0,
                untokened: 0,
                last_token_at: now,
            };
            // Missing bytes get tokens: none is asked for again otherwise.
            (0, received)
        });
        let (slot, source) = match arrival {
            Arrival::Late => return,
            Arrival::Complete(_, _, message) => {
                let own = message.own;
                if let Some(place) = own.place
                    && let Some(moved) = self.receiver.leave(place)
                    && let Some(message) = self.messages.incoming(moved)
                {
                    message.own.place = Some(place);
                }
                (None, own.source)
            }
            Arrival::More(slot, _) => {
                let message = self.messages.incoming(slot);
                let Some(source) = message.map(|message| message.own.source) else {
                    return;
                };
                (Some(slot), source)
            }
        };
        if packet.kind == PacketKind::Data {
            self.on_arrival(cx, source, packet.ack);
        }
        let Some(slot) = slot else { return };
        if is_new {
            let bytes = cx.flow(packet.flow).bytes;
            if !self.config.is_short(bytes) {
                self.schedule(cx, slot);
            } else if self.config.hold {
                let packets = self.config.packets(bytes);
                let receiver = &mut self.receiver;
                let from = receiver.held_until.max(now);
                receiver.held_until = from + self.config.packet_time * packets;
            }
        }
        if packet.kind == PacketKind::Probe {
            self.messages.on_probe(cx, slot);
        }
    }

    /// Takes the number of the token that a packet answers; 0 of one that needed none.
    fn on_arrival(&mut self, cx: &mut Context<'_>, source: u32, number: u64) {
        let receiver = &mut self.receiver;
        let from = &mut receiver.sources[source as usize];
        // Late or doubled data, or a token that was never issued.
        if number <= from.returned || number > from.issued {
            return;
        }
        from.returned = number;
        let mut was_blocked = false;
        for each in receiver.active.iter_mut().chain(&mut receiver.matched) {
            was_blocked |= each.source == source && std::mem::take(&mut each.is_blocked);
        }
        if was_blocked {
            self.send_tokens(cx);
        }
    }

    /// Puts a message among those that need tokens: a long one, or a short one that is late.
    pub(super) fn schedule(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(message) = self.messages.incoming(slot) else {
            return;
        };
        if message.own.place.is_some() {
            return;
        }
        message.own.place = Some(self.receiver.waiting.len() as u32);
        message.own.untokened = self.config.packets(message.remaining_bytes());
        let (source, untokened) = (message.own.source, message.own.untokened);
        self.receiver.waiting.push(slot);
        let current = self.receiver.sources[source as usize].current;
        let shortest = current.and_then(|slot| self.messages.incoming(slot));
        if shortest.is_none_or(|other| untokened < other.own.untokened) {
            self.receiver.sources[source as usize].current = Some(slot);
        }
        self.watch_stage(cx);
        self.send_tokens(cx);
    }

    /// Sets the timer of the next stage, unless it is.
    fn watch_stage(&mut self, cx: &mut Context<'_>) {
        if self.receiver.stage_timer.is_none() {
            let (kind, slot) = (RECEIVER_STAGE, 0);
            let at = self.config.clock.receivers(cx.now()).at;
            self.receiver.stage_timer = Some(cx.timer(at, Timer { kind, slot }));
        }
    }

    /// Takes a grant, which waits for the end of the round.
    pub(super) fn on_grant(&mut self, packet: &Packet) {
        let receiver = &mut self.receiver;
        if packet.ack != receiver.epoch || receiver.stage_timer.is_none() {
            return;
        }
        if let Some(&source) = receiver.numbers.get(&packet.src) {
            let [links, prompt] = [packet.seq as u32, (packet.seq >> 32) as u32];
            receiver.grants.push(Granted {
                order: 0,
                source,
                links,
                prompt,
            });
        }
    }

    /// Begins a round: accepts what was granted in the last, and asks for more.
    pub(super) fn on_receiver_stage(&mut self, cx: &mut Context<'_>) {
        self.receiver.stage_timer = None;
        let clock = self.config.clock;
        let stage = clock.receivers(cx.now());
        let last_round = if stage.round > 0 {
            stage.round - 1
        } else {
            clock.rounds() - 1
        };
        self.accept(cx, last_round);
        let ends = if clock.is_seamless() {
            stage.round == 0
        } else {
            stage.round == clock.rounds()
        };
        if ends {
            self.begin_data(cx.now());
        }
        let receiver = &mut self.receiver;
        if receiver.epoch != stage.epoch {
            receiver.epoch = stage.epoch;
            receiver.matched.clear();
        }
        receiver.active.retain(|each| each.until > cx.now());
        if stage.round < clock.rounds() {
            self.request(cx, stage.round);
        }
        let receiver = &self.receiver;
        if !(receiver.waiting.is_empty()
            && receiver.matched.is_empty()
            && receiver.active.is_empty())
        {
            let (kind, slot) = (RECEIVER_STAGE, 0);
            let at = clock.receivers(Time(cx.now().0 + 1)).at;
            self.receiver.stage_timer = Some(cx.timer(at, Timer { kind, slot }));
        }
        self.send_tokens(cx);
    }

    /// Lets the matches of the matching that ends become those of its data phase.
    fn begin_data(&mut self, now: Time) {
        let receiver = &mut self.receiver;
        if self.config.clock.data_begins(receiver.epoch) == now {
            std::mem::swap(&mut receiver.active, &mut receiver.matched);
        } else {
            receiver.active.clear();
        }
        // The others are those of the last data phase: a sender of both goes on.
        for each in &mut receiver.active {
            let mut last = receiver.matched.iter();
            if let Some(last) = last.find(|last| last.source == each.source) {
                each.next_at = each.next_at.max(last.next_at);
            }
            each.is_blocked = false;
            each.left = u64::from(each.links) * self.config.channel_packets;
        }
        receiver.matched.clear();
    }

    /// Accepts grants of the last round, as far as channels are free.
    fn accept(&mut self, cx: &mut Context<'_>, round: u32) {
        let mut grants = std::mem::take(&mut self.receiver.grants);
        let channels = self.config.channels;
        for each in &mut grants {
            each.order = if round == 0 {
                self.receiver.sources[each.source as usize].order
            } else {
                cx.rng().random()
            };
        }
        grants.sort_unstable_by_key(|each| (each.order, each.source));
        let mut free = channels - Receiver::links(&self.receiver.matched).min(channels);
        let prompt = |matches: &[Match]| matches.iter().map(|each| each.prompt).sum::<u32>();
        let in_use = Receiver::links(&self.receiver.active) + prompt(&self.receiver.matched);
        let mut free_now = if self.config.prompt {
            channels - in_use.min(channels)
        } else {
            0
        };
        let epoch = self.receiver.epoch;
        for grant in grants.drain(..) {
            let links = grant.links.min(free);
            let Some(carrier) = self.waiting_of(grant.source).filter(|_| links > 0) else {
                continue;
            };
            free -= links;
            let prompt = grant.prompt.min(links).min(free_now);
            free_now -= prompt;
            let receiver = &mut self.receiver;
            receiver.accepted += u64::from(links);
            let ends = (carrier, receiver.sources[grant.source as usize].host);
            let words = [links.into(), epoch];
            let accept = self.messages.control(cx, PacketKind::Accept, ends, words);
            cx.send(accept);
            let known = receiver.matched.iter_mut();
            match known.into_iter().find(|each| each.source == grant.source) {
                Some(known) => {
                    known.links += links;
                    known.prompt += prompt;
                }
                None => receiver.matched.push(Match {
                    source: grant.source,
                    links,
                    prompt,
                    next_at: cx.now(),
                    left: u64::MAX,
                    until: self.config.clock.data_begins(epoch) + self.config.clock.period(),
                    is_blocked: false,
                }),
            }
        }
        self.receiver.grants = grants;
        let links = Receiver::links(&self.receiver.matched);
        self.receiver.most_links = self.receiver.most_links.max(links);
    }

    /// Returns a message of a sender that is not complete.
    fn waiting_of(&mut self, source: u32) -> Option<FlowId> {
        let messages = &mut self.messages;
        let mut waiting = self.receiver.waiting.iter();
        waiting.find_map(|slot| {
            let message = messages.incoming(*slot)?;
            (message.own.source == source).then_some(message.id)
        })
    }

    /// Asks every sender of messages that need tokens for channels.
    fn request(&mut self, cx: &mut Context<'_>, round: u32) {
        let (config, receiver) = (&self.config, &mut self.receiver);
        let now = cx.now();
        let free = config.channels - Receiver::links(&receiver.matched).min(config.channels);
        receiver.asking.clear();
        for source in &mut receiver.sources {
            (source.untokened, source.shortest) = (0, None);
        }
        for &slot in &receiver.waiting {
            let Some(message) = self.messages.incoming(slot) else {
                continue;
            };
            renew(message, config, now);
            let untokened = message.own.untokened;
            if untokened == 0 {
                continue;
            }
            let source = &mut receiver.sources[message.own.source as usize];
            if source.untokened == 0 {
                receiver.asking.push(message.own.source);
            }
            source.untokened = source.untokened.saturating_add(untokened);
            let entry = (untokened, message.id.0, slot);
            if source.shortest.is_none_or(|shortest| entry < shortest) {
                source.shortest = Some(entry);
                source.current = Some(slot);
            }
        }
        if free == 0 {
            return;
        }
        for &number in &receiver.asking {
            let source = &mut receiver.sources[number as usize];
            let of_source = |each: &&Match| each.source == number;
            let active = receiver.active.iter().find(of_source);
            let matched = receiver.matched.iter().find(of_source);
            // Packets that go out before the data phase that is asked for.
            let until = config.clock.data_begins(receiver.epoch);
            let slot_time = config.packet_time.0 * u64::from(config.channels);
            let left = until.0.saturating_sub(now.0);
            let links = active.map_or(0, |each| each.links) + matched.map_or(0, |each| each.prompt);
            let before = left * u64::from(links) / slot_time.max(1);
            let untokened = source.untokened.saturating_sub(before);
            let wanted = untokened.div_ceil(config.channel_packets);
            let has = matched.map_or(0, |each| u64::from(each.links));
            let wanted = wanted.saturating_sub(has).min(free.into());
            let Some((shortest, flow, _)) = source.shortest.filter(|_| wanted > 0) else {
                continue;
            };
            receiver.requested += wanted;
            source.order = 2 * shortest + u64::from(active.is_some());
            let words = [wanted | u64::from(round) << 32, source.order];
            let ends = (FlowId(flow), source.host);
            let request = self.messages.control(cx, PacketKind::Request, ends, words);
            cx.send(request);
        }
    }

    /// Sends the tokens that are due, and sets the timer of the next.
    pub(super) fn send_tokens(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        let mut next_at = Time::MAX;
        if now >= self.receiver.held_until {
            for index in 0..self.receiver.active.len() {
                next_at = next_at.min(self.send_tokens_of(cx, index, false));
            }
            for index in 0..self.receiver.matched.len() {
                next_at = next_at.min(self.send_tokens_of(cx, index, true));
            }
        } else if !(self.receiver.active.is_empty() && self.receiver.matched.is_empty()) {
            next_at = self.receiver.held_until;
        }
        if next_at == Time::MAX {
            return;
        }
        let receiver = &mut self.receiver;
        let is_set = receiver.token_timer.is_some() && receiver.token_timer_at == next_at;
        if !is_set {
            receiver.token_timer_at = next_at;
            let (kind, slot) = (TOKEN, 0);
            cx.restart_timer(&mut receiver.token_timer, next_at, Timer { kind, slot });
        }
    }

    /// Sends the tokens of a match that are due. Returns the time of the next.
    fn send_tokens_of(&mut self, cx: &mut Context<'_>, index: usize, prompt: bool) -> Time {
        let now = cx.now();
        loop {
            let receiver = &mut self.receiver;
            let matches = if prompt {
                &mut receiver.matched
            } else {
                &mut receiver.active
            };
            let each = &mut matches[index];
            let links = if prompt { each.prompt } else { each.links };
            if links == 0 || each.left == 0 || now >= each.until {
                return Time::MAX;
            }
            if each.next_at > now {
                return each.next_at;
            }
            let channels = u64::from(self.config.channels);
            let window = (self.config.window_packets * u64::from(links) / channels).max(1);
            let source = each.source;
            let from = &mut receiver.sources[source as usize];
            if from.under_way() >= window {
                let again_at = from.issued_at + self.config.window_time_out;
                if now < again_at {
                    each.is_blocked = true;
                    return again_at;
                }
                // One more asks for news of them: the number of its data tells what is lost.
                from.returned = from.issued - (window - 1);
            }
            let number = from.issued + 1;
            let Some((slot, first, end)) = self.next_token(source) else {
                return Time::MAX;
            };
            let Some(message) = self.messages.incoming(slot) else {
                return Time::MAX;
            };
            message.own.last_token_at = now;
            let ends = (message.id, message.src);
            let mut token =
                self.messages
                    .control(cx, PacketKind::Token, ends, token_words(first, end, number));
            if prompt {
                token.flags.insert(PROMPT);
            }
            cx.send(token);
            let receiver = &mut self.receiver;
            receiver.tokens += 1;
            let matches = if prompt {
                &mut receiver.matched
            } else {
                &mut receiver.active
            };
            let each = &mut matches[index];
            let from = &mut receiver.sources[source as usize];
            (from.issued, from.issued_at) = (number, now);
            each.left -= 1;
            let spacing = Span(self.config.packet_time.0 * channels / u64::from(links));
            each.next_at = each.next_at.max(now) + spacing;
        }
    }

    /// Takes the next packet of a sender that has had no token: message and bytes.
    fn next_token(&mut self, source: u32) -> Option<(u32, u64, u64)> {
        let mss_bytes = self.config.mss_bytes;
        loop {
            let slot = self.current_of(source)?;
            let message = self.messages.incoming(slot)?;
            let Some((first, end)) = message.gap_from(message.own.cursor, message.bytes) else {
                message.own.untokened = 0;
                continue;
            };
            let end = end.min(first.saturating_add(mss_bytes));
            message.own.cursor = end;
            message.own.untokened = message.own.untokened.saturating_sub(1);
            return Some((slot, first, end));
        }
    }

    /// Returns the message of a sender that gets the next token: the one with the fewest packets
    /// that need one.
    fn current_of(&mut self, source: u32) -> Option<u32> {
        let current = self.receiver.sources[source as usize].current;
        if let Some(slot) = current
            && let Some(message) = self.messages.incoming(slot)
            && message.own.source == source
            && message.own.place.is_some()
            && message.own.untokened > 0
        {
            return Some(slot);
        }
        let messages = &mut self.messages;
        let waiting = self.receiver.waiting.iter();
        let entries = waiting.filter_map(|slot| {
            let message = messages.incoming(*slot)?;
            let own = message.own;
            let needs = own.source == source && own.untokened > 0;
            needs.then_some((own.untokened, message.id.0, *slot))
        });
        let shortest = entries.min().map(|(_, _, slot)| slot);
        self.receiver.sources[source as usize].current = shortest;
        shortest
    }
}

/// Packs the bytes that a token is for, and its number, into a packet's two words.
fn token_words(first: u64, end: u64, number: u64) -> [u64; 2] {
    [first, number << 16 | (end - first)]
}

/// Takes first byte, end and number out of a token's two words.
pub(super) fn token_of([first, word]: [u64; 2]) -> (u64, u64, u64) {
    (first, first.saturating_add(word & 0xffff), word >> 16)
}

/// Looks for missing bytes again, of a message whose tokens are all out and that is silent.
fn renew(message: &mut Incoming<Received>, config: &DcpimConfig, now: Time) {
    if message.own.untokened > 0 {
        return;
    }
    let latest = message.heard_at.max(message.own.last_token_at);
    // A token of the last data phase may still be used.
    let phase_ends = config.clock.data_ends(message.own.last_token_at) + config.token_grace;
    if now >= latest + config.token_time_out
        && now >= phase_ends.min(latest + config.clock.period())
    {
        message.own.cursor = 0;
        message.own.untokened = config.packets(message.remaining_bytes());
    }
}
