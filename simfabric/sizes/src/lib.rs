//! Flow sizes: published distributions, a user's CSV, a constant; with the exact mean of the
//! sampler.
//!
//! A size is drawn by inverse transform: linear between control points, rounded to whole bytes, at
//! least one byte. The [mean](SizeDistribution::mean_bytes) is that of this very sampler, because
//! the offered load is computed from it, and another reading of the same points moves the load by
//! per cents.

mod published;

use std::path::{Path, PathBuf};

use rand::{Rng, RngExt as _};

use published::Points;

/// Reason that a distribution cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SizeError {
    /// The name is not that of a published distribution.
    #[error("{name:?} is no known size distribution; known are {}", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A line is not `bytes,share`.
    #[error("{}:{line}: {text:?} is not `bytes,share`, such as `1460,0.5`", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// The points are no distribution.
    #[error("{origin}{}: {reason}", at.map(|n| format!(":{n}")).unwrap_or_default())]
    Points {
        /// The file or name.
        origin: String,
        /// The line, where one is at fault.
        at: Option<usize>,
        /// Reason.
        reason: String,
    },
}

/// Names that [`SizeDistribution::published`] accepts.
pub const NAMES: [&str; 8] = [
    "web-search",
    "web-search-wkc",
    "hadoop",
    "cache",
    "web",
    "google-rpc",
    "google-search",
    "data-mining",
];

/// A distribution of flow sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct SizeDistribution {
    name: String,
    points: Vec<(u64, f64)>,
    mean_bytes: f64,
}

impl SizeDistribution {
    /// Makes a published distribution by its name; see [`NAMES`].
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn published(name: &str) -> Result<Self, SizeError> {
        let points: Points = match name {
            "web-search" => published::WEB_SEARCH,
            "web-search-wkc" => published::WEB_SEARCH_WKC,
            "hadoop" => published::HADOOP,
            "cache" => published::CACHE,
            "web" => published::WEB,
            "google-rpc" => published::GOOGLE_RPC,
            "google-search" => published::GOOGLE_SEARCH,
            "data-mining" => published::DATA_MINING,
            _ => {
                return Err(SizeError::Unknown {
                    name: name.to_owned(),
                });
            }
        };
        Self::from_points(name, points.to_vec())
    }

    /// Makes the distribution in which every flow has `bytes`.
    #[must_use]
    pub fn constant(bytes: u64) -> Self {
        Self {
            name: format!("{bytes} B"),
            points: vec![(bytes.max(1), 1.0)],
            mean_bytes: bytes.max(1) as f64,
        }
    }

    /// Makes a distribution from control points (bytes, share of flows of at most that size), both
    /// ascending, the last share 1. A first share above 0 is the share of flows of exactly that
    /// size.
    ///
    /// # Errors
    /// If they are no distribution.
    pub fn from_points(name: &str, points: Vec<(u64, f64)>) -> Result<Self, SizeError> {
        Self::checked(name, points, |_| None)
    }

    /// Reads a CSV file of lines `bytes,share`; a header, empty lines and lines that begin with `#`
    /// are skipped.
    ///
    /// # Errors
    /// If the file cannot be read, has another line, or describes no distribution.
    pub fn from_csv(path: &Path) -> Result<Self, SizeError> {
        let text = std::fs::read_to_string(path).map_err(|source| SizeError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut points = Vec::new();
        let mut lines = Vec::new();
        let mut header_allowed = true;
        // With the mark, a first line of numbers would not be read.
        let unmarked = text.strip_prefix('\u{feff}').unwrap_or(&text);
        for (number, line) in unmarked.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = line.split_once(',').and_then(|(bytes, share)| {
                let share: f64 = share.trim().parse().ok()?;
                Some((bytes.trim().parse::<u64>().ok()?, share))
            });
            match parsed {
                Some(point) => {
                    points.push(point);
                    lines.push(number + 1);
                }
                None if header_allowed && line.starts_with(|c: char| c.is_ascii_alphabetic()) => {}
                None => {
                    return Err(SizeError::Syntax {
                        path: path.to_owned(),
                        line: number + 1,
                        text: line.to_owned(),
                    });
                }
            }
            header_allowed = false;
        }
        let name = path.display().to_string();
        Self::checked(&name, points, |i| lines.get(i).copied())
    }

