//! Unix sockets between endpoints: the one at which an endpoint listens, connections, packets, and descriptors that go with them.
//!
//! An endpoint listens at a datagram socket with an abstract name, which all users of the host can read and send to. The system itself looks at what
//! is sent there (a socket filter, socket(7)): a packet that does not begin with the endpoint's token is dropped where it is sent, with
//! its descriptors. It takes no room in the queue, no descriptor and no time of the endpoint, which does not even wake.
//!
//! A writer sends one end of a pair of sockets there, and the reader answers on it. All that the reader sends begins with its proof,
//! and the same filter at the writer's end drops the rest: after an endpoint has ended, a stranger may take the name of its socket.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::{Errno, IoSliceMut},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
        connect, recvmsg, sendmsg, sendmsg_addr, socket_with, socketpair,
    },
    process::geteuid,
};
use socket2::{SockFilter, SockRef};

use super::{
    address::{EndpointPlace, EndpointToken, Name},
    control::{ConnectionMessage, MOST},
    error::{self, Nonsense, StopCause},
};
use crate::{Error, fork::Unshared, local::Failure};

/// The most connections or messages that are taken in one go, so that no process blocks this endpoint by sending without end.
pub(super) const BATCH: usize = 256;

/// A socket. Forked children do not keep it, so that its other end sees when this process ends.
type Socket = Unshared<OwnedFd>;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn datagrams() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, FLAGS, None)
}

fn named(place: &EndpointPlace) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(place.socket_name().as_bytes())
}

/// What the system does with each packet: it passes, or is dropped if one of its words differs from the token's. A packet that is too
/// short is dropped.
fn filter(token: &EndpointToken) -> Vec<SockFilter> {
    // Constants of one or two bytes, and a filter of ten instructions.
    let instruction = |code: u32, jf: usize, k: u32| {
        SockFilter::new(u16::try_from(code).unwrap_or_default(), 0, u8::try_from(jf).unwrap_or_default(), k)
    };
    let words = token.chunks_exact(4).filter_map(|word| word.first_chunk().copied().map(u32::from_be_bytes));
    let count = token.len() / 4;
    let checks = words.enumerate().flat_map(|(at, word)| {
        let place = u32::try_from(4 * at).unwrap_or(u32::MAX);
        [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, place),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 2 * (count - at) - 1, word),
        ]
    });
    let ends = [u32::MAX, 0].map(|len| instruction(libc::BPF_RET | libc::BPF_K, 0, len));
    checks.chain(ends).collect()
}

/// Makes a socket receive only packets that begin with this token.
fn admit_only(socket: BorrowedFd<'_>, token: &EndpointToken) -> Result<(), Errno> {
    let attached = SockRef::from(&socket).attach_filter(&filter(token));
    attached.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Where peers connect to an endpoint.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Socket,
    place: EndpointPlace,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A packet that came to a listener.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A writer whose own listening socket has this name, and the connection to it.
    From(Name, Link),
    /// Another packet of a process that knows the token, and what is wrong with it.
    Refused(Nonsense),
    Nothing,
}

impl Listener {
    /// Listens at this place.
    pub(super) fn open(place: &EndpointPlace) -> Result<Self, Error> {
        let opened = || {
            let socket = datagrams()?;
            // The filter comes first, so that nothing else is ever in the queue.
            admit_only(socket.as_fd(), &place.token)?;
            bind(&socket, &named(place)?)?;
            Ok(socket)
        };
        let error = |error| Error::system("a Unix socket", "for peers to connect to", error);
        opened().map(|socket| Self { socket: socket.into(), place: *place }).map_err(error)
    }

    /// The next connection that has come.
    pub(super) fn accept(&self) -> Result<Accepted, Error> {
        let (message, end) = match receive(self.as_fd(), &self.place.token) {
            Ok(Received::Message(message, file)) => (message, file),
            Ok(Received::Withheld(_, why)) => return Err(why),
            Ok(Received::Nothing | Received::End) => return Ok(Accepted::Nothing),
            Err(nonsense) => return Ok(Accepted::Refused(nonsense)),
        };
        Ok(match (message, end) {
            (ConnectionMessage::Connect { from }, Some(end)) if of_this_user(end.as_fd()) => {
                Accepted::From(from, Link::new(end, self.place.proof, self.place.token))
            }
            (ConnectionMessage::Connect { .. }, Some(_)) => {
                Accepted::Refused(Nonsense("another user's connection"))
            }
            _ => Accepted::Refused(Nonsense("what is no connection")),
        })
    }
}

/// True if an endpoint listens at a place.
pub(super) fn is_open(place: &EndpointPlace) -> Result<bool, Error> {
    let connected = || connect(&datagrams()?, &named(place)?);
    match connected() {
        Ok(()) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(Error::system("connect", "to a peer's Unix socket", error)),
    }
}

