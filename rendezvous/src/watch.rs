//! The watch of a rank at the store: a thread that sleeps in `read` until a message of the server arrives.

use std::{
    collections::HashMap,
    fmt,
    io::{self, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use unisono_core::error::{Failure, clean};
use unisono_transport::fork::{Process, Unshared};

use super::{
    ECHO, FailureLatch, Position, PositionSource,
    connect::Tries,
    directory::Served,
    protocol::{self, MAX_FRAME, ToServer, ToWatch},
    seal::{Seal, SealedStream},
    session::Session,
};

/// The most characters about a refused process.
const MAX_REFUSED: usize = 1000;

/// How long writing a message to the server may take; usually the kernel buffers it.
const WRITE: Duration = Duration::from_secs(1);

/// How long this rank tries to connect again. The store waits for a shorter time, but from when it notices the end of the connection, which
/// may be later.
const RETURN: Duration = Duration::from_secs(2);

/// For how many milliseconds the ranks may answer a question that is asked again.
const ASK_AGAIN: u64 = 500;

/// The most bytes that are kept for a server that does not read, before messages are dropped.
const MAX_UNSENT: usize = 1 << 20;

/// This rank waits for the server's answer for this much longer than the ranks have to answer, because the server answers after their time.
const OWN: Duration = Duration::from_millis(1500);

/// This rank's membership in the group, as the store sees it. Dropping it without [`Watch::leave`] tells the other ranks that
/// this rank died.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: Process,
    // This is the last field, so that this rank's connection is closed when the server begins to wait for the other ranks.
    _server: Option<Arc<Served>>,
}

struct Shared {
    /// The connection and the messages of this rank that are on their way out.
    outgoing: Mutex<Outgoing>,
    session: Session,
    latch: Arc<FailureLatch>,
    position: Arc<PositionSource>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A connection, and the check of the messages that arrive on it.
type Incoming = (Arc<Unshared<TcpStream>>, Seal);

/// Seals messages, and keeps bytes that the server has not read yet: the rest of a frame must follow its beginning.
struct Outgoing {
    /// As long as it is open this rank lives; forked children do not keep it open.
    stream: Arc<Unshared<TcpStream>>,
    seal: Seal,
    unsent: Vec<u8>,
}

/// The two directions of a connection.
fn split(sealed: SealedStream) -> io::Result<(Outgoing, Incoming)> {
    let SealedStream { stream, outgoing, incoming } = sealed;
    stream.set_write_timeout(Some(WRITE))?;
    let stream = Arc::new(stream);
    let outgoing = Outgoing { stream: Arc::clone(&stream), seal: outgoing, unsent: Vec::new() };
    Ok((outgoing, (stream, incoming)))
}

impl Outgoing {
    /// Sends a message, or keeps it if the connection takes no more now.
    fn say(&mut self, tell: &ToServer) -> io::Result<()> {
        if self.unsent.len() > MAX_UNSENT {
            return self.flush();
        }
        protocol::append(&mut self.unsent, tell, &mut self.seal)?;
        self.flush().or_else(|error| match error.kind() {
            // The server does not read; the watch finds out whether the server still lives.
            io::ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut stream: &TcpStream = &self.stream;
        while !self.unsent.is_empty() {
            match stream.write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct State {
    /// This rank has left, has reported its end, or is dropping its watch: the end of the connection is no failure.
    going: bool,
    /// The process is ending: a failure no longer raises the latch. `heard`: a failure has arrived since.
    dying: bool,
    heard: bool,
    /// The thread has ended.
    ended: bool,
    last: u64,
    /// Answers that this rank waits for, by the number of the question.
    positions: HashMap<u64, Option<Vec<Option<Position>>>>,
    /// The messages that are repeated on a new connection: how long the store waits, that this rank leaves, and its failure.
    patience: Option<Duration>,
    leaves: bool,
    reported: Option<Failure>,
}

impl Watch {
    pub(super) fn begin(
        sealed: SealedStream,
        session: Session,
        latch: Arc<FailureLatch>,
        position: Arc<PositionSource>,
        server: Option<Arc<Served>>,
    ) -> io::Result<Self> {
        let (outgoing, (stream, incoming)) = split(sealed)?;
        let shared = Arc::new(Shared {
            outgoing: Mutex::new(outgoing),
            session,
            latch,
            position,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = thread::Builder::new().name("unisono-watch".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.listen(stream, incoming)
        })?;
        Ok(Self { shared, thread: Some(thread), process: Process::this(), _server: server })
    }

    /// Reports a failure to the store and returns the first failure that the store received, which is the same on every rank;
    /// `failure` itself if the store does not answer within a second. Raises the latch.
    pub fn report(&self, failure: &Failure) -> Failure {
        let failure = &failure.clone().cleaned();
        self.shared.state().reported = Some(failure.clone());
        self.shared.try_say(&ToServer::Failure(failure.clone()), format_args!("report {failure}"));
        // If the store has ended, its last message may still be unread.
        if let Some(first) = self.shared.latch.wait(ECHO) {
            return first;
        }
        self.shared.latch.raise(failure.clone());
        self.shared.latch.failure().unwrap_or_else(|| failure.clone())
    }

    /// Asks all ranks for their positions and returns the answers that come within `wait`, by rank; `None` for a rank that did
    /// not answer.
    ///
    /// # Errors
    /// [`Failure::StoreSilent`] if the store itself does not answer.
    pub fn positions(&self, wait: Duration) -> Result<Vec<Option<Position>>, Failure> {
        let number = {
            let mut state = self.shared.state();
            state.last += 1;
            let number = state.last;
            state.positions.insert(number, None);
            number
        };
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let said = self.shared.say(&ToServer::WhereIsEveryone { number, wait: millis });
        let answered = |state: &mut State| state.positions.get_mut(&number)?.take();
        let answer = said.ok().and_then(|()| self.shared.wait(wait + OWN, answered));
        self.shared.state().positions.remove(&number);
        let Some(mut positions) = answer else {
            return Err(self.shared.latch.failure().unwrap_or_else(|| self.shared.session.silent()));
        };
        positions.resize(self.shared.session.member.ranks, None);
        if let Some(own) = positions.get_mut(self.shared.session.member.rank) {
            *own = Some(self.shared.position.position());
        }
        Ok(positions)
    }

    /// Asks the store to compare the positions of all ranks (their calls, and the ranks they wait for) and to report the
    /// [failure](Failure) that follows, if any. Returns at once. A rank calls it when it has waited for a while without
    /// progress.
    pub fn doubt(&self) {
        self.shared.try_say(&ToServer::Compare, "ask the store to compare calls");
    }

    /// Sets for how long nothing may arrive from the store, and at the store from this rank, before the connection counts as lost. A
    /// process that is known to have ended is lost at once.
    pub fn be_patient(&self, patience: Duration) {
        self.shared.state().patience = Some(patience);
        self.shared.tried(self.shared.be_patient(patience), "set the limit for silent connections");
    }

    /// Reports the failure with which this process is about to end. Does not raise the latch, so that no other thread ends the process
    /// first.
    pub fn last_words(&self, failure: &Failure) {
        let mut state = self.shared.state();
        (state.going, state.dying, state.heard) = (true, true, false);
        drop(state);
        if self.shared.try_say(&ToServer::Failure(failure.clone()), format_args!("report {failure}")) {
            self.shared.wait(ECHO, |state| state.heard.then_some(()));
        }
    }

    /// Tells the store that this rank is leaving and makes no other call, so that a rank that waits for such a call fails. Returns at once.
    pub fn leaves(&self) {
        self.shared.state().leaves = true;
        self.shared.try_say(&ToServer::Leaving, "say that it leaves");
    }

    /// Tells the store that this rank leaves with a failure that no call of its program had returned before: then a launcher that serves
    /// the store does not report the job as a success. Returns at once.
    pub fn late(&self, failure: &Failure) {
        self.shared.try_say(&ToServer::Late(failure.clone()), "say how it ends");
    }

    /// Leaves in good order. Further calls do nothing.
    pub fn leave(&self) {
        if std::mem::replace(&mut self.shared.state().going, true) {
            return;
        }
        if self.shared.try_say(&ToServer::Leave, "say that it has left") {
            // The thread ends when the server has noted that this rank left.
            self.shared.wait(ECHO, |_| None::<()>);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn be_patient(&self, patience: Duration) -> io::Result<()> {
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        protocol::be_patient(&self.outgoing().stream, patience)?;
        self.say(&ToServer::Patience { millis })
    }

    fn listen(&self, mut stream: Arc<Unshared<TcpStream>>, mut incoming: Seal) {
        let lost = loop {
            let end = self.hear_all(&stream, &mut incoming);
            // An error means that the connection is closed already. The server may wait for this shutdown before it ends.
            let _ = stream.shutdown(Shutdown::Both);
            if self.state().going || self.latch.raised() || end.is_ok() {
                break None;
            }
            match self.again(end) {
                Ok(Some(next)) => (stream, incoming) = next,
                Ok(None) => break None,
                Err(failure) => break Some(failure),
            }
        };
        let mut state = self.state();
        if let Some(lost) = lost.filter(|_| !state.going) {
            self.latch.raise(lost);
        }
        state.ended = true;
        self.changed.notify_all();
        drop(state);
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Connects again after the connection has ended, and repeats messages that the server may not have received. `None` if this rank is
    /// leaving.
    fn again(&self, end: io::Result<()>) -> Result<Option<Incoming>, Failure> {
        let Session { store, member, .. } = &self.session;
        if end.as_ref().is_err_and(protocol::is_silence) {
            return Err(self.session.silent());
        }
        self.tried(end, "keep its connection to the store");
        let tries = Tries::new(store, member, Instant::now() + RETURN);
        let (outgoing, incoming) = split(tries.again(&self.session)?).map_err(|_| self.session.cut())?;
        let state = self.state();
        if state.going {
            return Ok(None);
        }
        *self.outgoing() = outgoing;
        let (patience, leaves, reported) = (state.patience, state.leaves, state.reported.clone());
        let asked = state.positions.iter().filter(|(_, answer)| answer.is_none()).map(|(&number, _)| number);
        let asked: Vec<u64> = asked.collect();
        drop(state);
        unisono_transport::log::warn!(
            "rank {} lost its connection to the store at {store}, and has connected again",
            member.rank
        );
        let mut again: Vec<ToServer> = reported.map(ToServer::Failure).into_iter().collect();
        again.extend(leaves.then_some(ToServer::Leaving));
        again.extend(asked.into_iter().map(|number| ToServer::WhereIsEveryone { number, wait: ASK_AGAIN }));
        let patient = patience.map_or(Ok(()), |patience| self.be_patient(patience));
        let said = patient.and_then(|()| again.iter().try_for_each(|tell| self.say(tell)));
        // After an error, the next read finds that this connection has ended, too.
        self.tried(said, "say again what it has said");
        Ok(Some(incoming))
    }

    fn hear_all(&self, stream: &TcpStream, incoming: &mut Seal) -> io::Result<()> {
        loop {
            match protocol::read(stream, MAX_FRAME, incoming)? {
                ToWatch::Failure(failure) => {
                    let mut state = self.state();
                    if !state.dying {
                        self.latch.raise(failure);
                    }
                    state.heard = true;
                    self.changed.notify_all();
                }
                ToWatch::WhereAreYou { query } => {
                    match self.say(&ToServer::Position { query, position: self.position.position() }) {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                        _ => {}
                    }
                }
                ToWatch::Positions { number, positions } => {
                    if let Some(slot) = self.state().positions.get_mut(&number) {
                        *slot = Some(positions);
                    }
                    self.changed.notify_all();
                }
                ToWatch::Refused(process) => unisono_transport::log::warn!(
                    "rank {} waits for others, and the store has refused {}",
                    self.session.member.rank,
                    clean(&process, MAX_REFUSED)
                ),
                ToWatch::SomeoneLeaving => self.latch.leave(),
                ToWatch::LeaveSeen => return Ok(()),
            }
        }
    }

    fn say(&self, tell: &ToServer) -> io::Result<()> {
        self.outgoing().say(tell)
    }

    /// As [`say`](Self::say), with an error logged as what this rank cannot do.
    fn try_say(&self, tell: &ToServer, cannot: impl fmt::Display) -> bool {
        self.tried(self.say(tell), cannot)
    }

    fn tried(&self, result: io::Result<()>, cannot: impl fmt::Display) -> bool {
        if let Err(error) = &result {
            unisono_transport::log::info!("rank {} cannot {cannot}: {error}", self.session.member.rank);
        }
        result.is_ok()
    }

    /// Waits until `done` returns something, the thread has ended, or the time is over.
    fn wait<T>(&self, time: Duration, mut done: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut found = None;
        let waits = |state: &mut State| {
            found = done(state);
            found.is_none() && !state.ended
        };
        drop(self.changed.wait_timeout_while(self.state(), time, waits));
        found
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The forked child has no such thread to join.
            std::mem::forget(self.thread.take());
            return;
        }
        let shared = &self.shared;
        let mut state = shared.state();
        let stays = !std::mem::replace(&mut state.going, true) && !shared.latch.raised();
        // This rank does not need messages that arrive now.
        state.dying = true;
        drop(state);
        if stays {
            let how = format!("{}: it dropped its group without leaving", protocol::who());
            let died = ToServer::Failure(Failure::Died { rank: shared.session.member.rank, how });
            // An error, here and below, means that the connection is closed already.
            let _ = shared.say(&died);
        }
        let _ = shared.outgoing().stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            unisono_transport::log::error!("the watch's thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_that_does_not_read_for_a_while_gets_every_message_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        client.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        let [seal, _] = Seal::pair(&"token".into(), b"hello", b"challenge");
        let [mut opens, _] = Seal::pair(&"token".into(), b"hello", b"challenge");
        let stream = Arc::new(Unshared::from(client));
        let mut outgoing = Outgoing { stream, seal, unsent: Vec::new() };
        let tell =
            |n: u64| ToServer::Failure(Failure::StoreLost { how: format!("{n} {}", "x".repeat(50_000)) });
        let mut said = 0;
        while outgoing.unsent.is_empty() {
            outgoing.say(&tell(said)).unwrap();
            said += 1;
        }
        assert!(outgoing.unsent.len() % 50_000 > 100, "a part of a frame has been sent");
        for _ in 0..3 {
            outgoing.say(&tell(said)).unwrap();
            said += 1;
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..said {
                    let heard: ToServer = protocol::read(&server, MAX_FRAME, &mut opens).unwrap();
                    let ToServer::Failure(Failure::StoreLost { how }) = heard else { panic!("{heard:?}") };
                    assert!(how.starts_with(&format!("{n} ")), "{n}: {}", &how[..20]);
                }
            });
            while !outgoing.unsent.is_empty() {
                match outgoing.flush() {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
                    _ => {}
                }
            }
        });
    }
}
