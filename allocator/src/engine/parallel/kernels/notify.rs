//! Notification: collects the flows whose rate passed the threshold.

use super::super::lanes::{Lanes, lanes_of};

/// Rows that are skipped at once if none of their flows is notified.
pub(super) const QUIET_ROWS: usize = 64;

/// A flow that is notified of a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(in crate::engine::parallel) struct Notification {
    /// Number of the flow.
    pub(in crate::engine::parallel) flow: u32,
    /// Normalised rate in Gbit/s.
    pub(in crate::engine::parallel) rate: f32,
}

/// Lists by row, of which notifications are collected.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Lanes whose rate passed the threshold. The list may be longer than the others.
    pub(super) notify: &'a [u16],
    /// Lanes that hold a flow.
    pub(super) used: &'a [u16],
    pub(super) flow: &'a [[u32; 16]],
    pub(super) notified: &'a [Lanes],
}

impl<'a> Rows<'a> {
    /// Parts of [`QUIET_ROWS`] rows that have a flow to notify. In most iterations almost no part
    /// has.
    pub(super) fn busy(self) -> impl Iterator<Item = Self> {
        // Before the first rack-pair flow there are no lists, but a row that holds no flow.
        let rows = self.used.len().min(self.flow.len());
        let firsts = (0..rows).step_by(QUIET_ROWS);
        let chunks = firsts.map(move |first| {
            let rows = first..rows.min(first + QUIET_ROWS);
            Self {
                notify: &self.notify[rows.clone()],
                used: &self.used[rows.clone()],
                flow: &self.flow[rows.clone()],
                notified: &self.notified[rows],
            }
        });
        chunks.filter(|rows| rows.notify.iter().fold(0, |any, lanes| any | lanes) != 0)
    }
}

/// Collects notifications in plain Rust.
pub(super) fn collect(rows: Rows<'_>, out: &mut Vec<Notification>) {
    for rows in rows.busy() {
        for (row, (&notify, &used)) in rows.notify.iter().zip(rows.used).enumerate() {
            out.extend(lanes_of(notify & used).map(|lane| Notification {
                flow: rows.flow[row][lane],
                rate: rows.notified[row].0[lane],
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::super::{Kernels, Simd};
    use super::*;

    /// Collects every flow to notify that is there, in order of rows and lanes, with its rate: on
    /// every instruction set, for any number of updates and any length of the list of masks.
    #[test]
    fn notifications_are_collected_once_and_in_order() {
        let mut random = Pcg64Mcg::seed_from_u64(9);
        for (rows, share) in [
            (0, 1),
            (1, 1),
            (63, 3),
            (64, 1),
            (65, 40),
            (300, 200),
            (900, 2),
        ] {
            let mask = |random: &mut Pcg64Mcg| {
                (0..16).fold(0u16, |mask, lane| {
                    mask | u16::from(random.random_range(0..share) == 0) << lane
                })
            };
            let notify: Vec<u16> = (0..rows + 7).map(|_| mask(&mut random)).collect();
            let used: Vec<u16> = (0..rows).map(|_| random.random()).collect();
            let flow: Vec<[u32; 16]> = (0..rows).map(|_| random.random()).collect();
            let notified: Vec<Lanes> = (0..rows).map(|_| Lanes(random.random())).collect();
            let mut expected = Vec::new();
            for (row, flows) in flow.iter().enumerate() {
                for (lane, &flow) in flows.iter().enumerate() {
                    let rate = notified[row].0[lane];
                    if notify[row] & used[row] & 1 << lane != 0 {
                        expected.push(Notification { flow, rate });
                    }
                }
            }
            for simd in Simd::available() {
                let before = Notification { flow: 1, rate: 2.0 };
                let mut out = vec![before];
                let rows = Rows {
                    notify: &notify,
                    used: &used,
                    flow: &flow,
                    notified: &notified,
                };
                Kernels::new(simd).collect_rows(rows, &mut out);
                assert_eq!(out[0], before);
                assert_eq!(out[1..], expected, "{simd:?}, {} rows", used.len());
            }
        }
    }
}
