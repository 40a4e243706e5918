//! Admits connections: from their first byte until they have proved that they belong to the job. Connections that have not
//! proved it cannot hold up members, keep others out for long, or fill the log.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use unisono_core::error::{Failure, Refusal, clean};

use super::{
    super::{
        protocol::{self, Admission, Challenge, ConnectionPurpose, Frame, Hello, Verdict},
        seal::{self, Seal},
    },
    Connection, Id, Phase, Server,
    connection::FirstBytes,
    members::Ending,
    same_user,
};

/// How long a new connection may take to authenticate.
const HELLO: Duration = Duration::from_secs(10);

/// The most connections that are not authenticated, besides two per rank.
const SPARE: usize = 256;

/// The most connections that are accepted at a time.
const TURN: usize = 64;

/// The least time between two checks of which process has the other end of a connection. Strangers can connect as often as they like.
const LOOK: Duration = Duration::from_millis(50);

/// Connections that are not authenticated, each with its address, the oldest first.
#[derive(Debug)]
pub(super) struct Strangers {
    all: BTreeMap<Id, IpAddr>,
    most: usize,
}

impl Strangers {
    pub(super) fn among(ranks: usize) -> Self {
        Self { all: BTreeMap::new(), most: SPARE.saturating_add(ranks.saturating_mul(2)) }
    }

    /// The largest number of such connections.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Removes a connection that is closed or admitted.
    pub(super) fn gone(&mut self, id: Id) {
        self.all.remove(&id);
    }

    /// The connection to drop for a new one: from the address that has most of them, the oldest that has not sent a hello, or else
    /// the oldest.
    fn least_welcome(&self, silent: impl Fn(Id) -> bool) -> Option<Id> {
        let mut of: HashMap<IpAddr, usize> = HashMap::new();
        self.all.values().for_each(|&address| *of.entry(address).or_default() += 1);
        let (crowded, _) = of.into_iter().max_by_key(|&(_, count)| count)?;
        let from = || self.all.iter().filter(|&(_, &address)| address == crowded).map(|(&id, _)| id);
        from().find(|&id| silent(id)).or_else(|| from().next())
    }
}

