//! Answers to the admin server's requests.

use std::cell::RefCell;

use super::core_handle::CoreHandle;
use crate::service::admin_request::AdminRequest;
use crate::service::status::Reasons;

impl CoreHandle {
    /// Answers a request, with what the service thread rejected.
    pub(super) async fn answer(&self, request: AdminRequest, rejections: &RefCell<Reasons>) {
        let rejections = rejections.borrow().clone();
        // These visit every session, flow or link, in slices, so that datagrams do not wait.
        let request = match request {
            AdminRequest::Status(reply) => {
                return drop(reply.send(Box::new(self.status(rejections).await)));
            }
            AdminRequest::Overview(reply) => {
                return drop(reply.send(Box::new(self.overview(rejections).await)));
            }
            AdminRequest::LinkFlows(link, reply) => {
                return drop(reply.send(self.link_flows(link).await));
            }
            AdminRequest::TopFlows(most, reply) => {
                return drop(reply.send(self.top_flows(most).await));
            }
            AdminRequest::Links(most, reply) => return drop(reply.send(self.links(most).await)),
            AdminRequest::Explain(from, to, reply) => {
                return drop(reply.send(self.explain(&from, &to).await));
            }
            other => other,
        };
        let answer = self.call(move |core, now_ns| match request {
            AdminRequest::Status(_)
            | AdminRequest::Overview(_)
            | AdminRequest::LinkFlows(..)
            | AdminRequest::TopFlows(..)
            | AdminRequest::Links(..)
            | AdminRequest::Explain(..) => {}
            AdminRequest::SetHostReleased(host, released, reply) => {
                let result = core.hub.set_host_released(now_ns, &host, released);
                tracing::warn!(
                    host,
                    released,
                    known = result.is_ok(),
                    "host release turned"
                );
                drop(reply.send(result));
            }
            AdminRequest::HostReleaseReport(host, reply) => {
                drop(reply.send(core.hub.host_release_report(now_ns, &host)));
            }
            AdminRequest::Ping(reply) => drop(reply.send(())),
            AdminRequest::Snapshot(reply) => {
                drop(reply.send(Box::new(core.snapshot(&rejections))));
            }
            AdminRequest::HistoryPoint(reply) => drop(reply.send(core.history_point(now_ns))),
            AdminRequest::Topology(reply) => {
                drop(reply.send(Box::new(core.hub.topology().clone())));
            }
            AdminRequest::Flows(host, reply) => {
                drop(reply.send(core.hub.report().flows_of(&host)));
            }
            AdminRequest::Feeds(reply) => {
                drop(reply.send(core.hub.network().feeds_report(now_ns)));
            }
            AdminRequest::SetReleased(released, reply) => {
                let report = core.hub.set_released(now_ns, released);
                tracing::warn!(released, hosts = report.hosts, "kill switch turned");
                drop(reply.send(report));
            }
            AdminRequest::ReleaseReport(reply) => {
                drop(reply.send(core.hub.release_report(now_ns)));
            }
            AdminRequest::ReleaseWaits(reply) => drop(reply.send(core.hub.release_waits(now_ns))),
            AdminRequest::ChangeTopology(change, reply) => {
                core.change_topology(now_ns, &change, reply);
            }
            // Feeds report many times a second: `/status` shows it, and the log does not.
            AdminRequest::SetExternalLoad(load, reply) => {
                let result = core.hub.set_external_load(now_ns, &load);
                tracing::debug!(told = ?load, ?result, "external load");
                drop(reply.send(result));
            }
        });
        answer.await;
    }
}
