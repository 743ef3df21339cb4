//! Parameters that schemes with the production allocator share.

use ratewright_allocator::engine::StepRule;
use serde::{Deserialize, Serialize};

use super::{FabricNeeds, Network};
use crate::control::link_check::CheckSettings;
use crate::control::{Carrier, ControlConfig};
use crate::net::AllocatorLinks;
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::flowtune::{FeedSources, FlowtuneConfig};
use crate::transport::tcp::TcpConfig;
use crate::transport::tcp::congestion::Congestion;
use crate::transport::tcp::stream::StreamConfig;
use crate::units::{Delay, LinkRate};

crate::parameters! {
    /// The production allocator, its sessions, and the way to it.
    pub struct Allocation {
        /// Time between the allocator's iterations (§5.3: 10 µs).
        interval: Delay = Delay::from_us(10),
        /// Time that an iteration takes (§8: 8.29 µs, for 384 servers; §5.3 names none).
        iteration: Delay = Delay::from_ns(8_290),
        /// Relative change from which a rate is notified again (§5.3: 0.01).
        threshold: f64 = 0.01,
        /// Step of the price update (§5.3: 0.4).
        gamma: f64 = 0.4,
        /// Rule of the price update: "ned", the paper's Algorithm 1, or production's "safeguarded".
        step: Step = Step::Ned,
        /// Share of links that the allocator leaves free.
        reserve: f64 = 0.0,
        /// Rate of the allocator's link to each switch of the highest tier (§5.3: 40 Gbit/s).
        allocator_rate: LinkRate = LinkRate(40_000_000_000),
        /// Delay of these links (§5.3: 1.5 µs).
        allocator_delay: Delay = Delay::from_ns(1_500),
        /// Processing of a packet in the allocator, outbound as well as inbound.
        allocator_processing: Delay = Delay::from_us(0),
        /// Control messages go over "tcp", as in §5.3, or as "datagram"s, as in production.
        control: Carrier = Carrier::Tcp,
        /// Every queue has a class for control packets, which goes before data.
        control_first: bool = false,
        /// Readings of hosts and switches that the allocator heeds; unless given, none.
        feeds: FeedSources = FeedSources::default(),
        /// Check of told capacities by what hosts tell of their links; unless given, none.
        link_check: Option<CheckSettings> = None,
        /// Least time-out of control connections (§5.3: 20 µs, unless given); only with "tcp".
        control_min_rto: Option<Delay> = None,
        /// Largest time-out of control connections (§5.3: 30 µs, unless given); only with "tcp".
        control_max_rto: Option<Delay> = None,
    }
}

/// Rule of the price update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Converges where NED does not, and answers starts and ends at once.
    Safeguarded,
    /// Algorithm 1 of the paper.
    Ned,
}

impl Allocation {
    /// The control connections.
    fn stream(&self) -> StreamConfig {
        let usual = StreamConfig::default();
        StreamConfig {
            min_rto: self.control_min_rto.map_or(usual.min_rto, |d| d.0),
            max_rto: self.control_max_rto.map_or(usual.max_rto, |d| d.0),
            ..usual
        }
    }

    /// Checks the time-outs of control connections.
    fn check_stream(&self) -> Result<(), ParamError> {
        let given = [
            ("control_max_rto", self.control_max_rto),
            ("control_min_rto", self.control_min_rto),
        ];
        let Some((key, _)) = given.iter().find(|(_, value)| value.is_some()) else {
            return Ok(());
        };
        if self.control != Carrier::Tcp {
            let message = format!("`{key}` is a parameter of `control = \"tcp\"`");
            return Err(ParamError::of(key, message));
        }
        let (least, most) = (self.stream().min_rto, self.stream().max_rto);
        if most < least || most < Span::from_us(1) {
            let message = format!(
                "the largest time-out of control connections, {} ns, must be at least 1 µs and the least one, {} ns",
                most.as_ns(),
                least.as_ns()
            );
            return Err(ParamError::of(key, message));
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), ParamError> {
        // Written so that NaN fails, too.
        for (key, value, most) in [
            ("threshold", self.threshold, 0.5),
            ("gamma", self.gamma, 1.0),
        ] {
            if !(value > 0.0 && value < most) {
                let message = format!("it must be above 0 and below {most}");
                return Err(ParamError::of(key, message));
            }
        }
        if !(0.0..=0.5).contains(&self.reserve) {
            return Err(ParamError::of("reserve", "it must be from 0 to 0.5"));
        }
        let max_lowering = self.link_check.map_or(0.0, |check| check.max_lowering);
        if !(0.0..=0.9).contains(&max_lowering) {
            let message = "`max_lowering` must be from 0 to 0.9";
            return Err(ParamError::of("link_check", message));
        }
        self.check_stream()
    }

    /// Demands on the fabric, without queues.
    pub(super) fn needs(&self) -> FabricNeeds {
        FabricNeeds {
            classes: 1 + u8::from(self.control_first),
            allocator: Some(AllocatorLinks {
                rate_bps: self.allocator_rate.0,
                delay: self.allocator_delay.0,
                processing: self.allocator_processing.0,
            }),
            ..FabricNeeds::default()
        }
    }

    /// The configuration of a transport whose data has this TCP, for the members of a network.
    pub(super) fn config<C: Congestion>(
        &self,
        network: &Network<'_>,
        tcp: TcpConfig<C::Config>,
    ) -> FlowtuneConfig<C> {
        FlowtuneConfig {
            control: ControlConfig {
                // An interval of 0 would iterate for ever at one moment.
                interval_ns: self.interval.ns().max(1),
                iteration_ns: self.iteration.ns(),
                threshold: self.threshold,
                gamma: self.gamma,
                step_rule: match self.step {
                    Step::Safeguarded => StepRule::Safeguarded,
                    Step::Ned => StepRule::Ned,
                },
                reserve: self.reserve,
                feeds: self.feeds.config(),
                link_check: self.link_check,
                ..ControlConfig::default()
            },
            carrier: self.control,
            stream: self.stream(),
            feeds: self.feeds,
            members: network.members.cloned(),
            ..FlowtuneConfig::over(TcpConfig {
                // Control packets have class 0, the most urgent.
                class: u8::from(self.control_first),
                ..tcp
            })
        }
    }
}
