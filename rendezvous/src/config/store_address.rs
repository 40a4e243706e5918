//! The address of a store, as it is written in the environment.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
};

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// `tcp://host:port`, or `tcp+served://host:port` where a launcher serves it rather than rank 0.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// True if a process that is no rank serves it.
        served: bool,
    },
    /// `file:///directory`, shared by all ranks.
    File(PathBuf),
    /// On one of several hosts, at one of several ports: rank 0 takes the first port that is free on its host, and the others look for
    /// the store of their job. This is for launchers that name the hosts of a job, but not the host of rank 0.
    Among {
        /// Names or addresses, the likeliest first.
        hosts: Vec<String>,
        /// The ports, in the order in which they are tried.
        ports: Vec<u16>,
    },
    /// At the place that rank 0 publishes through the process manager, by PMI 1. MPICH, Intel MPI and Flux have such managers. A process
    /// can use this only once.
    Pmi {
        /// The descriptor of the connection to the process manager, `PMI_FD`.
        descriptor: usize,
        /// This host, as the process manager knows it.
        host: Option<String>,
    },
}

impl StoreAddress {
    /// True if `host` is a name that this host resolves to a loopback address, which no other host can reach: Debian's
    /// /etc/hosts maps the host's own name to 127.0.1.1. `false` for `localhost` and for addresses, which are used as given.
    #[must_use]
    pub fn names_itself(host: &str, address: IpAddr) -> bool {
        address.is_loopback() && host != "localhost" && host.parse::<IpAddr>().is_err()
    }

    /// The host in a text that must hold a host alone: a name or an address; an IPv6 address may have brackets and a zone
    /// (`[fe80::1%eth0]`).
    ///
    /// # Errors
    /// A sentence that says what is wrong with the text.
    pub fn host_in(text: &str) -> Result<&str, String> {
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = bracketed.unwrap_or(text);
        let address = host.split_once('%').map_or(host, |(address, _)| address);
        let v6 = address.parse::<Ipv6Addr>().is_ok();
        Err(if host.is_empty() {
            "no host".to_owned()
        } else if let Some((scheme, _)) = text.split_once("://") {
            format!("there is a scheme in it, {scheme}://")
        } else if v6
            || bracketed.is_none() && !host.contains(|c: char| ":/[]".contains(c) || c.is_whitespace())
        {
            return Ok(host);
        } else if let Some((before, port)) = text.rsplit_once(':')
            && (before.ends_with(']') || !before.contains(':'))
            && port.parse::<u16>().is_ok()
        {
            format!("there is a port in it, {port}")
        } else {
            format!("{text:?} is neither a name nor an address")
        })
    }

    /// Reads `tcp://host:port`, `tcp+served://host:port` or `file:///directory`; an IPv6 address stands in
    /// brackets.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the text, and what is valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        const WANTED: &str = "wanted tcp://host:port, tcp+served://host:port or file:///directory";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| WANTED.to_owned())?;
        match scheme {
            "tcp" | "tcp+served" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| format!("no port; {WANTED}"))?;
                let host = Self::host_in(host).map_err(|problem| format!("{problem}; {WANTED}"))?;
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
            Self::Among { hosts, ports } => {
                write!(f, "tcp://{}:{}", Few(hosts, "host"), Few(ports, "port"))
            }
            Self::Pmi { .. } => f.write_str("the process manager's PMI"),
        }
    }
}

/// The first of several things, and how many others there are.
struct Few<'a, T>(&'a [T], &'static str);

impl<T: fmt::Display> fmt::Display for Few<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        let (all, of) = (self.0, self.1);
        if let [one] = all {
            return one.fmt(f);
        }
        let shown: Vec<_> = all.iter().take(SHOWN).map(T::to_string).collect();
        let more = if all.len() > SHOWN { ",..." } else { "" };
        write!(f, "({} {of}s: {}{more})", all.len(), shown.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_nothing_else() {
        for (text, host) in [
            ("node01", "node01"),
            ("node01.rack-2.example_net.", "node01.rack-2.example_net."),
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("fe80::1%eth0", "fe80::1%eth0"),
            ("[fe80::1%eth0]", "fe80::1%eth0"),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ] {
            assert_eq!(StoreAddress::host_in(text), Ok(host));
        }
        for (text, problem) in [
            ("", "no host"),
            ("[]", "no host"),
            ("tcp://node01", "a scheme in it, tcp://"),
            ("tcp://node01:29500", "a scheme in it, tcp://"),
            ("env://", "a scheme in it, env://"),
            ("node01:29500", "a port in it, 29500"),
            ("10.0.0.1:29500", "a port in it, 29500"),
            ("[::1]:29500", "a port in it, 29500"),
            ("node01:", "\"node01:\" is neither"),
            ("node01:http", "is neither"),
            ("[::1", "is neither"),
            ("::1]", "is neither"),
            ("[node01]", "is neither"),
            ("node 1", "is neither"),
            ("node01/", "is neither"),
            ("1:2:3", "is neither"),
        ] {
            let message = StoreAddress::host_in(text).unwrap_err();
            assert!(message.contains(problem), "{text}: {message}");
        }
    }

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

    #[test]
    fn stores_are_written_as_they_are_read() {
        for text in
            ["tcp://node01:29500", "tcp://[::1]:0", "tcp+served://10.0.0.1:65535", "file:///shared/dir"]
        {
            assert_eq!(StoreAddress::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "node01:1", "tcp://node01", "tcp://:1", "tcp://a:65536", "file://here", "udp://a:1"]
        {
            assert!(StoreAddress::parse(text).is_err(), "{text}");
        }
    }
}
