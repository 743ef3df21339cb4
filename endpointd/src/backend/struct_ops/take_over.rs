//! Makes the congestion control a network namespace's default and switches its sockets to it, and
//! undoes both.

use std::io::Read;
use std::mem::offset_of;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, ProgramMut};

use zerocopy::FromBytes;

use super::names::{NAME_MAX, NAME_PREFIX, SETTING_ABSENT, SETTINGS_LAYOUT};
use super::skel::types;
use crate::backend::BackendError;
use crate::backend::namespaces::Namespace;
use crate::backend::sysctls::Sysctls;

/// Setting by which short round trips let TCP send larger bursts than a millisecond of its rate; 0:
/// not at all. Kernels before 5.18 lack it.
const TSO_RTT_LOG: &str = "tcp_tso_rtt_log";
/// Setting of the least burst in segments, where a millisecond of the rate is less.
const MIN_TSO_SEGS: &str = "tcp_min_tso_segs";

/// Defaults where no better ones are remembered.
const FALLBACK_CC: &str = "cubic";
const FALLBACK_BURSTS: Bursts = Bursts {
    rtt_log: Some(9),
    min_segments: Some(2),
};

/// Bursts under pacing. TCP sends 64 kB at once over short paths at any rate; that would fill the
/// shallow buffers that pacing spares.
const PACED_BURSTS: Bursts = Bursts {
    rtt_log: Some(0),
    min_segments: Some(1),
};

/// Sizes of bursts, as far as the kernel has settings for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bursts {
    /// Value of `tcp_tso_rtt_log`.
    pub(super) rtt_log: Option<u32>,
    /// Value of `tcp_min_tso_segs`.
    pub(super) min_segments: Option<u32>,
}

impl Bursts {
    fn read(sysctls: &Sysctls) -> Self {
        Self {
            rtt_log: sysctls.number(TSO_RTT_LOG),
            min_segments: sysctls.number(MIN_TSO_SEGS),
        }
    }

    fn apply(self, sysctls: &Sysctls) -> Result<(), BackendError> {
        // Both are tried: one that fails must not keep the other from being set.
        let floor = sysctls.set_number(MIN_TSO_SEGS, self.min_segments);
        sysctls.set_number(TSO_RTT_LOG, self.rtt_log).and(floor)
    }

    /// Keeps the values of settings that `present` has.
    fn where_present(self, present: Self) -> Self {
        Self {
            // Writing a setting that the kernel lacks would fail the whole take-over.
            rtt_log: present.rtt_log.and(self.rtt_log),
            min_segments: present.min_segments.and(self.min_segments),
        }
    }
}

/// Settings of the namespace that a daemon changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// The default congestion control.
    pub(super) default_cc: String,
    /// The size of bursts.
    pub(super) bursts: Bursts,
}

impl Settings {
    /// Reads the present settings.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn read(sysctls: &Sysctls) -> Result<Self, BackendError> {
        Ok(Self {
            default_cc: sysctls.default_congestion_control()?,
            bursts: Bursts::read(sysctls),
        })
    }

    /// Returns the settings for a daemon whose congestion control is `name`. While it only
    /// observes, bursts stay as they were.
    pub(super) fn taken_over(&self, name: &str, observing: bool) -> Self {
        Self {
            default_cc: name.to_owned(),
            bursts: if observing {
                self.bursts
            } else {
                PACED_BURSTS.where_present(self.bursts)
            },
        }
    }

    /// Applies the bursts of pacing or of observing, while the default is `name`: another daemon's
    /// or an operator's choice stays.
    pub(super) fn apply_bursts(
        &self,
        sysctls: &Sysctls,
        name: &str,
        observing: bool,
    ) -> Result<(), BackendError> {
        if Self::read(sysctls)?.default_cc != name {
            return Ok(());
        }
        self.taken_over(name, observing).bursts.apply(sysctls)
    }

    /// Restores these settings in place of those of a daemon whose congestion control is `name`.
    /// Values that another daemon or an operator has set since stay.
    pub(super) fn give_back(&self, sysctls: &Sysctls, name: &str) -> Result<(), BackendError> {
        let present = Self::read(sysctls)?;
        if present.default_cc == name {
            self.apply(sysctls)
        } else if present.default_cc.starts_with(NAME_PREFIX) {
            tracing::info!(
                default = present.default_cc,
                "another daemon has this namespace's settings; they stay"
            );
            Ok(())
        } else {
            Self {
                // An operator has chosen another default: only the bursts go back.
                default_cc: present.default_cc,
                ..self.clone()
            }
            .apply(sysctls)
        }
    }

    /// Applies the settings.
    pub(super) fn apply(&self, sysctls: &Sysctls) -> Result<(), BackendError> {
        let bursts = self.bursts.apply(sysctls);
        // The congestion control is set even if a burst setting was refused: it matters more.
        sysctls
            .set_default_congestion_control(&self.default_cc)
            .and(bursts)
    }

    /// Returns the settings to restore in a pod's namespace whose present ones are `present`, where
    /// these are the node's own and `name` the daemon's congestion control. `None` for a namespace
    /// that stays as it is: its pod has chosen another default than the node's, or another daemon
    /// runs there, whose congestion control is `registered`.
    pub(super) fn before_in_pod(
        &self,
        present: &Settings,
        name: &str,
        registered: &[String],
    ) -> Option<Settings> {
        let default = &present.default_cc;
        if *default == self.default_cc {
            Some(present.clone())
        } else if default == name {
            // New namespaces inherit the default of the machine's first one, and no bursts.
            Some(Self {
                default_cc: self.default_cc.clone(),
                bursts: present.bursts,
            })
        } else if default.starts_with(NAME_PREFIX) && !registered.contains(default) {
            // A killed daemon's. The pod's bursts before it are forgotten; the node's are likely.
            Some(Self {
                default_cc: self.default_cc.clone(),
                bursts: self.bursts.where_present(present.bursts),
            })
        } else {
            None
        }
    }
}