    fn checked(
        name: &str,
        points: Vec<(u64, f64)>,
        line_of: impl Fn(usize) -> Option<usize>,
    ) -> Result<Self, SizeError> {
        let wrong = |index: Option<usize>, reason: String| SizeError::Points {
            origin: name.to_owned(),
            at: index.and_then(&line_of),
            reason,
        };
        let Some(&(last_bytes, last_share)) = points.last() else {
            return Err(wrong(None, "the distribution is empty".to_owned()));
        };
        for (i, &(bytes, share)) in points.iter().enumerate() {
            if !(0.0..=1.0).contains(&share) {
                return Err(wrong(
                    Some(i),
                    format!("the share {share} is not within 0 to 1"),
                ));
            }
            let (before_bytes, before) = if i == 0 { (0, 0.0) } else { points[i - 1] };
            if bytes < before_bytes || share < before {
                let what = if bytes < before_bytes {
                    "size"
                } else {
                    "share"
                };
                return Err(wrong(
                    Some(i),
                    format!("the {what} is less than on the point before"),
                ));
            }
        }
        if (last_share - 1.0).abs() > 1e-9 {
            let reason = format!("the last share is {last_share}; it must be 1");
            return Err(wrong(Some(points.len() - 1), reason));
        }
        if last_bytes == 0 {
            return Err(wrong(
                Some(points.len() - 1),
                "every flow would be empty".to_owned(),
            ));
        }
        let mean_bytes = mean(&points);
        Ok(Self {
            name: name.to_owned(),
            points,
            mean_bytes,
        })
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mean of the sizes that [`sample`](Self::sample) draws, in closed form.
    #[must_use]
    pub const fn mean_bytes(&self) -> f64 {
        self.mean_bytes
    }

    /// Returns the control points.
    #[must_use]
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Draws the size of the next flow.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        self.quantile(rng.random())
    }

    /// Returns the size at the share `share` of the flows, rounded as [`sample`](Self::sample)
    /// does.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let after = self.points.partition_point(|p| p.1 < share);
        let (high, high_share) = self.points[after.min(self.points.len() - 1)];
        if after == 0 {
            return high.max(1);
        }
        let (low, low_share) = self.points[after - 1];
        // The last share may be 1 − 10⁻⁹; a share beyond it divides by 0, which the clamp makes 1.
        let along = ((share - low_share) / (high_share - low_share)).clamp(0.0, 1.0);
        let size = (high - low) as f64 * along;
        (low + size.round() as u64).max(1)
    }

    /// Returns the share of flows of at most `bytes`, before rounding.
    #[must_use]
    pub fn cdf(&self, bytes: f64) -> f64 {
        let after = self.points.partition_point(|p| p.0 as f64 <= bytes);
        let Some(&(low, low_share)) = after.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return 0.0;
        };
        let Some(&(high, high_share)) = self.points.get(after) else {
            return 1.0;
        };
        low_share + (high_share - low_share) * (bytes - low as f64) / (high - low) as f64
    }
}

