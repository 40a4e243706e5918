//! The numbers of the descriptors that an endpoint waits for.

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
            Self::Waker => 0,
            Self::Listener => 1,
            Self::Outgoing(peer) => 2 + 2 * peer as u64,
            Self::Incoming(connection) => 3 + 2 * connection as u64,
        }
    }

    pub(super) fn of(number: u64) -> Self {
        let index = usize::try_from(number / 2).unwrap_or(usize::MAX).saturating_sub(1);
        match number {
            0 => Self::Waker,
            1 => Self::Listener,
            number if number % 2 == 0 => Self::Outgoing(index),
            _ => Self::Incoming(index),
        }
    }
}
