//! Client of the admin interfaces: HTTP over a TCP address or a `unix:PATH` socket.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Address at which the packaged allocator listens for operators.
pub const DEFAULT_ADDRESS: &str = "unix:/run/ratewright-allocator/admin.sock";

const PATIENCE: Duration = Duration::from_secs(5);

/// Sends `GET path` to the admin interface at `address` and returns the body.
///
/// # Errors
/// When no response comes within five seconds, or it is not a success.
pub fn get(address: &str, path: &str) -> Result<String> {
    once(PATIENCE, address, &Method::GET, path)
}

/// Sends `POST path` without a body to the admin interface at `address`. Returns the response's
/// body.
///
/// # Errors
/// As [`get`].
pub fn post(address: &str, path: &str) -> Result<String> {
    post_within(PATIENCE, address, path)
}

/// As [`post`], for a response that takes up to `patience`.
///
/// # Errors
/// When no response comes within `patience`, or it is not a success.
pub fn post_within(patience: Duration, address: &str, path: &str) -> Result<String> {
    once(patience, address, &Method::POST, path)
}

/// Returns a text as the value of a query: percent-encoded but for letters, digits, `-`, `.`, `_`.
pub(crate) fn query_value(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Says what to check when no allocator answers at `address`.
pub(crate) fn whom_to_ask(address: &str) -> String {
    format!(
        "no allocator answers at {address}: is it running (systemctl status ratewright-allocator), \
         is this the `admin` of its configuration, and may this user open it (its group is \
         ratewright-allocator)?"
    )
}

fn once(patience: Duration, address: &str, method: &Method, path: &str) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    runtime.block_on(async {
        tokio::time::timeout(patience, connect_and_ask(address, method, path))
            .await
            .with_context(|| format!("{address} does not answer"))?
    })
}

/// A connection to an admin interface, for many questions.
pub struct AdminClient {
    runtime: tokio::runtime::Runtime,
    sender: hyper::client::conn::http1::SendRequest<Empty<Bytes>>,
    host: String,
}

impl std::fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("host", &self.host).finish()
    }
}

impl AdminClient {
    /// Connects to the admin interface at `address`.
    ///
    /// # Errors
    /// When no process listens at the address.
    pub fn connect(address: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let (sender, host) = runtime.block_on(async {
            Ok::<_, anyhow::Error>(match address.strip_prefix("unix:") {
                Some(file) => {
                    let stream = UnixStream::connect(file)
                        .await
                        .with_context(|| format!("connecting to {file}"))?;
                    (open(stream).await?, "localhost".to_owned())
                }
                None => {
                    let stream = TcpStream::connect(address)
                        .await
                        .with_context(|| format!("connecting to {address}"))?;
                    (open(stream).await?, address.to_owned())
                }
            })
        })?;
        Ok(Self {
            runtime,
            sender,
            host,
        })
    }

    /// Sends `GET path`; returns the status and the body.
    ///
    /// # Errors
    /// When no response comes within five seconds.
    pub fn get(&mut self, path: &str) -> Result<(u16, String)> {
        let (sender, host) = (&mut self.sender, &self.host);
        let answer = async {
            // The response before must have been read to its end.
            sender.ready().await?;
            ask(sender, host, &Method::GET, path).await
        };
        self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, answer)
                .await
                .with_context(|| format!("{path}: no answer"))?
        })
    }
}

async fn connect_and_ask(address: &str, method: &Method, path: &str) -> Result<String> {
    match address.strip_prefix("unix:") {
        Some(file) => {
            let stream = UnixStream::connect(file)
                .await
                .with_context(|| format!("connecting to {file}"))?;
            send(stream, "localhost", method, path).await
        }
        None => {
            let stream = TcpStream::connect(address)
                .await
                .with_context(|| format!("connecting to {address}"))?;
            send(stream, address, method, path).await
        }
    }
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<hyper::client::conn::http1::SendRequest<Empty<Bytes>>> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // hyper splits a connection: this task moves its bytes while requests wait.
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(
    sender: &mut hyper::client::conn::http1::SendRequest<Empty<Bytes>>,
    host: &str,
    method: &Method,
    path: &str,
) -> Result<(u16, String)> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    host: &str,
    method: &Method,
    path: &str,
) -> Result<String> {
    let (status, text) = ask(&mut open(stream).await?, host, method, path).await?;
    // Any 2xx is a success (RFC 9110, section 15.3).
    if !(200..300).contains(&status) {
        bail!("{path} answered {status}: {}", text.trim());
    }
    Ok(text)
}
