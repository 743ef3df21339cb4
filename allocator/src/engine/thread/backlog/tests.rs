use indexmap::IndexMap;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum BacklogOperation {
    Put(u32, u32, u32),
    Take,
    Forget(u32, u32),
    ForgetSession(u32),
    Clear,
}

fn operation() -> impl Strategy<Value = BacklogOperation> {
    let flow = || (0..4_u32, 0..4_u32);
    prop_oneof![
        8 => (flow(), any::<u32>()).prop_map(|((session, flow), rate)| BacklogOperation::Put(session, flow, rate)),
        4 => Just(BacklogOperation::Take),
        2 => flow().prop_map(|(session, flow)| BacklogOperation::Forget(session, flow)),
        1 => (0..4_u32).prop_map(BacklogOperation::ForgetSession),
        1 => Just(BacklogOperation::Clear),
    ]
}

proptest! {
    /// The oracle keeps waiting rates in a map by order of arrival, and scans it for everything.
    #[test]
    fn rates_wait_in_order_and_the_newest_of_each_flow_counts(
        operations in proptest::collection::vec(operation(), 0..200),
    ) {
        let mut backlog = RateBacklog::default();
        let mut oracle: IndexMap<FlowKey, f64> = IndexMap::new();
        for operation in operations {
            match operation {
                BacklogOperation::Put(session, flow, rate) => {
                    let (key, rate_bps) = (FlowKey::new(session, flow), f64::from(rate));
                    let superseded = oracle.insert(key, rate_bps).is_some();
                    prop_assert_eq!(backlog.put(RateUpdate { key, rate_bps }), superseded);
                }
                BacklogOperation::Take => {
                    let expected = oracle.shift_remove_index(0);
                    let first = backlog.first();
                    prop_assert_eq!(first.map(|first| (first.key, first.rate_bps)), expected);
                    if let Some(first) = first {
                        backlog.forget(first.key);
                    }
                }
                BacklogOperation::Forget(session, flow) => {
                    let key = FlowKey::new(session, flow);
                    oracle.shift_remove(&key);
                    backlog.forget(key);
                }
                BacklogOperation::ForgetSession(session) => {
                    oracle.retain(|key, _| key.session() != session);
                    backlog.forget_session(session);
                }
                BacklogOperation::Clear => {
                    oracle.clear();
                    backlog.clear();
                }
            }
            prop_assert!(backlog.len() >= oracle.len());
            prop_assert_eq!(backlog.first().is_none(), oracle.is_empty());
        }
    }
}
