//! Parameters of schemes and disciplines: one structure each, for every place that sets them.
//!
//! [`parameters!`](crate::parameters!) declares the structure with documentation and default of
//! each field. Plans, `--set` and experiments all hand over a TOML table. [`effective`] puts its
//! values over the defaults, and [`read`] makes the structure of it. Errors name the key.

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// One parameter: its key, and its meaning with unit and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Key in tables.
    pub key: &'static str,
    /// Meaning.
    pub doc: &'static str,
}

/// A structure of parameters, declared by [`parameters!`](crate::parameters!).
pub trait Parameters: Default + Serialize + DeserializeOwned {
    /// Documentation of the structure.
    const ABOUT: &'static str;

    /// Returns the parameters in the order of their declaration.
    fn parameters() -> Vec<Parameter>;

    /// Returns the defaults as a table. A parameter without default is not in it.
    #[must_use]
    fn defaults() -> Table {
        // A structure of this trait has keys that are texts, and values that TOML has: it is always
        // a table. The registry's tests look at each.
        Table::try_from(Self::default()).unwrap_or_default()
    }
}

/// A refused table of parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", key.as_ref().map(|key| format!("`{key}`: ")).unwrap_or_default())]
pub struct ParamError {
    /// The key that is at fault, if one is.
    pub key: Option<String>,
    /// True if the key itself is unknown, and not its value.
    pub unknown: bool,
    /// The mistake, and a remedy.
    pub message: String,
}

impl ParamError {
    /// Makes an error about the value of a key.
    #[must_use]
    pub fn of(key: &str, message: impl Into<String>) -> Self {
        Self {
            key: Some(key.to_owned()),
            unknown: false,
            message: message.into(),
        }
    }

    /// Makes an error about the whole table.
    #[must_use]
    pub fn whole(message: impl Into<String>) -> Self {
        Self {
            key: None,
            unknown: false,
            message: message.into(),
        }
    }
}

