//! Makes the congestion control this network namespace's default and switches its sockets to it,
//! and undoes both.

use std::fs;
use std::io::Read;
use std::mem::offset_of;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{Iter, MapCore, MapFlags, MapHandle, ProgramMut};

use super::load::{NAME_MAX, NAME_PREFIX};
use super::skel::types;
use crate::backend::BackendError;

const DEFAULT_CC: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The default when nobody remembers a better one.
const FALLBACK_CC: &str = "cubic";

fn read_default() -> Result<String, BackendError> {
    fs::read_to_string(DEFAULT_CC).map(|text| text.trim().to_owned()).map_err(|source| {
        BackendError::System { what: format!("read {DEFAULT_CC}"), source }
    })
}

/// Sets the namespace's default congestion control.
pub(super) fn set_default(name: &str) -> Result<(), BackendError> {
    fs::write(DEFAULT_CC, name).map_err(|source| BackendError::System {
        what: format!("write {name} to {DEFAULT_CC}"),
        source,
    })
}

/// The namespace's default congestion control as a new daemon finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// What is set now: one of ours if a daemon died here.
    pub(super) current: String,
    /// What to go back to at the end.
    pub(super) original: String,
}

/// Reads the default. After a crash it is the dead daemon's; what that one had found is in its
/// program's read-only data, which lives as long as a socket uses the program.
pub(super) fn find_default() -> Result<Found, BackendError> {
    let current = read_default()?;
    let original = if current.starts_with(NAME_PREFIX) {
        remembered(&current).unwrap_or_else(|| FALLBACK_CC.to_owned())
    } else {
        current.clone()
    };
    Ok(Found { current, original })
}

/// A name inside a copy of the program's read-only data.
fn name_at(rodata: &[u8], offset: usize) -> Option<String> {
    let bytes = rodata.get(offset..offset + NAME_MAX)?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// What the daemon whose congestion control is `name` would have gone back to.
fn remembered(name: &str) -> Option<String> {
    MapInfoIter::default()
        .filter(|info| {
            info.value_size as usize == size_of::<types::rodata>()
                && info.name.as_encoded_bytes().ends_with(b".rodata")
        })
        .find_map(|info| {
            let map = MapHandle::from_map_id(info.id).ok()?;
            let rodata = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
            let ours = name_at(&rodata, offset_of!(types::rodata, cc_name))? == name;
            let original = name_at(&rodata, offset_of!(types::rodata, default_cc))?;
            (ours && !original.is_empty()).then_some(original)
        })
}

/// Runs one of the two passes over the sockets of the calling thread's network namespace.
pub(super) fn for_all_sockets(program: &ProgramMut<'_>) -> Result<(), BackendError> {
    let failed = |error| BackendError::bpf("walk the namespace's TCP sockets", &error);
    let link = program.attach().map_err(failed)?;
    let mut pass = Iter::new(&link).map_err(failed)?;
    let mut output = Vec::new();
    pass.read_to_end(&mut output).map_err(|source| BackendError::System {
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
