#![allow(unsafe_code, reason = "a socket option that nix does not have")]

use std::net::Ipv4Addr;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, recvmsg, setsockopt, sockopt};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;

use super::*;

/// `SO_RCVPRIORITY` (Linux 6.14): received datagrams carry the priority that they were sent with.
const SO_RCVPRIORITY: i32 = 82;

/// Asks for the priority with which datagrams were sent; false if the kernel has no such option.
fn ask_priority(socket: &UdpSocket) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length are those of a c_int that lives through the call.
    let refused = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_RCVPRIORITY,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    refused == 0
}

/// The type of service and the priority of the first datagram that a connection from `local` sends,
/// as the kernel says at the other end. The priority is missing on kernels without the option.
async fn first_datagram(local: SocketAddr, to: SocketAddr, dscp: Dscp) -> (u8, Option<i32>) {
    let receiver = UdpSocket::bind(to).expect("a socket");
    if to.is_ipv4() {
        setsockopt(&receiver, sockopt::IpRecvTos, &true).expect("told the type of service");
    } else {
        setsockopt(&receiver, sockopt::Ipv6RecvTClass, &true).expect("told the traffic class");
    }
    let tells = ask_priority(&receiver);
    receiver
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("a timeout");
    let mut to = receiver.local_addr().expect("bound");
    if local.is_ipv6()
        && let IpAddr::V4(ip) = to.ip()
    {
        // A dual-stack socket reaches IPv4 by mapped addresses.
        to.set_ip(ip.to_ipv6_mapped().into());
    }

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let quic = QuicClientConfig::try_from(tls).expect("a suite for Initials");
    let endpoint = client::QuicClient::bind(local, dscp).expect("an endpoint");
    let connecting = endpoint
        .endpoint()
        .connect_with(quinn::ClientConfig::new(Arc::new(quic)), to, "nobody")
        .expect("a good address");
    let attempt = tokio::spawn(connecting.into_future());
    // On a thread of its own: the runtime has one, and quinn must send meanwhile.
    let received = tokio::task::spawn_blocking(move || {
        let mut bytes = [0; 2_048];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!([i32; 4], [i32; 4]);
        let message = recvmsg::<SockaddrStorage>(
            receiver.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::empty(),
        )
        .expect("a datagram within 5 s");
        let (mut class, mut priority) = (None, None);
        for control in message.cmsgs().expect("whole control messages") {
            match control {
                ControlMessageOwned::Ipv4Tos(tos) => class = Some(tos),
                ControlMessageOwned::Ipv6TClass(value) => class = u8::try_from(value).ok(),
                ControlMessageOwned::Unknown(other) => {
                    priority = other
                        .data_bytes
                        .first_chunk()
                        .map(|b| i32::from_ne_bytes(*b));
                }
                _ => {}
            }
        }
        (class.expect("the type of service"), priority)
    })
    .await
    .expect("no panic");
    attempt.abort();
    assert_eq!(received.1.is_some(), tells);
    received
}

#[tokio::test]
async fn quic_datagrams_carry_the_mark_and_the_priority_on_either_family() {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    for (local, to) in [(v4, v4), (v6, v6), (both, v6), (both, v4)] {
        let (class, priority) = first_datagram(local, to, Dscp::CS6).await;
        assert_eq!(class, Dscp::CS6.traffic_class(), "{local} to {to}");
        if let Some(priority) = priority {
            assert_eq!(priority, 6, "{local} to {to}");
        }
    }
    let (class, priority) = first_datagram(v4, v4, Dscp::NONE).await;
    assert_eq!((class, priority.unwrap_or_default()), (0, 0));
}
