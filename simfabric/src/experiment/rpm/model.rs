//! The paper's model of the delayed control loop (RPM §IV and appendix), and its exact stability.
//!
//! A flow of AIMD with a = 1 and b = 1/2 sends over a link of capacity c with a round trip d. The
//! queue marks with probability η (x − x*), and marks come back within the short round trip dₛ.
//! Around the equilibrium the rate r obeys (appendix, equation 4)
//!
//! r̈ + γ (2 ṙ − ṙ(t − d) + ṙ(t − dₛ)) + α r(t − d) + Ω r(t − dₛ) = 0,
//!
//! with γ = abc/(a + bc²d²), α = ηa/d², Ω = bc²η.
//!
//! The paper derives it from r = w/d with a constant d. A window is clocked by acknowledgements,
//! however, whose round trip grows with the queue: r = w/(τ + x/c). The same derivation then adds
//! (ṙ(t − d) + 2γ r(t − d))/d to the left side, which damps the loop ([`Clock::Acks`]).

/// A flow and its path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loop {
    /// Capacity, in packets per second.
    pub capacity: f64,
    /// Round trip of the flow with its queueing delay, in seconds (d).
    pub round_trip: f64,
    /// Time from a mark to the arrival of the packets that react to it, in seconds (dₛ).
    pub short_round_trip: f64,
}

/// Relation of a flow's rate to its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// w/d with the equilibrium's d: the paper's.
    Constant,
    /// w/(τ + x/c): acknowledgements clock the window.
    Acks,
}

/// Frequencies up to this many radians per short round trip are searched. Beyond it η of the
/// boundary grows with the square of the frequency.
const SEARCHED: f64 = 12.0;
/// Steps of the search, each then halved to the root.
const STEPS: u32 = 20_000;

impl Loop {
    /// γ of lemma 1, in 1/s.
    #[must_use]
    pub fn gamma(&self) -> f64 {
        let (c, d) = (self.capacity, self.round_trip);
        0.5 * c / (1.0 + 0.5 * c * c * d * d)
    }

    /// Share of marked acknowledgements at the equilibrium: a/(a + bc²d²).
    #[must_use]
    pub fn marked_share(&self) -> f64 {
        2.0 * self.gamma() / self.capacity
    }

    /// η for which equation 5 has the real root s (lemma 1, equation 2), per packet.
    #[must_use]
    pub fn eta(&self, s: f64) -> f64 {
        let (c, d, ds) = (self.capacity, self.round_trip, self.short_round_trip);
        let (far, near) = ((-s * d).exp(), (-s * ds).exp());
        ((far - near - 2.0) * s * self.gamma() - s * s) / (far / (d * d) + c * c * near / 2.0)
    }

    /// s* as the appendix prints it (equation 6), in 1/s.
    #[must_use]
    pub fn printed_root(&self) -> f64 {
        let (sum, root, scale) = self.quadratic();
        (-root - sum) / scale
    }

    /// Negative root of the quadratic that equation 6 solves, in 1/s: η is above 0 between it and
    /// 0.
    #[must_use]
    pub fn root(&self) -> f64 {
        let (sum, root, scale) = self.quadratic();
        (sum - root) / scale
    }

    /// Parts of the roots of the second-order series of η's numerator over s.
    fn quadratic(&self) -> (f64, f64, f64) {
        let (d, ds, gamma) = (self.round_trip, self.short_round_trip, self.gamma());
        let sum = 1.0 + gamma * (d - ds);
        let scale = gamma * (d * d - ds * ds);
        (sum, (sum * sum + 4.0 * gamma * scale).sqrt(), scale)
    }

    /// Largest η that lemma 1 has: equation 2 for the best s between [`root`](Self::root) and 0.
    #[must_use]
    pub fn lemma_eta(&self) -> f64 {
        let root = self.root();
        (1..STEPS)
            .map(|i| self.eta(root * f64::from(i) / f64::from(STEPS)))
            .fold(0.0, f64::max)
    }

