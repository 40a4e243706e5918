//! The endpoint that all communicators of a process share: the transport with its peers, the active puts, the numbers of flows.

mod port;
mod posts;
mod routes;

use unisono_schedule::Rank;
use unisono_transport::{Address, RemoteRegion};

pub use self::port::Traced;
pub(crate) use self::{
    port::Port,
    posts::{PutRecord, Staged, Whose, control_of_token, control_token},
};

/// The information that a rank needs of another before it can put to it. Ranks exchange it when they join.
#[derive(Clone, Debug)]
pub struct Contact {
    /// Where its endpoint is reached.
    pub address: Address,
    /// The name of its host, for errors.
    pub host: String,
    /// The mailbox of the world's communicator: one entry for every rank.
    pub mailbox: RemoteRegion,
    /// The mask of immediates to it.
    pub mask: u32,
}

/// The known ranks of the world. The engine asks for a rank when it first puts to it.
pub trait Contacts: Send + Sync {
    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// The contact of a rank; `None` if nothing is known of it yet.
    fn contact(&self, rank: Rank) -> Option<Contact>;

    /// A rank's mailbox.
    fn mailbox(&self, rank: Rank) -> Option<RemoteRegion> {
        self.contact(rank).map(|contact| contact.mailbox)
    }
}
