//! A switch between two hosts that behaves like a firewall or NAT: it passes segments of TCP connections that it knows, and forgets connections
//! over which nothing goes for a while. Later segments of these it drops silently.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    ffi::CString,
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::OpenOptionsExt as _,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::world::Result;

/// The name of the interface that each host gets.
pub(crate) const INTERFACE: &str = "tap0";

/// The switch, until it is dropped.
pub(crate) struct Forgetful {
    ended: Arc<AtomicBool>,
    dropped: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Forgetful {
    /// A switch between the hosts of these network namespaces, which forgets a connection after so long.
    pub(crate) fn new(namespaces: [PathBuf; 2], idle: Duration) -> Result<Self> {
        let [one, other] = namespaces.map(|namespace| {
            // A separate thread, which ends in that namespace.
            thread::spawn(move || tap(namespace).map_err(|error| error.to_string())).join()
        });
        let taps = [one.map_err(|_| "a panic")??, other.map_err(|_| "a panic")??];
        let (ended, dropped) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (ends, drops) = (Arc::clone(&ended), Arc::clone(&dropped));
        let thread = thread::spawn(move || {
            let mut connections = Connections { known: HashMap::new(), idle };
            while !ends.load(Ordering::Relaxed) {
                connections.forward(&taps, &drops);
            }
        });
        Ok(Self { ended, dropped, thread: Some(thread) })
    }

    /// The number of segments that were dropped.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Forgetful {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The other end of a new interface in a network namespace.
fn tap(namespace: PathBuf) -> Result<File> {
    move_into_link_name_space(File::open(namespace)?.as_fd(), Some(LinkNameSpaceType::Network))?;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: plain numbers, all of which may be 0.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = CString::new(INTERFACE)?;
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = libc::c_char::try_from(*from)?;
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI)?;
    // SAFETY: the descriptor is open; the system reads and writes one `ifreq`.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        return Err(format!("TUNSETIFF: {}", std::io::Error::last_os_error()).into());
    }
    Ok(file)
}

/// An address and a port of IPv4.
type End = [u8; 6];

struct Connections {
    /// The time at which the last segment of a connection passed.
    known: HashMap<[End; 2], Instant>,
    idle: Duration,
}

impl Connections {
    /// Forwards the frames that come within a moment.
    fn forward(&mut self, taps: &[File; 2], dropped: &AtomicUsize) {
        let mut ready = taps.each_ref().map(|tap| PollFd::new(tap, PollFlags::IN));
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if poll(&mut ready, Some(&moment)).is_err() {
            return;
        }
        let mut frame = [0; 1 << 16];
        for (mut from, mut to) in [(&taps[0], &taps[1]), (&taps[1], &taps[0])] {
            while let Ok(len @ 1..) = from.read(&mut frame) {
                if self.passes(&frame[..len]) {
                    // A full queue loses frames, as a network may.
                    let _ = to.write(&frame[..len]);
                } else {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// True if a frame is passed: not a segment of TCP over IPv4 whose connection is unknown or forgotten.
    fn passes(&mut self, frame: &[u8]) -> bool {
        let Some(([8, 0], 6)) = frame.get(12..14).and_then(|kind| kind.first_chunk()).zip(frame.get(23))
        else {
            return true;
        };
        let at = 14 + usize::from(frame[14] & 15) * 4;
        let (Some(ports), Some(flags)) = (frame.get(at..at + 4), frame.get(at + 13)) else { return true };
        let end = |address: usize, port: usize| {
            let mut end = [0; 6];
            end[..4].copy_from_slice(&frame[address..address + 4]);
            end[4..].copy_from_slice(&ports[port..port + 2]);
            end
        };
        let mut ends = [end(26, 0), end(30, 2)];
        ends.sort_unstable();
        let (now, begins) = (Instant::now(), flags & 2 != 0);
        let passes =
            begins || self.known.get(&ends).is_some_and(|last| now.duration_since(*last) <= self.idle);
        if passes {
            self.known.insert(ends, now);
        }
        passes
    }
}
