//! Flow classes of a configuration, and their conversion to the engine's class table.

use toml::Spanned;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::{Field, RawClass};
use super::{ClassConfig, DEFAULT_REFERENCE_BPS, MAX_CLASS_ID, UtilityConfig};
use crate::num::utility::{AlphaFair, Class, ClassError, ClassTable, UtilityKind};

/// Converts classes to the engine's table.
///
/// # Errors
/// Never for classes of a checked configuration.
pub fn class_table(classes: &[ClassConfig]) -> Result<ClassTable, ClassError> {
    #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
    let bound = |rate: Option<u64>| rate.map_or(f64::INFINITY, |rate_bps| rate_bps as f64);
    ClassTable::new(classes.iter().map(|class| {
        let utility = alpha_fair(class, classes).map_or(UtilityKind::Log, UtilityKind::Alpha);
        (
            class.id,
            Class {
                utility,
                weight: class.weight,
                max_rate_bps: bound(class.max_rate_bps),
            },
        )
    }))
}

/// True if flows of two classes have different utilities at one rate, weights aside.
fn are_mixed(classes: &[ClassConfig]) -> bool {
    let first = classes.first();
    let as_first = |class: &ClassConfig| {
        let first = first.unwrap_or(class);
        class.utility == first.utility
            && (class.utility == UtilityConfig::Log || class.reference_bps == first.reference_bps)
    };
    !classes.iter().all(as_first)
}

/// Returns the utility of a class among `classes`, unless it is log.
fn alpha_fair(class: &ClassConfig, classes: &[ClassConfig]) -> Option<AlphaFair> {
    // Only beside other utilities can a flow's effective weight starve others, or be starved.
    let bound = if are_mixed(classes) {
        AlphaFair::MIXED_BOUND
    } else {
        AlphaFair::ALONE_BOUND
    };
    match class.utility {
        // α = 1 is log, and the parallel engine's rows hold log flows only.
        UtilityConfig::Log | UtilityConfig::Alpha(1.0) => None,
        #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
        UtilityConfig::Alpha(alpha) => AlphaFair::bounded(alpha, class.reference_bps as f64, bound),
    }
}

/// Describes the effect of a mix of classes, a line for each class; empty if all classes are log.
#[must_use]
pub fn class_meaning(classes: &[ClassConfig]) -> Vec<String> {
    let mixed = are_mixed(classes);
    let mut lines = Vec::new();
    for class in classes {
        let Some(utility) = alpha_fair(class, classes) else {
            if mixed {
                lines.push(format!(
                    "class {} ({:?}): log, weighs {} at every rate",
                    class.id, class.name, class.weight
                ));
            }
            continue;
        };
        let [low, high] = utility.range_bps();
        let (bound, weight) = (AlphaFair::MIXED_BOUND, class.weight);
        // x U'(x) = (x / r)^(1−α) falls with the rate for α > 1, and rises for α < 1.
        let (at_low, at_high) = if utility.alpha() > 1.0 {
            (weight * bound, weight / bound)
        } else {
            (weight / bound, weight * bound)
        };
        lines.push(if mixed {
            format!(
                "class {} ({:?}): alpha = {}, weighs {weight} at {} as log would, {at_low} below {} and {at_high} above {}",
                class.id,
                class.name,
                utility.alpha(),
                rate(utility.reference_bps()),
                rate(low),
                rate(high)
            )
        } else {
            format!(
                "class {} ({:?}): alpha-fair with alpha = {} from {} to {}",
                class.id,
                class.name,
                utility.alpha(),
                rate(low),
                rate(high)
            )
        });
    }
    if mixed {
        lines.push(
            "of flows of the same weight, each gets at least 1 % of the equal share of the narrowest link on its path, \
             whatever the classes of the others"
                .to_owned(),
        );
    }
    lines
}

/// Formats a rate with three decimals and its unit.
fn rate(rate_bps: f64) -> String {
    let (unit, name) = match rate_bps {
        rate if rate >= 1e9 => (1e9, "Gbit/s"),
        rate if rate >= 1e6 => (1e6, "Mbit/s"),
        rate if rate >= 1e3 => (1e3, "kbit/s"),
        _ => (1.0, "bit/s"),
    };
    format!("{:.3} {name}", rate_bps / unit)
}

pub(super) fn checked(
    check: &Checker<'_>,
    raw: Vec<Spanned<RawClass>>,
) -> Result<Vec<ClassConfig>, ConfigError> {
    if raw.is_empty() {
        return Ok(vec![ClassConfig::default()]);
    }
    let mut classes: Vec<ClassConfig> = Vec::with_capacity(raw.len());
    for entry in raw {
        let class = class(check, entry.into_inner(), &classes)?;
        classes.push(class);
    }
    classes.sort_by_key(|class| class.id);
    // Not empty here: an empty list has returned the default class above.
    if classes[0].id != 0 {
        return Err(ConfigError::Missing {
            origin: check.origin.to_owned(),
            key: "class 0".to_owned(),
            expected: "flows without a policy use it; add a [[class]] with id = 0".to_owned(),
        });
    }
    Ok(classes)
}

