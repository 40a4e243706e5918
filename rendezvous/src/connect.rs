//! How a store admits a process: the process connects and makes the handshake until the store answers or the deadline passes.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    thread,
    time::{Duration, Instant},
};

use unisono_core::error::{Error, Failure, Refusal, Result};
use unisono_schedule::Rank;

use super::{
    FIRST_REPORT, NEXT_REPORT,
    protocol::{
        self, Admission, Challenge, ConnectionPurpose, Hello, MAX_FRAME, MAX_HELLO, PREAMBLE, Verdict,
    },
    seal::{self, Seal, SealedStream},
    session::Session,
};
use crate::config::Member;

/// How long one attempt to connect may take; then the next address is tried.
const ATTEMPT: Duration = Duration::from_secs(3);

/// The most time by which the server's answer may be later than the client asked for.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How long to wait at first before trying again.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// Attempts to be admitted by a store.
pub(super) struct Tries<'a> {
    pub(super) name: &'a str,
    pub(super) member: Member,
    pub(super) deadline: Instant,
    /// The advice to the user if all attempts fail.
    pub(super) advice: &'static str,
    pub(super) place: AddressSource,
    /// Why this process cannot join, for [`ConnectionPurpose::CannotJoin`].
    pub(super) why: String,
}

/// How a process knows where the store is. This decides how it handles an answer from another store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressSource {
    /// A setting gives the address: nothing else may listen there.
    Given,
    /// Rank 0 has published the address and may have ended since: other programs may listen there.
    Published,
    /// The process tries several addresses, and other programs may listen at some.
    Sought,
}

impl AddressSource {
    /// True if this error says that another program has answered, so that the store of the job may be at the next address.
    fn goes_on_after(self, error: &Error) -> bool {
        let strange = matches!(
            error,
            Error::Rendezvous { .. } | Error::Refused { refusal: Refusal::Token | Refusal::Job { .. }, .. }
        );
        self != Self::Given && strange
    }

    /// True if this is the error to return when no address leads to the store: the store has the id of this job, and refuses the token. A
    /// process may still read the data that another job has published before.
    fn ends_with(self, error: &Error) -> bool {
        self == Self::Sought && matches!(error, Error::Refused { refusal: Refusal::Token, .. })
    }
}

/// The outcome of an attempt.
enum Outcome {
    In(SealedStream, u64, Option<Rank>),
    /// A later attempt may succeed. Contains the refusal, if the store sent one.
    Later(String, Option<Refusal>),
    Never(Error),
}

impl<'a> Tries<'a> {
    pub(super) fn new(name: &'a str, member: &Member, deadline: Instant) -> Self {
        let advice = "is rank 0 running, and are the address and the port the same on all ranks and open between their hosts?";
        Self {
            name,
            member: member.clone(),
            deadline,
            advice,
            place: AddressSource::Given,
            why: String::new(),
        }
    }

