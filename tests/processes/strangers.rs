//! A program outside the job that knows the addresses of its ranks' endpoints: its puts change no result, and its messages end the
//! group with a failure that blames no rank.
#![allow(unsafe_code)]

use std::{
    fs,
    io::{IoSlice, Read as _, pipe},
    mem::MaybeUninit,
    os::{fd::AsFd as _, unix::fs::PermissionsExt as _},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg_addr, socket_with,
};
use unisono::{Failure, ProcessGroup, ReduceOp, rendezvous::Store};
use unisono_transport::{
    Address, Error, Memory, Notify, Peer, Posted, Put, Region, RemoteRegion, Source, Target, Transport,
    ofi::Options,
};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, say},
    world::{End, PATIENCE, Result, TestJob, same},
};

/// The cases.
pub(crate) const CASES: Table = &[
    ("a stranger who guesses keys changes nothing", guesses),
    ("what a stranger tells ends the group and blames nobody", tells),
    ("another user of the host who knows the sockets' names does nothing to ranks", besets),
];

pub(crate) const ROLES: &[Role] =
    &[("visited", play_visited), ("beset", play_beset), ("besets", play_besets)];

const RANKS: usize = 2;
/// Elements of an all_reduce in a registered buffer.
const COUNT: usize = 4096;
/// The value that a stranger writes, which would show in every sum.
const FORGED: [u8; 4096] = [0x5a; 4096];
/// Credit for the last of all flows: without masks of immediates it would pass for a late message of a group that has ended.
const LATE_NEWS: u32 = 1 << 30 | 0x1fff << 16;
/// The keys that the stranger guesses: an endpoint that numbered its keys would have used these.
const GUESSES: u64 = 32;

/// The data that a rank of this suite gives a stranger: the address of its endpoint, and a writable region, in which the
/// stranger's messages land.
struct Visited {
    address: Address,
    open: RemoteRegion,
}

/// Reduces repeatedly and checks the sums, until the parent has made a file or the group has failed.
fn play_visited(arguments: &str) -> rank::Outcome {
    let (seconds, directory) = arguments.split_once(' ').ok_or("for how long, and where?")?;
    let (most, directory) = (Duration::from_secs(seconds.parse()?), Path::new(directory));
    let config = rank::config(0)?;
    let me = config.rank;
    let mut transport = unisono::group::open_transport(&unisono::group::transport_options(&config))?;
    let open = transport.register(Memory::map(FORGED.len())?)?;
    let words = open.remote().ok_or("a registered region has no key")?.words();
    let bytes = words.into_iter().flat_map(u64::to_le_bytes).chain(transport.address().0.clone());
    let deadline = Instant::now() + config.join_timeout;
    let store = Store::open(config.store.as_ref().ok_or("no store")?, &config.member(), deadline)?;
    let group = ProcessGroup::with(config, transport, Some(store))?;
    let mut data = group.buffer::<u64>(COUNT)?;
    let hidden = directory.join(format!(".{me}"));
    fs::write(&hidden, bytes.collect::<Vec<u8>>())?;
    fs::rename(&hidden, directory.join(me.to_string()))?;
    let begun = Instant::now();
    for round in 0.. {
        let done = me == 0 && round % 16 == 0 && directory.join("done").exists();
        data.fill(1 + round + me as u64);
        data[0] = done.into();
        match group.all_reduce(&mut data, ReduceOp::Sum) {
            Ok(()) => {}
            Err(unisono::Error::Failed(failure)) => {
                say("failure", &failure);
                return match failure {
                    Failure::Forged { .. } => Ok(()),
                    other => Err(format!("{other:?}").into()),
                };
            }
            Err(error) => return Err(error.into()),
        }
        let sum = RANKS as u64 * (1 + round) + 1;
        if let Some(at) = data.iter().skip(1).position(|it| *it != sum) {
            return Err(
                format!("round {round}: element {} is {:#x}, not {sum:#x}", at + 1, data[at + 1]).into()
            );
        }
        if data[0] > 0 {
            say("rounds", round);
            group.leave()?;
            return Ok(());
        }
        if begun.elapsed() > most {
            return Err(format!("{round} rounds, and nothing has ended the group").into());
        }
    }
    drop(open);
    Ok(())
}

