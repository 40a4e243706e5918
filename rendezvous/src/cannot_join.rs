//! Tells the store that this process cannot join, so that the ranks that wait for it do not wait in vain.

use std::time::Instant;

use unisono_core::error::{Error, Failure, Refusal, Result, clean};

use super::{
    Store,
    among::Search,
    connect::{AddressSource, Tries, resolve},
    directory::Folder,
    protocol::{ConnectionPurpose, MAX_WHY},
};
use crate::config::{Member, StoreAddress};

impl Store {
    /// Tells the store why this process cannot join, and returns the failure with which the group ends. A rank of `usize::MAX` is unknown.
    /// If the job of this process is not known, it may be one of `jobs`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the store is not reached before the deadline, [`Error::Refused`] if it belongs to another job.
    pub(crate) fn cannot_join(
        address: &StoreAddress,
        member: &Member,
        jobs: &[String],
        why: &str,
        deadline: Instant,
    ) -> Result<Failure> {
        let name = address.to_string();
        // A character has up to four bytes.
        let purpose = ConnectionPurpose::CannotJoin;
        let why = clean(why, MAX_WHY / 4 - 8);
        let mut tries = Tries { why, ..Tries::new(&name, member, deadline) };
        let mut jobs = jobs.iter();
        loop {
            let found = match address {
                StoreAddress::Tcp { host, port, .. } => {
                    tries.until_deadline(purpose, |_| resolve(host, *port), || None)
                }
                StoreAddress::File(directory) => {
                    let folder = Folder::of(directory, &tries.member.job)
                        .map_err(|it| Error::rendezvous(&name, it))?;
                    tries.place = AddressSource::Published;
                    tries.until_deadline(purpose, |member| folder.find(member), || None)
                }
                StoreAddress::Among { hosts, ports } => {
                    tries.place = AddressSource::Sought;
                    let mut search = Search::new(hosts, ports);
                    tries.until_deadline(purpose, |_| search.attempt(), || None)
                }
                // A process can meet by PMI only once, and its manager ends the other ranks when it ends.
                StoreAddress::Pmi { .. } => {
                    return Err(Error::rendezvous(&name, "the process manager tells the others"));
                }
            };
            match found {
                Err(Error::Failed(failure)) => return Ok(failure),
                Err(Error::Refused { refusal: Refusal::Job { .. }, .. }) if jobs.len() > 0 => {
                    tries.member.job.id = jobs.next().cloned().unwrap_or_default();
                }
                Err(error) => return Err(error),
                Ok(_) => return Err(Error::rendezvous(&name, "it has admitted a process that cannot join")),
            }
        }
    }
}
