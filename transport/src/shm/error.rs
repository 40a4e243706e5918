//! Why something stops: a peer fails (it breaks the protocol, or it ends), or this endpoint fails.

use crate::{Error, Peer, local::Failure};

/// `EPROTO`, for writes that break the protocol.
const NONSENSE: i64 = 71;

/// A peer has broken the protocol: no endpoint writes this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense(pub(super) &'static str);

impl From<Nonsense> for Failure {
    fn from(Nonsense(what): Nonsense) -> Self {
        Self::new(
            NONSENSE,
            format!("the peer sent what no endpoint sends, and the connection is dropped: {what}"),
        )
    }
}

/// The peer has dropped the connection, and lives.
pub(super) fn dropped() -> Failure {
    let what = "the peer dropped this connection: it refused a put, or got what no endpoint sends";
    Failure::new(NONSENSE, what)
}

/// Why something did not succeed: the endpoint itself cannot continue, or a peer is the cause.
#[derive(Debug)]
pub(super) enum StopCause {
    Error(Error),
    Peer(Failure),
}

impl StopCause {
    /// The error, which concerns this peer.
    pub(super) fn of(self, peer: Peer) -> Error {
        match self {
            Self::Error(error) => error,
            Self::Peer(failure) => failure.to(peer).into(),
        }
    }
}

impl From<Error> for StopCause {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl<F: Into<Failure>> From<F> for StopCause {
    fn from(failure: F) -> Self {
        Self::Peer(failure.into())
    }
}
