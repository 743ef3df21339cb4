//! Names and constants that loading and taking over share with the program.

/// Length of a congestion control's name in the kernel, with its final zero (`TCP_CA_NAME_MAX`).
pub(super) const NAME_MAX: usize = 16;

/// Prefix of the name of every congestion control that a daemon registers.
pub(in crate::backend) const NAME_PREFIX: &str = "rw_";

/// Value in the program's read-only data for a setting that the kernel lacks.
pub(super) const SETTING_ABSENT: u32 = u32::MAX;

/// Name of the layout of the program's read-only data, which a later daemon reads: it changes with
/// the constants.
pub(super) const SETTINGS_LAYOUT: u32 = 0x5257_0001;

/// Pads a name with zeros to the array that the kernel holds; cuts it off where it is too long.
pub(super) fn kernel_name(name: &str) -> [i8; NAME_MAX] {
    let mut out = [0; NAME_MAX];
    // One byte stays for the final zero, by which the kernel finds the end.
    for (to, from) in out.iter_mut().zip(name.bytes().take(NAME_MAX - 1)) {
        *to = from as i8;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_to_the_kernels_length() {
        let text = |name: &str| kernel_name(name).map(|byte| byte as u8);
        assert_eq!(&text("rw_h1"), b"rw_h1\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&text("a_name_that_is_too_long"), b"a_name_that_is_\0");
    }
}
