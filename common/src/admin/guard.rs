//! Keeps web pages from changing anything: a browser of somebody who can reach the admin address would
//! carry out a page's requests, since the admin interface asks for no password.
//!
//! A browser names the page's origin in every request that can change something, so whatever has an
//! `Origin` is refused. A page whose own name was pointed at our address (DNS rebinding) is of the same
//! origin, but its requests carry that name as their `Host`: over TCP the `Host` has to be an address,
//! on a loopback address a loopback one.

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::AdminAddress;

/// What the `Host` of a request that changes something may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hosts {
    /// Anything: no browser speaks over a Unix socket by itself.
    Any,
    /// `localhost` or a loopback address.
    Loopback,
    /// `localhost` or any address, but no other name.
    Addresses,
}

impl Hosts {
    /// What fits a server at `address`.
    pub(super) fn of(address: &AdminAddress) -> Self {
        match address {
            AdminAddress::Unix(_) => Self::Any,
            AdminAddress::Tcp(_) if address.is_local() => Self::Loopback,
            AdminAddress::Tcp(_) => Self::Addresses,
        }
    }

    fn takes(self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return self == Self::Any;
        };
        let name = authority.host();
        let address: Option<std::net::IpAddr> = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .ok();
        match self {
            Self::Any => true,
            Self::Loopback => {
                name.eq_ignore_ascii_case("localhost")
                    || address.is_some_and(|address| address.to_canonical().is_loopback())
            }
            Self::Addresses => name.eq_ignore_ascii_case("localhost") || address.is_some(),
        }
    }
}

/// Refuses requests that change something and may come from a web page.
pub(super) async fn refuse_browsers(
    State(hosts): State<Hosts>,
    request: Request,
    next: Next,
) -> Response {
    match complaint(hosts, request.method(), request.headers()) {
        None => next.run(request).await,
        Some(complaint) => (StatusCode::FORBIDDEN, complaint).into_response(),
    }
}

fn complaint(hosts: Hosts, method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    if method.is_safe() {
        return None;
    }
    if headers.contains_key(header::ORIGIN) {
        return Some("requests of web pages (with an Origin header) change nothing here\n");
    }
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if hosts != Hosts::Any && !host.is_some_and(|host| hosts.takes(host)) {
        return Some("the Host header must be the admin address itself, or localhost\n");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &'static str, origin: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !host.is_empty() {
            headers.insert(header::HOST, host.parse().expect("a value"));
        }
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn no_web_page_can_change_anything() {
        let table = [
            (Hosts::Loopback, "127.0.0.1:9600", true),
            (Hosts::Loopback, "[::1]:9600", true),
            (Hosts::Loopback, "LocalHost:9600", true),
            (Hosts::Loopback, "localhost", true),
            (Hosts::Loopback, "rebound.example:9600", false),
            (Hosts::Loopback, "localhost.rebound.example", false),
            (Hosts::Loopback, "10.0.0.1:9600", false),
            (Hosts::Loopback, "", false),
            (Hosts::Addresses, "10.0.0.1:9600", true),
            (Hosts::Addresses, "[fd00::1]", true),
            (Hosts::Addresses, "rebound.example", false),
            (Hosts::Any, "admin", true),
            (Hosts::Any, "", true),
        ];
        for (hosts, host, taken) in table {
            for method in [Method::POST, Method::PUT, Method::DELETE] {
                let refused = complaint(hosts, &method, &headers(host, None)).is_some();
                assert_eq!(refused, !taken, "{hosts:?} {method} {host:?}");
                let page = headers(host, Some("https://page.example"));
                assert!(
                    complaint(hosts, &method, &page).is_some(),
                    "{hosts:?} {method} {host:?}"
                );
                let sandboxed = headers(host, Some("null"));
                assert!(complaint(hosts, &method, &sandboxed).is_some());
            }
            let read = headers(host, Some("https://page.example"));
            assert_eq!(
                complaint(hosts, &Method::GET, &read),
                None,
                "reading changes nothing"
            );
        }
    }

    #[test]
    fn the_rule_follows_the_address() {
        let tcp = |text: &str| AdminAddress::Tcp(text.parse().expect("an address"));
        assert_eq!(Hosts::of(&tcp("127.0.0.1:1")), Hosts::Loopback);
        assert_eq!(Hosts::of(&tcp("[::1]:1")), Hosts::Loopback);
        assert_eq!(Hosts::of(&tcp("0.0.0.0:1")), Hosts::Addresses);
        assert_eq!(Hosts::of(&AdminAddress::Unix("a".into())), Hosts::Any);
    }
}