/// Connects to a place, as the endpoint of this name; `None` if too many do so now. The peer need not poll for that.
///
/// # Errors
/// A failure of the peer if no endpoint listens there.
pub(super) fn connect_to(place: &EndpointPlace, from: Name) -> Result<Option<Link>, StopCause> {
    let connected = || {
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        admit_only(here.as_fd(), &place.proof)?;
        let (here, there) = (Link::new(here, place.token, place.proof), Socket::from(there));
        let (packet, to) = (ConnectionMessage::Connect { from }.encode(), named(place)?);
        let sender = datagrams()?;
        send_with(&place.token, &packet, Some(there.as_fd()), |bytes, control| {
            sendmsg_addr(&sender, &to, bytes, control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        })?;
        Ok(here)
    };
    match connected() {
        Ok(link) => Ok(Some(link)),
        Err(error) if is_full(error) => Ok(None),
        Err(Errno::CONNREFUSED) => Err(Failure::gone().into()),
        Err(error) => Err(Error::system("sendmsg", "to a peer's Unix socket", error).into()),
    }
}

/// True if it may be sent later: the other end does not read what it got before, or too many descriptors are under way.
fn is_full(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS)
}

/// True if the process that made this connection has the same effective user as this one.
fn of_this_user(socket: BorrowedFd<'_>) -> bool {
    let mut other = libc::ucred { pid: 0, uid: 0, gid: 0 };
    credentials(socket, &mut other) && other.uid == geteuid().as_raw()
}

/// Finds the process at the other end; `false` if the system does not say.
fn credentials(socket: BorrowedFd<'_>, other: &mut libc::ucred) -> bool {
    // rustix assumes that the process's number is not 0, but it is 0 in another PID namespace.
    let Ok(size) = libc::socklen_t::try_from(size_of::<libc::ucred>()) else { return false };
    let (other, mut len): (*mut libc::ucred, libc::socklen_t) = (other, size);
    // SAFETY: the descriptor is open; the system writes at most `len` bytes, all of which `other` has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            other.cast::<c_void>(),
            &raw mut len,
        )
    };
    result == 0 && len == size
}

