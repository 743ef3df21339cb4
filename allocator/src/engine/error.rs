//! Errors of the engine: reasons for which an event or setting is refused.

use thiserror::Error;

use super::FlowNumber;

/// Refusal of an event or a setting. The engine is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum EngineError {
    /// The flow table is at its bound.
    #[error("the flow table is full ({max_flows} flows)")]
    Full {
        /// The bound.
        max_flows: usize,
    },
    /// The flow never started, or has ended already.
    #[error("flow {0} is not known")]
    UnknownFlow(FlowNumber),
    /// A link index beyond the topology.
    #[error("link {link} does not exist, the topology has {links} links")]
    UnknownLink {
        /// The index.
        link: u32,
        /// Number of links.
        links: usize,
    },
    /// A path without links, or one that crosses a link twice.
    #[error("flow {0}: a path has 1 to 6 distinct links")]
    BadPath(FlowNumber),
    /// A class that is not in the table.
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
        /// The value given.
        value: f64,
        /// The values allowed.
        expected: &'static str,
    },
}
