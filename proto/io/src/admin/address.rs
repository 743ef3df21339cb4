//! Address of an admin interface.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

/// Address of an admin interface: `unix:` and a path, `address:port`, or `writable:address:port`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum AdminAddress {
    /// A TCP address for reading only: access needs no password.
    Tcp(SocketAddr),
    /// A TCP address for reading and changing, open to every client that can reach it.
    WritableTcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Error of a text that is no [`AdminAddress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdminAddressError {
    /// Neither of the two forms.
    #[error(r#"must be "unix:" and a path, or an IP address and a port, such as "127.0.0.1:9600" (for reading) or "writable:127.0.0.1:9600""#)]
    Form,
    /// The length of sun_path in sockaddr_un, with its final zero.
    #[error("a Unix socket's path has 1 to 107 bytes")]
    Length,
}

impl AdminAddress {
    /// Returns true if only this machine can reach the address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) | Self::WritableTcp(address) => {
                // ::ffff:127.0.0.1 is the loopback interface as well.
                address.ip().to_canonical().is_loopback()
            }
            Self::Unix(_) => true,
        }
    }

    /// Resolves a socket's relative path against `folder`.
    #[must_use]
    pub fn within(self, folder: &Path) -> Self {
        match self {
            Self::Unix(path) => Self::Unix(folder.join(path)),
            Self::Tcp(_) | Self::WritableTcp(_) => self,
        }
    }
}

impl FromStr for AdminAddress {
    type Err = AdminAddressError;

    fn from_str(text: &str) -> Result<Self, AdminAddressError> {
        match text.strip_prefix("unix:") {
            // Checked here, so that the message names the bound, which the error of `bind(2)` does
            // not.
            Some(path) if path.is_empty() || path.len() > 107 => Err(AdminAddressError::Length),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => {
                let (text, of): (_, fn(_) -> _) = match text.strip_prefix("writable:") {
                    Some(address) => (address, Self::WritableTcp),
                    None => (text, Self::Tcp),
                };
                text.parse().map(of).map_err(|_| AdminAddressError::Form)
            }
        }
    }
}

impl TryFrom<String> for AdminAddress {
    type Error = AdminAddressError;

    fn try_from(text: String) -> Result<Self, AdminAddressError> {
        text.parse()
    }
}

impl std::fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::WritableTcp(address) => write!(f, "writable:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_tcp_or_unix() {
        for text in [
            "127.0.0.1:9600",
            "[::1]:9600",
            "writable:127.0.0.1:9600",
            "unix:a.sock",
            "unix:/run/a.sock",
        ] {
            let address: AdminAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        for (text, error) in [
            ("", AdminAddressError::Form),
            ("localhost:9600", AdminAddressError::Form),
            ("127.0.0.1", AdminAddressError::Form),
            ("writable:unix:a.sock", AdminAddressError::Form),
            ("unix:", AdminAddressError::Length),
            (
                &format!("unix:{}", "a".repeat(108)),
                AdminAddressError::Length,
            ),
        ] {
            assert_eq!(text.parse::<AdminAddress>(), Err(error), "{text}");
        }
    }

    #[test]
    fn relative_paths_are_the_folders() {
        let unix = |text: &str| AdminAddress::Unix(text.into());
        assert_eq!(unix("a").within(Path::new("/etc")), unix("/etc/a"));
        assert_eq!(unix("/run/a").within(Path::new("/etc")), unix("/run/a"));
    }
}
