//! Numbers of the paper's tables 4 and 5 (appendix A), by column: WKa, WKb and WKc, of the balanced
//! configuration, of core, of incast. `None` is *unstable*.

use super::label;
use super::scene::{Configuration, Workload};

/// A column of the tables.
pub type Column = (Configuration, Workload);

/// All columns, in the order of the tables.
#[must_use]
pub fn columns() -> Vec<Column> {
    let of = |configuration| Workload::ALL.map(|workload| (configuration, workload));
    Configuration::ALL.into_iter().flat_map(of).collect()
}

/// Name of a column in figures.
#[must_use]
pub fn column_name((configuration, workload): Column) -> String {
    format!("{} {}", workload.name(), configuration.name())
}

/// A protocol's row of a table.
type Cells = [Option<f64>; 9];
/// A table.
type Table = [(&'static str, Cells); 6];

const UNSTABLE: Option<f64> = None;

const fn cells(values: [f64; 9]) -> Cells {
    let mut cells = [None; 9];
    let mut i = 0;
    while i < values.len() {
        cells[i] = Some(values[i]);
        i += 1;
    }
    cells
}

/// Table 4: 99 % of the slowdown of all messages at a load of 50 %, over the least of all
/// protocols.
const SLOWDOWN: Table = [
    (
        label::DCTCP,
        [
            Some(7.69),
            Some(3.19),
            Some(1.91),
            Some(5.02),
            Some(3.18),
            Some(2.58),
            UNSTABLE,
            Some(18.88),
            Some(5.54),
        ],
    ),
    (
        label::SWIFT,
        cells([6.68, 2.98, 2.92, 4.92, 3.16, 3.53, 53.5, 10.23, 3.57]),
    ),
    (
        label::EXPRESSPASS,
        [
            UNSTABLE,
            Some(14.94),
            Some(8.09),
            UNSTABLE,
            Some(15.9),
            Some(11.37),
            UNSTABLE,
            Some(12.61),
            Some(8.2),
        ],
    ),
    (
        label::HOMA,
        cells([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.42, 1.27]),
    ),
    (
        label::DCPIM,
        cells([1.67, 2.98, 1.84, 1.58, 3.45, 2.68, 1.66, 2.05, 1.98]),
    ),
    (
        label::SIRD,
        cells([1.32, 1.43, 1.1, 1.15, 1.27, 1.18, 1.3, 1.0, 1.0]),
    ),
];

/// Table 5: largest goodput over the loads, in Gbit/s.
const GOODPUT: Table = [
    (
        label::DCTCP,
        cells([74.65, 83.85, 83.95, 43.63, 48.54, 47.42, 67.8, 70.53, 80.74]),
    ),
    (
        label::SWIFT,
        cells([74.52, 78.16, 78.69, 42.16, 47.41, 45.15, 76.8, 85.46, 77.57]),
    ),
    (
        label::EXPRESSPASS,
        cells([38.04, 79.68, 80.42, 21.78, 45.83, 44.42, 40.26, 80.1, 80.1]),
    ),
    (
        label::HOMA,
        cells([
            83.39, 85.23, 83.55, 47.73, 49.73, 50.02, 83.39, 84.87, 82.79,
        ]),
    ),
    (
        label::DCPIM,
        cells([
            58.94, 78.42, 86.03, 35.91, 51.68, 50.59, 59.61, 79.02, 84.26,
        ]),
    ),
    (
        label::SIRD,
        cells([79.74, 82.27, 84.71, 48.27, 50.47, 48.75, 79.7, 81.98, 84.13]),
    ),
];

/// Table 5: largest queue of a rack's switch over the loads, in MB.
const PEAK: Table = [
    (
        label::DCTCP,
        [
            UNSTABLE,
            Some(7.0),
            Some(2.7),
            Some(8.3),
            Some(2.67),
            Some(1.46),
            UNSTABLE,
            UNSTABLE,
            Some(21.06),
        ],
    ),
    (
        label::SWIFT,
        [
            UNSTABLE,
            UNSTABLE,
            Some(2.33),
            UNSTABLE,
            UNSTABLE,
            Some(1.87),
            UNSTABLE,
            UNSTABLE,
            Some(10.17),
        ],
    ),
    (
        label::EXPRESSPASS,
        [
            Some(0.06),
            Some(0.08),
            Some(0.28),
            UNSTABLE,
            Some(0.04),
            Some(0.18),
            Some(0.08),
            Some(0.08),
            Some(0.08),
        ],
    ),
    (
        label::HOMA,
        cells([8.63, 9.46, 8.37, 15.91, 18.68, 14.68, 12.17, 12.17, 11.75]),
    ),
    (
        label::DCPIM,
        cells([3.27, 0.63, 0.86, 2.34, 2.2, 2.41, 2.91, 0.58, 0.6]),
    ),
    (
        label::SIRD,
        cells([0.76, 0.81, 0.75, 2.26, 1.67, 1.39, 0.79, 0.81, 0.83]),
    ),
];

/// A measure of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Table 4.
    Slowdown,
    /// Table 5, first part.
    Goodput,
    /// Table 5, second part.
    Peak,
}

impl Measure {
    /// Returns the better of two values.
    #[must_use]
    pub fn better(self) -> fn(f64, f64) -> f64 {
        match self {
            Self::Goodput => f64::max,
            Self::Slowdown | Self::Peak => f64::min,
        }
    }

    /// Returns the paper's value of a protocol in a column; `None` if it is unstable there.
    #[must_use]
    pub fn paper(self, label: &str, column: Column) -> Option<f64> {
        let table = match self {
            Self::Slowdown => &SLOWDOWN,
            Self::Goodput => &GOODPUT,
            Self::Peak => &PEAK,
        };
        let (_, cells) = table.iter().find(|(of, _)| *of == label)?;
        let place = columns().iter().position(|of| *of == column)?;
        cells.get(place).copied().flatten()
    }
}

/// Table 3: switches' bandwidth in Tbit/s and buffers in MB.
pub const SWITCHES: [(&str, f64, f64); 26] = [
    ("Broadcom Trident+", 0.64, 9.0),
    ("Broadcom Trident2", 1.28, 12.0),
    ("Broadcom Trident2+", 1.28, 16.0),
    ("Broadcom Trident3-X4", 1.7, 32.0),
    ("Broadcom Trident3-X5", 2.0, 32.0),
    ("Broadcom Tomahawk", 3.2, 16.0),
    ("Broadcom Trident3-X7", 3.2, 32.0),
    ("Broadcom Tomahawk 2", 6.4, 42.0),
    ("Broadcom Tomahawk 3 BCM56983", 6.4, 32.0),
    ("Broadcom Tomahawk 3 BCM56984", 6.4, 64.0),
    ("Broadcom Tomahawk 3 BCM56982", 8.0, 64.0),
    ("Broadcom Tomahawk 3", 12.8, 64.0),
    ("Broadcom Trident4 BCM56880", 12.8, 132.0),
    ("Broadcom Tomahawk 4", 25.6, 113.0),
    ("nVidia Spectrum SN2100", 1.6, 16.0),
    ("nVidia Spectrum SN2410", 2.0, 16.0),
    ("nVidia Spectrum SN2700", 3.2, 16.0),
    ("nVidia Spectrum SN3420", 2.4, 42.0),
    ("nVidia Spectrum SN3700", 6.4, 42.0),
    ("nVidia Spectrum SN3700C", 3.2, 42.0),
    ("nVidia Spectrum SN4600C", 6.4, 64.0),
    ("nVidia Spectrum SN4410", 8.0, 64.0),
    ("nVidia Spectrum SN4600", 12.8, 64.0),
    ("nVidia Spectrum SN4700", 12.8, 64.0),
    ("nVidia Spectrum SN5400", 25.6, 160.0),
    ("nVidia Spectrum SN5600", 51.2, 160.0),
];

/// Buffer of the newest switches per bandwidth (§2.2), in MB per Tbit/s.
pub const BUFFER_MB_PER_TBPS: f64 = 160.0 / 51.2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 4 has each protocol's mean and range beside the cells: means over what is stable of
    /// the values over the best of each column.
    #[test]
    fn the_tables_have_the_papers_means() {
        let mean = |measure: Measure, label: &str, over: fn(f64, f64) -> f64, best: f64| {
            let values: Vec<f64> = columns()
                .into_iter()
                .filter_map(|column| {
                    let value = measure.paper(label, column)?;
                    let all = PEAK.iter().filter_map(|(of, _)| measure.paper(of, column));
                    let best = all.fold(best, over);
                    Some(value / best)
                })
                .collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        let least = |measure, label| mean(measure, label, f64::min, f64::INFINITY);
        let most = |label| mean(Measure::Goodput, label, f64::max, 0.0);
        for (label, slowdown, goodput, peak) in [
            (label::DCTCP, 6.0, 0.92, 71.63),
            (label::SWIFT, 10.17, 0.92, 48.1),
            (label::EXPRESSPASS, 11.85, 0.77, 1.0),
            (label::HOMA, 1.08, 0.99, 138.25),
            (label::DCPIM, 2.21, 0.89, 19.68),
            (label::SIRD, 1.19, 0.97, 11.3),
        ] {
            assert!(
                (least(Measure::Slowdown, label) - slowdown).abs() < 0.02,
                "{label}"
            );
            assert!((most(label) - goodput).abs() < 0.01, "{label}");
            // Queues of 0.04 to 0.3 MB have one or two digits.
            let ratio = least(Measure::Peak, label) / peak;
            assert!((ratio - 1.0).abs() < 0.07, "{label}: {ratio}");
        }
    }
}
