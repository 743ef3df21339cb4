//! Makes the congestion control this network namespace's default and switches its sockets to it,
//! and undoes both.

use std::fs;
use std::io::Read;
use std::mem::offset_of;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{Iter, MapCore, MapFlags, MapHandle, ProgramMut};

use zerocopy::FromBytes;

use super::names::{NAME_MAX, NAME_PREFIX, SETTING_ABSENT};
use super::skel::types;
use crate::backend::BackendError;

/// The namespace's default congestion control.
const DEFAULT_CC: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// By how much a short round trip lets TCP send larger bursts than a millisecond of its rate; 0:
/// not at all. Kernels before 5.18 do not have it.
const TSO_RTT_LOG: &str = "/proc/sys/net/ipv4/tcp_tso_rtt_log";

/// The least burst in segments, where a millisecond of the rate is less.
const MIN_TSO_SEGS: &str = "/proc/sys/net/ipv4/tcp_min_tso_segs";

/// The defaults when nobody remembers better ones.
const FALLBACK_CC: &str = "cubic";
const FALLBACK_BURSTS: Bursts = Bursts {
    rtt_log: Some(9),
    min_segments: Some(2),
};

/// What a daemon needs: with bursts of 64 kB, as TCP sends them over short paths at any rate, pacing
/// would fill the shallow buffers that it is to spare.
const PACED_BURSTS: Bursts = Bursts {
    rtt_log: Some(0),
    min_segments: Some(1),
};

/// How large bursts are, as far as the kernel has settings for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bursts {
    /// Over short paths.
    pub(super) rtt_log: Option<u32>,
    /// At least.
    pub(super) min_segments: Option<u32>,
}

fn read_number(path: &str) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn write_number(path: &str, value: Option<u32>) -> Result<(), BackendError> {
    value.map_or(Ok(()), |value| write(path, &value.to_string()))
}

impl Bursts {
    fn read() -> Self {
        Self {
            rtt_log: read_number(TSO_RTT_LOG),
            min_segments: read_number(MIN_TSO_SEGS),
        }
    }

    fn apply(self) -> Result<(), BackendError> {
        let floor = write_number(MIN_TSO_SEGS, self.min_segments);
        write_number(TSO_RTT_LOG, self.rtt_log).and(floor)
    }

    /// These, of the settings that `present` has.
    fn where_present(self, present: Self) -> Self {
        Self {
            rtt_log: present.rtt_log.and(self.rtt_log),
            min_segments: present.min_segments.and(self.min_segments),
        }
    }
}

fn write(path: &str, value: &str) -> Result<(), BackendError> {
    fs::write(path, value).map_err(|source| BackendError::System {
        what: format!("write {value} to {path}"),
        source,
    })
}

/// What a daemon changes of the namespace's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// The default congestion control.
    pub(super) default_cc: String,
    /// The size of bursts.
    pub(super) bursts: Bursts,
}

impl Settings {
    /// What is set now.
    fn read() -> Result<Self, BackendError> {
        let default_cc = fs::read_to_string(DEFAULT_CC).map_err(|source| BackendError::System {
            what: format!("read {DEFAULT_CC}"),
            source,
        })?;
        Ok(Self {
            default_cc: default_cc.trim().to_owned(),
            bursts: Bursts::read(),
        })
    }

    /// What a daemon needs whose congestion control is `name`.
    pub(super) fn paced(&self, name: &str) -> Self {
        Self {
            default_cc: name.to_owned(),
            bursts: PACED_BURSTS.where_present(self.bursts),
        }
    }

    /// Sets them in the place of those of a daemon whose congestion control is `name`, as far as they
    /// are still its own: what another daemon or an operator has set since stays.
    pub(super) fn give_back(&self, name: &str) -> Result<(), BackendError> {
        let present = Self::read()?;
        if present.default_cc == name {
            self.apply()
        } else if present.default_cc.starts_with(NAME_PREFIX) {
            tracing::info!(
                default = present.default_cc,
                "another daemon has this namespace's settings; they stay"
            );
            Ok(())
        } else {
            Self {
                default_cc: present.default_cc,
                ..self.clone()
            }
            .apply()
        }
    }

    /// Sets them.
    pub(super) fn apply(&self) -> Result<(), BackendError> {
        let bursts = self.bursts.apply();
        write(DEFAULT_CC, &self.default_cc).and(bursts)
    }
}

/// The namespace's settings as a new daemon finds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InitialSettings {
    /// The default congestion control of now: one of ours if a daemon died here.
    pub(super) current_cc: String,
    /// What to go back to at the end.
    pub(super) original: Settings,
}

/// Reads the settings. After a crash they are the dead daemon's; what that one had found is in its
/// program's read-only data, which lives as long as a socket uses the program.
pub(super) fn find_settings() -> Result<InitialSettings, BackendError> {
    let current = Settings::read()?;
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
    })
}

/// A name inside a copy of the program's read-only data.
fn name_at(rodata: &[u8], offset: usize) -> Option<String> {
    let bytes = rodata.get(offset..offset + NAME_MAX)?;
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// What the daemon whose congestion control is `name` would have gone back to.
fn settings_before(name: &str) -> Option<Settings> {
    MapInfoIter::default()
        .filter(|info| info.name.as_encoded_bytes().ends_with(b".rodata"))
        .find_map(|info| {
            let map = MapHandle::from_map_id(info.id).ok()?;
            let rodata = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
            let ours = name_at(&rodata, offset_of!(types::rodata, cc_name))? == name;
            let default_cc = name_at(&rodata, offset_of!(types::rodata, default_cc))?;
            let number = |offset: usize| {
                let (number, _) = u32::read_from_prefix(rodata.get(offset..)?).ok()?;
                (number != SETTING_ABSENT).then_some(number)
            };
            (ours && !default_cc.is_empty()).then(|| Settings {
                default_cc,
                bursts: Bursts {
                    rtt_log: number(offset_of!(types::rodata, tso_rtt_log)),
                    min_segments: number(offset_of!(types::rodata, min_tso_segs)),
                },
            })
        })
}

/// Runs one of the passes over the sockets of the calling thread's network namespace.
pub(super) fn for_all_sockets(program: &ProgramMut<'_>) -> Result<(), BackendError> {
    let failed = |error| BackendError::bpf("walk the namespace's TCP sockets", &error);
    let link = program.attach().map_err(failed)?;
    let mut pass = Iter::new(&link).map_err(failed)?;
    let mut output = Vec::new();
    pass.read_to_end(&mut output)
        .map_err(|source| BackendError::System {
            what: "walk the namespace's TCP sockets".to_owned(),
            source,
        })?;
    Ok(())
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
}