/// Goes on with small operations until the stranger is done, and then prints its number of descriptors.
fn play_beset(directory: &str) -> rank::Outcome {
    let directory = Path::new(directory);
    let config = rank::config(0)?;
    let me = config.rank;
    let transport = unisono::group::open_transport(&unisono::group::transport_options(&config))?;
    // The name, which /proc/net/unix shows to every user: without its prefix, and without the tokens.
    let name: String = transport.address().0[12..20].iter().map(|byte| format!("{byte:02x}")).collect();
    let deadline = Instant::now() + config.join_timeout;
    let store = Store::open(config.store.as_ref().ok_or("no store")?, &config.member(), deadline)?;
    let group = ProcessGroup::with(config, transport, Some(store))?;
    // All connections are made now.
    for _ in 0..100 {
        group.all_reduce(&mut [0_u8], ReduceOp::Max)?;
    }
    let descriptors = || fs::read_dir("/proc/self/fd").map(Iterator::count);
    let before = descriptors()?;
    let shown = fs::read_to_string("/proc/net/unix")?.contains(&format!("@unisono-{name}"));
    ensure!(shown, "the name is not that of the listening socket");
    fs::write(directory.join(format!(".{me}")), &name)?;
    fs::rename(directory.join(format!(".{me}")), directory.join(me.to_string()))?;
    let mut rounds = 0;
    loop {
        let mut done = [u8::from(directory.join("done").exists())];
        group.all_reduce(&mut done, ReduceOp::Max)?;
        if done[0] > 0 {
            break;
        }
        // This rank also sleeps for a moment: the stranger does not wake it.
        std::thread::sleep(Duration::from_micros(100));
        rounds += 1;
    }
    ensure!(descriptors()? == before, "{} descriptors, and {before} before", descriptors()?);
    say("rounds", rounds);
    Ok(group.leave()?)
}

/// As another user, connects to the sockets of ranks, and sends descriptors there; the ranks close them all.
fn play_besets(directory: &str) -> rank::Outcome {
    let directory = Path::new(directory);
    let names: Vec<_> =
        (0..RANKS).map_while(|rank| fs::read_to_string(directory.join(rank.to_string())).ok()).collect();
    ensure!(names.len() == RANKS, "no names");
    ensure!(!rustix::process::geteuid().is_root(), "it is no other user");
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let mut connected = Vec::new();
    for round in 0..300 {
        for name in &names {
            let listener = SocketAddrUnix::new_abstract_name(format!("unisono-{name}").as_bytes())?;
            for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
                let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
                if connect(&socket, &listener).is_ok() {
                    connected.push(socket);
                }
            }
            let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            let (mut ours, theirs) = pipe()?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [theirs.as_fd()];
            ensure!(control.push(SendAncillaryMessage::ScmRights(&files)), "no room for a descriptor");
            let bytes = vec![u8::try_from(round % 256)?; 1 + round * 7];
            // The system may refuse it, or report that it was sent.
            let _ =
                sendmsg_addr(&socket, &listener, &[IoSlice::new(&bytes)], &mut control, SendFlags::DONTWAIT);
            drop(theirs);
            // No process keeps the other end: otherwise the read would wait for ever.
            ensure!(ours.read(&mut [0])? == 0, "somebody wrote");
        }
    }
    say("connected", connected.len());
    Ok(fs::write(directory.join("done"), [])?)
}

fn besets(provider: &str) -> Outcome {
    if provider != "shm" {
        return Ok(Verdict::Skipped("only shared memory has such sockets".into()));
    }
    if !rustix::process::getuid().is_root() {
        return Ok(Verdict::Skipped("it needs root, to become another user".into()));
    }
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777))?;
    let mut world = TestJob::new(provider, RANKS, 1)?;
    world.start_all(&format!("beset {}", directory.path().display()), &[])?;
    let begun = Instant::now();
    while !(0..RANKS).all(|rank| directory.path().join(rank.to_string()).exists()) {
        ensure!(begun.elapsed() < PATIENCE, "the ranks tell no names");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--clear-groups"]).arg(std::env::current_exe()?);
    world.start_by(nobody, RANKS, &format!("besets {}", directory.path().display()), &[])?;
    let stranger = world.end(|rank| rank == RANKS)?;
    let stranger = stranger.first().ok_or("no stranger")?;
    if stranger.errors.contains("setpriv: ") {
        return Ok(Verdict::Skipped(format!("that user cannot start this program: {}", stranger.errors)));
    }
    stranger.well()?;
    ensure!(stranger.said("connected")? == "0", "{} connections", stranger.said("connected")?);
    let ends = world.end_all()?;
    for end in &ends {
        end.well()?;
        ensure!(end.errors.is_empty(), "rank {}: {}", end.rank, end.errors);
    }
    Ok(Verdict::Measured(format!("{} sums meanwhile", same(&ends.iter().collect::<Vec<_>>(), "rounds")?)))
}

/// A program outside the job.
struct Stranger {
    transport: Box<dyn Transport>,
    source: Region,
    peers: Vec<Peer>,
}

