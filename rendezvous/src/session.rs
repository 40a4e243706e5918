//! The session of a process at a store, and the failures that the end of its connection may mean.

use std::net::SocketAddr;

use unisono_core::error::Failure;
use unisono_schedule::Rank;

use super::protocol;
use crate::config::Member;

/// A store, and a process that it has admitted.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// The store, as errors name it.
    pub(super) store: String,
    pub(super) member: Member,
    /// The number by which the store knows this process.
    pub(super) number: u64,
    /// The rank whose process serves the store; `None` if a launcher does.
    pub(super) host: Option<Rank>,
    /// The addresses of the connection: this process's and the store's.
    pub(super) from: SocketAddr,
    pub(super) at: SocketAddr,
}

impl Session {
    /// The failure if no process listens at the store's address any more; it is the same on every rank.
    pub(super) fn gone(&self) -> Failure {
        if !protocol::on_one_host(self.from, self.at) {
            // On the way to another host, a firewall may refuse connections, too.
            return self.cut();
        }
        match self.host {
            Some(rank) => {
                let how = "its process served the store, which closed before the rank left the group".into();
                Failure::Died { rank, how }
            }
            None => Failure::StoreLost {
                how: format!("the connection to {}, which the launcher serves, closed", self.store),
            },
        }
    }

    /// The failure if the connection to the store ends and cannot be made again, and the reason is unknown.
    pub(super) fn cut(&self) -> Failure {
        let how = |server: &str| {
            format!(
                "the connection to the store at {}, which {server} serves, has ended and cannot be made again: {server} died, or \
                 something between, such as a firewall, ended it",
                self.store
            )
        };
        match self.host {
            Some(rank) => Failure::Unreachable { rank, how: how("its process") },
            None => Failure::StoreLost { how: how("the launcher") },
        }
    }

    /// The failure if the store does not answer.
    pub(super) fn silent(&self) -> Failure {
        Failure::StoreSilent { store: self.store.clone(), host: self.host }
    }
}
