//! The flow classes of a configuration, and the engine's table of them.

use toml::Spanned;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::{Field, RawClass};
use super::{Class, MAX_CLASS_ID, Utility};
use crate::num::utility::{AlphaFair, Class as EngineClass, ClassError, ClassTable, UtilityKind};

/// The engine's table of these classes.
///
/// # Errors
/// Never for classes of a checked configuration.
pub fn class_table(classes: &[Class]) -> Result<ClassTable, ClassError> {
    #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
    let bound = |rate: Option<u64>| rate.map_or(f64::INFINITY, |rate_bps| rate_bps as f64);
    ClassTable::new(classes.iter().map(|class| {
        let utility = match class.utility {
            Utility::Log => UtilityKind::Log,
            Utility::Alpha(alpha) => {
                AlphaFair::new(alpha).map_or(UtilityKind::Log, UtilityKind::Alpha)
            }
        };
        (
            class.id,
            EngineClass {
                utility,
                weight: class.weight,
                max_rate_bps: bound(class.max_rate_bps),
            },
        )
    }))
}

impl Checker<'_> {
    pub(super) fn classes(&self, raw: Vec<Spanned<RawClass>>) -> Result<Vec<Class>, ConfigError> {
        if raw.is_empty() {
            return Ok(vec![Class::default()]);
        }
        let mut classes: Vec<Class> = Vec::with_capacity(raw.len());
        for entry in raw {
            let class = self.class(entry.into_inner(), &classes)?;
            classes.push(class);
        }
        classes.sort_by_key(|class| class.id);
        if classes[0].id != 0 {
            return Err(ConfigError::Missing {
                origin: self.origin.to_owned(),
                key: "class 0".to_owned(),
                expected: "flows without a policy use it; add a [[class]] with id = 0".to_owned(),
            });
        }
        Ok(classes)
    }

    fn class(&self, raw: RawClass, before: &[Class]) -> Result<Class, ConfigError> {
        let id_field = self.need(
            raw.id,
            "class.id",
            "every [[class]] has an id from 0 to 127, such as id = 1",
        )?;
        let id = match u8::try_from(*id_field.get_ref()) {
            Ok(id) if id <= MAX_CLASS_ID => id,
            _ => {
                return Err(self.wrong(
                    "class.id",
                    &id_field,
                    format!("must be 0 to {MAX_CLASS_ID}"),
                ));
            }
        };
        if let Some(other) = before.iter().find(|class| class.id == id) {
            return Err(self.wrong(
                "class.id",
                &id_field,
                format!("is already class {:?}; ids must differ", other.name),
            ));
        }
        let name_field = self.need(
            raw.name,
            "class.name",
            r#"every [[class]] has a name, such as name = "bulk""#,
        )?;
        if name_field.get_ref().is_empty()
            || before
                .iter()
                .any(|class| class.name == *name_field.get_ref())
        {
            return Err(self.wrong(
                "class.name",
                &name_field,
                "must be a name that no other class has",
            ));
        }
        let utility = self.utility(id, raw.utility, raw.alpha)?;
        let weight = self.within(
            raw.weight,
            1.0,
            "class.weight",
            |weight: f64| (1e-3..=1e3).contains(&weight),
            "must be from 0.001 to 1000; 1 is the default",
        )?;
        let max_rate_bps = match raw.max_rate_bps {
            Some(rate) if *rate.get_ref() < 8_000 => {
                return Err(self.wrong(
                    "class.max_rate_bps",
                    &rate,
                    "must be at least 8000 bits per second",
                ));
            }
            rate => rate.map(Spanned::into_inner),
        };
        let measured_demand = match raw.demand {
            None => Class::default().measured_demand,
            Some(demand) => match demand.get_ref().as_str() {
                "measured" => true,
                "ignored" => false,
                _ => {
                    let expected = r#"must be "measured" or "ignored""#;
                    return Err(self.wrong("class.demand", &demand, expected));
                }
            },
        };
        Ok(Class {
            id,
            name: name_field.into_inner(),
            utility,
            weight,
            max_rate_bps,
            measured_demand,
        })
    }

    fn utility(
        &self,
        id: u8,
        name: Field<String>,
        alpha: Field<f64>,
    ) -> Result<Utility, ConfigError> {
        let Some(name) = name.filter(|name| name.get_ref() != "log") else {
            return match alpha {
                None => Ok(Utility::Log),
                Some(alpha) => Err(self.wrong(
                    "class.alpha",
                    &alpha,
                    r#"needs utility = "alpha" beside it"#,
                )),
            };
        };
        if name.get_ref() != "alpha" {
            return Err(self.wrong("class.utility", &name, r#"must be "log" or "alpha""#));
        }
        match alpha {
            Some(alpha) if AlphaFair::new(*alpha.get_ref()).is_some() => {
                Ok(Utility::Alpha(alpha.into_inner()))
            }
            Some(alpha) => {
                let (least, most) = (AlphaFair::MIN_ALPHA, AlphaFair::MAX_ALPHA);
                Err(self.wrong(
                    "class.alpha",
                    &alpha,
                    format!("must be from {least} to {most}; 1 is the same as log"),
                ))
            }
            None => Err(ConfigError::Missing {
                origin: self.origin.to_owned(),
                key: "class.alpha".to_owned(),
                expected: format!(
                    r#"class {id} has utility = "alpha"; add its exponent, such as alpha = 2.0"#
                ),
            }),
        }
    }
}
