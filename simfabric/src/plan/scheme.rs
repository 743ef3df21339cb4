//! `[transport]`: schemes with their parameters.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::source::{PlanError, Source, TomlTable};
use super::values::{Delay, LinkRate, Rate};
use crate::Span;
use crate::control::Carrier;
use crate::net::AllocatorLinks;
use crate::transport::flowtune::FlowtuneConfig;
use crate::transport::ideal::{IdealConfig, Objective};
use crate::transport::tcp::TcpConfig;
use crate::transport::tcp::congestion::{CubicConfig, CubicGrowth, DctcpConfig, PFabricConfig};

/// The values of `name`.
pub const NAMES: [&str; 9] = [
    "constant",
    "fixed-window",
    "newreno",
    "cubic",
    "dctcp",
    "xcp",
    "pfabric",
    "flowtune",
    "ideal",
];

/// A scheme with its parameters.
#[derive(Clone, Debug)]
pub enum SchemeConfig {
    /// Every flow sends at one rate.
    Constant {
        /// The rate on the link, in bit/s.
        rate_bps: u64,
    },
    /// Every flow keeps a fixed number of packets in flight; losses are not repaired.
    FixedWindow {
        /// The window, in packets.
        packets: u32,
    },
    /// TCP NewReno.
    NewReno(TcpConfig<()>),
    /// TCP CUBIC.
    Cubic(TcpConfig<CubicConfig>),
    /// DCTCP.
    Dctcp(TcpConfig<DctcpConfig>),
    /// XCP; its queues are `xcp`.
    Xcp(TcpConfig<()>),
    /// pFabric; its queues are `pfabric`.
    PFabric(TcpConfig<PFabricConfig>),
    /// Exact fair rates without a control plane.
    Ideal(IdealConfig),
    /// Flowtune, with an allocator at the switches of the highest tier.
    Flowtune {
        /// Pacing and sessions.
        config: Box<FlowtuneConfig>,
        /// The allocator's links.
        links: AllocatorLinks,
    },
}

/// Keys of `constant`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConstantTable {
    rate: Rate,
}

/// Keys of `fixed-window`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FixedWindowTable {
    packets: Spanned<u32>,
}

/// Largest window of a plan, in packets. Without losses a window of every flow is in memory at
/// once.
const MAX_WINDOW_PACKETS: u32 = 1 << 20;
/// Least time-out of a plan: one of 0 would expire for ever at the same moment.
const LEAST_TIME_OUT: Span = Span::from_us(1);

/// A window in packets, or its default; `least` is the smallest that the scheme can send with.
fn window(
    source: &Source<'_>,
    given: Option<&Spanned<u32>>,
    least: u32,
    usual: u32,
) -> Result<u32, PlanError> {
    let Some(given) = given else {
        return Ok(usual);
    };
    let packets = *given.get_ref();
    let message = if packets < least {
        "it must be at least 1 packet".to_owned()
    } else if packets > MAX_WINDOW_PACKETS {
        format!("it must be at most {MAX_WINDOW_PACKETS} packets")
    } else {
        return Ok(packets);
    };
    Err(source.error(Some(given.span()), message))
}

/// A time-out, if one is given.
fn time_out(
    source: &Source<'_>,
    given: Option<&Spanned<Delay>>,
) -> Result<Option<Span>, PlanError> {
    match given {
        Some(given) if given.get_ref().0 < LEAST_TIME_OUT => {
            Err(source.error(Some(given.span()), "a time-out must be at least 1us"))
        }
        given => Ok(given.map(|delay| delay.get_ref().0)),
    }
}

/// Growth of CUBIC's window along its function.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Growth {
    Continuous,
    Counted,
}

/// Keys of the TCP family.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TcpTable {
    initial_window_packets: Option<Spanned<u32>>,
    min_rto: Option<Spanned<Delay>>,
    initial_rto: Option<Spanned<Delay>>,
    fixed_rto: Option<Spanned<Delay>>,
    ecn: Option<bool>,
    nic_limit_packets: Option<Spanned<u32>>,
    stamp_step: Option<Delay>,
    handshake: Option<bool>,
    /// CUBIC's, as the two that follow.
    growth: Option<Spanned<Growth>>,
    reno_friendly: Option<Spanned<bool>>,
    hystart: Option<Spanned<bool>>,
    /// DCTCP's.
    gain: Option<Spanned<f64>>,
}

/// Objective of the ideal scheme's rates.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fairness {
    MaxMin,
    Proportional,
}

/// Keys of `ideal`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdealTable {
    objective: Option<Fairness>,
    share: Option<Spanned<f64>>,
}

