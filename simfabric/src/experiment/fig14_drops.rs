//! Flowtune fig. 14: data that the network drops. The paper has drops "from each queue" (§5.3.2),
//! those of servers' NICs included.

use ratewright_plot::digits::short;

use super::comparison::{Comparison, VARIATIONS as PARAMETERS, loads, scenario};
use super::contenders::{PAPER as SCHEMES, PFABRIC, SFQ_CODEL, colour};
use super::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};

/// Share of the bytes that servers send up to which drops count as negligible, in per cent.
const NEGLIGIBLE: f64 = 0.1;
/// Share that sfqCoDel drops at load 0.8 in the paper's words, in per cent (§5.3.2 J).
const DROPS: f64 = 8.0;
/// Accepted relative distance from that share: "close to 8 %".
const TOLERANCE: f64 = 0.3;

/// Measured cause of the smaller share of sfqCoDel.
const NIC: &str = "hosts hold data back until their link is free, so that no NIC drops; in ns-2 a host's queue is sfqCoDel's, too, and drops as a switch's does";

/// See [`PARAMETERS`].
pub(super) const VARIATIONS: &[&[&str]] = PARAMETERS;

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let comparison = Comparison::run(settings)?;
    let mut figure = settings.figure("flowtune-fig14", "Dropped data (flowtune fig. 14)");
    figure.scenario = scenario(settings)?;
    figure.notes = comparison.remarks();
    for &load in loads(settings.quick) {
        for scheme in SCHEMES {
            // The text has a number for sfqCoDel at load 0.8 alone: "close to 8 %". Loads are
            // literals, so 0.79 only keeps the comparison clear of rounding.
            let claim = match scheme {
                SFQ_CODEL if load >= 0.79 => Claim::number(DROPS, TOLERANCE),
                SFQ_CODEL | PFABRIC => Claim::words("drops much"),
                _ => Claim::words("negligible").at_most(NEGLIGIBLE),
            };
            let share = comparison.estimate(scheme, load, |s| Some(100.0 * s.drops_share));
            let name = scheme;
            let label = format!("{name}, load {load}: dropped of what servers send");
            let of_nics = comparison.estimate(scheme, load, |s| Some(100.0 * s.nic_drops_share));
            let row = Row::judge(label, claim, share, "%");
            let row = match scheme {
                SFQ_CODEL if load >= 0.79 => row.disagrees_because(NIC),
                _ => row,
            };
            figure.rows.push(row.note(format!(
                "{} % in servers' own NICs",
                short(of_nics.map_or(0.0, |share| share.mean))
            )));
        }
    }
    figure.data = serde_json::json!(comparison);
    // The picture has the paper's unit, Gbit/s of the whole network; rows have shares.
    let lines = SCHEMES.iter().map(|&scheme| {
        let points = loads(settings.quick).iter().filter_map(|&load| {
            let drops = comparison.estimate(scheme, load, |sample| Some(sample.drops_gbps));
            Some((load, drops?))
        });
        Curve::estimates(scheme, points).colour(colour(scheme))
    });
    let picture = Picture::new(
        "Dropped data",
        "Flowtune fig. 14; the whole network of 144 servers; 95 % intervals",
        vec![Panel::curves(
            "Drops",
            Axis::linear("Load").over(0.0, 1.0),
            Axis::linear("Dropped (Gbit/s)").starting_at(0.0),
            lines.collect(),
        )],
    )
    .panel_size(640, 400);
    Ok(Reproduction { figure, picture })
}
