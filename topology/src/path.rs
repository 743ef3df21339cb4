//! Paths of flows: links up from the source, then down to the destination.

use arrayvec::ArrayVec;

use crate::ids::{HostId, LinkId};
use crate::model::Tenure;
use crate::topology::Topology;

/// The directed links of a flow, source to destination: at most 3 up and 3 down.
pub type Path = ArrayVec<LinkId, 6>;

/// Choice among the equal paths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PathChoice {
    /// By the switches, with this [flow hash](crate::ecmp::flow_hash).
    Hash(u32),
    /// By the endpoint, which reports the index of the route. That is the spine in a two-tier
    /// network. Between pods it is `agg + aggs_per_pod × core`, where `core` counts the cores above
    /// that aggregation switch. It is 0 if only one route exists.
    Explicit(u32),
}

/// Reason why there is no path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathError {
    /// No host has this id.
    #[error("there is no {0} in this topology")]
    UnknownHost(HostId),
    /// Source and destination are one host: its flows cross no link.
    #[error("{0} is both source and destination; such a flow crosses no link")]
    SameHost(HostId),
    /// The only link of a host, or its leaf switch, is down.
    #[error("{host} is cut off: {link} or the switch at its end is down")]
    HostCutOff {
        /// The host.
        host: HostId,
        /// Its link in the direction of the flow.
        link: LinkId,
    },
    /// Both hosts are attached, but no route between their racks is usable.
    #[error("no usable route is left from {src} to {dst}")]
    NoRoute {
        /// The source.
        src: HostId,
        /// The destination.
        dst: HostId,
    },
    /// The endpoint reported a route that does not exist.
    #[error("route {route} from {src} to {dst} does not exist; there are {count}, counted from 0")]
    RouteOutOfRange {
        /// The source.
        src: HostId,
        /// The destination.
        dst: HostId,
        /// The index that was reported.
        route: u32,
        /// Number of routes.
        count: u32,
    },
    /// The endpoint reported a route that is down.
    #[error("route {route} from {src} to {dst} is down at {link}")]
    RouteDown {
        /// The source.
        src: HostId,
        /// The destination.
        dst: HostId,
        /// The index that was reported.
        route: u32,
        /// The first link on it that is not usable.
        link: LinkId,
    },
}

/// Racks and pods of the two ends of a flow.
#[derive(Clone, Copy)]
struct Ends {
    src_rack: u32,
    dst_rack: u32,
    src_pod: u32,
    dst_pod: u32,
}

