//! Counters of a session.

use crate::error::DatagramError;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Events of one session since it was made; they survive reconnects.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Calls `visit` with the name and value of every counter.
            pub fn for_each(&self, mut visit: impl FnMut(&'static str, u64)) {
                $(visit(stringify!($name), self.$name);)*
            }

            /// Adds another session's counters to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }

            /// Difference to `earlier`, which was read from this session before.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Datagrams built.
    datagrams_sent,
    /// Bytes of the datagrams built.
    datagram_bytes_sent,
    /// Datagrams built that hold no record, only an acknowledgement.
    acks_sent,
    /// Keep-alive datagrams built.
    keep_alives_sent,
    /// Datagrams accepted.
    datagrams_received,
    /// Bytes of the datagrams accepted.
    datagram_bytes_received,
    /// Ack-eliciting datagrams declared lost.
    datagrams_lost,
    /// Retransmission timeouts.
    timeouts,
    /// Flowlet starts sent, repeats included.
    starts_sent,
    /// Flowlet ends sent, repeats included.
    ends_sent,
    /// Rate updates sent, repeats included.
    rates_sent,
    /// Flowlet starts received in accepted datagrams.
    starts_received,
    /// Flowlet ends received in accepted datagrams.
    ends_received,
    /// Rate updates received in accepted datagrams.
    rates_received,
    /// Records that were older than the state of their slot.
    records_stale,
    /// Starts beyond the flow table's bound, refused.
    starts_refused,
    /// Flows that stay unreported because the peer's table is smaller.
    flows_beyond_peer_table,
    /// Times that sending waited for acknowledgements (too many datagrams in flight).
    in_flight_full,
    /// Datagrams dropped: no session.
    dropped_not_established,
    /// Datagrams dropped: malformed.
    dropped_malformed,
    /// Datagrams dropped: another protocol version.
    dropped_version,
    /// Datagrams dropped: another session or epoch.
    dropped_wrong_session,
    /// Datagrams dropped: received before.
    dropped_duplicate,
    /// Datagrams dropped: too far behind the newest.
    dropped_too_old,
    /// Datagrams dropped: the lease ran out in transit.
    dropped_expired,
    /// Control messages queued for writing.
    control_sent,
    /// Control messages accepted.
    control_received,
    /// Control messages that were malformed or out of turn.
    control_invalid,
    /// Telemetry messages dropped because the queue was full.
    telemetry_dropped,
}

impl Counters {
    /// Counts a dropped datagram by its reason.
    pub(crate) fn dropped(&mut self, reason: DatagramError) {
        let counter = match reason {
            DatagramError::NotEstablished => &mut self.dropped_not_established,
            DatagramError::Version { .. } => &mut self.dropped_version,
            DatagramError::WrongSession => &mut self.dropped_wrong_session,
            DatagramError::Duplicate => &mut self.dropped_duplicate,
            DatagramError::TooOld => &mut self.dropped_too_old,
            DatagramError::Expired => &mut self.dropped_expired,
            DatagramError::Length { .. }
            | DatagramError::Malformed
            | DatagramError::SlotOutOfRange { .. }
            // One counter for all of these: an honest peer causes none of them.
            | DatagramError::AckOfUnsent => &mut self.dropped_malformed,
        };
        *counter += 1;
    }

    /// Datagrams dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped_not_established
            + self.dropped_malformed
            + self.dropped_version
            + self.dropped_wrong_session
            + self.dropped_duplicate
            + self.dropped_too_old
            + self.dropped_expired
    }
}