impl IdealTable {
    fn scheme(&self, source: &Source<'_>) -> Result<SchemeConfig, PlanError> {
        let mut config = IdealConfig::default();
        if matches!(self.objective, Some(Fairness::Proportional)) {
            config.objective = Objective::Proportional;
        }
        if let Some(share) = &self.share {
            config.share = *share.get_ref();
            if !(config.share > 0.0 && config.share <= 1.0) {
                let message = "the share of links must be above 0 and at most 1";
                return Err(source.error(Some(share.span()), message));
            }
        }
        Ok(SchemeConfig::Ideal(config))
    }
}

/// Transport of the control traffic.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ControlCarrier {
    Datagram,
    Tcp,
}

/// Keys of `flowtune`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowtuneTable {
    control: Option<ControlCarrier>,
    control_first: Option<bool>,
    control_min_rto: Option<Spanned<Delay>>,
    control_max_rto: Option<Spanned<Delay>>,
    handshake: Option<bool>,
    initial_window_packets: Option<Spanned<u32>>,
    interval: Option<Delay>,
    threshold: Option<Spanned<f64>>,
    gamma: Option<Spanned<f64>>,
    allocator_rate: Option<LinkRate>,
    allocator_delay: Option<Delay>,
}

impl FlowtuneTable {
    fn scheme(&self, source: &Source<'_>) -> Result<SchemeConfig, PlanError> {
        let mut config = FlowtuneConfig::default();
        let inside = |given: &Option<Spanned<f64>>, usual: f64, most: f64| match given {
            None => Ok(usual),
            Some(v) if *v.get_ref() > 0.0 && *v.get_ref() < most => Ok(*v.get_ref()),
            Some(v) => Err(source.error(
                Some(v.span()),
                format!("it must be above 0 and below {most}"),
            )),
        };
        let control = &mut config.control;
        control.threshold = inside(&self.threshold, control.threshold, 0.5)?;
        control.gamma = inside(&self.gamma, control.gamma, 1.0)?;
        if let Some(interval) = self.interval {
            // Spans are picoseconds; an interval of 0 would iterate for ever at one moment.
            control.interval_ns = (interval.0.0 / 1_000).max(1);
        }
        self.carrier(source, &mut config)?;
        // Control packets have priority 0, the most urgent.
        config.data_priority = u8::from(self.control_first.unwrap_or(false));
        config.handshake = self.handshake.unwrap_or(config.handshake);
        // 0 is a window here: a flowlet may wait for its first rate.
        let (given, usual) = (&self.initial_window_packets, config.sender.initial_window);
        config.sender.initial_window = window(source, given.as_ref(), 0, usual)?;
        let links = AllocatorLinks {
            rate_bps: self.allocator_rate.map_or(40_000_000_000, |r| r.0),
            delay: self.allocator_delay.map_or(Span::from_ns(1_500), |d| d.0),
            processing: Span::ZERO,
        };
        Ok(SchemeConfig::Flowtune {
            config: Box::new(config),
            links,
        })
    }
}

impl FlowtuneTable {
    /// Reads the transport of the control traffic, and the time-outs of control connections.
    fn carrier(&self, source: &Source<'_>, config: &mut FlowtuneConfig) -> Result<(), PlanError> {
        if matches!(self.control, Some(ControlCarrier::Tcp)) {
            config.carrier = Carrier::Tcp;
        }
        let given = [
            (
                "control_min_rto",
                &self.control_min_rto,
                &mut config.stream.min_rto,
            ),
            (
                "control_max_rto",
                &self.control_max_rto,
                &mut config.stream.max_rto,
            ),
        ];
        for (key, value, of) in given {
            let Some(value) = value else { continue };
            if config.carrier != Carrier::Tcp {
                let message = format!("`{key}` is a parameter of `control = \"tcp\"`");
                return Err(source.error(Some(value.span()), message));
            }
            *of = value.get_ref().0;
        }
        let (least, most) = (config.stream.min_rto, config.stream.max_rto);
        if most < least || most < Span::from_us(1) {
            let given = self
                .control_max_rto
                .as_ref()
                .or(self.control_min_rto.as_ref());
            let message = format!(
                "the largest time-out of control connections, {} ns, must be at least 1 µs and the least one, {} ns",
                most.as_ns(),
                least.as_ns()
            );
            return Err(source.error(given.map(Spanned::span), message));
        }
        Ok(())
    }
}

impl TcpTable {
    /// Refuses keys that belong to another scheme of the family.
    fn check_owners(&self, source: &Source<'_>, name: &str) -> Result<(), PlanError> {
        let given = [
            ("gain", "dctcp", self.gain.as_ref().map(Spanned::span)),
            ("growth", "cubic", self.growth.as_ref().map(Spanned::span)),
            (
                "reno_friendly",
                "cubic",
                self.reno_friendly.as_ref().map(Spanned::span),
            ),
            ("hystart", "cubic", self.hystart.as_ref().map(Spanned::span)),
        ];
        for (key, owner, span) in given {
            if span.is_some() && name != owner {
                return Err(source.error(span, format!("`{key}` is a parameter of {owner}")));
            }
        }
        Ok(())
    }

