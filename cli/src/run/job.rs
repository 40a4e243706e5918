//! A job: starts its ranks, each in a separate process group, and waits until the last has ended.

use std::{
    env,
    ffi::OsString,
    io,
    net::{IpAddr, SocketAddr},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, Sender},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Resource, getpid, getrlimit, setrlimit},
    rand::{GetRandomFlags, getrandom},
};
use serde::{Deserialize, Serialize};
use unisono::{Failure, launch, rendezvous::StoreServer};
use unisono_transport::ofi;

use super::{
    end::End,
    port::ReservedPort,
    program::Program,
    rank,
    ranks::{Event, JobMembers, RankProcesses},
    signals,
    sink::Output,
};
use crate::invocation;

/// File descriptors that this process needs besides those for the ranks: its own, and those to start a rank.
const OWN_DESCRIPTORS: u64 = 64;
/// File descriptors for further connections to the store, of processes that have not yet identified themselves.
const SPARE_DESCRIPTORS: u64 = 256;

/// The job to start.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    /// The number of ranks.
    pub(crate) ranks: u32,
    /// What they execute.
    pub(crate) program: Program,
}

/// The place of a job's ranks in their world.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct JobPlace {
    /// The first of them.
    pub(super) first: u32,
    /// The number of all ranks.
    pub(super) world: u32,
    /// The variables by which they meet.
    pub(super) meet: [(String, String); 4],
}

impl Job {
    /// A job whose ranks run this program with the same command line except `--ranks`, and inherit its output.
    pub(crate) fn again(ranks: u32) -> Self {
        let mut itself = invocation::words().iter().cloned();
        let program = itself.next().unwrap_or_default();
        let mut arguments: Vec<OsString> = itself.collect();
        let mut words = invocation::arguments().iter().cloned();
        while let Some(word) = words.next() {
            if word == "--ranks" {
                words.next();
            } else if !word.to_string_lossy().starts_with("--ranks=") {
                arguments.push(word);
            }
        }
        let program = Program { program, arguments, environment: Vec::new(), output: Output::Passed };
        Self { ranks, program }
    }

    /// Starts the ranks and returns when all have ended: how the first rank that failed ended, or the signal that ended the job. To be
    /// called on the main thread, because the kernel kills a rank when the thread that started it ends.
    pub(crate) fn run(&self) -> io::Result<End> {
        let channel = begin()?;
        make_room(self.ranks, if self.program.output == Output::Passed { 3 } else { 5 })?;
        let token = token()?;
        let store = serve("127.0.0.1:0", self.ranks, &token)?;
        // The port is for other libraries of the ranks: those of torch meet at their own store first.
        let port = ReservedPort::keep()?;
        let meet = meet(store.address(), token, ("127.0.0.1".to_owned(), port.number));
        let place = JobPlace { first: 0, world: self.ranks, meet };
        Ok(verdict(store, self.run_at(&place, None, channel)?))
    }

    /// The same for those ranks of a world that are on this host; a launcher on another host has a name for it.
    pub(super) fn run_at(
        &self,
        place: &JobPlace,
        host: Option<String>,
        (tell, events): EventChannel,
    ) -> io::Result<End> {
        let members = JobMembers::Ranks { host, elsewhere: place.world > self.ranks };
        let mut ranks = RankProcesses::new(members, tell)?;
        for number in 0..self.ranks {
            let rank = place.first + number;
            let prefixed = self.program.output == Output::Prefixed;
            let prefix = if prefixed { format!("[{rank}] ") } else { String::new() };
            if let Err(error) = ranks.start(rank, &prefix, self.command(number, place)) {
                ranks.supervise(&events, Some(End::Status(1)));
                return Err(io::Error::new(error.kind(), format!("cannot start rank {rank}: {error}")));
            }
        }
        Ok(ranks.supervise(&events, None))
    }

