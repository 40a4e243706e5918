//! The server of the store: one thread with one poll loop, which no connection blocks.

mod admission;
mod connection;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod members;
mod process;
mod same_user;
mod values;
mod warnings;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    os::unix::net::UnixStream,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::Resource,
};
use socket2::SockRef;
use unisono_core::error::{Error, Failure, Result, list};
use unisono_schedule::Rank;
use unisono_transport::fork::{Process, Unshared};

use self::{
    admission::Strangers,
    connection::Connection,
    members::{Ending, RankStates},
    values::Values,
    warnings::Warnings,
};
use super::{
    LATECOMERS, LINGER,
    protocol::{self, FORGED, Frame, MAX_FRAME, Reply, ToServer},
};
use crate::config::JobIdentity;

/// The most time for writing the last messages when the server ends.
const FLUSH: Duration = Duration::from_secs(1);

/// The largest segment of the store's connections, in bytes: it fits into a packet of 1280 bytes, which every IPv6 network
/// carries (RFC 8200). So ranks can meet on a network that loses large packets; the connection check then finds and reports that.
const SEGMENT: u32 = 1220;

/// A connection's number, counted from 1.
type Id = u64;

/// The numbers of the control and of the listener in a poll.
const CONTROL: Id = 0;
const LISTENER: Id = Id::MAX;

/// Frames to be sent, each with its connection.
type Outbox = Vec<(Id, Frame)>;

/// Serves the store of a job. Dropping it waits until all ranks have left; at most [`LINGER`] if this process is a launcher or a
/// rank that has not left itself.
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    /// The thread ends when this is closed.
    control: Option<Unshared<UnixStream>>,
    thread: Option<JoinHandle<Late>>,
    process: Process,
}

/// The first rank that left with a failure that its program did not know, or that did not leave, and the failure.
type Late = Option<(Rank, Failure)>;

impl StoreServer {
    /// Serves at `address`; port 0 takes a free one. `ranks` is the world size. `host` is the rank in whose process
    /// it runs, or `None` for a launcher, which is no rank. A `job` that is a string is a token without a job id.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the port is in use or the address is not one of this host.
    pub fn bind(
        address: impl ToSocketAddrs,
        ranks: usize,
        job: impl Into<JobIdentity>,
        host: Option<Rank>,
    ) -> Result<Self> {
        let addresses =
            address.to_socket_addrs().map(Vec::from_iter).map_err(|error| refused("tcp", &error))?;
        let name = addresses.first().map_or_else(|| "tcp".into(), |address| format!("tcp://{address}"));
        let listener = TcpListener::bind(&addresses[..]).map_err(|error| refused(&name, &error))?;
        Self::serve(listener, ranks, job, host)
    }

    /// As [`bind`](Self::bind), at a listener that is bound already, so that no other process can take its port.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the listener cannot be used or no thread can be started.
    pub fn serve(
        listener: TcpListener,
        ranks: usize,
        job: impl Into<JobIdentity>,
        host: Option<Rank>,
    ) -> Result<Self> {
        Self::start(listener, ranks, job.into(), host).map_err(|error| refused("tcp", &error))
    }

    /// Ends the server as a drop does. Returns the first rank that left with a failure that no call of its program had returned before, and
    /// that failure; otherwise the rank whose process ended without leaving its world, as that failure says, if no world was made
    /// afterwards. The processes of both may end with status 0.
    #[must_use]
    pub fn end(mut self) -> Option<(Rank, Failure)> {
        self.stop()
    }

    fn stop(&mut self) -> Late {
        if !self.process.is_this() {
            // The forked child has no such thread to join.
            std::mem::forget(self.thread.take());
            return None;
        }
        self.control = None;
        self.thread.take()?.join().unwrap_or_else(|_| {
            unisono_transport::log::error!("the store's thread panicked");
            None
        })
    }

