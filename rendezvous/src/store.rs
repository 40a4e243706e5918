//! The store as a rank sees it: one connection for requests, until it has joined, a second one for the watch.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, ToSocketAddrs},
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with, sockopt};
use unisono_core::error::{Error, Refusal, Result};
use unisono_schedule::Rank;

use super::{
    FailureLatch, MAX_VALUE, PositionSource, Watch,
    connect::{AddressSource, GRACE, PAUSE, Tries, lost, resolve},
    directory::{Folder, RankZeroLock, Served, secret},
    protocol::{self, ConnectionPurpose, FORGED, MAX_FRAME, Reply, StoreRequest},
    seal::SealedStream,
    server::{self, StoreServer},
    session::Session,
};
use crate::config::{Member, StoreAddress};

/// After this time the rank that serves the store warns that its host does not know its name.
const UNKNOWN: Duration = Duration::from_secs(2);

/// How long to wait before a name is looked up again.
const AGAIN: Duration = Duration::from_millis(250);

/// A key-value service that all ranks of a job reach. Keys are at most [`MAX_KEY`](super::MAX_KEY) bytes long, values at most
/// [`MAX_VALUE`](super::MAX_VALUE). After a failure of the group, every request that would have to wait fails with it.
#[derive(Debug)]
pub struct Store {
    session: Session,
    /// `None` after an error, because the next reply could then belong to any request.
    stream: Mutex<Option<SealedStream>>,
    // This is the last field, because this rank's connection must be closed when the server begins to wait for the other ranks.
    server: Option<Arc<Served>>,
}

impl Store {
    /// Opens the store at `address` as `member`, and waits for the store until the deadline.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the store cannot be reached, [`Error::Refused`] if it does not admit this process.
    pub fn open(address: &StoreAddress, member: &Member, deadline: Instant) -> Result<Self> {
        match address {
            StoreAddress::Tcp { host, port, served: false } if member.rank == 0 => {
                Self::host(host, *port, member, deadline)
            }
            StoreAddress::Tcp { host, port, .. } => Self::join(host, *port, member, deadline),
            StoreAddress::File(directory) => Self::in_directory(directory, member, deadline),
            StoreAddress::Among { hosts, ports } => Self::among(hosts, ports, member, deadline),
            StoreAddress::Pmi { descriptor, host } => {
                Self::by_pmi(*descriptor, host.as_deref(), member, deadline)
            }
        }
    }

    /// The same store under another name.
    pub(super) fn named(mut self, name: String) -> Self {
        self.session.store = name;
        self
    }

    /// Serves the store in this process and joins it; for rank 0. Serves on all interfaces, unless `host` is `localhost` or a loopback
    /// address, so this host need not know the name yet.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the port is in use.
    pub fn host(host: &str, port: u16, member: &Member, deadline: Instant) -> Result<Self> {
        let listener = listen(host, port).map_err(|error| server::refused(&name(host, port), &error))?;
        let store = Self::host_on(listener, member, deadline)?;
        if let Some(served) = store.server.as_ref().filter(|_| !names_loopback(host)) {
            check_name(host, Arc::downgrade(served), deadline);
        }
        let port = store.session.at.port();
        Ok(store.named(name(host, port)))
    }

    /// As [`host`](Self::host), at a listener that is bound already, so that no other process can take its port.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the listener cannot be used.
    pub fn host_on(listener: TcpListener, member: &Member, deadline: Instant) -> Result<Self> {
        Self::host_in(None, listener, member, deadline)
    }

