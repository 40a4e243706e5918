//! A store in memory, for ranks that are imagined: the server's values without sockets. It counts what a connection would carry.

use std::{
    cell::{Cell, RefCell},
    time::Instant,
};

use super::{
    super::{
        exchange::Board,
        protocol::{self, Reply, Request},
        seal::TAG,
    },
    Outbox,
    values::Values,
};
use unisono_schedule::Rank;

use crate::error::{Error, Result};

/// What has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub requests: u64,
    /// The bytes of all requests, and of all replies.
    pub asked: u64,
    pub answered: u64,
}

/// A store whose requests end at once: what is not there does not come.
#[derive(Default)]
pub(crate) struct MemoryStore {
    values: RefCell<Values>,
    sent: Cell<Sent>,
}

impl MemoryStore {
    /// What has been sent so far.
    pub(crate) fn sent(&self) -> Sent {
        self.sent.get()
    }

    fn ask<T>(&self, request: &Request<'_>, take: impl FnOnce(Reply<'_>) -> Option<T>) -> Result<T> {
        let problem = |problem: String| Error::Rendezvous { store: self.name().to_owned(), problem };
        let bytes = protocol::encode(Vec::new(), request).map_err(|error| problem(error.to_string()))?;
        let request = protocol::decode(bytes.get(4..).unwrap_or_default());
        let mut outbox = Outbox::new();
        let mut values = self.values.borrow_mut();
        let waits = request.and_then(|request| values.request(1, request, Instant::now(), &mut outbox));
        if waits.map_err(|error| problem(error.to_string()))?.is_some() {
            values.gone(1);
        }
        let Some((_, reply)) = outbox.pop() else {
            return Err(problem("what is asked for is not there".to_owned()));
        };
        let Sent { requests, asked, answered } = self.sent.get();
        self.sent.set(Sent {
            requests: requests + 1,
            asked: asked + (bytes.len() + TAG) as u64,
            answered: answered + (reply.len() + TAG) as u64,
        });
        let reply = protocol::decode(reply.get(4..).unwrap_or_default());
        let taken = reply.map_err(|error| problem(error.to_string())).map(take)?;
        taken.ok_or_else(|| problem("its reply does not fit the request".to_owned()))
    }
}

impl Board for MemoryStore {
    fn name(&self) -> &str {
        "memory"
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.ask(&Request::Set { key, value }, |reply| matches!(reply, Reply::Done).then_some(()))
    }

    fn get(&self, key: &str, _: Instant) -> Result<Option<Vec<u8>>> {
        self.ask(&Request::Get { key, wait: 1 }, |reply| match reply {
            Reply::Value(bytes) => Some(Some(bytes.to_vec())),
            _ => None,
        })
    }

    fn collect(&self, prefix: &str, count: usize, _: Instant) -> Result<Vec<(String, Vec<u8>)>> {
        self.ask(&Request::Collect { prefix, count: count as u64, wait: 1 }, |reply| match reply {
            Reply::Entries(entries) => {
                Some(entries.into_iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect())
            }
            _ => None,
        })
    }

    fn present(&self, prefix: &str) -> Result<(Vec<Rank>, String)> {
        self.ask(&Request::Present { prefix }, protocol::present)
    }
}
