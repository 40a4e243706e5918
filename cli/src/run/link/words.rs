//! The lines of JSON that the launcher and a host send each other, by the standard input and output of the program there.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::run::sink::Output;

/// How a host's first line begins; what login scripts print before it is skipped.
pub(in crate::run) const HELLO: &str = "{\"unisono\":";

/// The host's first line.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::run) struct HostHello {
    /// Its version.
    pub(in crate::run) unisono: String,
    /// The host's name for itself.
    pub(in crate::run) host: String,
    pub(in crate::run) cores: u32,
    /// The addresses of the launcher and of this host, between which ssh's connection is; `None` where there is no ssh.
    pub(in crate::run) from: Option<IpAddr>,
    pub(in crate::run) at: Option<IpAddr>,
    /// A port that is kept free here for MASTER_PORT.
    pub(in crate::run) port: u16,
}

/// The launcher's first line: where the store may be.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::run) struct Places {
    pub(in crate::run) addresses: Vec<SocketAddr>,
}

/// The host's second line: which of these it reaches.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::run) struct Reached {
    pub(in crate::run) reached: Vec<bool>,
}

/// The launcher's second line.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::run) struct Task {
    pub(in crate::run) mark: String,
    /// The host as the user calls it.
    pub(in crate::run) host: String,
    pub(in crate::run) first: u32,
    pub(in crate::run) ranks: u32,
    pub(in crate::run) world: u32,
    pub(in crate::run) store: SocketAddr,
    pub(in crate::run) token: String,
    pub(in crate::run) master: (String, u16),
    pub(in crate::run) directory: PathBuf,
    pub(in crate::run) program: OsString,
    pub(in crate::run) arguments: Vec<OsString>,
    pub(in crate::run) environment: Vec<(OsString, OsString)>,
    pub(in crate::run) output: Output,
}

/// The launcher's later words, one a line. The end of its input means the same as [`END`].
pub(in crate::run) const END: &str = "end";
pub(in crate::run) const STOP: &str = "stop";
pub(in crate::run) const CONTINUE: &str = "continue";
