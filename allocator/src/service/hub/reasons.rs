//! Labels of reasons in metrics: few, fixed, and never a peer's or a flow's name.

use ratewright_proto::control::RefusalCode;
use ratewright_proto::server::PeerLoss;
use ratewright_proto::{DatagramError, SessionError};

/// Label for a datagram that changed nothing.
pub(super) fn datagram(error: DatagramError) -> &'static str {
    match error {
        DatagramError::NotEstablished => "not_established",
        DatagramError::Length { .. } => "length",
        DatagramError::Version { .. } => "version",
        DatagramError::Malformed => "malformed",
        DatagramError::SlotOutOfRange { .. } => "slot_out_of_range",
        DatagramError::WrongSession => "wrong_session",
        DatagramError::AckOfUnsent => "ack_of_unsent",
        DatagramError::Duplicate => "duplicate",
        DatagramError::TooOld => "too_old",
        DatagramError::Expired => "expired",
    }
}

/// Label for a control message that was not taken.
pub(super) fn control(error: &SessionError) -> &'static str {
    match error {
        SessionError::Decode(_) => "undecodable",
        SessionError::Invalid { .. } => "invalid_field",
        SessionError::FrameTooLarge { .. } => "frame_too_large",
        SessionError::NotEstablished(_) => "before_hello",
        SessionError::Unexpected(_) => "unexpected",
        SessionError::Closed => "closed",
        // Errors of local calls, which no peer can cause.
        _ => "other",
    }
}

/// Label for the refusal of a session.
pub(super) fn refusal(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::VersionMismatch => "version_mismatch",
        RefusalCode::UnknownHost => "unknown_host",
        RefusalCode::DuplicateHost => "duplicate_host",
        RefusalCode::CertificateMismatch => "certificate_mismatch",
        RefusalCode::Draining => "draining",
        RefusalCode::TableFull => "table_full",
        RefusalCode::Superseded => "superseded",
        RefusalCode::ProtocolError => "protocol_error",
        RefusalCode::NotAllowed => "not_allowed",
        RefusalCode::Unknown(_) => "unknown",
    }
}

/// Label for the loss of a peer.
pub(super) fn loss(loss: PeerLoss) -> &'static str {
    match loss {
        PeerLoss::HandshakeTimeout => "no_hello",
        PeerLoss::Silence => "silent",
    }
}
