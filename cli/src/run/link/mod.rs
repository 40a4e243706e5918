//! The messages between the launcher and a host of a job on several hosts.

mod marks;
mod words;

use std::{
    io::{BufReader, Write},
    net::IpAddr,
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::{Mutex, PoisonError},
};

use rustix::process::Signal;

pub(super) use self::{
    marks::{Mark, Marked},
    words::{CONTINUE, END, HELLO, HostHello, Places, Reached, STOP, Task},
};

/// What a host knows of the whole job, to tell the launcher of its part.
#[derive(Clone, Debug)]
pub(super) struct JobOfHost {
    /// The host as the user calls it.
    pub(super) host: String,
    /// True if there are ranks on other hosts.
    pub(super) others: bool,
    pub(super) mark: Mark,
}

/// What a host answers to the launcher's lines, or why it cannot.
pub(super) type Answer = Result<Said, String>;

/// An answer.
pub(super) enum Said {
    HostHello(HostHello),
    Reached(Reached),
}

/// A host whose ranks have begun.
pub(super) struct Connected {
    pub(super) child: Child,
    pub(super) line: Line,
    pub(super) output: Marked<BufReader<ChildStdout>>,
    pub(super) errors: ChildStderr,
}

/// The way to tell a host what to do.
pub(super) struct Line {
    /// The host as the user calls it.
    pub(super) host: String,
    input: Mutex<ChildStdin>,
}

impl Line {
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
