//! The ends of ranks and jobs: an exit status or a signal.

use std::process::ExitCode;

/// How a rank or a whole job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl End {
    /// By a closed pipe.
    pub(crate) const PIPE: Self = Self::Signal(13);

    /// The exit status as shells compute it.
    pub(super) fn status(self) -> i32 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// `status 3` or `signal 9`.
    pub(super) fn words(self) -> String {
        match self {
            Self::Status(status) => format!("status {status}"),
            Self::Signal(signal) => format!("signal {signal}"),
        }
    }

    /// The exit status as that of this process.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(u8::try_from(self.status()).unwrap_or(u8::MAX))
    }
}
