//! What an event can be refused for.

use thiserror::Error;

use super::FlowKey;

/// An event that the engine refused. The engine is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum EngineError {
    /// The flow table is at its bound.
    #[error("the flow table is full ({max_flows} flows)")]
    Full {
        /// The bound.
        max_flows: usize,
    },
    /// No such flow: it never started, or it has ended already.
    #[error("flow {0} is not known")]
    UnknownFlow(FlowKey),
    /// A link index beyond the topology.
    #[error("link {link} does not exist, the topology has {links} links")]
    UnknownLink {
        /// The index.
        link: u32,
        /// How many there are.
        links: usize,
    },
    /// A path without links, or one that crosses a link twice.
    #[error("flow {0}: a path has 1 to 6 distinct links")]
    BadPath(FlowKey),
    /// A class that the table does not have.
    #[error("class {class} is not defined")]
    UnknownClass {
        /// The class.
        class: u8,
    },
    /// A weight that is not a finite number above zero.
    #[error("weight {0} is not a finite number above zero")]
    BadWeight(f64),
    /// A demand that is negative or not a number.
    #[error("demand {0} bit/s is not a number of at least zero")]
    BadDemand(f64),
    /// A capacity that is negative, infinite, or not a number.
    #[error("capacity {0} bit/s is not a finite number of at least zero")]
    BadCapacity(f64),
    /// A setting of the engine out of range.
    #[error("{name} = {value} is out of range: {expected}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
}
