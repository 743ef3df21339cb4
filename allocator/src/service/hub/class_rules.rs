//! Rules of flow classes by their ids.

use crate::service::config::{ClassConfig, MAX_CLASS_ID};

/// Ids that records may carry: configuration refuses ids above [`MAX_CLASS_ID`].
const CLASS_IDS: usize = MAX_CLASS_ID as usize + 1;

/// Known classes, and those of them whose flows have no demand limit.
#[derive(Debug)]
pub(super) struct ClassRules {
    known: [bool; CLASS_IDS],
    /// Demands that hosts report for these are ignored.
    demands_ignored: [bool; CLASS_IDS],
}

impl ClassRules {
    pub(super) fn new(classes: &[ClassConfig]) -> Self {
        let mut rules = Self {
            known: [false; CLASS_IDS],
            demands_ignored: [false; CLASS_IDS],
        };
        for class in classes {
            rules.known[usize::from(class.id)] = true;
            rules.demands_ignored[usize::from(class.id)] = !class.measured_demand;
        }
        rules
    }

    /// True if there is such a class.
    pub(super) fn is_known(&self, class: u8) -> bool {
        self.known.get(usize::from(class)) == Some(&true)
    }

    /// True if demands of the class are ignored.
    pub(super) fn ignores_demand(&self, class: u8) -> bool {
        self.demands_ignored.get(usize::from(class)) == Some(&true)
    }
}
