//! Interfaces that carry this host's traffic, and the sums of what they tell.
//!
//! A host may have several, such as the cards of an instance. The topology knows one link from it
//! and one to it, which all of them make up.

use std::io;

use super::driver_statistics::DriverStatistics;
use super::interface::{InterfaceCounters, InterfaceReader, interfaces_of};
use crate::flows::NetworkView;

/// Readers of all interfaces that carry this host's traffic.
#[derive(Debug)]
pub struct OwnInterfaces {
    /// Name of the only one; those that have the host's addresses are found if absent.
    pub(super) device: Option<String>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    reader: InterfaceReader,
    driver: Option<DriverStatistics>,
}

impl Member {
    fn open(name: &str) -> io::Result<Self> {
        Ok(Self {
            reader: InterfaceReader::open(name)?,
            // Many drivers have no statistics of their own.
            driver: DriverStatistics::open(name).ok(),
        })
    }
}

impl OwnInterfaces {
    /// Makes a set without members.
    #[must_use]
    pub fn new(device: Option<String>) -> Self {
        Self {
            device,
            members: Vec::new(),
        }
    }

    /// Finds the interfaces anew. Returns true if they are others than before; their sums then say
    /// nothing beside earlier ones.
    ///
    /// # Errors
    /// When the kernel does not tell the addresses, or one of the interfaces cannot be opened. Then
    /// there are no members.
    pub fn find(&mut self, network: &NetworkView) -> io::Result<bool> {
        let found = match &self.device {
            Some(device) => Ok(vec![device.clone()]),
            None => interfaces_of(&network.destinations, network.own_host),
        };
        let names = found.inspect_err(|_| self.members.clear())?;
        let known = self.members.iter().map(|member| &member.reader.name);
        if known.eq(&names) {
            return Ok(false);
        }
        self.members.clear();
        let opened: io::Result<Vec<Member>> = names.iter().map(|name| Member::open(name)).collect();
        self.members = opened?;
        Ok(true)
    }

    /// Lets the members go, because one cannot be read: it may be gone for good, or come back under
    /// another number.
    pub fn close(&mut self) {
        self.members.clear();
    }

    /// Returns true without members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the members' names with commas between; `None` without members.
    #[must_use]
    pub fn names(&self) -> Option<String> {
        let names: Vec<&str> = (self.members.iter())
            .map(|member| member.reader.name.as_str())
            .collect();
        (!names.is_empty()).then(|| names.join(","))
    }

    /// Reads the counters of all: a few microseconds for each.
    ///
    /// # Errors
    /// When an interface is gone, or the kernel refuses.
    pub fn read(&mut self) -> io::Result<InterfaceCounters> {
        let mut sum = InterfaceCounters::default();
        for member in &mut self.members {
            sum = sum.plus(&member.reader.read()?);
        }
        Ok(sum)
    }

    /// Reads the devices' speeds and the allowance counters of their drivers. Returns the latter.
    ///
    /// # Errors
    /// When an interface is gone, or the kernel refuses.
    pub fn read_devices(&mut self) -> io::Result<Vec<(&'static str, u64)>> {
        let mut readings = Vec::new();
        for member in &mut self.members {
            member.reader.read_speed();
            if let Some(driver) = &member.driver {
                readings.push(driver.read()?);
            }
        }
        Ok(sum_of_allowances(&readings))
    }

    /// Returns the sum of the devices' speeds in bit/s; 0 if one of them tells none.
    #[must_use]
    pub fn speed_bps(&self) -> u64 {
        sum_of_speeds(self.members.iter().map(|member| member.reader.speed_bps))
    }
}

fn sum_of_speeds(mut speeds: impl Iterator<Item = Option<u64>>) -> u64 {
    let sum = speeds.try_fold(0_u64, |sum, speed| Some(sum.saturating_add(speed?)));
    sum.unwrap_or(0)
}

/// Sums counters of one name over the drivers' readings.
fn sum_of_allowances(readings: &[Vec<(&'static str, u64)>]) -> Vec<(&'static str, u64)> {
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for &(name, packets) in readings.iter().flatten() {
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(packets),
            None => sums.push((name, packets)),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: u64 = 1_000_000_000;

    #[test]
    fn speeds_are_summed_unless_one_is_not_known() {
        for (speeds, sum) in [
            (&[] as &[Option<u64>], 0),
            (&[Some(25 * GBIT)], 25 * GBIT),
            (&[Some(25 * GBIT); 2], 50 * GBIT),
            // One without a carrier carries nothing.
            (&[Some(25 * GBIT), Some(0)], 25 * GBIT),
            (&[Some(25 * GBIT), None], 0),
            (&[None], 0),
        ] {
            assert_eq!(sum_of_speeds(speeds.iter().copied()), sum, "{speeds:?}");
        }
    }

    #[test]
    fn allowances_are_summed_by_their_names() {
        let of = |from, to| vec![("bw_in", to), ("bw_out", from)];
        assert_eq!(
            sum_of_allowances(&[of(5, 7), Vec::new(), of(1, 2)]),
            of(6, 9)
        );
        assert!(sum_of_allowances(&[]).is_empty());
    }

    #[test]
    fn an_interface_that_is_gone_is_opened_again_when_it_is_there() {
        let network = NetworkView::default();
        let mut interfaces = OwnInterfaces::new(Some("rw-none".to_owned()));
        for _ in 0..2 {
            assert!(interfaces.find(&network).is_err());
            assert!(interfaces.is_empty() && interfaces.names().is_none());
        }
        interfaces.device = Some("lo".to_owned());
        assert!(interfaces.find(&network).unwrap());
        assert!(!interfaces.find(&network).unwrap(), "the same as before");
        assert_eq!(interfaces.names().as_deref(), Some("lo"));
        assert!(interfaces.read().is_ok());
        interfaces.close();
        assert!(interfaces.find(&network).unwrap());
    }
}
