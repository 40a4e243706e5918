//! The messages between the launcher and a host of a job on several hosts: lines of JSON by the standard input and output of the program
//! there, and then words.

mod marks;

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ChildStdin,
    sync::{Mutex, PoisonError},
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

pub(super) use self::marks::{HostMark, MarkedOutput};
use super::program::Program;

/// How a host's first line begins; what login scripts print before it is skipped.
pub(super) const HELLO: &str = "{\"unisono\":";

/// The host's first line.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct HostHello {
    /// Its version.
    pub(super) unisono: String,
    /// The host's name for itself.
    pub(super) host: String,
    pub(super) cores: u32,
    /// The addresses of the launcher and of this host, between which ssh's connection is; `None` where there is no ssh.
    pub(super) from: Option<IpAddr>,
    pub(super) at: Option<IpAddr>,
    /// A port that is kept free here for MASTER_PORT.
    pub(super) port: u16,
}

/// The launcher's first line: where the store may be.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Places {
    pub(super) addresses: Vec<SocketAddr>,
}

/// The host's second line: which of these it reaches.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Reached {
    pub(super) reached: Vec<bool>,
}

/// The launcher's second line.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Task {
    pub(super) mark: String,
    /// The host as the user calls it.
    pub(super) host: String,
    pub(super) first: u32,
    pub(super) ranks: u32,
    pub(super) world: u32,
    pub(super) store: SocketAddr,
    pub(super) token: String,
    pub(super) master: (String, u16),
    pub(super) directory: PathBuf,
    #[serde(flatten)]
    pub(super) program: Program,
}

/// The launcher's later words, one a line. The end of its input means the same as [`END`].
pub(super) const END: &str = "end";
pub(super) const STOP: &str = "stop";
pub(super) const CONTINUE: &str = "continue";

/// What a host knows of the whole job, to tell the launcher of its part.
#[derive(Clone, Debug)]
pub(super) struct JobOfHost {
    /// The host as the user calls it.
    pub(super) host: String,
    /// True if there are ranks on other hosts.
    pub(super) others: bool,
    pub(super) mark: HostMark,
}

/// What a host answers to the launcher's lines, or why it cannot.
pub(super) type Answer = Result<Said, String>;

/// An answer.
pub(super) enum Said {
    HostHello(HostHello),
    Reached(Reached),
}

/// The way to tell a host what to do.
pub(super) struct HostChannel {
    /// The host as the user calls it.
    pub(super) host: String,
    input: Mutex<ChildStdin>,
}

impl HostChannel {
    pub(super) fn new(host: String, input: ChildStdin) -> Self {
        Self { host, input: input.into() }
    }

    /// Makes the host's ranks end, stop or continue.
    pub(super) fn signal(&self, signal: Signal) {
        let word = match signal {
            Signal::STOP => STOP,
            Signal::CONT => CONTINUE,
            _ => END,
        };
        self.say(word);
    }

    pub(super) fn say(&self, line: &str) {
        // If it cannot be written, the connection has ended, which its own thread tells.
        let _ = writeln!(self.input.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
    }
}

/// The addresses in SSH_CONNECTION: of the host that connects, and of this host.
pub(super) fn addresses(connection: &str) -> [Option<IpAddr>; 2] {
    let words: Vec<_> = connection.split_whitespace().collect();
    // An address that is valid on one host only has the name of an interface, and other hosts cannot use it.
    [0, 2].map(|at| {
        words.get(at).and_then(|word| word.parse::<IpAddr>().ok()).map(|address| address.to_canonical())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_says_who_connects() {
        let of = |text| {
            addresses(text).map(|address| address.map(|address| address.to_string()).unwrap_or_default())
        };
        assert_eq!(of("10.0.0.9 5022 10.0.0.1 22"), ["10.0.0.9", "10.0.0.1"]);
        assert_eq!(of("fd98::fe 5022 fd98::1 22"), ["fd98::fe", "fd98::1"]);
        assert_eq!(of("::ffff:10.0.0.9 5022 fe80::1%eth0 22"), ["10.0.0.9", ""]);
        assert_eq!(of(""), ["", ""]);
    }
}
