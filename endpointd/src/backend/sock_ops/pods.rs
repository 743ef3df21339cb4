//! Pods' network namespaces, whose sockets are followed and given back like the daemon's own.

use std::collections::BTreeMap;
use std::ops::Bound;

use libbpf_rs::{Map, MapCore, MapFlags, MapHandle};

use super::socket_pass::SocketPass;
use super::{bpf, own_cookie};
use crate::backend::namespaces::{Namespace, NamespaceId, NamespaceSearch, own_inode};
use crate::backend::{BackendConfig, BackendError};

/// Pods' namespaces that are paced, and the search for more.
#[derive(Debug)]
pub(super) struct Pods {
    search: NamespaceSearch,
    /// The program's table of cookies.
    cookies: MapHandle,
    /// Namespaces and their cookies.
    taken: BTreeMap<NamespaceId, (Namespace, u64)>,
    /// Namespace that the last single pass was over.
    walked: NamespaceId,
    /// Reports an earlier daemon's running flowlets again, or gives its sockets back.
    first: Option<SocketPass>,
}

impl Pods {
    /// Makes the search that `config` describes.
    ///
    /// # Errors
    /// When the table or the daemon's own namespace is not to be had.
    pub(super) fn new(config: &BackendConfig, cookies: &Map<'_>) -> Result<Self, BackendError> {
        Ok(Self {
            search: NamespaceSearch::new(&config.network_namespaces, own_inode()?),
            cookies: MapHandle::try_from(cookies).map_err(bpf("open a map"))?,
            taken: BTreeMap::new(),
            walked: NamespaceId::default(),
            first: None,
        })
    }

    /// Has `program` run over each pod's sockets before they are taken over.
    pub(super) fn run_first(&mut self, program: SocketPass) {
        self.first = Some(program);
    }

    /// Returns the time of the next [`follow`](Self::follow); `None`: never.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.search.next_ns()
    }

    /// Returns the number of pods.
    pub(super) fn count(&self) -> u64 {
        self.taken.len() as u64
    }

    /// Looks for pods that came and went, if it is time, and takes over one that has come by the
    /// program `adopt`.
    ///
    /// # Errors
    /// When a pod's sockets cannot be taken over. Those that it makes from now on are.
    pub(super) fn follow(&mut self, now_ns: u64, adopt: &SocketPass) -> Result<(), BackendError> {
        let change = self.search.follow(now_ns);
        for id in change.gone {
            if let Some((_, cookie)) = self.taken.remove(&id) {
                // Cookies are never used again: one that stays behind only takes a place.
                let forgotten = self.cookies.delete(&cookie.to_ne_bytes());
                forgotten.map_err(bpf("forget a pod's network namespace"))?;
            }
        }
        let Some(namespace) = change.came else {
            return Ok(());
        };
        if let Some((known, _)) = self.taken.get_mut(&namespace.id) {
            *known = namespace;
            return Ok(());
        }
        let first = self.first.as_ref();
        let cookie = namespace.run(|| {
            first.map_or(Ok(()), SocketPass::run)?;
            own_cookie()
        })?;
        self.cookies
            .update(&cookie.to_ne_bytes(), &[1], MapFlags::ANY)
            .map_err(bpf("note a pod's network namespace"))?;
        // After the mark: sockets that are made during the pass are followed by themselves.
        let adopted = namespace.run(|| adopt.run());
        self.taken.insert(namespace.id, (namespace, cookie));
        adopted
    }

    /// Runs a program over the sockets of one pod, each in its turn.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn walk_next(&mut self, program: &SocketPass) -> Result<(), BackendError> {
        let after = (Bound::Excluded(self.walked), Bound::Unbounded);
        let next = self.taken.range(after).next();
        let Some((&id, (namespace, _))) = next.or_else(|| self.taken.iter().next()) else {
            return Ok(());
        };
        self.walked = id;
        walk(namespace, program)
    }

    /// Runs a program over the sockets of all pods.
    ///
    /// # Errors
    /// With the first refusal, after all were tried.
    pub(super) fn walk_all(&self, program: &SocketPass) -> Result<(), BackendError> {
        let mut result = Ok(());
        for (namespace, _) in self.taken.values() {
            result = result.and(walk(namespace, program));
        }
        result
    }
}

fn walk(namespace: &Namespace, program: &SocketPass) -> Result<(), BackendError> {
    let walked = namespace.run(|| program.run());
    // A pod that has ended has no sockets.
    if namespace.is_there() { walked } else { Ok(()) }
}