    fn host_in(
        place: Option<RankZeroLock>,
        listener: TcpListener,
        member: &Member,
        deadline: Instant,
    ) -> Result<Self> {
        let server = StoreServer::serve(listener, member.ranks, member.job.clone(), Some(member.rank))?;
        let port = server.address().port();
        let here: &[IpAddr] = match server.address().ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => &[Ipv4Addr::LOCALHOST.into()],
            // This socket accepts IPv4 too; if IPv6 is switched off, IPv4 is the only way.
            IpAddr::V6(ip) if ip.is_unspecified() => {
                &[Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]
            }
            ip => &[ip],
        };
        let name = name(&server.address().ip().to_string(), port);
        let here = |_: &mut _| Ok(here.iter().map(|&ip| SocketAddr::new(ip, port)).collect());
        let store = Self::enter(Tries::new(&name, member, deadline), here)?;
        // The server accepts others only after this rank has joined: otherwise another process with rank 0 could take its place.
        if let Some(place) = &place {
            place.publish(port, &member.job.token).map_err(|error| server::refused(store.name(), &error))?;
        }
        Ok(Self { server: Some(Arc::new((server, place))), ..store })
    }

    /// Joins a store that another process serves, and waits until the deadline for it to begin.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if it is not reached before the deadline, [`Error::Refused`] if it does
    /// not admit this process.
    pub fn join(host: &str, port: u16, member: &Member, deadline: Instant) -> Result<Self> {
        Self::enter(Tries::new(&name(host, port), member, deadline), |_| resolve(host, port))
    }

    /// Meets the other ranks in a directory that all share, where rank 0 publishes the address of the store.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if rank 0 is not reached before the deadline or the directory cannot be used, [`Error::Refused`] if
    /// another process has this rank or the settings differ.
    pub fn in_directory(directory: &Path, member: &Member, deadline: Instant) -> Result<Self> {
        let name = StoreAddress::File(directory.into()).to_string();
        let unusable = |problem: String| {
            Error::rendezvous(&name, format!("rank {} cannot use it: {problem}", member.rank))
        };
        let folder = Folder::of(directory, &member.job).map_err(unusable)?;
        let tries = |deadline| Tries {
            advice: folder.advice(),
            place: AddressSource::Published,
            ..Tries::new(&name, member, deadline)
        };
        if member.rank > 0 {
            return Self::enter(tries(deadline), |member| folder.find(member));
        }
        loop {
            if let Some(place) = folder.take().map_err(unusable)? {
                let listener = listen_to_all(0).map_err(|error| server::refused(&name, &error))?;
                let mut member = member.clone();
                member.job.token = secret().map_err(|error| unusable(error.to_string()))?;
                return Ok(Self::host_in(Some(place), listener, &member, deadline)?.named(name));
            }
            // Another process is rank 0, or was and has not released the lock yet.
            match Self::enter(tries(Instant::now()), |member| folder.find(member)) {
                Err(error @ Error::Refused { refusal: Refusal::Duplicate { .. }, .. }) => return Err(error),
                Err(error) if Instant::now() >= deadline => return Err(error),
                _ => thread::sleep(PAUSE),
            }
        }
    }

    pub(super) fn enter(
        mut tries: Tries<'_>,
        resolve: impl FnMut(&mut Member) -> std::result::Result<Vec<SocketAddr>, String>,
    ) -> Result<Self> {
        let (sealed, number, host) = tries.until_deadline(ConnectionPurpose::Requests, resolve, || None)?;
        let (store, member) = (tries.name.to_owned(), tries.member);
        let at = sealed.stream.peer_addr().map_err(|error| lost(&store, &error))?;
        let from = sealed.stream.local_addr().map_err(|error| lost(&store, &error))?;
        let session = Session { store, member, number, host, from, at };
        Ok(Self { session, stream: Mutex::new(Some(sealed)), server: None })
    }

    /// The store's address, as errors show it: `tcp://10.0.0.1:29500`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.session.store
    }

    /// The addresses of the connection to the store: this process's and the store's.
    #[must_use]
    pub fn reached(&self) -> (SocketAddr, SocketAddr) {
        (self.session.from, self.session.at)
    }

    /// Sets a value and wakes all requests that wait for it.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the key or the value is too long or the connection has broken; [`Error::Failed`] after a failure of the
    /// group.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        if value.len() > MAX_VALUE {
            let problem = format!("{key} has {} bytes; at most {MAX_VALUE} are allowed", value.len());
            return Err(self.problem(problem));
        }
        self.request(&StoreRequest::Set { key, value }, Duration::ZERO, |reply| {
            matches!(reply, Reply::Done).then_some(())
        })
    }

    /// Waits until the key is set and returns its value; `None` if the deadline passes first.
    ///
    /// # Errors
    /// As of [`set`](Self::set).
    pub fn get(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let (left, wait) = until(deadline);
        self.request(&StoreRequest::Get { key, wait }, left, |reply| match reply {
            Reply::Value(bytes) => Some(Some(bytes.to_vec())),
            Reply::NotInTime => Some(None),
            _ => None,
        })
    }

    /// Waits until `count` keys begin with `prefix` or the deadline passes, and returns all such keys and their values, sorted
    /// by key.
    ///
    /// # Errors
    /// As of [`set`](Self::set).
    pub fn collect(&self, prefix: &str, count: usize, deadline: Instant) -> Result<Vec<(String, Vec<u8>)>> {
        let (left, wait) = until(deadline);
        self.request(
            &StoreRequest::Collect { prefix, count: count as u64, wait },
            left,
            |reply| match reply {
                Reply::Entries(entries) => {
                    Some(entries.into_iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect())
                }
                _ => None,
            },
        )
    }

    /// The numbers that follow this prefix in keys that are set, and the processes that the store has refused, in words.
    pub(super) fn present(&self, prefix: &str) -> Result<(Vec<Rank>, String)> {
        self.request(&StoreRequest::Present { prefix }, Duration::ZERO, |reply| {
            let Reply::Present { numbers, refused } = reply else { return None };
            let ranks = numbers.into_iter().map(protocol::rank).collect::<io::Result<_>>().ok()?;
            Some((ranks, refused.to_owned()))
        })
    }

    /// Adds to a counter, which begins at 0, and returns its new value. A counter and a value may have the same key.
    ///
    /// # Errors
    /// As of [`set`](Self::set), and if the sum overflows.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.request(&StoreRequest::Add { key, delta }, Duration::ZERO, |reply| match reply {
            Reply::Count(sum) => Some(sum),
            _ => None,
        })
    }

    /// Starts this rank's watch, in a separate thread. Can be called once for each store.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the store does not admit the watch; [`Error::Failed`] after a failure of the group.
    pub fn watch(&self, latch: Arc<FailureLatch>, position: Arc<PositionSource>) -> Result<Watch> {
        let session = &self.session;
        let mut tries = Tries::new(&session.store, &session.member, Instant::now() + GRACE);
        let purpose = ConnectionPurpose::Watch { session: session.number };
        // As long as there is a connection for requests, there is a store that lets this rank watch.
        let gone = || (!self.is_connected()).then(|| session.cut());
        let (sealed, ..) = tries.until_deadline(purpose, |_| Ok(vec![session.at]), gone)?;
        let watch = Watch::begin(sealed, session.clone(), latch, position, self.server.clone());
        watch.map_err(|error| self.problem(format!("cannot begin to watch: {error}")))
    }

    /// Closes the connection for requests of a rank that has joined. From then on the watch alone shows that the rank lives.
    #[doc(hidden)]
    pub fn hang_up(&self) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sends a request and passes its reply to `take`, which returns `None` for a reply that does not fit the request.
    fn request<T>(
        &self,
        request: &StoreRequest<'_>,
        wait: Duration,
        take: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        let mut slot = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(SealedStream { stream, outgoing, incoming }) = slot.as_mut() else {
            return Err(self.problem("the connection broke earlier".into()));
        };
        let mut bytes = Vec::new();
        let mut ask = || -> io::Result<()> {
            stream.set_read_timeout(Some(wait.saturating_add(GRACE)))?;
            protocol::be_patient(stream, wait.saturating_add(GRACE))?;
            protocol::write(stream, request, outgoing)?;
            match protocol::read_frame(stream, MAX_FRAME, &mut bytes, incoming)? {
                true => Ok(()),
                false => Err(protocol::invalid(FORGED)),
            }
        };
        let reply = ask().and_then(|()| protocol::decode::<Reply<'_>>(&bytes));
        match reply {
            Ok(Reply::Failed(failure)) => Err(Error::Failed(failure)),
            Ok(Reply::Impossible(problem)) => Err(self.problem(problem)),
            Ok(reply) => take(reply).ok_or_else(|| self.problem("its reply does not fit the request".into())),
            Err(error) => {
                *slot = None;
                // The watch, if there is one, finds out whether the store is gone, and returns the same failure as on all ranks.
                Err(match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        Error::Failed(self.session.silent())
                    }
                    io::ErrorKind::InvalidData => self.problem(error.to_string()),
                    _ => lost(self.name(), &error),
                })
            }
        }
    }

    fn problem(&self, problem: String) -> Error {
        Error::rendezvous(self.name(), problem)
    }

    /// True if the connection for requests is open, between two requests.
    fn is_connected(&self) -> bool {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.as_ref().is_some_and(|SealedStream { stream, .. }| {
            let peeked = recv(&**stream, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
            !matches!(peeked, Ok((0, _)) | Err(_)) || peeked == Err(rustix::io::Errno::AGAIN)
        })
    }
}