impl Topology {
    /// The path of a flow from `src` to `dst`.
    ///
    /// By hash, the path takes the `hash % n`-th of the `n` usable spines or aggregation switches
    /// in id order. Above it, it takes the `(hash / n) % m`-th of its `m` usable cores. Usable
    /// means that the rest of the route to the destination works. With symmetric ECMP the reverse
    /// route must work as well: only then do both directions choose among equal sets (fncc §3.1,
    /// fig. 5), and the path of the reverse tuple is the mirror image.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn path(&self, src: HostId, dst: HostId, choice: PathChoice) -> Result<Path, PathError> {
        let ends = self.ends(src, dst)?;
        let (first, last) = (self.shape.host_up(src), self.shape.host_down(dst));
        // The hosts' own links come first: no choice of route avoids them.
        for (host, link) in [(src, first), (dst, last)] {
            if !self.is_usable(link) {
                return Err(PathError::HostCutOff { host, link });
            }
        }
        let mut path = Path::new();
        path.push(first);
        if self.shape.big_switch || ends.src_rack == ends.dst_rack {
            if let PathChoice::Explicit(route) = choice
                && route != 0
            {
                return Err(PathError::RouteOutOfRange {
                    src,
                    dst,
                    route,
                    count: 1,
                });
            }
        } else {
            let (agg, core) = match choice {
                PathChoice::Hash(hash) => self
                    .choose(ends, hash)
                    .ok_or(PathError::NoRoute { src, dst })?,
                PathChoice::Explicit(route) => {
                    let count = self.routes_between(ends);
                    if route >= count {
                        return Err(PathError::RouteOutOfRange {
                            src,
                            dst,
                            route,
                            count,
                        });
                    }
                    // The inverse of `agg + aggs × core`; within a pod the core is 0.
                    (route % self.shape.aggs, route / self.shape.aggs)
                }
            };
            let s = &self.shape;
            path.push(s.leaf_up(ends.src_rack, agg));
            if ends.src_pod != ends.dst_pod {
                path.push(s.agg_up(ends.src_pod, agg, core));
                path.push(s.agg_down(ends.dst_pod, agg, core));
            }
            path.push(s.leaf_down(ends.dst_rack, agg));
            if let PathChoice::Explicit(route) = choice
                && let Some(link) = path.iter().copied().find(|l| !self.is_usable(*l))
            {
                return Err(PathError::RouteDown {
                    src,
                    dst,
                    route,
                    link,
                });
            }
        }
        path.push(last);
        Ok(path)
    }

    /// Number of routes from `src` to `dst`, failed ones included. Explicit routes count from 0 to
    /// this.
    ///
    /// # Errors
    /// If a host is unknown, or both are the same.
    pub fn route_count(&self, src: HostId, dst: HostId) -> Result<u32, PathError> {
        self.ends(src, dst).map(|ends| self.routes_between(ends))
    }

    fn ends(&self, src: HostId, dst: HostId) -> Result<Ends, PathError> {
        let rack_of = |host: HostId| {
            self.hosts()
                .get(host.index())
                // Nobody is at a spare place.
                .filter(|h| h.tenure != Tenure::Spare)
                .map(|h| h.rack)
                .ok_or(PathError::UnknownHost(host))
        };
        let (src_rack, dst_rack) = (rack_of(src)?, rack_of(dst)?);
        if src == dst {
            return Err(PathError::SameHost(src));
        }
        let pod = |rack: u32| rack / self.shape.racks_per_pod;
        Ok(Ends {
            src_rack: src_rack.0,
            dst_rack: dst_rack.0,
            src_pod: pod(src_rack.0),
            dst_pod: pod(dst_rack.0),
        })
    }

    fn routes_between(&self, ends: Ends) -> u32 {
        if self.shape.big_switch || ends.src_rack == ends.dst_rack {
            1
        } else if ends.src_pod == ends.dst_pod {
            self.shape.aggs
        } else {
            self.shape.aggs * self.shape.cores_per_agg
        }
    }

    /// Picks the aggregation switch (or spine) and the core above it by hash.
    fn choose(&self, ends: Ends, hash: u32) -> Option<(u32, u32)> {
        let s = &self.shape;
        let between_pods = ends.src_pod != ends.dst_pod;
        if self.is_whole() {
            // The common case without failures: every switch is usable, so no scan is needed.
            let core = if between_pods {
                (hash / s.aggs) % s.cores_per_agg
            } else {
                0
            };
            return Some((hash % s.aggs, core));
        }
        // Counted, then picked, instead of collected: paths are looked up without allocation.
        let n_agg = (0..s.aggs).filter(|a| self.agg_usable(ends, *a)).count() as u32;
        if n_agg == 0 {
            return None;
        }
        let agg = (0..s.aggs)
            .filter(|a| self.agg_usable(ends, *a))
            .nth((hash % n_agg) as usize)?;
        if !between_pods {
            return Some((agg, 0));
        }
        let n_core = (0..s.cores_per_agg)
            .filter(|c| self.core_usable(ends, agg, *c))
            .count() as u32;
        // `agg_usable` holds only with a usable core, so `n_core` is not 0.
        let index = ((hash / n_agg) % n_core) as usize;
        let core = (0..s.cores_per_agg)
            .filter(|c| self.core_usable(ends, agg, *c))
            .nth(index)?;
        Some((agg, core))
    }

    fn agg_usable(&self, ends: Ends, agg: u32) -> bool {
        let s = &self.shape;
        let forth = self.is_usable(s.leaf_up(ends.src_rack, agg))
            && self.is_usable(s.leaf_down(ends.dst_rack, agg));
        // Without symmetry, the reverse direction chooses by itself and need not work here.
        let back = !self.ecmp().symmetric
            || self.is_usable(s.leaf_up(ends.dst_rack, agg))
                && self.is_usable(s.leaf_down(ends.src_rack, agg));
        forth
            && back
            && (ends.src_pod == ends.dst_pod
                || (0..s.cores_per_agg).any(|c| self.core_usable(ends, agg, c)))
    }

    fn core_usable(&self, ends: Ends, agg: u32, core: u32) -> bool {
        let s = &self.shape;
        // A core joins the pods by one link to each: up from one pod, down to the other.
        let way = |from: u32, to: u32| {
            self.is_usable(s.agg_up(from, agg, core)) && self.is_usable(s.agg_down(to, agg, core))
        };
        way(ends.src_pod, ends.dst_pod)
            && (!self.ecmp().symmetric || way(ends.dst_pod, ends.src_pod))
    }
}