    /// The address at which it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn start(listener: TcpListener, ranks: usize, job: JobIdentity, host: Option<Rank>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        // With the standard library's backlog of 128 the ranks of a large job would have to wait and try again.
        rustix::net::listen(&listener, 4096)?;
        // Connections inherit this from the listener, and it limits both ends.
        SockRef::from(&listener).set_tcp_mss(SEGMENT)?;
        let strangers = Strangers::among(ranks);
        raise_file_limit(3 * ranks as u64 + strangers.most() as u64 + 64);
        if job.token.is_empty() && ranks > 1 && !address.ip().is_loopback() {
            unisono_transport::log::warn!(
                "the store at {address} serves a job without a token: any process that reaches that port can become a rank; \
                 set UNISONO_TOKEN to a secret, the same on all ranks, or UNISONO_TOKEN_FILE"
            );
        }
        let (control, theirs) = UnixStream::pair()?;
        let server = Server {
            listener: Some(listener.into()),
            accept_after: None,
            control: theirs,
            phase: Phase::Serving,
            host,
            connections: BTreeMap::new(),
            last: 0,
            values: Values::default(),
            members: RankStates::new(ranks),
            late: None,
            job,
            outbox: Vec::new(),
            scratch: vec![0; 64 << 10],
            strangers,
            warnings: Warnings::default(),
            looked: None,
        };
        let thread = std::thread::Builder::new().name("unisono-store".into()).spawn(move || server.run())?;
        let (control, thread) = (Some(control.into()), Some(thread));
        Ok(Self { address, control, thread, process: Process::this() })
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The error of a server that could not begin.
pub(super) fn refused(store: &str, error: &io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process listens there: if it is rank 0 too, give each process its own rank; if it belongs to \
             another job, choose another port (MASTER_PORT or UNISONO_STORE), or end it"
        }
        io::ErrorKind::AddrNotAvailable => "; the address is not one of this host, on which rank 0 runs",
        io::ErrorKind::PermissionDenied => "; ports below 1024 are for root: choose another port",
        _ => "",
    };
    Error::rendezvous(store, format!("cannot serve the store: {error}{advice}"))
}

/// A job of 500 ranks needs more descriptors than the usual 1024.
fn raise_file_limit(wanted: u64) {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
    if rustix::process::setrlimit(Resource::Nofile, limit).is_err() || limit.current < Some(wanted) {
        unisono_transport::log::warn!(
            "the store needs {wanted} file descriptors for this world size; raise `ulimit -n`"
        );
    }
}

/// The state of the server.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Serving,
    /// The server waits for ranks that have not left. At the first time, if there is one, it logs which ranks these are or fails the group.
    /// Until the second time it also admits ranks that come late, to tell them why the group failed.
    Lingering(Option<Instant>, Instant),
    /// All messages are queued; the server waits until they are written.
    Flushing(Instant),
}

struct Server {
    listener: Option<Unshared<TcpListener>>,
    /// Set as long as there is no descriptor for another connection.
    accept_after: Option<Instant>,
    control: UnixStream,
    phase: Phase,
    job: JobIdentity,
    host: Option<Rank>,
    connections: BTreeMap<Id, Connection>,
    last: Id,
    values: Values,
    members: RankStates,
    late: Late,
    outbox: Outbox,
    scratch: Vec<u8>,
    strangers: Strangers,
    warnings: Warnings,
    /// The time of the last check of which process has the other end of a connection.
    looked: Option<Instant>,
}

impl Server {
    fn run(mut self) -> Late {
        self.serve_all();
        self.late.or(self.members.stayed)
    }

    fn serve_all(&mut self) {
        loop {
            let now = Instant::now();
            self.advance(now);
            if matches!(self.phase, Phase::Flushing(until) if now >= until || self.connections.is_empty()) {
                return;
            }
            let events = match self.poll(now) {
                Ok(events) => events,
                Err(error) => {
                    unisono_transport::log::error!("the store ends: poll: {error}");
                    return;
                }
            };
            let now = Instant::now();
            for (id, flags) in events {
                self.serve(id, flags, now);
            }
            self.expire_strangers(now);
            self.warnings.expire(now);
            self.values.expire(now, &mut self.outbox);
            self.members.expire(now, &mut self.outbox);
            self.members.answer(now, &mut self.outbox);
            self.deliver();
        }
    }