    /// The command that becomes the rank that is number `number` here.
    fn command(&self, number: u32, place: &JobPlace) -> Command {
        let mut command = invocation::command();
        command.arg(rank::NAME).arg(getpid().as_raw_pid().to_string());
        let Program { program, arguments, environment, output } = &self.program;
        command.arg("--").arg(program).args(arguments);
        let whole = ("", place.first + number, place.world);
        let local = ("LOCAL_", number, self.ranks);
        // What torchrun has set for this process says nothing about the ranks; one that finds it was started by another torchrun.
        let names = env::vars_os().map(|(name, _)| name);
        for name in names.filter(|name| name.as_encoded_bytes().starts_with(b"TORCHELASTIC_")) {
            command.env_remove(name);
        }
        for prefix in ["", "UNISONO_"] {
            for (of, rank, size) in [whole, local] {
                command.env(format!("{prefix}{of}RANK"), rank.to_string());
                command.env(format!("{prefix}{of}WORLD_SIZE"), size.to_string());
            }
        }
        // Otherwise a rank that crashes or is interrupted ends with status 1, because of libinfinipath, which comes with Debian's
        // libfabric.
        command.env("IPATH_NO_BACKTRACE", "1");
        let (name, value) = ofi::LAUNCH_WITH;
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        // The token of this job is in `meet`.
        command.envs(place.meet.iter().map(|(name, value)| (name, value)));
        command.env_remove("UNISONO_TOKEN_FILE");
        command.stdin(Stdio::null()).process_group(0);
        if *output != Output::Passed {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }
}

/// The variables by which ranks meet at a store; `master` is the address for other libraries.
pub(super) fn meet(store: SocketAddr, token: String, master: (String, u16)) -> [(String, String); 4] {
    [
        ("UNISONO_STORE".to_owned(), format!("tcp+served://{store}")),
        ("UNISONO_TOKEN".to_owned(), token),
        ("MASTER_ADDR".to_owned(), master.0),
        ("MASTER_PORT".to_owned(), master.1.to_string()),
    ]
}

/// Raises the limit on file descriptors to what the ranks need: two connections of each to the store, which watches its process
/// by a third descriptor, and its two outputs if they are forwarded.
pub(super) fn make_room(ranks: u32, each: u64) -> io::Result<()> {
    let needed = each * u64::from(ranks) + OWN_DESCRIPTORS;
    let mut limit = getrlimit(Resource::Nofile);
    if let Some(most) = limit.maximum
        && most < needed
    {
        return Err(io::Error::other(format!(
            "{ranks} ranks take {needed} file descriptors here, and this process may have {most} at most \
                 (ulimit -Hn): raise that limit, or start fewer"
        )));
    }
    let wanted = needed + SPARE_DESCRIPTORS;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}

/// The channel by which the supervisor of a job gets events.
pub(super) type EventChannel = (Sender<Event>, Receiver<Event>);

/// Prepares this process for a job: it gets signals and the ends of ranks.
pub(super) fn begin() -> io::Result<EventChannel> {
    if signals::children_are_reaped() {
        return Err(io::Error::other(
            "SIGCHLD is ignored here, as in the process that started this one, so it cannot be known how ranks \
             end; let that process set it to its default first, from a shell: \
             env --default-signal=CHLD unisono ...",
        ));
    }
    // The job has its own token, but a file for one that others can read, or that is not there, is an error here as elsewhere.
    let variable = |name: &str| env::var(name).ok().filter(|_| name == "UNISONO_TOKEN_FILE");
    launch::token(&variable).map_err(io::Error::other)?;
    let (tell, events) = mpsc::channel();
    let to = tell.clone();
    signals::watch(move |signal| drop(to.send(Event::Signal(signal))))
        .map_err(|error| io::Error::new(error.kind(), format!("cannot wait for signals: {error}")))?;
    Ok((tell, events))
}

/// Serves the store of a world.
pub(super) fn serve(address: &str, ranks: u32, token: &str) -> io::Result<StoreServer> {
    let count = usize::try_from(ranks).map_err(io::Error::other)?;
    StoreServer::bind(address, count, token, None).map_err(io::Error::other)
}

/// How a job ended, from the ends of its ranks and from what the store has received.
pub(super) fn verdict(store: StoreServer, end: End) -> End {
    match (store.end(), end) {
        (Some((rank, failure)), End::Status(0)) => {
            let how = match failure {
                Failure::Died { rank: dead, .. } | Failure::Unreachable { rank: dead, .. }
                    if dead == rank =>
                {
                    "did not leave its world, by leave() or by dropping its group, before its process ended"
                }
                _ => "left its world with a failure that no call had returned",
            };
            crate::complain!("unisono run: all ranks ended with status 0, but rank {rank} {how}: {failure}");
            End::Status(1)
        }
        (_, end) => end,
    }
}

/// The environment that ranks on other hosts have from this process: all but what belongs to this host, this login or this terminal,
/// or to the launcher that started this process.
pub(super) fn forwarded() -> Vec<(OsString, OsString)> {
    const OWN: &str = "HOME USER LOGNAME SHELL SHLVL _ PWD OLDPWD HOST HOSTNAME TERM TMPDIR DISPLAY XAUTHORITY WINDOWID STY \
        INVOCATION_ID JOURNAL_STREAM KRB5CCNAME LS_COLORS";
    const KINDS: &str = "SSH_ XDG_ DBUS_ SUDO_ TMUX GPG_ TORCHELASTIC_ SLURM PMI OMPI_ PRTE_ HYDI_";
    let stays = |name: &str| {
        OWN.split_whitespace().any(|own| own == name)
            || KINDS.split_whitespace().any(|kind| name.starts_with(kind))
            || launch::variables().any(|it| it == name)
    };
    env::vars_os().filter(|(name, _)| !stays(&name.to_string_lossy())).collect()
}

/// The addresses of the two ends of the ssh connection by which this process was started, its own last.
pub(super) fn ssh_addresses() -> [Option<IpAddr>; 2] {
    addresses(&env::var("SSH_CONNECTION").unwrap_or_default())
}

/// The addresses in SSH_CONNECTION: of the host that connects, and of this host.
fn addresses(connection: &str) -> [Option<IpAddr>; 2] {
    let words: Vec<_> = connection.split_whitespace().collect();
    // An address that is valid on one host only has the name of an interface, and other hosts cannot use it.
    [0, 2].map(|at| {
        words.get(at).and_then(|word| word.parse::<IpAddr>().ok()).map(|address| address.to_canonical())
    })
}

/// True if a launcher, or a user by hand, has said that this process is a rank.
pub(crate) fn is_launched() -> bool {
    launch::is_set(&|name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// True if the reader of a pipe has gone.
pub(crate) fn is_closed(output: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok_and(|count| count > 0) && asked[0].revents().contains(PollFlags::ERR)
}

/// A random token, which distinguishes this job from others that may use the same port.
pub(super) fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes[..filled].iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_says_who_connects() {
        let of = |text| {
            addresses(text).map(|address| address.map(|address| address.to_string()).unwrap_or_default())
        };
        assert_eq!(of("10.0.0.9 5022 10.0.0.1 22"), ["10.0.0.9", "10.0.0.1"]);
        assert_eq!(of("fd98::fe 5022 fd98::1 22"), ["fd98::fe", "fd98::1"]);
        assert_eq!(of("::ffff:10.0.0.9 5022 fe80::1%eth0 22"), ["10.0.0.9", ""]);
        assert_eq!(of(""), ["", ""]);
    }
}
