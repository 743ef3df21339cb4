//! Answers to the admin server's requests.

use std::cell::RefCell;

use tokio::sync::oneshot;

use super::core_handle::CoreHandle;
use super::service_core::{ServiceCore, overview};
use crate::service::admin_request::AdminRequest;
use crate::service::status::Reasons;

impl CoreHandle {
    /// Answers a request, with what the service thread rejected. What visits every session, flow or
    /// link does so in slices, so that datagrams do not wait. A requester that is gone needs no
    /// answer.
    pub(super) async fn answer(&self, request: AdminRequest, rejections: &RefCell<Reasons>) {
        let rejected = || rejections.borrow().clone();
        match request {
            AdminRequest::Status(reply) => {
                drop(reply.send(Box::new(self.status(rejected()).await)));
            }
            AdminRequest::Overview(reply) => {
                drop(reply.send(Box::new(overview::overview(self, rejected()).await)));
            }
            AdminRequest::LinkFlows(link, reply) => {
                drop(reply.send(overview::link_flows(self, link).await));
            }
            AdminRequest::TopFlows(most, reply) => drop(reply.send(self.top_flows(most).await)),
            AdminRequest::Links(most, reply) => drop(reply.send(self.links(most).await)),
            AdminRequest::Explain(from, to, reply) => {
                drop(reply.send(self.explain(&from, &to).await));
            }
            AdminRequest::Snapshot(reply) => {
                let rejected = rejected();
                self.reply(reply, move |core, _| Box::new(core.snapshot(&rejected)))
                    .await;
            }
            AdminRequest::Ping(reply) => self.reply(reply, |_, _| ()).await,
            AdminRequest::HistoryPoint(reply) => {
                self.reply(reply, |core, now_ns| overview::history_point(core, now_ns))
                    .await;
            }
            AdminRequest::Topology(reply) => {
                self.reply(reply, |core, _| Box::new(core.hub.topology().clone()))
                    .await;
            }
            AdminRequest::Flows(host, reply) => {
                self.reply(reply, move |core, _| core.hub.report().flows_of(&host))
                    .await;
            }
            AdminRequest::Feeds(reply) => {
                self.reply(reply, |core, now_ns| {
                    core.hub.network().feeds_report(now_ns)
                })
                .await;
            }
            AdminRequest::SetHostReleased(host, released, reply) => {
                self.reply(reply, move |core, now_ns| {
                    let result = core.hub.set_host_released(now_ns, &host, released);
                    let known = result.is_ok();
                    tracing::warn!(host, released, known, "host release turned");
                    result
                })
                .await;
            }
            AdminRequest::HostReleaseReport(host, reply) => {
                self.reply(reply, move |core, now_ns| {
                    core.hub.report().host_release_report(now_ns, &host)
                })
                .await;
            }
            AdminRequest::SetReleased(released, reply) => {
                self.reply(reply, move |core, now_ns| {
                    let report = core.hub.set_released(now_ns, released);
                    tracing::warn!(released, hosts = report.hosts, "kill switch turned");
                    report
                })
                .await;
            }
            AdminRequest::ReleaseReport(reply) => {
                self.reply(reply, |core, now_ns| {
                    core.hub.report().release_report(now_ns)
                })
                .await;
            }
            AdminRequest::ReleaseWaits(reply) => {
                self.reply(reply, |core, now_ns| core.hub.release_waits(now_ns))
                    .await;
            }
            // The core answers at the end of the sweep.
            AdminRequest::ChangeTopology(change, reply) => {
                self.call(move |core, now_ns| core.change_topology(now_ns, &change, reply))
                    .await;
            }
            // Feeds report many times a second: `/status` shows it, and the log does not.
            AdminRequest::SetExternalLoad(load, reply) => {
                self.reply(reply, move |core, now_ns| {
                    let result = core.hub.network_mut().set_external_load(now_ns, &load);
                    tracing::debug!(told = ?load, ?result, "external load");
                    result
                })
                .await;
            }
        }
    }

    /// Sends the result of `work` with the core, from the core's thread.
    async fn reply<T: Send + 'static>(
        &self,
        reply: oneshot::Sender<T>,
        work: impl FnOnce(&mut ServiceCore, u64) -> T + Send + 'static,
    ) {
        self.call(move |core, now_ns| drop(reply.send(work(core, now_ns))))
            .await;
    }
}