/// Sends the token and these bytes, with a descriptor if one belongs to them.
fn send_with(
    token: &EndpointToken,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
    send: impl Fn(&[IoSlice<'_>], &mut SendAncillaryBuffer<'_, '_, '_>) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if file.is_some() && !control.push(SendAncillaryMessage::ScmRights(file.as_slice())) {
        return Err(Errno::NOBUFS);
    }
    let bytes = [IoSlice::new(token), IoSlice::new(bytes)];
    loop {
        match send(&bytes, &mut control) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// One end of a connection between a writer and a reader.
#[derive(Debug)]
pub(super) struct Link {
    socket: Socket,
    /// The first bytes of this end's packets, and of the other's.
    sends: EndpointToken,
    takes: EndpointToken,
    /// True if the other end has said that it closes its endpoint.
    closed: bool,
}

/// The state of the process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    Open,
    /// It has closed its endpoint.
    Closed,
    /// It has ended without closing its endpoint.
    Died,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Yes,
    /// The other end does not read what it got before, or too many descriptors are under way.
    Full,
    /// There is no other end.
    Gone,
}

impl Link {
    pub(super) fn new(socket: OwnedFd, sends: EndpointToken, takes: EndpointToken) -> Self {
        Self { socket: socket.into(), sends, takes, closed: false }
    }

    /// Sends a message, with a descriptor if one belongs to it.
    pub(super) fn send(&self, message: &ConnectionMessage, file: Option<&OwnedFd>) -> SendOutcome {
        let (packet, flags) = (message.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let sent = send_with(&self.sends, &packet, file.map(AsFd::as_fd), |bytes, control| {
            sendmsg(&*self.socket, bytes, control, flags)
        });
        match sent {
            Ok(()) => SendOutcome::Yes,
            Err(error) if is_full(error) => SendOutcome::Full,
            Err(_) => SendOutcome::Gone,
        }
    }

    /// Sends a message that may be lost: if the other end does not receive it, it sees the end of the connection.
    pub(super) fn say(&self, message: &ConnectionMessage) {
        let _ = self.send(message, None);
    }

    /// Receives a message.
    pub(super) fn receive(&self) -> Result<Received, StopCause> {
        Ok(receive(self.as_fd(), &self.takes)?)
    }

    /// Receives what the other end has sent, and returns that end's state. `take` gets each message that only one of the ends sends,
    /// with its descriptor; in place of that of memory, it may get the reason why the descriptor does not come.
    ///
    /// # Errors
    /// Those of `take`, and a failure of the peer if it has dropped the connection.
    pub(super) fn receive_all(
        &mut self,
        mut take: impl FnMut(ConnectionMessage, Option<Result<OwnedFd, Error>>) -> Result<(), StopCause>,
    ) -> Result<PeerState, StopCause> {
        for _ in 0..BATCH {
            let (message, file) = match self.receive()? {
                Received::Message(message, file) => (message, file.map(Ok)),
                Received::Withheld(message @ ConnectionMessage::Memory(_), why) => (message, Some(Err(why))),
                Received::Withheld(_, why) => return Err(why.into()),
                Received::Nothing => break,
                Received::End => return Ok(if self.closed { PeerState::Closed } else { PeerState::Died }),
            };
            match (message, file) {
                (ConnectionMessage::Wake, None) => {}
                (ConnectionMessage::Bye, None) => self.closed = true,
                (ConnectionMessage::Dropped, None) => return Err(error::dropped().into()),
                (message, file) => take(message, file)?,
            }
        }
        Ok(PeerState::Open)
    }
}

/// The result of receiving.
#[derive(Debug)]
pub(super) enum Received {
    Message(ConnectionMessage, Option<OwnedFd>),
    /// A message whose descriptor the system withholds from this process, and the reason.
    Withheld(ConnectionMessage, Error),
    /// Nothing has come.
    Nothing,
    /// The other end is closed, and nothing is left to receive.
    End,
}

/// Receives a packet, which begins with this token.
fn receive(socket: BorrowedFd<'_>, token: &EndpointToken) -> Result<Received, Nonsense> {
    // One byte more than any message has, so that none is cut to one.
    let mut bytes = [0; size_of::<EndpointToken>() + MOST + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    // The first call after the other end was closed with something unread says so once, even if something is still to be received.
    let mut resets = 0;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) if resets == 0 => resets += 1,
            Err(_) => return Ok(Received::End),
        }
    };
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last();
        }
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Nonsense("a message that is too long"));
    }
    let message = bytes.get(..received.bytes).and_then(|bytes| bytes.strip_prefix(token));
    let message =
        message.and_then(ConnectionMessage::decode).ok_or(Nonsense("a message of an unknown kind"))?;
    match (file, received.flags.contains(ReturnFlags::CTRUNC)) {
        (file, false) => Ok(Received::Message(message, file)),
        (Some(_), true) => Err(Nonsense("too many descriptors")),
        // There is room for one.
        (None, true) => Ok(Received::Withheld(message, withheld())),
    }
}

