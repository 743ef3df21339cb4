//! The policy gives flows class, weight and cap by cgroup, port, DSCP and socket mark.
//!
//! Rules are tried in order; the first match decides. A flow without a match gets the allocator's
//! class 0 with that class's own weight. Cgroups are written as paths and matched by id
//! ([`cgroup`]).

pub mod cgroup;
mod rule;

use crate::backend::FlowFacts;
use cgroup::{CgroupIds, CgroupTree};
pub use rule::{ClassRef, MarkMatch, PortRange, RuleConfig, RuleProblem};

/// Decision of the policy about a flow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Treatment {
    /// The allocator's class; its class 0 if absent.
    pub class: Option<ClassRef>,
    /// Weight within the class; the class's own if absent.
    pub weight: Option<f64>,
    /// Cap of the flow's rate, in bit/s.
    pub max_rate_bps: Option<u64>,
    /// The flow is left to plain TCP.
    pub bypass: bool,
    /// Index of the rule that decided, from 0 in file order; `None` if none matched.
    pub rule: Option<usize>,
}

#[derive(Debug)]
struct Rule {
    config: RuleConfig,
    cgroups: Option<CgroupIds>,
    matched: u64,
}

/// Rules with their counters and resolved cgroups.
#[derive(Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

impl Policy {
    /// Compiles checked rules; cgroup paths are looked up by [`Policy::refresh_cgroups`].
    #[must_use]
    pub fn new(rules: &[RuleConfig]) -> Self {
        let compile = |config: &RuleConfig| Rule {
            // Empty until the first refresh: a rule for a missing cgroup must match nothing, not
            // everything.
            cgroups: config.cgroup.as_ref().map(|_| CgroupIds::default()),
            config: config.clone(),
            matched: 0,
        };
        Self {
            rules: rules.iter().map(compile).collect(),
        }
    }

    /// Looks up the ids of the rules' cgroups in `tree`; returns the paths that do not exist (yet).
    pub fn refresh_cgroups(&mut self, tree: &CgroupTree) -> Vec<std::path::PathBuf> {
        let mut missing = Vec::new();
        for rule in &mut self.rules {
            if let Some(path) = &rule.config.cgroup {
                let ids = CgroupIds::below(tree, path);
                if ids.is_empty() {
                    missing.push(path.clone());
                }
                // Replaced, not extended: cgroups that are gone must not match.
                rule.cgroups = Some(ids);
            }
        }
        missing
    }

    /// Returns true if any rule matches by cgroup.
    #[must_use]
    pub fn uses_cgroups(&self) -> bool {
        self.rules.iter().any(|rule| rule.cgroups.is_some())
    }

    /// The classes that rules give by name.
    pub fn class_names(&self) -> impl Iterator<Item = &str> {
        self.rules
            .iter()
            .filter_map(|rule| match &rule.config.class {
                Some(ClassRef::Name(name)) => Some(name.as_str()),
                _ => None,
            })
    }

    /// Returns the number of flowlets that each rule decided, in file order.
    #[must_use]
    pub fn matches(&self) -> Vec<u64> {
        self.rules.iter().map(|rule| rule.matched).collect()
    }

    /// Applies the first rule that matches.
    #[must_use]
    pub fn decide(&self, facts: &FlowFacts) -> Treatment {
        let found = self
            .rules
            .iter()
            .enumerate()
            .find(|(_, rule)| rule.applies(facts));
        let Some((index, rule)) = found else {
            return Treatment::default();
        };
        Treatment {
            class: rule.config.class.clone(),
            weight: rule.config.weight,
            max_rate_bps: rule.config.max_rate_bps(),
            bypass: rule.config.bypass,
            rule: Some(index),
        }
    }

    /// Counts a flowlet for the rule that decided it.
    pub fn count(&mut self, treatment: &Treatment) {
        if let Some(rule) = treatment.rule.and_then(|index| self.rules.get_mut(index)) {
            rule.matched += 1;
        }
    }
}

impl Rule {
    fn applies(&self, facts: &FlowFacts) -> bool {
        let config = &self.config;
        config
            .src_port
            .is_none_or(|range| range.contains(facts.tuple.src_port))
            && config
                .dst_port
                .is_none_or(|range| range.contains(facts.tuple.dst_port))
            && config.dscp.is_none_or(|dscp| dscp == facts.dscp)
            && config.mark.is_none_or(|mark| mark.matches(facts.mark))
            && self
                .cgroups
                .as_ref()
                .is_none_or(|ids| ids.contains(facts.cgroup_id))
    }
}

#[cfg(test)]
mod tests;
