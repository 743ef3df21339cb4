//! Readings of switches: a collector's datagrams, read on the service thread.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use ratewright_topology::Topology;
use tokio::net::UdpSocket;

use super::core_handle::CoreHandle;
use crate::feeds::gnmic::{EventReader, EventsRead, Unused};
use crate::service::clock;
use crate::service::config::CollectorConfig;
use crate::service::hub::TokenBucket;

/// Maximum size of a datagram, in bytes.
const MAX_DATAGRAM_BYTES: usize = 65_535;

/// Bytes of datagrams that are read in a second, on average. A reading takes some 10 ns a byte.
const MAX_BYTES_PER_S: u32 = 8 << 20;

/// Cost of a datagram in addition to its bytes, so that many small ones are bounded too.
const DATAGRAM_COST_BYTES: u32 = 256;

/// Addresses that may send, the reader of what they send, and its budget.
#[derive(Debug)]
struct Collector {
    sources: Vec<IpAddr>,
    reader: EventReader,
    budget: TokenBucket,
    /// Reasons that the log has since the settings changed.
    logged: BTreeSet<Unused>,
}

/// The collector, shared by its task and reloads.
#[derive(Debug, Clone)]
pub(super) struct SharedCollector(Rc<RefCell<Collector>>);

impl SharedCollector {
    /// Puts other settings or another topology in force.
    pub(super) fn reconfigure(&self, settings: &CollectorConfig, topology: &Topology) {
        let mut collector = self.0.borrow_mut();
        collector.sources.clone_from(&settings.sources);
        collector.reader = EventReader::new(&settings.interfaces, topology);
        collector.logged.clear();
    }
}

/// Binds the collector's address.
pub(super) fn start(
    settings: &CollectorConfig,
    topology: &Topology,
) -> std::io::Result<(SharedCollector, UdpSocket)> {
    let socket = std::net::UdpSocket::bind(settings.listen)?;
    socket.set_nonblocking(true)?;
    let collector = Collector::new(settings, topology, clock::now_ns());
    let shared = SharedCollector(Rc::new(RefCell::new(collector)));
    Ok((shared, UdpSocket::from_std(socket)?))
}

/// Takes datagrams until the service ends.
pub(super) async fn serve(core: CoreHandle, collector: SharedCollector, socket: UdpSocket) {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((bytes, from)) => take(&core, &collector, from, &buffer[..bytes]).await,
            Err(error) => {
                tracing::warn!(%error, "the collector's socket");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
        // Datagrams that stand in the socket must not keep hosts waiting.
        tokio::task::yield_now().await;
    }
}

async fn take(core: &CoreHandle, collector: &SharedCollector, from: SocketAddr, datagram: &[u8]) {
    let read = (collector.0.borrow_mut()).read(clock::now_ns(), from, datagram);
    let take = core.call(move |core, now_ns| match read {
        Ok(read) => core.hub.on_collector(now_ns, &read),
        Err(reason) => core.hub.counts_mut().collector_dropped.count(reason),
    });
    take.await;
}

impl Collector {
    fn new(settings: &CollectorConfig, topology: &Topology, now_ns: u64) -> Self {
        Self {
            sources: settings.sources.clone(),
            reader: EventReader::new(&settings.interfaces, topology),
            budget: TokenBucket::new(MAX_BYTES_PER_S, now_ns),
            logged: BTreeSet::new(),
        }
    }

    fn read(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<EventsRead, &'static str> {
        // A dual-stack socket names IPv4 senders by mapped addresses.
        let source = from.ip().to_canonical();
        if !self.sources.contains(&source) {
            return Err("source");
        }
        if !self.budget.has_credit(now_ns) {
            return Err("budget");
        }
        let bytes = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
        self.budget.spend(bytes.saturating_add(DATAGRAM_COST_BYTES));
        let read = self.reader.read(now_ns, datagram);
        let read = read.map_err(|_| "malformed")?;
        for (reason, example) in self.not_logged(&read) {
            tracing::warn!(
                %source,
                reason = reason.as_str(),
                example,
                "events of the collector say nothing; collector_unused_total counts them"
            );
        }
        Ok(read)
    }

    /// Returns reasons for which nothing was logged yet, with an example each.
    fn not_logged<'a>(&mut self, read: &'a EventsRead) -> Vec<(Unused, &'a str)> {
        let unused = read.unused.iter();
        unused
            .filter(|(reason, _)| self.logged.insert(**reason))
            .map(|(reason, events)| (*reason, events.example.as_str()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use ratewright_topology::TwoTierClos;

    use super::*;

    #[test]
    fn events_with_nothing_of_use_are_logged_once_for_each_reason_and_again_after_a_reload() {
        let topology = TwoTierClos::default().build().expect("a topology");
        let source: SocketAddr = "192.0.2.1:9".parse().expect("an address");
        let settings = CollectorConfig {
            listen: source,
            sources: vec![source.ip()],
            interfaces: Vec::new(),
        };
        let collector = Collector::new(&settings, &topology, 0);
        let shared = SharedCollector(Rc::new(RefCell::new(collector)));
        let news = |datagram: &[u8]| -> Vec<(&str, String)> {
            let mut collector = shared.0.borrow_mut();
            let read = collector.reader.read(0, datagram).expect("events");
            let news = collector.not_logged(&read);
            let news = news.iter();
            news.map(|(reason, example)| (reason.as_str(), (*example).to_owned()))
                .collect()
        };
        let path = br#"{"values":{"/a/b":1}}"#;
        let expected = [("path", "\"/a/b\"".to_owned())];
        assert_eq!(news(path), expected);
        assert!(news(path).is_empty());
        assert_eq!(
            news(br#"[{"values":{"/c":1}},{}]"#),
            [("empty", "{}".to_owned())]
        );
        shared.reconfigure(&settings, &topology);
        assert_eq!(news(path), expected);
    }
}