/// The reason why a descriptor does not come although there is room for it: the system does not tell these reasons apart.
fn withheld() -> Error {
    Error::System {
        call: "recvmsg",
        context: "of a peer's descriptor".into(),
        code: Errno::MFILE.raw_os_error().into(),
        reason: "the system withholds it: this process may have no more open files (raise the limit, ulimit -n), or a security \
                 module (SELinux, AppArmor) forbids what the peer shares (the audit log says so)"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, pipe};

    use rustix::{io::write, net::sockopt::socket_type};

    use super::*;
    use crate::{
        peer_memory::ReadPermit,
        shm::{segment, tests::guarded::Guarded},
    };

    fn pair() -> (Link, Link) {
        let (place, from) = (EndpointPlace::new().unwrap(), EndpointPlace::new().unwrap());
        let listener = Listener::open(&place).unwrap();
        assert!(matches!(listener.accept(), Ok(Accepted::Nothing)));
        let Some(there) = connect_to(&place, from.name).unwrap() else { panic!("nobody listens") };
        let Accepted::From(name, here) = listener.accept().unwrap() else { panic!("nothing has come") };
        assert_eq!(name, from.name);
        (here, there)
    }

    #[test]
    fn the_system_writes_credentials_and_not_a_byte_more() {
        let mut other = Guarded::new(libc::ucred { pid: -1, uid: 7, gid: 7 });
        assert!(credentials(pair().0.as_fd(), other.value()));
        assert_eq!(other.value().uid, geteuid().as_raw());
        assert!(other.is_intact());
    }

    #[test]
    fn descriptors_are_handed_over() {
        let (here, there) = pair();
        assert!(matches!(here.receive(), Ok(Received::Nothing)));
        let (file, segment) = segment::create(1, segment::Access::ReadWrite).unwrap();
        assert_eq!(there.send(&ConnectionMessage::Accept(ReadPermit::NONE), Some(&file)), SendOutcome::Yes);
        assert_eq!(there.send(&ConnectionMessage::Bye, None), SendOutcome::Yes);
        // What was sent is received although the other end is closed, with something unread.
        assert_eq!(here.send(&ConnectionMessage::Wake, None), SendOutcome::Yes);
        drop((there, file));
        let Ok(Received::Message(ConnectionMessage::Accept(_), Some(file))) = here.receive() else {
            panic!("not as it was sent")
        };
        assert!(segment::Segment::of_peer(&file, 0, segment.len(), segment::Access::Read).is_ok());
        assert!(matches!(here.receive(), Ok(Received::Message(ConnectionMessage::Bye, None))));
        assert!(matches!(here.receive(), Ok(Received::End)));
        assert_eq!(here.send(&ConnectionMessage::Wake, None), SendOutcome::Gone);
    }

    #[test]
    fn what_is_no_message_is_told() {
        for bytes in [&[][..], &[0], &[1, 2, 3], &[2, 0], &[7; MOST + 1], &[7; 4000]] {
            let (here, there) = pair();
            write(&there, &[&there.sends[..], bytes].concat()).unwrap();
            assert!(here.receive().is_err(), "{} bytes", bytes.len());
        }
    }

    /// A stranger that has taken the socket of a reader that has ended has no proof.
    #[test]
    fn an_answer_without_the_proof_does_not_come() {
        let (here, there) = pair();
        for bytes in [&[2][..], &[], &[7; 4000], &[&there.sends[..], &[2]].concat()] {
            let _ = write(&here, bytes);
            assert!(matches!(there.receive(), Ok(Received::Nothing)), "{} bytes", bytes.len());
        }
        assert_eq!(here.send(&ConnectionMessage::Wake, None), SendOutcome::Yes);
        assert!(matches!(there.receive(), Ok(Received::Message(ConnectionMessage::Wake, None))));
    }

    #[test]
    fn nobody_listens_at_a_place_that_is_closed() {
        let place = EndpointPlace::new().unwrap();
        for _ in 0..2 {
            assert!(!is_open(&place).unwrap());
            assert!(matches!(connect_to(&place, place.name), Err(StopCause::Peer(_))));
            let listener = Listener::open(&place).unwrap();
            assert!(is_open(&place).unwrap());
            drop(listener);
        }
    }

    #[test]
    fn who_sends_too_much_is_told() {
        let (here, there) = pair();
        let mut sent = 0;
        while there.send(&ConnectionMessage::Wake, None) == SendOutcome::Yes {
            sent += 1;
            assert!(sent < 1_000_000, "a socket without bounds");
        }
        assert!(matches!(here.receive(), Ok(Received::Message(ConnectionMessage::Wake, None))));
        let place = EndpointPlace::new().unwrap();
        let listener = Listener::open(&place).unwrap();
        let mut waiting = Vec::new();
        while let Some(link) = connect_to(&place, place.name).unwrap() {
            waiting.push(link);
            assert!(waiting.len() < 100_000, "a listener without bounds");
        }
        assert!(matches!(listener.accept(), Ok(Accepted::From(..))));
        assert!(matches!(connect_to(&place, place.name), Ok(Some(_))), "there is room again");
    }

    /// What a stranger sends is not queued, and only the stranger has its descriptors, some of which are slow to close.
    #[test]
    fn what_strangers_send_costs_the_endpoint_nothing() {
        let place = EndpointPlace::new().unwrap();
        let listener = Listener::open(&place).unwrap();
        let connect = ConnectionMessage::Connect { from: place.name }.encode();
        let (token, last) = (place.token, size_of::<EndpointToken>() - 1);
        let near = [&token[..last], &[!token[last]], &connect[..]].concat();
        for bytes in [&[][..], &connect[..], &token[..last], &near, &place.name, &[0; 60_000]] {
            let (socket, to) = (datagrams().unwrap(), named(&place).unwrap());
            let (mut ours, theirs) = pipe().unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [theirs.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
            // The stranger sends more than the queue takes.
            for _ in 0..100 {
                sendmsg_addr(&socket, &to, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT)
                    .unwrap();
            }
            drop(theirs);
            // The end of the pipe would not come if the listener had the other.
            assert_eq!(ours.read(&mut [0]).unwrap(), 0);
            assert!(matches!(listener.accept(), Ok(Accepted::Nothing)), "{} bytes", bytes.len());
        }
        assert!(matches!(connect_to(&place, place.name), Ok(Some(_))), "it is as free as before");
    }

    #[test]
    fn no_stream_can_be_opened_to_a_listener() {
        let place = EndpointPlace::new().unwrap();
        let listener = Listener::open(&place).unwrap();
        assert_eq!(socket_type(&listener), Ok(SocketType::DGRAM));
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let socket = socket_with(AddressFamily::UNIX, kind, FLAGS, None).unwrap();
            assert_eq!(connect(&socket, &named(&place).unwrap()), Err(Errno::CONNREFUSED));
        }
    }
}