    /// Moves to the next state while the server ends.
    fn advance(&mut self, now: Instant) {
        // A server in a rank's process serves one group only; a process that comes afterwards belongs to a later store.
        if self.host.is_none() && self.members.all_gone() {
            self.members.renew();
            self.values = Values::default();
        }
        if let Phase::Lingering(until, news) = self.phase {
            if self.members.anyone() && until.is_some_and(|until| now >= until) {
                match self.host {
                    // Ranks may leave at any time, and those that stay need the store.
                    Some(rank) if self.members.has_left(rank) => {
                        let here = list(&self.members.here());
                        unisono_transport::log::warn!(
                            rank,
                            "this process continues to serve the store: rank {here} has not left yet"
                        );
                        self.phase = Phase::Lingering(None, news);
                    }
                    Some(rank) => self.fail(Failure::StoreLost {
                        how: format!("rank {rank}, whose process served it, ended without leaving"),
                    }),
                    None => self.fail(Failure::StoreLost { how: "the launcher ended it".to_owned() }),
                }
            }
            if !self.members.owes_news() || now >= news {
                // The port is free from now on: a process that comes later belongs to a later store.
                self.listener = None;
                if !self.members.anyone() || self.members.failure.is_some() {
                    self.phase = Phase::Flushing(now + FLUSH);
                }
            }
        }
        if let Phase::Flushing(_) = self.phase {
            self.deliver();
            for connection in self.connections.values_mut() {
                connection.shut_when_written();
            }
            let members = &self.members;
            self.connections.retain(|_, connection| {
                connection.wants_write()
                    || connection.role.is_some_and(|role| role.watch && members.is_here(role))
            });
        }
    }

    /// Frees the port for a later store once the rank that serves has left: all ranks of this group have come by then.
    fn free_port(&mut self) {
        if self.host.is_some_and(|rank| self.members.has_left(rank)) && self.members.failure.is_none() {
            self.listener = None;
        }
    }