fn class(
    check: &Checker<'_>,
    raw: RawClass,
    before: &[ClassConfig],
) -> Result<ClassConfig, ConfigError> {
    let id_field = check.need(
        raw.id,
        "class.id",
        "every [[class]] has an id from 0 to 127, such as id = 1",
    )?;
    let id = match u8::try_from(*id_field.get_ref()) {
        Ok(id) if id <= MAX_CLASS_ID => id,
        _ => {
            return Err(check.wrong(
                "class.id",
                &id_field,
                format!("must be 0 to {MAX_CLASS_ID}"),
            ));
        }
    };
    if let Some(other) = before.iter().find(|class| class.id == id) {
        return Err(check.wrong(
            "class.id",
            &id_field,
            format!("is already class {:?}; ids must differ", other.name),
        ));
    }
    let name_field = check.need(
        raw.name,
        "class.name",
        r#"every [[class]] has a name, such as name = "bulk""#,
    )?;
    if name_field.get_ref().is_empty()
        || before
            .iter()
            .any(|class| class.name == *name_field.get_ref())
    {
        return Err(check.wrong(
            "class.name",
            &name_field,
            "must be a name that no other class has",
        ));
    }
    let utility = utility(check, id, raw.utility, raw.alpha)?;
    // A key without effect is an error, as an unknown key is.
    if let (UtilityConfig::Log, Some(reference)) = (utility, &raw.reference_bps) {
        return Err(check.wrong(
            "class.reference_bps",
            reference,
            r#"needs utility = "alpha" beside it"#,
        ));
    }
    let reference_bps = check.within(
        raw.reference_bps,
        DEFAULT_REFERENCE_BPS,
        "class.reference_bps",
        |rate: u64| (8_000..=1_000_000_000_000_000).contains(&rate),
        "must be 8000 to 1000000000000000 bits per second; 1000000000 is the default",
    )?;
    let weight = check.within(
        raw.weight,
        1.0,
        "class.weight",
        |weight: f64| (1e-3..=1e3).contains(&weight),
        "must be from 0.001 to 1000; 1 is the default",
    )?;
    let max_rate_bps = match raw.max_rate_bps {
        Some(rate) if *rate.get_ref() < 8_000 => {
            return Err(check.wrong(
                "class.max_rate_bps",
                &rate,
                "must be at least 8000 bits per second",
            ));
        }
        rate => rate.map(Spanned::into_inner),
    };
    let measured_demand = match raw.demand {
        None => ClassConfig::default().measured_demand,
        Some(demand) => match demand.get_ref().as_str() {
            "measured" => true,
            "ignored" => false,
            _ => {
                let expected = r#"must be "measured" or "ignored""#;
                return Err(check.wrong("class.demand", &demand, expected));
            }
        },
    };
    Ok(ClassConfig {
        id,
        name: name_field.into_inner(),
        utility,
        reference_bps,
        weight,
        max_rate_bps,
        measured_demand,
    })
}

fn utility(
    check: &Checker<'_>,
    id: u8,
    name: Field<String>,
    alpha: Field<f64>,
) -> Result<UtilityConfig, ConfigError> {
    let Some(name) = name.filter(|name| name.get_ref() != "log") else {
        return match alpha {
            None => Ok(UtilityConfig::Log),
            Some(alpha) => Err(check.wrong(
                "class.alpha",
                &alpha,
                r#"needs utility = "alpha" beside it"#,
            )),
        };
    };
    if name.get_ref() != "alpha" {
        return Err(check.wrong("class.utility", &name, r#"must be "log" or "alpha""#));
    }
    match alpha {
        Some(alpha) if AlphaFair::new(*alpha.get_ref()).is_some() => {
            Ok(UtilityConfig::Alpha(alpha.into_inner()))
        }
        Some(alpha) => {
            let (least, most) = (AlphaFair::MIN_ALPHA, AlphaFair::MAX_ALPHA);
            Err(check.wrong(
                "class.alpha",
                &alpha,
                format!("must be from {least} to {most}; 1 is the same as log"),
            ))
        }
        None => Err(ConfigError::Missing {
            origin: check.origin.to_owned(),
            key: "class.alpha".to_owned(),
            expected: format!(
                r#"class {id} has utility = "alpha"; add its exponent, such as alpha = 2.0"#
            ),
        }),
    }
}