/// Returns the mean of the rounded sizes. Between integers a and b, a linear size rounded to whole
/// bytes has the mean (a + b) / 2; a size that rounds to 0 counts as 1.
fn mean(points: &[(u64, f64)]) -> f64 {
    let first = points[0].1 * points[0].0.max(1) as f64;
    let between = points.windows(2).map(|pair| {
        let ((low, low_share), (high, high_share)) = (pair[0], pair[1]);
        let lifted = match (low, high) {
            (0, 0) => 1.0,
            // Sizes below half a byte, a share of 0.5 / high, are lifted from 0 to 1.
            (0, high) => 0.5 / high as f64,
            _ => 0.0,
        };
        (high_share - low_share) * ((low + high) as f64 / 2.0 + lifted)
    });
    first + between.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand_pcg::Pcg64Mcg;

    const SAMPLES: usize = 200_000;

    /// The Kolmogorov–Smirnov distance of a sample from the distribution of the rounded sizes: a
    /// size is `k` when the size before rounding lies within half a byte of it.
    fn distance(sizes: &SizeDistribution, sample: &mut [u64]) -> f64 {
        sample.sort_unstable();
        let n = sample.len() as f64;
        let mut largest: f64 = 0.0;
        let mut begin = 0;
        while begin < sample.len() {
            let size = sample[begin];
            let end = sample.partition_point(|s| *s <= size);
            let below = if size == 1 {
                0.0
            } else {
                sizes.cdf(size as f64 - 0.5)
            };
            largest = largest
                .max((end as f64 / n - sizes.cdf(size as f64 + 0.5)).abs())
                .max((begin as f64 / n - below).abs());
            begin = end;
        }
        largest
    }

    #[test]
    fn samples_fit_every_published_curve_and_its_mean() {
        for (seed, name) in NAMES.iter().enumerate() {
            let sizes = SizeDistribution::published(name).unwrap();
            let mut rng = Pcg64Mcg::seed_from_u64(seed as u64);
            let mut sample: Vec<u64> = (0..SAMPLES).map(|_| sizes.sample(&mut rng)).collect();
            let n = SAMPLES as f64;
            let mean = sample.iter().map(|s| *s as f64).sum::<f64>() / n;
            let square = sample
                .iter()
                .map(|s| (*s as f64 - mean).powi(2))
                .sum::<f64>()
                / n;
            let error = (square / n).sqrt();
            assert!(
                (mean - sizes.mean_bytes()).abs() < 4.0 * error,
                "{name}: {mean}"
            );
            // 1.95 / √n is the critical value at a significance of 0.1 %.
            let d = distance(&sizes, &mut sample);
            assert!(d < 1.95 / n.sqrt(), "{name}: {d}");
        }
    }

    #[test]
    fn a_byte_order_mark_before_the_first_line_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sizes.csv");
        for head in ["", "bytes,share\n"] {
            std::fs::write(&path, format!("\u{feff}{head}100,0.5\n300,1\n")).unwrap();
            let sizes = SizeDistribution::from_csv(&path).unwrap();
            assert!((sizes.cdf(100.0) - 0.5).abs() < 1e-9);
        }
    }

    #[test]
    fn another_curve_does_not_fit() {
        let web = SizeDistribution::published("web").unwrap();
        let hadoop = SizeDistribution::published("hadoop").unwrap();
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let mut sample: Vec<u64> = (0..SAMPLES).map(|_| web.sample(&mut rng)).collect();
        assert!(distance(&hadoop, &mut sample) > 0.1);
    }

    /// Means that the papers state; where they sample steps instead of lines, theirs is up to 5 %
    /// larger.
    #[test]
    fn means_are_those_of_the_papers() {
        for (name, bytes, tolerance) in [
            ("web-search", 1_711_250.0, 1e-9),
            ("web-search-wkc", 2_515_857.0, 0.02),
            ("hadoop", 121_849.0, 0.01),
            ("cache", 692_976.0, 0.01),
            ("web", 62_874.0, 0.01),
            ("google-rpc", 2_927.0, 0.01),
            ("google-search", 440.8, 0.05),
            ("data-mining", 7_470_240.0, 1e-5),
        ] {
            let mean = SizeDistribution::published(name).unwrap().mean_bytes();
            assert!((mean / bytes - 1.0).abs() < tolerance, "{name}: {mean}");
        }
    }

    #[test]
    fn the_mean_includes_what_rounding_does() {
        // Uniform on 0..=1 byte: always one byte, not half of one.
        let sizes = SizeDistribution::from_points("tiny", vec![(0, 0.0), (1, 1.0)]).unwrap();
        assert!((sizes.mean_bytes() - 1.0).abs() < 1e-12);
        assert_eq!((sizes.quantile(0.0), sizes.quantile(1.0)), (1, 1));
        // Uniform on 0..=2: 1 below 1.5 bytes, else 2.
        let sizes = SizeDistribution::from_points("small", vec![(0, 0.0), (2, 1.0)]).unwrap();
        assert!((sizes.mean_bytes() - 1.25).abs() < 1e-12);
    }

    #[test]
    fn a_first_share_is_a_point_mass() {
        let sizes = SizeDistribution::from_points("mass", vec![(10, 0.5), (30, 1.0)]).unwrap();
        assert_eq!(
            [0.0, 0.3, 0.5, 0.75, 1.0].map(|q| sizes.quantile(q)),
            [10, 10, 10, 20, 30]
        );
        assert!((sizes.mean_bytes() - 15.0).abs() < 1e-12);
    }

    #[test]
    fn a_csv_is_read_and_its_mistakes_are_located() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sizes.csv");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            SizeDistribution::from_csv(&path)
        };
        let sizes = read("# mine\nsize_bytes,cdf\n100,0\n\n300,1\n").unwrap();
        assert_eq!(sizes.points(), [(100, 0.0), (300, 1.0)]);
        for (text, place) in [
            ("", "sizes.csv: the distribution is empty"),
            ("100,0\n200\n", "sizes.csv:2: \"200\" is not `bytes,share`"),
            ("100,0\n50,1\n", "sizes.csv:2: the size is less"),
            ("100,0.5\n150,0.2\n", "sizes.csv:2: the share is less"),
            ("# x\n100,0.5\n", "sizes.csv:2: the last share is 0.5"),
            (
                "100,1.5\n",
                "sizes.csv:1: the share 1.5 is not within 0 to 1",
            ),
            (
                "100,NaN\n",
                "sizes.csv:1: the share NaN is not within 0 to 1",
            ),
            ("0,1\n", "sizes.csv:1: every flow would be empty"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(place), "{text:?}: {error}");
        }
        assert!(SizeDistribution::from_csv(&dir.path().join("none.csv")).is_err());
    }
}
