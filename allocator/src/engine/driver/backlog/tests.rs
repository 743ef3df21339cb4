use indexmap::IndexMap;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum BacklogOperation {
    Put(u32, u32),
    Take,
    Forget(u32),
    Clear,
}

fn operation() -> impl Strategy<Value = BacklogOperation> {
    let flow = || 0..16_u32;
    prop_oneof![
        8 => (flow(), any::<u32>()).prop_map(|(flow, rate)| BacklogOperation::Put(flow, rate)),
        4 => Just(BacklogOperation::Take),
        2 => flow().prop_map(BacklogOperation::Forget),
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
        let mut oracle: IndexMap<FlowNumber, f64> = IndexMap::new();
        for operation in operations {
            match operation {
                BacklogOperation::Put(flow, rate) => {
                    let (number, rate_bps) = (FlowNumber::first(flow), f64::from(rate));
                    let superseded = oracle.insert(number, rate_bps).is_some();
                    prop_assert_eq!(backlog.put(RateUpdate { number, rate_bps }), superseded);
                }
                BacklogOperation::Take => {
                    let expected = oracle.shift_remove_index(0);
                    let first = backlog.first();
                    prop_assert_eq!(first.map(|first| (first.number, first.rate_bps)), expected);
                    if let Some(first) = first {
                        backlog.forget(first.number);
                    }
                }
                BacklogOperation::Forget(flow) => {
                    let number = FlowNumber::first(flow);
                    oracle.shift_remove(&number);
                    backlog.forget(number);
                }
                BacklogOperation::Clear => {
                    oracle.clear();
                    backlog.clear();
                }
            }
            prop_assert_eq!(backlog.len(), oracle.len());
            prop_assert_eq!(backlog.first().is_none(), oracle.is_empty());
        }
    }
}