pub(super) fn name(host: &str, port: u16) -> String {
    StoreAddress::Tcp { host: host.to_owned(), port, served: false }.to_string()
}

/// The time until the deadline, and the same in whole milliseconds, rounded up.
fn until(deadline: Instant) -> (Duration, u64) {
    let left = deadline.saturating_duration_since(Instant::now());
    (left, u64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u64::MAX))
}

/// True if this is `localhost` or a loopback address.
fn names_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Binds at addresses that ranks on other machines can reach. It does not use the address of the host's name, because Debian's /etc/hosts
/// gives 127.0.1.1 for the machine's name.
fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let listen = || if names_loopback(host) { TcpListener::bind((host, port)) } else { listen_to_all(port) };
    listen().or_else(|error| match error.kind() {
        // If two processes begin to listen at the same moment, Linux refuses both (1 of 200,000 times, 2026-11-30). They try again at
        // different times.
        io::ErrorKind::AddrInUse => {
            thread::sleep(Duration::from_micros(RandomState::new().build_hasher().finish() % 20_000));
            listen()
        }
        _ => Err(error),
    })
}

/// Checks, in a separate thread, whether the name by which the other ranks find this host is a name of this host, and warns if it is not.
/// It may take a while until the name of a new container is known.
fn check_name(host: &str, served: Weak<Served>, deadline: Instant) {
    let host = host.to_owned();
    let check = move || {
        let begun = Instant::now();
        let mut said = false;
        while served.strong_count() > 0 && Instant::now() < deadline {
            match (host.as_str(), 0).to_socket_addrs().map(Vec::from_iter) {
                Ok(addresses) => {
                    if addresses.iter().all(|address| TcpListener::bind(address).is_err()) {
                        unisono_transport::log::warn!(
                            "{host} is not an address of this host, and rank 0, which runs here, is to serve the store there"
                        );
                    }
                    return;
                }
                Err(error) => {
                    if !said && begun.elapsed() > UNKNOWN {
                        said = true;
                        unisono_transport::log::warn!(
                            "rank 0 serves the store at all addresses of its host, and cannot resolve {host:?} yet, by which the \
                             other ranks find it: {error}"
                        );
                    }
                }
            }
            thread::sleep(AGAIN);
        }
    };
    if let Err(error) = thread::Builder::new().name("unisono-name".into()).spawn(check) {
        unisono_transport::log::debug!("cannot check whether this host has the store's name: {error}");
    }
}