    /// Waits for something to happen.
    fn poll(&mut self, now: Instant) -> io::Result<Vec<(Id, PollFlags)>> {
        if self.accept_after.is_some_and(|after| after <= now) {
            self.accept_after = None;
        }
        let phase = match self.phase {
            Phase::Serving => None,
            Phase::Lingering(_, news) if self.members.owes_news() && now < news => Some(news),
            Phase::Lingering(until, _) => until,
            Phase::Flushing(until) => Some(until),
        };
        let members = [self.members.query_until(), self.members.lost_until(), self.strangers_until()];
        let until = [phase, self.values.until(), self.accept_after, self.warnings.until()].into_iter();
        let until = until.chain(members).flatten().min();
        // One millisecond more, so that the poll does not end just before the time.
        let timeout = until.map(|until| until.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(protocol::invalid)?;

        let mut ids = Vec::with_capacity(self.connections.len() + 2);
        let mut fds = Vec::with_capacity(self.connections.len() + 2);
        if matches!(self.phase, Phase::Serving) {
            ids.push(CONTROL);
            fds.push(PollFd::new(&self.control, PollFlags::IN));
        }
        // Members come first, so that a flood of new connections does not hold them up.
        let mut connections: Vec<_> = self.connections.iter().collect();
        connections.sort_by_key(|(_, connection)| connection.role.is_none());
        for (&id, connection) in connections {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, connection.wants_read());
            flags.set(PollFlags::OUT, connection.wants_write());
            ids.push(id);
            fds.push(PollFd::new(&*connection.stream, flags));
        }
        if let Some(listener) = self.listener.as_ref().filter(|_| self.accept_after.is_none()) {
            ids.push(LISTENER);
            fds.push(PollFd::new(&**listener, PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let happened = ids.into_iter().zip(&fds).map(|(id, fd)| (id, fd.revents()));
        Ok(happened.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn serve(&mut self, id: Id, flags: PollFlags, now: Instant) {
        match id {
            // The `StoreServer` was dropped: nothing else happens to its end.
            CONTROL => self.phase = Phase::Lingering(Some(now + LINGER), now + LATECOMERS),
            LISTENER => self.accept(now),
            _ => {}
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut open = Ok(true);
        let mut hear = false;
        if flags.intersects(PollFlags::OUT) {
            open = connection.write().map(|()| !connection.ending || connection.wants_write());
            // The output may have room again for answers to earlier requests.
            hear = matches!(open, Ok(true));
        }
        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && matches!(open, Ok(true)) {
            if connection.wants_read() {
                open = connection.read(&mut self.scratch);
                // Messages before the end of the stream still count, above all that the rank left. A process that closed its connection
                // before it was admitted is not a member that died: it tries again if this server was slow.
                hear = connection.role.is_some() || matches!(open, Ok(true));
            } else if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
                open = Ok(false);
            }
        }
        if hear && let Err(error) = self.hear(id, now) {
            open = Err(error);
        }
        match open {
            Ok(true) => {}
            Ok(false) => self.close(id, Ending::Closed, now),
            Err(error) => self.drop_broken(id, &error, now),
        }
    }

    /// Handles the whole frames that a connection has brought, as long as its client reads the answers. The server calls this once between
    /// two deliveries of the outbox.
    fn hear(&mut self, id: Id, now: Instant) -> io::Result<()> {
        let (mut answered, mut seen) = (0, self.outbox.len());
        loop {
            let new = self.outbox.get(seen..).unwrap_or_default().iter();
            answered += new.filter(|(to, _)| *to == id).map(|(_, frame)| frame.len()).sum::<usize>();
            seen = self.outbox.len();
            let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.ending)
            else {
                return Ok(());
            };
            let Some(role) = connection.role else {
                if !self.handshake(id, now)? {
                    return Ok(());
                }
                continue;
            };
            if self.values.waits(id) || connection.is_full(answered) {
                return Ok(());
            }
            let Some((frame, genuine)) = connection.next_frame(MAX_FRAME)? else { return Ok(()) };
            if !genuine {
                return Err(protocol::invalid(FORGED));
            }
            if role.watch {
                let tell = protocol::decode(&frame)?;
                if let ToServer::Patience { millis } = tell {
                    let of_it = |connection: &&mut Connection| {
                        connection.role.is_some_and(|other| other.session == role.session)
                    };
                    let patience = Duration::from_millis(millis);
                    self.connections.values_mut().filter(of_it).try_for_each(|it| it.be_patient(patience))?;
                }
                if let ToServer::Late(failure) = &tell {
                    self.late.get_or_insert_with(|| (role.rank, failure.clone().cleaned()));
                }
                self.members.tell(id, role, tell, now, &mut self.outbox);
            } else if !self.members.is_here(role) {
                let reply = Reply::Impossible(format!("rank {} has left the group", role.rank));
                self.outbox.push((id, Frame::new(&reply)));
            } else {
                self.values.request(id, protocol::decode(&frame)?, now, &mut self.outbox);
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.members.fail(failure, &mut self.outbox);
    }

    fn close(&mut self, id: Id, ending: Ending, now: Instant) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.values.forget(id);
        match connection.role {
            None => self.strangers.gone(id),
            Some(role) => self.members.closed(id, role, ending, now, &mut self.outbox),
        }
    }

    /// Ends all waits for values if the group has failed, and sends the outbox; a connection that cannot take its frames now gets them
    /// later. Clients whose wait has ended may have sent further requests meanwhile: this handles them too.
    fn deliver(&mut self) {
        let now = Instant::now();
        loop {
            if let Some(failure) = &self.members.failure {
                self.values.fail(failure, &mut self.outbox);
            }
            if self.outbox.is_empty() {
                return;
            }
            // This comes before the rank that serves reads that it has left, because its next store may use the same port.
            self.free_port();
            let mut reached = BTreeSet::new();
            for (id, frame) in std::mem::take(&mut self.outbox) {
                let Some(connection) = self.connections.get_mut(&id) else { continue };
                connection.send(frame);
                match connection.write() {
                    Ok(()) => {
                        reached.insert(id);
                    }
                    Err(error) => self.drop_broken(id, &error, now),
                }
            }
            for id in reached {
                if let Err(error) = self.hear(id, now) {
                    self.drop_broken(id, &error, now);
                }
            }
        }
    }

    /// Closes a connection that broke. The server logs no warning for a member: it reports the member's death to all ranks.
    fn drop_broken(&mut self, id: Id, error: &io::Error, now: Instant) {
        let mut ending = match error.kind() {
            io::ErrorKind::InvalidData => Ending::Dropped,
            _ => Ending::Reset,
        };
        if let Some(connection) = self.connections.get(&id) {
            if let Some(silence) = connection.silence(error) {
                ending = Ending::Silent(silence);
            }
            let peer = connection.peer;
            match connection.role {
                Some(role) if error.kind() != io::ErrorKind::InvalidData => {
                    unisono_transport::log::debug!(%peer, rank = role.rank, "the store drops a connection: {error}");
                }
                _ => self.warnings.tell(now, peer, || format!("drops a connection: {error}")),
            }
        }
        self.close(id, ending, now);
    }
}