    /// Tries the addresses that `resolve` gives until the store admits this process. Returns the connection, its session, and the rank that
    /// serves the store, if a rank does. Ends early with the failure that `gone` gives.
    pub(super) fn until_deadline(
        &mut self,
        purpose: ConnectionPurpose,
        mut resolve: impl FnMut(&mut Member) -> std::result::Result<Vec<SocketAddr>, String>,
        gone: impl Fn() -> Option<Failure>,
    ) -> Result<(SealedStream, u64, Option<Rank>)> {
        let begun = Instant::now();
        let mut pause = PAUSE;
        let mut report = begun + FIRST_REPORT;
        loop {
            let (mut why, mut refused, mut last) = (String::new(), None, None);
            let addresses = resolve(&mut self.member).unwrap_or_else(|problem| {
                why = problem;
                Vec::new()
            });
            for at in addresses {
                match self.once(at, purpose) {
                    Outcome::In(sealed, session, host) => return Ok((sealed, session, host)),
                    Outcome::Later(problem, refusal) => (why, refused) = (problem, refusal),
                    Outcome::Never(error) if self.place.goes_on_after(&error) => {
                        why = error.to_string();
                        last = last.or_else(|| self.place.ends_with(&error).then_some(error));
                    }
                    Outcome::Never(error) => return Err(error),
                }
            }
            if let Some(error) = last {
                return Err(error);
            }
            if let Some(failure) = gone() {
                return Err(Error::Failed(failure));
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if let Some(refusal) = refused {
                    return Err(self.refused(refusal));
                }
                let problem = format!(
                    "rank {} did not reach it within {:.1?}: {why}; {}",
                    self.member.rank,
                    begun.elapsed(),
                    self.advice
                );
                return Err(self.problem(problem));
            }
            if Instant::now() >= report && purpose == ConnectionPurpose::Requests {
                report += NEXT_REPORT;
                unisono_transport::log::warn!(
                    "rank {} has tried {:.0?} to reach the store at {}: {why}; it tries {left:.0?} more (UNISONO_JOIN_TIMEOUT)",
                    self.member.rank,
                    begun.elapsed(),
                    self.name
                );
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// Connects a watch of this session again.
    pub(super) fn again(mut self, session: &Session) -> std::result::Result<SealedStream, Failure> {
        let purpose = ConnectionPurpose::Watch { session: session.number };
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let gone = || connect(session.at, ATTEMPT).is_err_and(refused).then(|| session.gone());
        match self.until_deadline(purpose, |_| Ok(vec![session.at]), gone) {
            Ok((sealed, ..)) => Ok(sealed),
            Err(Error::Failed(failure)) => Err(failure),
            Err(_) => Err(session.cut()),
        }
    }

    fn problem(&self, problem: String) -> Error {
        Error::rendezvous(self.name, problem)
    }

    fn refused(&self, refusal: Refusal) -> Error {
        Error::Refused { store: self.name.to_owned(), rank: self.member.rank, refusal }
    }

    /// Connects and makes the handshake with the store.
    fn once(&self, at: SocketAddr, purpose: ConnectionPurpose) -> Outcome {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = left.clamp(Duration::from_millis(50), ATTEMPT);
        let stream = match connect(at, left) {
            Ok(stream) => stream,
            Err(error) => return Outcome::Later(format!("{at}: {error}"), None),
        };
        self.handshake(stream, at, purpose, left).unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::InvalidData => Outcome::Never(self.problem(format!(
                "{at} is not a store of this library ({error}): another program has the port"
            ))),
            // A read timed out.
            io::ErrorKind::WouldBlock => {
                Outcome::Later(format!("{at} took the connection but has said nothing for {left:.1?}"), None)
            }
            _ => Outcome::Later(
                format!("{at} took the connection but did not answer as a store would ({error})"),
                None,
            ),
        })
    }

    /// The outcome if the store does not admit this process. If the store is `ending`, another may soon be there.
    fn not_admitted(&self, refusal: Refusal, ending: bool) -> Outcome {
        match refusal {
            Refusal::Failed(failure) => Outcome::Never(Error::Failed(failure.cleaned())),
            Refusal::Left => Outcome::Later(refusal.to_string(), None),
            // A later store at this address belongs to the next job.
            refusal if ending => Outcome::Later(refusal.to_string(), Some(refusal)),
            refusal => Outcome::Never(self.refused(refusal)),
        }
    }

    fn handshake(
        &self,
        connected: TcpStream,
        at: SocketAddr,
        purpose: ConnectionPurpose,
        left: Duration,
    ) -> io::Result<Outcome> {
        let mut stream = &connected;
        let no_proof = || {
            Outcome::Never(self.problem(format!(
                "the process that answers at {at} claims to be the store but does not know the job's token: another process \
                 has the port; choose another port (MASTER_PORT or UNISONO_STORE), or end that process"
            )))
        };
        protocol::tune(stream)?;
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(GRACE))?;
        let hello = Hello {
            nonce: seal::nonce()?,
            job: protocol::job(&self.member.job.id),
            rank: self.member.rank as u64,
            ranks: self.member.ranks as u64,
            who: protocol::who(),
            purpose,
        };
        let opening = protocol::encode(protocol::preamble(), &hello)?;
        stream.write_all(&opening)?;
        let mut preamble = [0; PREAMBLE];
        stream.read_exact(&mut preamble)?;
        let store = protocol::version(&preamble)?;
        if store != protocol::VERSION {
            let refusal = Refusal::Version { store, ours: protocol::VERSION };
            return Ok(self.not_admitted(refusal, false));
        }
        let mut bytes = Vec::new();
        let prefix = protocol::read_plain(stream, MAX_HELLO, &mut bytes)?;
        match protocol::decode(&bytes)? {
            Challenge::Prove(_) => {}
            // The store has not proved anything yet, so this accepts only refusals that need no proof.
            Challenge::Refused { refusal: refusal @ (Refusal::Job { .. } | Refusal::Left), ending } => {
                return Ok(self.not_admitted(refusal, ending));
            }
            Challenge::Refused { .. } => return Ok(no_proof()),
        }
        let challenge = [&preamble[..], &prefix, &bytes].concat();
        let [mut outgoing, mut incoming] = Seal::pair(&self.member.job.token, &opening, &challenge);
        match purpose {
            ConnectionPurpose::CannotJoin => protocol::write(stream, &self.why, &mut outgoing)?,
            _ => protocol::write(stream, &(), &mut outgoing)?,
        }
        protocol::read_plain(stream, MAX_HELLO, &mut bytes)?;
        if let Verdict::Unproved { ending } = protocol::decode(&bytes)? {
            return Ok(self.not_admitted(Refusal::Token, ending));
        }
        if !protocol::read_frame(stream, MAX_FRAME, &mut bytes, &mut incoming)? {
            return Ok(no_proof());
        }
        stream.set_read_timeout(None)?;
        Ok(match protocol::decode(&bytes)? {
            Admission::Welcome { session, host } => {
                let host = host.map(protocol::rank).transpose()?;
                Outcome::In(SealedStream { stream: connected.into(), outgoing, incoming }, session, host)
            }
            Admission::Refused { refusal, ending } => self.not_admitted(refusal, ending),
        })
    }
}

/// The addresses that a host's name leads to, with this port.
pub(super) fn resolve(host: &str, port: u16) -> std::result::Result<Vec<SocketAddr>, String> {
    let found = (host, port).to_socket_addrs().map(Iterator::collect);
    found.map_err(|error| format!("cannot resolve {host:?}: {error}"))
}

fn connect(at: SocketAddr, left: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, left)?;
    // If no process listens on a port of this host's ephemeral range, TCP may connect to itself.
    if stream.local_addr()? == at {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there yet"));
    }
    Ok(stream)
}

/// The error if the connection to the store `name` has broken.
pub(super) fn lost(name: &str, error: &io::Error) -> Error {
    let problem = format!(
        "the connection broke ({error}): the process that serves the store died, or something between, such as a firewall, ended it"
    );
    Error::rendezvous(name, problem)
}