/// Binds for IPv6 and IPv4 at once, even if the system would bind for IPv6 alone (net.ipv6.bindv6only); for IPv4 alone if there is no IPv6.
pub(super) fn listen_to_all(port: u16) -> io::Result<TcpListener> {
    let both = || -> io::Result<TcpListener> {
        let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_ipv6_v6only(&socket, false)?;
        bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        rustix::net::listen(&socket, 4096)?;
        Ok(socket.into())
    };
    both().or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpStream, sync::Barrier};

    use super::*;

    #[test]
    fn ranks_reach_it_by_ipv4_and_ipv6() {
        let listener = listen("0.0.0.0", 0).unwrap();
        let at = listener.local_addr().unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, at.port())).unwrap();
        if at.is_ipv6() {
            assert!(!sockopt::ipv6_v6only(&listener).unwrap());
        }
    }

    #[test]
    fn one_of_two_that_listen_at_once_serves() {
        for host in ["127.0.0.1", "0.0.0.0"] {
            for round in 0..50 {
                let port = listen(host, 0).unwrap().local_addr().unwrap().port();
                let (begin, end) = (&Barrier::new(2), &Barrier::new(2));
                let listens = || {
                    begin.wait();
                    let listener = listen(host, port);
                    end.wait();
                    listener.is_ok()
                };
                let serve = thread::scope(|scope| {
                    let other = scope.spawn(listens);
                    (listens(), other.join().unwrap())
                });
                assert!(serve.0 != serve.1, "{host}, round {round}: {serve:?}");
            }
        }
    }
}