    /// DCTCP's own parameters.
    fn dctcp(&self, source: &Source<'_>) -> Result<DctcpConfig, PlanError> {
        match &self.gain {
            None => Ok(DctcpConfig::default()),
            Some(gain) if *gain.get_ref() > 0.0 && *gain.get_ref() <= 1.0 => Ok(DctcpConfig {
                gain: *gain.get_ref(),
            }),
            Some(gain) => {
                let message = "`gain` must be above 0 and at most 1";
                Err(source.error(Some(gain.span()), message))
            }
        }
    }

    /// CUBIC's own parameters.
    fn cubic(&self) -> CubicConfig {
        let usual = CubicConfig::default();
        let flag =
            |given: &Option<Spanned<bool>>, usual| given.as_ref().map_or(usual, |v| *v.get_ref());
        CubicConfig {
            growth: match self.growth.as_ref().map(|v| *v.get_ref()) {
                // 20 is ns-3's and Linux's limit of growth before the first loss.
                Some(Growth::Counted) => CubicGrowth::Counted { first_limit: 20 },
                _ => CubicGrowth::Continuous,
            },
            reno_friendly: flag(&self.reno_friendly, usual.reno_friendly),
            hystart: flag(&self.hystart, usual.hystart),
        }
    }

    /// The configuration of a scheme with this congestion control.
    fn config<C>(
        &self,
        source: &Source<'_>,
        ecn: bool,
        control: C,
    ) -> Result<TcpConfig<C>, PlanError> {
        let usual = TcpConfig::<()>::default();
        let positive =
            |given: &Option<Spanned<u32>>, usual: u32| window(source, given.as_ref(), 1, usual);
        let rto = |given: &Option<Spanned<Delay>>| time_out(source, given.as_ref());
        Ok(TcpConfig {
            initial_window_packets: positive(
                &self.initial_window_packets,
                usual.initial_window_packets,
            )?,
            min_rto: rto(&self.min_rto)?.unwrap_or(usual.min_rto),
            initial_rto: rto(&self.initial_rto)?.unwrap_or(usual.initial_rto),
            fixed_rto: rto(&self.fixed_rto)?,
            handshake: self.handshake.unwrap_or(usual.handshake),
            stamp_step: self.stamp_step.map_or(usual.stamp_step, |d| d.0),
            ecn: self.ecn.unwrap_or(ecn),
            nic_limit_packets: positive(&self.nic_limit_packets, usual.nic_limit_packets)?,
            control,
        })
    }
}

/// Reads a transport table: the scheme's name and its configuration.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: Range<usize>,
) -> Result<(String, SchemeConfig), PlanError> {
    let (name, _) = source.choice(&mut table, span.clone(), "name", &NAMES)?;
    let scheme = match name {
        "constant" => {
            let t: ConstantTable = source.section(table, span)?;
            SchemeConfig::Constant { rate_bps: t.rate.0 }
        }
        "fixed-window" => {
            let t: FixedWindowTable = source.section(table, span)?;
            if *t.packets.get_ref() == 0 {
                let message = "a window of 0 packets sends nothing";
                return Err(source.error(Some(t.packets.span()), message));
            }
            SchemeConfig::FixedWindow {
                packets: window(source, Some(&t.packets), 1, 1)?,
            }
        }
        "ideal" => {
            let t: IdealTable = source.section(table, span)?;
            t.scheme(source)?
        }
        "flowtune" => {
            let t: FlowtuneTable = source.section(table, span)?;
            t.scheme(source)?
        }
        _ => {
            let t: TcpTable = source.section(table, span)?;
            t.check_owners(source, name)?;
            match name {
                "dctcp" => SchemeConfig::Dctcp(t.config(source, true, t.dctcp(source)?)?),
                "xcp" => SchemeConfig::Xcp(t.config(source, false, ())?),
                "pfabric" => {
                    // pFabric's own defaults where the table has none (its §4.3): about a
                    // bandwidth-delay product at once, a fixed time-out, and a NIC that holds no
                    // flow back.
                    let mut config = t.config(source, false, PFabricConfig::default())?;
                    if t.initial_window_packets.is_none() {
                        config.initial_window_packets = 12;
                    }
                    if t.nic_limit_packets.is_none() {
                        config.nic_limit_packets = u32::MAX;
                    }
                    config.fixed_rto = config.fixed_rto.or(Some(Span::from_us(45)));
                    SchemeConfig::PFabric(config)
                }
                "newreno" => SchemeConfig::NewReno(t.config(source, false, ())?),
                _ => SchemeConfig::Cubic(t.config(source, false, t.cubic())?),
            }
        }
    };
    Ok((name.to_owned(), scheme))
}
