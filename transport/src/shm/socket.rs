//! Abstract Unix sockets: connections between endpoints of one user, packets, and descriptors that go with them.
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
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
        accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
    },
    process::geteuid,
};

use super::{
    address::Place,
    control::{MOST, Message},
    error::{Nonsense, Stop},
};
use crate::{Error, fork::Unshared};

/// How many peers may connect before this endpoint looks; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// The most connections or messages that are taken in one go, so that nobody holds up this endpoint by sending without end.
pub(super) const BATCH: usize = 256;

/// A socket. Forked children do not keep it, so that its other end sees when this process ends.
pub(super) type Socket = Unshared<OwnedFd>;

fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The socket at which peers reach this place.
pub(super) fn listener(place: &Place) -> Result<Socket, Error> {
    let opened = || {
        let socket = open()?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(place.name().as_bytes())?)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    opened()
        .map(Socket::from)
        .map_err(|error| Error::system("a Unix socket", "for peers to connect to", error))
}

/// What came of connecting.
pub(super) enum Connected {
    Yes(Socket),
    /// Too many connect to the peer now.
    Busy,
    /// Nobody listens there.
    Nobody,
    /// Another user listens there.
    Stranger,
}

/// Connects to a place. The connection can be written to before the peer looks at it.
pub(super) fn connection(place: &Place) -> Result<Connected, Error> {
    let opened = || {
        let socket = open()?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(place.name().as_bytes())?)?;
        Ok(socket)
    };
    match opened() {
        Ok(socket) if of_this_user(socket.as_fd()) => Ok(Connected::Yes(socket.into())),
        Ok(_) => Ok(Connected::Stranger),
        Err(Errno::AGAIN) => Ok(Connected::Busy),
        Err(Errno::CONNREFUSED) => Ok(Connected::Nobody),
        Err(error) => Err(Error::system("connect", "to a peer's Unix socket", error)),
    }
}

/// The next connection that somebody of this user has made.
pub(super) fn accepted(listener: &Socket) -> Result<Option<Socket>, Error> {
    loop {
        match accept_with(listener.as_fd(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) if of_this_user(socket.as_fd()) => return Ok(Some(socket.into())),
            Ok(_) => tracing::warn!("another user's connection is refused"),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                return Err(Error::system("accept", "a peer's connection", error));
            }
        }
    }
}

/// Whether the process at the other end has the same effective user as this one.
fn of_this_user(socket: BorrowedFd<'_>) -> bool {
    let mut other = libc::ucred { pid: 0, uid: 0, gid: 0 };
    credentials(socket, &mut other) && other.uid == geteuid().as_raw()
}

/// Whose process is at the other end; `false` if the system does not say.
fn credentials(socket: BorrowedFd<'_>, other: &mut libc::ucred) -> bool {
    // Not by rustix, which takes the process's number for one that is not 0. It is 0 in another PID namespace.
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

/// What came of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Yes,
    /// The other end does not read what it got before, or too many descriptors are under way.
    Full,
    /// There is no other end.
    Gone,
}

/// Sends a message, with a descriptor if one belongs to it.
pub(super) fn send(socket: &Socket, message: &Message, file: Option<&OwnedFd>) -> Posted {
    let packet = message.encode();
    let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Posted::Full;
    }
    let bytes = [IoSlice::new(packet.bytes())];
    loop {
        match sendmsg(socket.as_fd(), &bytes, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => return Posted::Yes,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => return Posted::Full,
            Err(_) => return Posted::Gone,
        }
    }
}

/// What came of receiving.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message, Option<OwnedFd>),
    /// A message whose descriptor the system does not let this process have, and why.
    Withheld(Message, Error),
    /// Nothing has come.
    Nothing,
    /// The other end is closed, and nothing is left to receive.
    End,
}

/// Receives a message.
pub(super) fn receive(socket: &Socket) -> Result<Received, Stop> {
    // One byte more than any message has, so that none is cut to one.
    let mut bytes = [0; MOST + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    // The first call after the other end was closed with something unread says so once, whatever is still to be received.
    let mut resets = 0;
    let received = loop {
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
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
        return Err(Nonsense("a message that is too long").into());
    }
    let message = bytes.get(..received.bytes).and_then(Message::decode);
    let message = message.ok_or(Nonsense("a message of no kind"))?;
    match (file, received.flags.contains(ReturnFlags::CTRUNC)) {
        (file, false) => Ok(Received::Message(message, file)),
        (Some(_), true) => Err(Nonsense("too many descriptors").into()),
        // There is room for one.
        (None, true) => Ok(Received::Withheld(message, withheld())),
    }
}

/// Why a descriptor does not come though there is room for it: the system does not tell these reasons apart.
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
    use rustix::io::write;

    use super::*;
    use crate::{guarded::Guarded, shm::segment};

    fn pair() -> (Socket, Socket) {
        let place = Place::new().unwrap();
        let listener = listener(&place).unwrap();
        assert!(accepted(&listener).unwrap().is_none());
        let Connected::Yes(there) = connection(&place).unwrap() else { panic!("nobody listens") };
        (accepted(&listener).unwrap().expect("one has connected"), there)
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
        assert!(matches!(receive(&here), Ok(Received::Nothing)));
        let (file, len) = segment::create(1).unwrap();
        assert_eq!(send(&there, &Message::Welcome, Some(&file)), Posted::Yes);
        assert_eq!(send(&there, &Message::Bye, None), Posted::Yes);
        // What was sent is received though the other end is closed, with something unread.
        assert_eq!(send(&here, &Message::Wake, None), Posted::Yes);
        drop((there, file));
        let Ok(Received::Message(Message::Welcome, Some(file))) = receive(&here) else {
            panic!("not as it was sent")
        };
        assert!(segment::Segment::of_peer(&file, 0, len, segment::Access::Read).is_ok());
        assert!(matches!(receive(&here), Ok(Received::Message(Message::Bye, None))));
        assert!(matches!(receive(&here), Ok(Received::End)));
        assert_eq!(send(&here, &Message::Wake, None), Posted::Gone);
    }

    #[test]
    fn what_is_no_message_is_told() {
        for bytes in [&[0_u8][..], &[1, 2, 3], &[2, 0], &[7; MOST + 1], &[7; 4000]] {
            let (here, there) = pair();
            write(there.as_fd(), bytes).unwrap();
            assert!(receive(&here).is_err(), "{} bytes", bytes.len());
        }
    }

    #[test]
    fn nobody_listens_at_a_place_that_is_closed() {
        let place = Place::new().unwrap();
        assert!(matches!(connection(&place), Ok(Connected::Nobody)));
        drop(listener(&place).unwrap());
        assert!(matches!(connection(&place), Ok(Connected::Nobody)));
    }

    #[test]
    fn who_sends_too_much_is_told() {
        let (here, there) = pair();
        let mut sent = 0;
        while send(&there, &Message::Wake, None) == Posted::Yes {
            sent += 1;
            assert!(sent < 1_000_000, "a socket without bounds");
        }
        assert!(matches!(receive(&here), Ok(Received::Message(Message::Wake, None))));
    }
}
