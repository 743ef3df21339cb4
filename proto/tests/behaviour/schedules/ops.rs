//! Operations of a schedule, and their random generation.

use proptest::prelude::*;

/// Slots that schedules use.
pub(crate) const SLOTS: u32 = 6;

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleOp {
    /// A flowlet begins on the slot; one that is there is replaced.
    Start { slot: u32 },
    /// The slot's flowlet ends.
    End { slot: u32 },
    /// The slot's flowlet gets another demand.
    Update { slot: u32 },
    /// The service computes a rate for the flow that it knows on the slot.
    Rate { slot: u32, choice: Choice },
    /// The operator's kill switch.
    Release { on: bool },
    /// The topology changes.
    Topology,
    /// The network treats datagrams like this from now on.
    Network(NetworkConditions),
    /// No datagram passes for this time, in one direction or in both.
    Partition {
        ms: u32,
        to_client: bool,
        to_server: bool,
    },
    /// No sealed datagram passes for this time; all others do.
    Block { ms: u32 },
    /// One side's clock jumps ahead.
    ClockJumps { client: bool, ms: u32 },
    /// One side's clock stands for this long, while the other's runs.
    ClockStands { client: bool, ms: u32 },
    /// The transport breaks; each side notices some time later.
    Break { client_ms: u32, server_ms: u32 },
    /// The daemon is replaced by a new incarnation.
    ClientRestart { down_ms: u32 },
    /// The allocator is replaced by a new incarnation.
    ServerRestart { down_ms: u32, client_ms: u32 },
    /// Time passes.
    Wait { us: u32 },
}

/// Choice of the rate that the service computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// One that the schedule has not seen.
    Fresh,
    /// The present rate.
    Same,
    /// The previous rate, or that of an earlier flow on the slot.
    Earlier,
}

/// Treatment of datagrams by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkConditions {
    pub(crate) loss_percent: u32,
    pub(crate) duplicate_percent: u32,
    pub(crate) min_delay_us: u32,
    /// Most datagrams take up to this long on top.
    pub(crate) jitter_us: u32,
    /// Share of the datagrams that are late by `straggler_us`.
    pub(crate) straggler_percent: u32,
    pub(crate) straggler_us: u32,
}

impl NetworkConditions {
    /// Conditions at the end of every schedule.
    pub(crate) const CALM: Self = Self {
        loss_percent: 0,
        duplicate_percent: 0,
        min_delay_us: 50,
        jitter_us: 10,
        straggler_percent: 0,
        straggler_us: 0,
    };
}

/// The kinds of operations, for weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScheduleOpKind {
    Start,
    End,
    Update,
    Rate,
    Release,
    Topology,
    Network,
    Break,
    ClientRestart,
    ServerRestart,
    Partition,
    Block,
    ClockJumps,
    ClockStands,
    Wait,
}

fn conditions() -> impl Strategy<Value = NetworkConditions> {
    (
        0..=30u32,
        0..=20u32,
        10..500u32,
        prop_oneof![Just(0u32), 1..200u32, 200..20_000u32],
        0..=20u32,
        prop_oneof![1_000..50_000u32, 50_000..2_000_000u32],
    )
        .prop_map(
            |(
                loss_percent,
                duplicate_percent,
                min_delay_us,
                jitter_us,
                straggler_percent,
                straggler_us,
            )| NetworkConditions {
                loss_percent,
                duplicate_percent,
                min_delay_us,
                jitter_us,
                straggler_percent,
                straggler_us,
            },
        )
}

fn of_kind(kind: ScheduleOpKind) -> BoxedStrategy<ScheduleOp> {
    let slot = 0..SLOTS;
    // A side may notice a broken transport late, or only by its liveness time-out.
    let notice = || prop_oneof![0..5u32, 5..400u32, Just(5_000u32)];
    match kind {
        ScheduleOpKind::Start => slot.prop_map(|slot| ScheduleOp::Start { slot }).boxed(),
        ScheduleOpKind::End => slot.prop_map(|slot| ScheduleOp::End { slot }).boxed(),
        ScheduleOpKind::Update => slot.prop_map(|slot| ScheduleOp::Update { slot }).boxed(),
        ScheduleOpKind::Rate => (
            slot,
            prop_oneof![
                4 => Just(Choice::Fresh),
                1 => Just(Choice::Same),
                2 => Just(Choice::Earlier),
            ],
        )
            .prop_map(|(slot, choice)| ScheduleOp::Rate { slot, choice })
            .boxed(),
        ScheduleOpKind::Release => any::<bool>()
            .prop_map(|on| ScheduleOp::Release { on })
            .boxed(),
        ScheduleOpKind::Topology => Just(ScheduleOp::Topology).boxed(),
        ScheduleOpKind::Network => conditions().prop_map(ScheduleOp::Network).boxed(),
        ScheduleOpKind::Break => (notice(), notice())
            .prop_map(|(client_ms, server_ms)| ScheduleOp::Break {
                client_ms,
                server_ms,
            })
            .boxed(),
        ScheduleOpKind::ClientRestart => (0..300u32)
            .prop_map(|down_ms| ScheduleOp::ClientRestart { down_ms })
            .boxed(),
        ScheduleOpKind::ServerRestart => (0..300u32, notice())
            .prop_map(|(down_ms, client_ms)| ScheduleOp::ServerRestart { down_ms, client_ms })
            .boxed(),
        ScheduleOpKind::Partition => (
            prop_oneof![1..300u32, 300..3_000u32],
            prop_oneof![Just((true, true)), Just((true, false)), Just((false, true))],
        )
            .prop_map(|(ms, (to_client, to_server))| ScheduleOp::Partition {
                ms,
                to_client,
                to_server,
            })
            .boxed(),
        ScheduleOpKind::Block => prop_oneof![1..300u32, 300..3_000u32]
            .prop_map(|ms| ScheduleOp::Block { ms })
            .boxed(),
        ScheduleOpKind::ClockJumps => (any::<bool>(), prop_oneof![1..1_000u32, 1_000..10_000u32])
            .prop_map(|(client, ms)| ScheduleOp::ClockJumps { client, ms })
            .boxed(),
        ScheduleOpKind::ClockStands => (any::<bool>(), prop_oneof![1..1_000u32, 1_000..4_000u32])
            .prop_map(|(client, ms)| ScheduleOp::ClockStands { client, ms })
            .boxed(),
        ScheduleOpKind::Wait => prop_oneof![1..200u32, 200..5_000u32, 5_000..100_000u32]
            .prop_map(|us| ScheduleOp::Wait { us })
            .boxed(),
    }
}

/// An operation, its kind chosen by weight.
pub(crate) fn operation(
    kinds: &[(u32, ScheduleOpKind)],
) -> impl Strategy<Value = ScheduleOp> + use<> {
    prop::strategy::Union::new_weighted(
        kinds
            .iter()
            .map(|&(weight, kind)| (weight, of_kind(kind)))
            .collect(),
    )
}