    /// η on the boundary of stability and its frequency in rad/s: the least η for which equation 5
    /// has a root on the imaginary axis. Below it all roots have negative real parts, as at η = 0
    /// (D-subdivision, Neimark 1949).
    #[must_use]
    pub fn boundary(&self, clock: Clock) -> Option<(f64, f64)> {
        let top = SEARCHED / self.short_round_trip;
        let at = |i: u32| top * f64::from(i) / f64::from(STEPS);
        (1..STEPS)
            .filter_map(|i| {
                let (mut low, mut high) = (at(i), at(i + 1));
                let sign = self.crossing(clock, low).1 > 0.0;
                if sign == (self.crossing(clock, high).1 > 0.0) {
                    return None;
                }
                for _ in 0..60 {
                    let middle = f64::midpoint(low, high);
                    if (self.crossing(clock, middle).1 > 0.0) == sign {
                        low = middle;
                    } else {
                        high = middle;
                    }
                }
                Some((self.crossing(clock, low).0, low)).filter(|(eta, _)| *eta > 0.0)
            })
            .min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Real and imaginary part of the η for which iω is a root of equation 5.
    fn crossing(&self, clock: Clock, omega: f64) -> (f64, f64) {
        let (c, d, ds) = (self.capacity, self.round_trip, self.short_round_trip);
        let ((sin_d, cos_d), (sin_s, cos_s)) = ((omega * d).sin_cos(), (omega * ds).sin_cos());
        // 2 − e^(−iωd) + e^(−iωdₛ).
        let (re, im) = (2.0 - cos_d + cos_s, sin_d - sin_s);
        let damping = omega * self.gamma();
        // η (e^(−iωd)/d² + c² e^(−iωdₛ)/2) = ω² − iωγ (re + i im).
        let (mut upper_re, mut upper_im) = (omega * omega + damping * im, -damping * re);
        if clock == Clock::Acks {
            // − (iω + 2γ) e^(−iωd)/d.
            upper_re -= (omega * sin_d + 2.0 * self.gamma() * cos_d) / d;
            upper_im -= (omega * cos_d - 2.0 * self.gamma() * sin_d) / d;
        }
        let (far, near) = (1.0 / (d * d), c * c / 2.0);
        let (lower_re, lower_im) = (far * cos_d + near * cos_s, -(far * sin_d + near * sin_s));
        let square = lower_re * lower_re + lower_im * lower_im;
        (
            (upper_re * lower_re + upper_im * lower_im) / square,
            (upper_im * lower_re - upper_re * lower_im) / square,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: Loop = Loop {
        capacity: 1_000.0,
        round_trip: 0.02,
        short_round_trip: 0.01,
    };

    /// Equation 5 by Euler steps of 20 µs from a deviation at rest.
    fn largest_deviations(of: &Loop, clock: Clock, eta: f64, seconds: f64) -> (f64, f64) {
        const STEP: f64 = 20e-6;
        let (c, d) = (of.capacity, of.round_trip);
        let (alpha, omega, gamma) = (eta / (d * d), eta * c * c / 2.0, of.gamma());
        let lag = |span: f64| (span / STEP).round() as usize;
        let (far, near) = (lag(d), lag(of.short_round_trip));
        let steps = lag(seconds);
        // Integrated once: ṙ = −γ (2r − r(t−d) + r(t−dₛ)) − α q(t−d) − Ω q(t−dₛ), with q̇ = r.
        let (mut rates, mut queues) = (vec![0.0; far + 1], vec![1.0; far + 1]);
        let mut most = (0.0_f64, 0.0_f64);
        for i in far..far + steps {
            let (r, q) = (rates[i], queues[i]);
            let clocked = match clock {
                Clock::Constant => 0.0,
                Clock::Acks => (rates[i - far] + 2.0 * gamma * queues[i - far]) / d,
            };
            let slope = -clocked
                - gamma * (2.0 * r - rates[i - far] + rates[i - near])
                - alpha * queues[i - far]
                - omega * queues[i - near];
            rates.push(r + STEP * slope);
            queues.push(q + STEP * r);
            let half = if i < far + steps / 2 {
                &mut most.0
            } else {
                &mut most.1
            };
            *half = half.max(q.abs());
        }
        most
    }

    /// The boundary separates solutions that die out from those that grow, which are computed from
    /// the equation itself.
    #[test]
    fn solutions_die_out_below_the_boundary_and_grow_above() {
        for short_round_trip in [0.002, 0.01, 0.019] {
            for clock in [Clock::Constant, Clock::Acks] {
                let of = Loop {
                    short_round_trip,
                    ..LOOP
                };
                let (eta, _) = of.boundary(clock).expect("a boundary");
                let (early, late) = largest_deviations(&of, clock, 0.8 * eta, 20.0);
                assert!(late < 0.2 * early, "{of:?} {clock:?}: {early} {late}");
                let (early, late) = largest_deviations(&of, clock, 1.25 * eta, 20.0);
                assert!(late > 2.0 * early, "{of:?} {clock:?}: {early} {late}");
            }
        }
    }

    #[test]
    fn eta_is_above_zero_between_the_root_and_zero_and_below_it_at_the_printed_one() {
        let root = LOOP.root();
        assert!(root < 0.0);
        assert!(LOOP.eta(0.5 * root) > 0.0 && LOOP.eta(1.1 * root) < 0.0);
        // The printed root has the sign of the linear term turned round.
        let printed = LOOP.printed_root();
        assert!(printed < root && LOOP.eta(printed) < 0.0 && LOOP.eta(1.001 * printed) < 0.0);
        // The lemma's η is within the exact bound.
        assert!(LOOP.lemma_eta() < LOOP.boundary(Clock::Constant).expect("a boundary").0);
    }
}
