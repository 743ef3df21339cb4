//! Pods' network namespaces: taken over and given back like the daemon's own.

use std::collections::BTreeMap;

use libbpf_rs::{Link, Map, MapCore, MapFlags, ProgramMut};

use super::take_over::{Settings, for_all_sockets, walk_sockets};
use crate::backend::namespaces::{Namespace, NamespaceSearch};
use crate::backend::sysctls::Sysctls;
use crate::backend::{BackendConfig, BackendError};

/// Pods' namespaces that are paced, and the search for more.
pub(super) struct Pods {
    search: NamespaceSearch,
    taken: BTreeMap<u32, Pod>,
    sysctls: Sysctls,
}

/// A pod's namespace that was taken over.
struct Pod {
    namespace: Namespace,
    /// Settings that it had.
    before: Settings,
}

/// Parts of the back end that taking a pod over needs.
pub(super) struct TakeOver<'a, 'obj> {
    /// Settings of the node's own namespace before the daemon.
    pub(super) node: &'a Settings,
    /// The congestion control.
    pub(super) name: &'a str,
    pub(super) observing: bool,
    /// The program's table of pods' namespaces.
    pub(super) map: &'a Map<'obj>,
    /// The program that lifts an earlier daemon's maxima.
    pub(super) earlier: Option<&'a Link>,
    /// The program that switches sockets.
    pub(super) program: &'a ProgramMut<'obj>,
}

impl Pods {
    /// Makes the search that `config` describes. `own` is the daemon's namespace.
    pub(super) fn new(config: &BackendConfig, own: u32, sysctls: Sysctls) -> Self {
        Self {
            search: NamespaceSearch::new(&config.network_namespaces, own),
            taken: BTreeMap::new(),
            sysctls,
        }
    }

    /// Returns the time of the next [`follow`](Self::follow); `None`: never.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.search.next_ns()
    }

    /// Looks for pods that came and went, if it is time, and takes over one that has come.
    ///
    /// # Errors
    /// When a pod's sockets cannot be taken over. They stay as they are, or, where the pass over
    /// them failed, take the congestion control one by one as they are made.
    pub(super) fn follow(
        &mut self,
        now_ns: u64,
        take_over: &TakeOver<'_, '_>,
    ) -> Result<(), BackendError> {
        let change = self.search.follow(now_ns);
        for inode in change.gone {
            if self.taken.remove(&inode).is_some() {
                // The number may become another namespace's.
                unmark(take_over.map, inode)?;
            }
        }
        match change.came {
            Some(namespace) => self.take(namespace, take_over),
            None => Ok(()),
        }
    }

    fn take(
        &mut self,
        namespace: Namespace,
        take_over: &TakeOver<'_, '_>,
    ) -> Result<(), BackendError> {
        let TakeOver {
            node,
            name,
            observing,
            map,
            earlier,
            program,
        } = *take_over;
        let inode = namespace.inode;
        if let Some(pod) = self.taken.get_mut(&inode) {
            pod.namespace = namespace;
            return Ok(());
        }
        let sysctls = &self.sysctls;
        if let Some(earlier) = earlier {
            walk_sockets(earlier, Some(&namespace))?;
        }
        let registered = sysctls.registered()?;
        let present = namespace.run(|| Settings::read(sysctls))?;
        let Some(before) = node.before_in_pod(&present, name, &registered) else {
            tracing::info!(
                namespace = %namespace.path().display(),
                default = present.default_cc,
                "a pod's own choice of congestion control stays; it is not paced"
            );
            return Ok(());
        };
        // The mark first: a socket that is met without it is left alone.
        map.update(&inode.to_ne_bytes(), &[1], MapFlags::ANY)
            .map_err(|error| BackendError::bpf("note a pod's network namespace", &error))?;
        let ours = before.taken_over(name, observing);
        let applied = namespace.run(|| ours.apply(sysctls));
        let walked = match &applied {
            Ok(()) => for_all_sockets(program, Some(&namespace)),
            Err(_) => unmark(map, inode),
        };
        if applied.is_ok() {
            self.taken.insert(inode, Pod { namespace, before });
        }
        applied.and(walked)
    }

    /// Returns the namespaces that are paced.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.taken.values().map(|pod| &pod.namespace)
    }

    /// Applies the bursts of pacing or of observing to every pod.
    ///
    /// # Errors
    /// With the first refusal, after all were tried.
    pub(super) fn apply_bursts(&self, name: &str, observing: bool) -> Result<(), BackendError> {
        let sysctls = &self.sysctls;
        self.for_each(|pod| {
            pod.namespace
                .run(|| pod.before.apply_bursts(sysctls, name, observing))
        })
    }

    /// Gives all pods their settings back, and their sockets by `program`.
    ///
    /// # Errors
    /// With the first refusal, after all were tried.
    pub(super) fn give_back(
        &mut self,
        name: &str,
        program: &ProgramMut<'_>,
    ) -> Result<(), BackendError> {
        let sysctls = &self.sysctls;
        let given = self.for_each(|pod| {
            let settings = pod.namespace.run(|| pod.before.give_back(sysctls, name));
            settings.and(for_all_sockets(program, Some(&pod.namespace)))
        });
        self.taken.clear();
        given
    }

    /// Does `work` for every pod that is still there.
    fn for_each(
        &self,
        work: impl Fn(&Pod) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mut result = Ok(());
        for pod in self.taken.values() {
            let done = work(pod);
            // One that ended meanwhile has nothing to give back.
            if pod.namespace.is_there() {
                result = result.and(done);
            }
        }
        result
    }
}

fn unmark(map: &Map<'_>, inode: u32) -> Result<(), BackendError> {
    match map.delete(&inode.to_ne_bytes()) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(BackendError::bpf(
            "forget a pod's network namespace",
            &error,
        )),
        _ => Ok(()),
    }
}