/// Settings of the namespace as a new daemon finds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InitialSettings {
    /// Present default congestion control: one of ours if a daemon died here.
    pub(super) current_cc: String,
    /// Settings to restore at the end.
    pub(super) original: Settings,
    /// The program of a daemon that died here has lifted its maxima.
    pub(super) lifted: bool,
}

/// Reads the settings. After a crash they are the dead daemon's. Its original ones are in its
/// program's read-only data, which lives as long as a socket uses the program.
pub(super) fn find_settings(
    sysctls: &Sysctls,
    lifted: bool,
) -> Result<InitialSettings, BackendError> {
    let current = Settings::read(sysctls)?;
    let original = if current.default_cc.starts_with(NAME_PREFIX) {
        settings_before(&current.default_cc).unwrap_or_else(|| Settings {
            default_cc: FALLBACK_CC.to_owned(),
            bursts: FALLBACK_BURSTS.where_present(current.bursts),
        })
    } else {
        current.clone()
    };
    Ok(InitialSettings {
        current_cc: current.default_cc,
        original,
        lifted,
    })
}

/// Reads a name inside a copy of the program's read-only data.
fn name_at(rodata: &[u8], offset: usize) -> Option<String> {
    let bytes = rodata.get(offset..offset + NAME_MAX)?;
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// Returns the settings that the daemon with congestion control `name` would have restored.
fn settings_before(name: &str) -> Option<Settings> {
    MapInfoIter::default()
        // libbpf puts a shortened object name before it, so only the ending is certain.
        .filter(|info| info.name.as_encoded_bytes().ends_with(b".rodata"))
        .find_map(|info| {
            let map = MapHandle::from_map_id(info.id).ok()?;
            let rodata = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
            let number = |offset: usize| {
                let (number, _) = u32::read_from_prefix(rodata.get(offset..)?).ok()?;
                (number != SETTING_ABSENT).then_some(number)
            };
            // Another version may have other constants in these places.
            let layout = number(offset_of!(types::rodata, settings_layout))?;
            let ours = layout == SETTINGS_LAYOUT
                && name_at(&rodata, offset_of!(types::rodata, cc_name))? == name;
            let default_cc = name_at(&rodata, offset_of!(types::rodata, default_cc))?;
            (ours && !default_cc.is_empty()).then(|| Settings {
                default_cc,
                bursts: Bursts {
                    rtt_log: number(offset_of!(types::rodata, tso_rtt_log)),
                    min_segments: number(offset_of!(types::rodata, min_tso_segs)),
                },
            })
        })
}

const WALK: &str = "walk the namespace's TCP sockets";

/// Runs a pass of `program` over the sockets of a namespace; without one, of the calling thread's.
///
/// # Errors
/// When the kernel refuses, or the namespace is gone.
pub(super) fn for_all_sockets(
    program: &ProgramMut<'_>,
    namespace: Option<&Namespace>,
) -> Result<(), BackendError> {
    let link = program
        .attach()
        .map_err(|error| BackendError::bpf(WALK, &error))?;
    walk_sockets(&link, namespace)
}

/// Runs a pass of an attached program, as [`for_all_sockets`] does.
///
/// # Errors
/// As there.
pub(super) fn walk_sockets(link: &Link, namespace: Option<&Namespace>) -> Result<(), BackendError> {
    let walk = || {
        // The pass is over the namespace of the thread that makes the iterator.
        let mut pass = Iter::new(link).map_err(|error| BackendError::bpf(WALK, &error))?;
        let mut output = Vec::new();
        // Reading drives the program over the sockets; it prints nothing.
        pass.read_to_end(&mut output)
            .map(drop)
            .map_err(|source| BackendError::System {
                what: WALK.to_owned(),
                source,
            })
    };
    match namespace {
        Some(namespace) => namespace.run(walk),
        None => walk(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_up_to_their_zero_and_never_beyond_the_data() {
        let mut data = vec![1u8; 4];
        data.extend_from_slice(b"rw_h1\0garbage!!!");
        assert_eq!(name_at(&data, 4).as_deref(), Some("rw_h1"));
        assert_eq!(name_at(&data, 6), None);
    }

    #[test]
    fn a_pod_s_namespace_is_taken_unless_its_pod_or_another_daemon_has_chosen() {
        let settings = |default_cc: &str, rtt_log, min_segments| Settings {
            default_cc: default_cc.to_owned(),
            bursts: Bursts {
                rtt_log,
                min_segments,
            },
        };
        let node = settings("cubic", Some(9), Some(2));
        let registered = ["cubic", "rw_n1", "rw_other"].map(str::to_owned);
        let before = |present: &Settings| node.before_in_pod(present, "rw_n1", &registered);
        let plain = settings("cubic", Some(8), Some(3));
        assert_eq!(before(&plain), Some(plain));
        // Inherited from the machine's first namespace.
        let inherited = before(&settings("rw_n1", Some(9), Some(2)));
        assert_eq!(inherited, Some(node.clone()));
        // Left by a daemon that was killed.
        let left = before(&settings("rw_n11", Some(0), Some(1)));
        assert_eq!(left, Some(node.clone()));
        // A kernel without one of the settings.
        let older = before(&settings("rw_n11", None, Some(1)));
        assert_eq!(older, Some(settings("cubic", None, Some(2))));
        assert_eq!(before(&settings("bbr", Some(9), Some(2))), None);
        assert_eq!(before(&settings("rw_other", Some(0), Some(1))), None);
    }
}