/// Declares a structure of parameters with its defaults and documentation.
///
/// The first fields may be other such structures, each after two dots: their keys are then the new
/// structure's own, with the defaults that are given here.
#[macro_export]
macro_rules! parameters {
    (
        $(#[doc = $about:literal])*
        $vis:vis struct $name:ident {
            $(..$(#[doc = $family_doc:literal])* $family:ident: $Family:ty = $family_default:expr,)*
            $($(#[doc = $doc:literal])* $field:ident: $Type:ty = $default:expr,)*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $name {
            $($(#[doc = $family_doc])* #[serde(flatten)] pub $family: $Family,)*
            $($(#[doc = $doc])* pub $field: $Type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($family: $family_default,)*
                    $($field: $default,)*
                }
            }
        }

        impl $crate::parameters::Parameters for $name {
            const ABOUT: &'static str = concat!($($about),*);

            fn parameters() -> Vec<$crate::parameters::Parameter> {
                #[allow(unused_mut, reason = "few structures have a family")]
                let mut all = vec![$($crate::parameters::Parameter {
                    key: stringify!($field),
                    doc: concat!($($doc),*),
                },)*];
                $(all.extend(<$Family as $crate::parameters::Parameters>::parameters());)*
                all
            }
        }
    };
}

/// Returns the defaults with the given values in their place.
///
/// # Errors
/// An unknown key.
pub fn effective<P: Parameters>(given: &Table) -> Result<Table, ParamError> {
    let known = P::parameters();
    let mut table = P::defaults();
    for (key, value) in given {
        if !known.iter().any(|parameter| parameter.key == key) {
            let known: Vec<&str> = known.iter().map(|parameter| parameter.key).collect();
            return Err(ParamError {
                key: Some(key.clone()),
                unknown: true,
                message: format!("unknown key `{key}`; there are {}", known.join(", ")),
            });
        }
        table.insert(key.clone(), value.clone());
    }
    Ok(table)
}

/// Reads parameters: the defaults with the given values in their place.
///
/// # Errors
/// An unknown key, or a value of another type than its key's.
pub fn read<P: Parameters>(given: &Table) -> Result<P, ParamError> {
    let error = match effective::<P>(given)?.try_into() {
        Ok(parameters) => return Ok(parameters),
        Err(error) => error,
    };
    // The reader names no place in a table that was put together. A key that is refused by itself
    // is the one at fault.
    for (key, value) in given {
        let alone = Table::from_iter([(key.clone(), value.clone())]);
        if let Err(error) = effective::<P>(&alone)?.try_into::<P>() {
            return Err(ParamError::of(key, error.message().trim()));
        }
    }
    Err(ParamError::whole(error.message().trim()))
}

/// A refused `--set` option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{option}`: {message}")]
pub struct SetError {
    /// The option as given.
    pub option: String,
    /// The mistake, and a remedy.
    pub message: String,
}

/// A value for one parameter, as `--set NAME.KEY=VALUE` gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name of whom the parameter belongs to, such as a scheme.
    pub name: String,
    /// Key of the parameter; keys of inner tables are joined by dots.
    pub key: String,
    /// The value, as TOML.
    pub value: String,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}={}", self.name, self.key, self.value)
    }
}

impl std::str::FromStr for Setting {
    type Err = SetError;

    /// Reads `NAME.KEY=VALUE`. What is no TOML value is a text: quotation marks are not needed.
    fn from_str(option: &str) -> Result<Self, SetError> {
        let wrong = || SetError {
            option: option.to_owned(),
            message: "a setting is NAME.KEY=VALUE, such as dctcp.gain=0.1".to_owned(),
        };
        let (path, value) = option.split_once('=').ok_or_else(wrong)?;
        let (name, key) = path.trim().split_once('.').ok_or_else(wrong)?;
        let value = value.trim();
        let is_toml = toml::from_str::<Table>(&format!("value = {value}")).is_ok();
        Ok(Self {
            name: name.to_owned(),
            key: key.to_owned(),
            value: if is_toml {
                value.to_owned()
            } else {
                Value::String(value.to_owned()).to_string()
            },
        })
    }
}

/// Reads parameters from the settings of this name, over the defaults.
///
/// # Errors
/// As [`read`], with the setting that is at fault.
pub fn from_settings<P: Parameters>(name: &str, settings: &[Setting]) -> Result<P, SetError> {
    let own: Vec<&Setting> = settings.iter().filter(|s| s.name == name).collect();
    let refused = |setting: &Setting, message: String| SetError {
        option: setting.to_string(),
        message,
    };
    let mut given = Table::new();
    for setting in &own {
        let value = toml::from_str::<Table>(&format!("value = {}", setting.value))
            .map_err(|e| refused(setting, e.message().to_owned()))?;
        given.extend(
            value
                .into_iter()
                .map(|(_, value)| (setting.key.clone(), value)),
        );
    }
    read(&given).map_err(|error| {
        let at_fault = own.iter().find(|s| Some(&s.key) == error.key.as_ref());
        SetError {
            option: at_fault.map_or(name.to_owned(), ToString::to_string),
            message: error.message,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Delay;

    parameters! {
        /// A family.
        struct Family {
            /// Time-out.
            time_out: Delay = Delay::from_us(200),
            /// Fixed time-out; without it, one is measured.
            fixed: Option<Delay> = None,
        }
    }

    parameters! {
        /// One of the family.
        struct Member {
            ..family: Family = Family { time_out: Delay::from_us(45), ..Family::default() },
            /// Gain,
            /// in two lines.
            gain: f64 = 0.5,
        }
    }

    fn table(text: &str) -> Table {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_member_has_its_familys_keys_with_its_own_defaults() {
        let read = read::<Member>(&table("gain = 1")).unwrap();
        assert_eq!((read.gain, read.family.time_out), (1.0, Delay::from_us(45)));
        let defaults = Member::defaults();
        assert_eq!(defaults, table("gain = 0.5\ntime_out = \"45us\""));
        let keys: Vec<&str> = Member::parameters().iter().map(|p| p.key).collect();
        assert_eq!(keys, ["gain", "time_out", "fixed"]);
        assert_eq!(Member::parameters()[0].doc, " Gain, in two lines.");
    }

    #[test]
    fn the_key_that_is_wrong_is_named() {
        let unknown = read::<Member>(&table("gian = 1")).unwrap_err();
        assert!(unknown.unknown && unknown.message.contains("gain, time_out, fixed"));
        for (text, key) in [
            ("gain = 1\ntime_out = 3", "time_out"),
            ("fixed = \"9\"", "fixed"),
            ("gain = \"much\"\nfixed = \"1us\"", "gain"),
        ] {
            let wrong = read::<Member>(&table(text)).unwrap_err();
            assert_eq!((wrong.key.as_deref(), wrong.unknown), (Some(key), false));
        }
    }

    #[test]
    fn a_setting_is_a_toml_value_or_else_a_text() {
        let setting = |option: &str| option.parse::<Setting>().unwrap();
        assert_eq!(setting("dctcp.gain=0.1").value, "0.1");
        assert_eq!(setting("dctcp.ecn = true").value, "true");
        assert_eq!(setting("cubic.min_rto=1ms").value, "\"1ms\"");
        let nested = setting("cubic.queue.interval=60us");
        assert_eq!(nested.key, "queue.interval");
        assert_eq!(nested.to_string(), "cubic.queue.interval=\"60us\"");
        for wrong in ["dctcp", "dctcp.gain", "gain=1"] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }
}
