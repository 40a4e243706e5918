//! The numbers of the descriptors that an endpoint waits for.

/// Numbers of descriptors that are waited for; those of connections follow.
pub(super) const WAKER: u64 = 0;
pub(super) const LISTENER: u64 = 1;

/// What a descriptor belongs to.
pub(super) enum Owner {
    Waker,
    Listener,
    Outgoing(usize),
    Incoming(usize),
}

impl Owner {
    pub(super) fn number(&self) -> u64 {
        match *self {
            Self::Waker => WAKER,
            Self::Listener => LISTENER,
            Self::Outgoing(peer) => 2 + 2 * peer as u64,
            Self::Incoming(connection) => 3 + 2 * connection as u64,
        }
    }

    pub(super) fn of(number: u64) -> Self {
        let index = usize::try_from(number / 2).unwrap_or(usize::MAX).saturating_sub(1);
        match number {
            WAKER => Self::Waker,
            LISTENER => Self::Listener,
            number if number % 2 == 0 => Self::Outgoing(index),
            _ => Self::Incoming(index),
        }
    }
}
