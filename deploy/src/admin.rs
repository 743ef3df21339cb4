//! Client of the admin interfaces: HTTP over a TCP address or a `unix:PATH` socket.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

const PATIENCE: Duration = Duration::from_secs(5);

/// Sends `GET path` to the admin interface at `address` and returns the body.
///
/// # Errors
/// When nobody answers within five seconds, or the answer is not a success.
pub fn get(address: &str, path: &str) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, connect_and_get(address, path))
            .await
            .with_context(|| format!("{address} does not answer"))?
    })
}

async fn connect_and_get(address: &str, path: &str) -> Result<String> {
    match address.strip_prefix("unix:") {
        Some(file) => {
            let stream = UnixStream::connect(file)
                .await
                .with_context(|| format!("connecting to {file}"))?;
            send(stream, "localhost", path).await
        }
        None => {
            let stream = TcpStream::connect(address)
                .await
                .with_context(|| format!("connecting to {address}"))?;
            send(stream, address, path).await
        }
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    host: &str,
    path: &str,
) -> Result<String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header(header::HOST, host)
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if !status.is_success() {
        bail!("{path} answered {status}: {}", text.trim());
    }
    Ok(text)
}
