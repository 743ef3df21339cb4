//! An application that exchanges messages: after each answer its pipe is empty.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::Namespace;

/// Server that answers every `message` bytes with one byte.
pub struct Echo {
    pub address: SocketAddr,
    _thread: JoinHandle<()>,
}

impl Echo {
    pub fn start(namespace: &Namespace, ip: &str, message: usize) -> Self {
        let (ready, bound) = mpsc::channel();
        let ip: std::net::IpAddr = ip.parse().expect("an address");
        let inner = namespace.clone();
        let thread = namespace.spawn(move || {
            let listener = TcpListener::bind((ip, 0)).expect("bind");
            ready
                .send(listener.local_addr().expect("bound"))
                .expect("test waits");
            while let Ok((mut stream, _)) = listener.accept() {
                inner.spawn(move || {
                    let mut buffer = vec![0; message];
                    while stream.read_exact(&mut buffer).is_ok() {
                        if stream.write_all(&[1]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self {
            address: bound.recv().expect("bound"),
            _thread: thread,
        }
    }
}

/// Connection in the left namespace, driven by the test.
pub struct EchoClient {
    pub stream: TcpStream,
}

impl EchoClient {
    pub fn connect(address: SocketAddr) -> Self {
        // The test thread is in the left namespace already.
        let stream = TcpStream::connect(address).expect("connect");
        // Nagle's algorithm would hold small pieces back, and blur when a flowlet begins.
        stream.set_nodelay(true).expect("nodelay");
        Self { stream }
    }

    /// Sends one message and waits for its answer: the pipe is empty afterwards.
    pub fn exchange(&mut self, bytes: usize) {
        self.stream.write_all(&vec![5; bytes]).expect("write");
        self.stream.read_exact(&mut [0]).expect("answer");
    }
}

/// Sets the application's maximum.
pub fn set_max_pacing(stream: &TcpStream, bytes_per_s: u32) {
    super::set_u32(stream.as_raw_fd(), libc::SO_MAX_PACING_RATE, bytes_per_s);
}

/// Returns the maximum in force; `u32::MAX`: none.
pub fn get_max_pacing(stream: &TcpStream) -> u64 {
    u64::from(super::get_u32(stream.as_raw_fd(), libc::SO_MAX_PACING_RATE))
}