impl Server {
    /// Accepts new connections.
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..TURN {
            let Some(listener) = self.listener.as_ref().filter(|_| self.accept_after.is_none()) else {
                return;
            };
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // If no descriptor is left, connections that are not authenticated may hold them.
                    if !self.make_way(now) {
                        unisono_transport::log::warn!("the store cannot accept a connection: {error}");
                        self.accept_after = Some(now + Duration::from_millis(100));
                        return;
                    }
                    continue;
                }
            };
            if self.strangers.all.len() >= self.strangers.most {
                self.make_way(now);
            }
            match Connection::new(stream, peer, now + HELLO) {
                Ok(connection) => {
                    self.last += 1;
                    self.strangers.all.insert(self.last, peer.ip());
                    self.connections.insert(self.last, connection);
                }
                Err(error) => self.warnings.tell(now, peer, || format!("drops a connection: {error}")),
            }
        }
    }

    /// Drops a connection that is not authenticated, if there is one.
    fn make_way(&mut self, now: Instant) -> bool {
        let connections = &self.connections;
        let silent = |id| connections.get(&id).is_none_or(|connection| connection.hello.is_none());
        let Some(id) = self.strangers.least_welcome(silent) else { return false };
        if let Some(connection) = self.connections.get(&id) {
            let others = self.strangers.all.len() - 1;
            self.warnings.tell(now, connection.peer, || {
                format!("drops a connection: {others} others are not authenticated, and one more has come")
            });
        }
        self.close(id, Ending::Dropped, now);
        true
    }

    /// The time by which the oldest connection must be authenticated.
    pub(super) fn strangers_until(&self) -> Option<Instant> {
        let (id, _) = self.strangers.all.first_key_value()?;
        self.connections.get(id).map(|connection| connection.hello_until)
    }

    /// Drops connections that are not authenticated in time.
    pub(super) fn expire_strangers(&mut self, now: Instant) {
        while let Some((&id, _)) = self.strangers.all.first_key_value() {
            match self.connections.get(&id) {
                Some(connection) if connection.hello_until > now => return,
                Some(connection) => {
                    let what = || "drops a connection: it did not authenticate in time".to_owned();
                    self.warnings.tell(now, connection.peer, what);
                    self.close(id, Ending::Dropped, now);
                }
                None => self.strangers.gone(id),
            }
        }
    }

    /// Takes the next step of authentication: the hello, or the proof. `false` if more bytes must arrive before.
    pub(super) fn handshake(&mut self, id: Id, now: Instant) -> io::Result<bool> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(false) };
        if connection.hello.is_some() {
            return self.judge(id, now);
        }
        match connection.opening()? {
            None => Ok(false),
            Some(FirstBytes::Version(ours)) => {
                let peer = connection.peer;
                let what =
                    || format!("refuses version {ours} of the protocol; it speaks {}", protocol::VERSION);
                self.warnings.tell(now, peer, what);
                connection.send_plain(Frame::of(protocol::preamble()));
                connection.ending = true;
                self.note(format!(
                    "a process at {} that speaks version {ours} of the protocol, not {}; run the same build on all ranks",
                    peer.ip().to_canonical(),
                    protocol::VERSION
                ));
                Ok(true)
            }
            Some(FirstBytes::Hello(opening, hello)) => {
                self.challenge(id, &opening, hello, now).map(|()| true)
            }
        }
    }

    /// True if this store admits processes, or tells them why the group has failed.
    fn hears(&self) -> bool {
        match self.phase {
            Phase::Serving => true,
            Phase::Lingering(..) => self.members.failure.is_some(),
            Phase::Flushing(_) => false,
        }
    }

    /// True if this store is ending, and another may soon be at its address.
    fn ending(&self) -> bool {
        !matches!(self.phase, Phase::Serving) || self.host.is_some() && self.members.anyone_gone()
    }

    /// Answers a hello.
    fn challenge(&mut self, id: Id, opening: &[u8], hello: Hello, now: Instant) -> io::Result<()> {
        let (hears, ending) = (self.hears(), self.ending());
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let job = protocol::job(&self.job.id);
        let refusal = if !hears {
            Some(Refusal::Left)
        } else if hello.job != job {
            Some(Refusal::Job { store: job, ours: protocol::job(&hello.job) })
        } else {
            None
        };
        match refusal {
            Some(refusal) => {
                let process = (!ending).then(|| process(&hello, connection.peer));
                if let Some(process) = &process {
                    self.warnings.tell(now, connection.peer, || format!("refuses {process}: {refusal}"));
                }
                let why = refusal.to_string();
                let no = protocol::encode(protocol::preamble(), &Challenge::Refused { refusal, ending })?;
                connection.send_plain(Frame::of(no));
                connection.ending = true;
                if let Some(process) = process {
                    self.note(format!("{process}: {why}"));
                }
            }
            None => {
                let prove = protocol::encode(protocol::preamble(), &Challenge::Prove(seal::nonce()?))?;
                let seals = Seal::pair(&self.job.token, opening, &prove);
                connection.send_plain(Frame::of(prove));
                connection.challenge(hello, seals);
            }
        }
        Ok(())
    }

    /// Admits a process that proves that it knows the token, if its rank is free. `false` if the proof has not arrived yet.
    fn judge(&mut self, id: Id, now: Instant) -> io::Result<bool> {
        let (hears, mut ending) = (self.hears(), self.ending());
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(false) };
        let cannot_join =
            connection.hello.as_ref().is_some_and(|hello| hello.purpose == ConnectionPurpose::CannotJoin);
        let limit = if cannot_join { protocol::MAX_WHY } else { 0 };
        let Some((frame, genuine)) = connection.next_frame(limit)? else { return Ok(false) };
        let Some(hello) = connection.hello.take() else { return Ok(false) };
        let peer = connection.peer;
        if !genuine {
            connection.send_plain(Frame::new(&Verdict::Unproved { ending }));
            connection.ending = true;
            let here = connection.stream.local_addr()?;
            if ending {
                return Ok(true);
            }
            // A stranger must not be able to end the job.
            if cannot_join && self.members.lacks(hello.rank) && self.is_of_this_user(peer, here, now) {
                let why = clean(&protocol::decode::<String>(&frame)?, protocol::MAX_WHY);
                self.fail_without(&hello, peer, &why);
            } else {
                let named = process(&hello, peer);
                self.warnings.tell(now, peer, || format!("refuses {named}: it does not know the token"));
                self.note(format!("{named}: {}", Refusal::Token));
            }
            return Ok(true);
        }
        connection.send_plain(Frame::new(&Verdict::Genuine));
        // A rank that has not learned why this group failed belongs to this group, not to a later one.
        ending &= !self.members.owes_news_to(hello.rank);
        let mut outbox = Vec::new();
        let judged = if !hears {
            Err(Refusal::Left)
        } else if cannot_join {
            let why = clean(&protocol::decode::<String>(&frame)?, protocol::MAX_WHY);
            self.fail_without(&hello, peer, &why);
            let failure = self.members.failure.clone();
            Err(failure.map_or(Refusal::Left, |failure| Refusal::Failed(Box::new(failure))))
        } else {
            self.members.hello(id, &hello, &mut outbox)
        };
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(false) };
        let refused = match &judged {
            // A process that is early for the next group tries again.
            Err(refusal) if *refusal != Refusal::Left && !ending && !cannot_join => Some(refusal.clone()),
            _ => None,
        };
        let answer = match judged {
            Ok(role) => {
                connection.role = Some(role);
                self.strangers.gone(id);
                Admission::Welcome { session: role.session, host: self.host.map(|rank| rank as u64) }
            }
            Err(refusal) => {
                connection.ending = true;
                Admission::Refused { refusal, ending }
            }
        };
        connection.send(Frame::new(&answer));
        self.outbox.append(&mut outbox);
        if let Some(refusal) = refused {
            self.warnings.tell(now, peer, || format!("refuses {}: {refusal}", process(&hello, peer)));
            if hello.purpose == ConnectionPurpose::Requests && !matches!(refusal, Refusal::Failed(_)) {
                // The process belongs to the job, and a rank is missing without it.
                self.fail_without(&hello, peer, &refusal.to_string());
            }
        }
        Ok(true)
    }

    /// Notes that the store refused a process that has proved nothing, and reports it to the ranks that wait.
    fn note(&mut self, process: String) {
        if !self.members.all_have_come() && self.members.failure.is_none() {
            self.members.refuse(process, self.host, &mut self.outbox);
            self.values.refused = self.members.refused();
        }
    }

    /// True if a process of this user on this host has the other end of a connection; `false` also if the last check was shortly before.
    fn is_of_this_user(&mut self, peer: SocketAddr, here: SocketAddr, now: Instant) -> bool {
        if !protocol::on_one_host(peer, here) || self.looked.is_some_and(|looked| now < looked + LOOK) {
            return false;
        }
        self.looked = Some(now);
        same_user::has(peer, here)
    }

    /// Fails the group because of a process that cannot join, unless all ranks have come: then this process is not one of them.
    fn fail_without(&mut self, hello: &Hello, peer: SocketAddr, why: &str) {
        if self.members.all_have_come() {
            return;
        }
        self.members.is_unfit();
        let why = clean(&format!("{}: {why}", from(hello, peer)), 2 * protocol::MAX_WHY);
        self.fail(match usize::try_from(hello.rank) {
            Ok(rank) if hello.rank != u64::MAX => Failure::Joining { rank, why },
            _ => Failure::NoRank { why },
        });
    }
}

/// A process, in words: `rank 1 (pid 17 on node03, from 10.0.0.7)`.
fn process(hello: &Hello, peer: SocketAddr) -> String {
    let from = from(hello, peer);
    if hello.rank == u64::MAX { from } else { format!("rank {} ({from})", hello.rank) }
}

fn from(hello: &Hello, peer: SocketAddr) -> String {
    format!("{}, from {}", clean(&hello.who, protocol::MAX_WHO), peer.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_welcome_is_the_oldest_silent_one_of_where_most_come_from() {
        let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2", "10.0.0.1"];
        let all = (1..).zip(addresses.map(|address| address.parse().unwrap())).collect();
        let strangers = Strangers { all, most: 5 };
        assert_eq!(strangers.least_welcome(|_| true), Some(2));
        assert_eq!(strangers.least_welcome(|id| id != 2), Some(3));
        assert_eq!(strangers.least_welcome(|_| false), Some(2));
        assert_eq!(Strangers::among(2).least_welcome(|_| true), None);
    }
}
