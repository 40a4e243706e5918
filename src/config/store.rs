//! Where ranks meet, as it is written in the environment.

use std::{fmt, net::IpAddr, path::PathBuf};

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// `tcp://host:port`, or `tcp+served://host:port` where a launcher serves it rather than rank 0.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// Whether a process that is no rank serves it.
        served: bool,
    },
    /// `file:///directory`, shared by all ranks.
    File(PathBuf),
}

impl StoreAddress {
    /// Whether a machine knows itself by this name at an address that leads nowhere else: Debian's /etc/hosts has its own
    /// name at 127.0.1.1. Whoever says `localhost`, or names such an address, means it.
    #[must_use]
    pub fn names_itself(host: &str, address: IpAddr) -> bool {
        address.is_loopback() && host != "localhost" && host.parse::<IpAddr>().is_err()
    }

    /// Reads `tcp://host:port`, `tcp+served://host:port` or `file:///directory`; an IPv6 address stands in
    /// brackets.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        const WANTED: &str = "wanted tcp://host:port, tcp+served://host:port or file:///directory";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| WANTED.to_owned())?;
        match scheme {
            "tcp" | "tcp+served" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| format!("no port; {WANTED}"))?;
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                if host.is_empty() {
                    return Err(format!("no host; {WANTED}"));
                }
                let port =
                    port.parse().map_err(|_| format!("port {port:?} is not a number from 0 to 65535"))?;
                Ok(Self::Tcp { host: host.to_owned(), port, served: scheme == "tcp+served" })
            }
            "file" if rest.starts_with('/') => Ok(Self::File(rest.into())),
            "file" => Err(format!("the directory must be absolute; {WANTED}")),
            _ => Err(format!("unknown scheme {scheme:?}; {WANTED}")),
        }
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, served } => {
                let scheme = if *served { "tcp+served" } else { "tcp" };
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
            Self::File(directory) => write!(f, "file://{}", directory.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_a_machine_to_itself_alone_is_told_apart() {
        for (host, address, itself) in [
            ("node01", "127.0.1.1", true),
            ("node01", "::1", true),
            ("node01", "10.0.0.1", false),
            ("localhost", "127.0.0.1", false),
            ("127.0.1.1", "127.0.1.1", false),
            ("::1", "::1", false),
        ] {
            assert_eq!(
                StoreAddress::names_itself(host, address.parse().unwrap()),
                itself,
                "{host} at {address}"
            );
        }
    }
}