impl Stranger {
    fn come(provider: &str, ranks: &[Visited]) -> Result<Self> {
        let towards = (!provider.starts_with("verbs")).then_some(std::net::Ipv4Addr::LOCALHOST.into());
        let options = Options { provider: Some(provider.into()), towards, ..Options::default() };
        let mut transport = unisono::group::open_transport(&options)?;
        let source = transport.register(Memory::map(FORGED.len())?)?;
        // SAFETY: no put reads it yet.
        unsafe { source.write(0, &FORGED)? };
        let peers = ranks
            .iter()
            .map(|rank| transport.connect(&rank.address))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Self { transport, source, peers })
    }

    /// Puts to the rank; `false` if that broke the stranger's endpoint.
    fn put(&mut self, rank: usize, region: RemoteRegion, immediate: u32) -> Result<bool> {
        let len = FORGED.len().min(usize::try_from(region.len)?);
        let sources = [Source::new(&self.source, 0, len)?];
        let put = Put {
            to: self.peers[rank],
            sources: &sources,
            target: Target { region, offset: 0 },
            immediate,
            token: 0,
            notify: Notify::IfNotInjected,
            fetch: false,
        };
        let (mut posted, begun, mut events) = (false, Instant::now(), Vec::new());
        // Wait a little longer, so that the put leaves and its end may be reported.
        while begun.elapsed() < if posted { Duration::from_millis(5) } else { Duration::from_secs(2) } {
            let step = if posted {
                Ok(())
            } else {
                // SAFETY: nobody writes to the source, and no rank of this process has memory there.
                unsafe { self.transport.put(&put) }.map(|answer| posted = answer == Posted::Yes)
            };
            match step.and_then(|()| self.transport.poll(&mut events)) {
                Ok(()) => {}
                Err(Error::Completion { .. } | Error::Call { .. }) => return Ok(false),
                Err(other) => return Err(other.into()),
            }
        }
        Ok(posted)
    }
}

/// Starts the ranks, and returns the data that they give a stranger.
fn visited(provider: &str, directory: &Path, most: Duration) -> Result<(TestJob, Vec<Visited>)> {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    world.start_all(&format!("visited {} {}", most.as_secs(), directory.display()), &[])?;
    let begun = Instant::now();
    let mut ranks = Vec::new();
    while ranks.len() < RANKS {
        match fs::read(directory.join(ranks.len().to_string())) {
            Ok(message) => {
                let (words, address) = message.split_at_checked(24).ok_or("a rank tells too little")?;
                let words = [0, 8, 16]
                    .map(|at| words[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
                ranks.push(Visited {
                    address: Address(address.to_vec()),
                    open: RemoteRegion::from_words(words),
                });
            }
            Err(_) => {
                ensure!(begun.elapsed() < PATIENCE, "rank {} tells nothing", ranks.len());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    Ok((world, ranks))
}

fn guesses(provider: &str) -> Outcome {
    if provider.starts_with("verbs") {
        return Ok(Verdict::Skipped("the NIC's driver chooses the keys".into()));
    }
    let directory = tempfile::tempdir()?;
    let (world, ranks) = visited(provider, directory.path(), PATIENCE / 2)?;
    let mut strangers = vec![Stranger::come(provider, &ranks)?];
    let mut broken = 0;
    for key in 0..GUESSES {
        for (rank, heard) in ranks.iter().enumerate() {
            let Some(stranger) = strangers.last_mut() else { return Err("no stranger".into()) };
            if !stranger.put(rank, RemoteRegion { key, ..heard.open }, LATE_NEWS)? {
                broken += 1;
                strangers.push(Stranger::come(provider, &ranks)?);
            }
        }
    }
    fs::write(directory.path().join("done"), [])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let rounds = same(&ends.iter().collect::<Vec<_>>(), "rounds")?.to_owned();
    Ok(Verdict::Measured(format!("{rounds} sums were right; {broken} of {} puts were refused", 2 * GUESSES)))
}

fn tells(provider: &str) -> Outcome {
    // A message, a write, credit, a clear to send, and an immediate without a meaning.
    for immediate in [0, 1 << 29 | 1, LATE_NEWS, 1 << 31 | 7 << 27 | 1, u32::MAX] {
        let directory = tempfile::tempdir()?;
        let (world, ranks) = visited(provider, directory.path(), Duration::from_secs(10))?;
        let mut stranger = Stranger::come(provider, &ranks)?;
        stranger.put(0, ranks[0].open, immediate)?;
        let ends = world.end_all()?;
        End::all_well(&ends)?;
        let words = same(&ends.iter().collect::<Vec<_>>(), "failure")?;
        let (begins, advice) = ("rank 0 got a message that no rank sent: ", "docs/security.md");
        ensure!(words.starts_with(begins) && words.contains(advice), "{immediate:#x}: {words}");
        drop(stranger);
    }
    Ok(Verdict::Passed)
}
