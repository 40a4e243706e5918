//! Ranks meet by PMI 1, the protocol between the processes of an MPI job and their process manager: MPICH's, Intel MPI's and Flux's. Rank 0
//! puts the addresses of its host, a port and a secret into the manager's table; all ranks wait for each other; the others get them.
//!
//! Each message is a line of words `key=value`, of which the first is `cmd`. If a process ends without `finalize`, a manager assumes that
//! it has crashed, and kills all others; after `finalize` it closes the connection. So a process can meet in this way once, and not at all
//! if it uses MPI, whose library speaks to the manager itself.

#![allow(unsafe_code, reason = "the launcher tells the number of a descriptor")]

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    fd::{BorrowedFd, RawFd},
    fs::{FileType, fstat},
};
use unisono_core::{
    error::{Error, Result},
    outside,
};
use unisono_transport::ofi::routed_from;

use super::{
    Store,
    connect::{AddressSource, Tries},
    directory::secret,
    protocol::host_name,
    server,
    store::{listen_to_all, name},
};
use crate::config::{Member, Token};

/// The longest message of a process manager, and the longest value that is put into its table: PMI's own limits are 1024 or more.
const MAX_LINE: usize = 8 << 10;
const MAX_VALUE: usize = 512;

/// The name of the value in the manager's table.
const KEY: &str = "unisono";

/// The longest `/proc/self/maps` that is read.
const MAX_MAPS: u64 = 16 << 20;

/// The reason why this process can no longer meet through PMI, if it has tried.
static SPENT: Mutex<Option<&str>> = Mutex::new(None);

type Problem = String;

impl Store {
    /// Meets the other ranks by the process manager's PMI, whose connection is `descriptor`; `host` is this host as the manager knows
    /// it.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the manager does not answer, or another rank does not come, before the deadline, or if this process has
    /// loaded an MPI library.
    pub(super) fn by_pmi(
        descriptor: usize,
        host: Option<&str>,
        member: &Member,
        deadline: Instant,
    ) -> Result<Self> {
        let shown = "the process manager's PMI";
        let wrong = |problem: Problem| {
            let advice = "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port of it (mpiexec -genv MASTER_ADDR ...)";
            Error::rendezvous(
                shown,
                format!("rank {} cannot meet the others by it: {problem}; {advice}", member.rank),
            )
        };
        let served = || -> io::Result<_> {
            let listener = listen_to_all(0)?;
            let port = listener.local_addr()?.port();
            Ok((listener, Published { hosts: own_names(host), port, secret: secret()? }))
        };
        let (listener, place) = match member.rank {
            0 => served().map(Some).map_err(|error| server::refused(shown, &error))?.unzip(),
            _ => (None, None),
        };
        let published = publish_or_read(descriptor, place, deadline).map_err(wrong)?;
        let mut member = member.clone();
        // The user's token is a secret, too: the store must refuse ranks that do not have it.
        if member.job.token.is_empty() {
            member.job.token = published.secret.clone();
        }
        if let Some(listener) = listener {
            let store = Self::host_on(listener, &member, deadline)?;
            return Ok(store.named(name(&host_name(), published.port)));
        }
        let store = name(published.hosts.first().map_or("", String::as_str), published.port);
        let tries = Tries { place: AddressSource::Sought, ..Tries::new(&store, &member, deadline) };
        Self::enter(tries, |_| published.addresses())
    }
}

/// The place where rank 0 serves the store.
#[derive(Debug, PartialEq, Eq)]
struct Published {
    /// Names and addresses of its host.
    hosts: Vec<String>,
    port: u16,
    secret: Token,
}

impl Published {
    /// Encodes it as text without spaces and without characters that PMI interprets.
    fn written(&self) -> String {
        let mut hosts = self.hosts.clone();
        loop {
            let text = format!("{}/{}/{}", hosts.join(","), self.port, self.secret.reveal());
            if text.len() <= MAX_VALUE || hosts.pop().is_none() {
                return text;
            }
        }
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (hosts, port, secret) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let hosts: Vec<_> = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
        let whole = !hosts.is_empty() && !secret.is_empty() && parts.next().is_none();
        whole.then(|| Self { hosts, port, secret: secret.into() })
    }

    fn addresses(&self) -> std::result::Result<Vec<SocketAddr>, Problem> {
        let found = self.hosts.iter().filter_map(|host| (host.as_str(), self.port).to_socket_addrs().ok());
        let mut all = Vec::new();
        for at in found.flatten() {
            if !all.contains(&at) {
                all.push(at);
            }
        }
        if all.is_empty() {
            return Err(format!("cannot resolve {}", self.hosts.join(" or ")));
        }
        Ok(all)
    }
}

/// The names and addresses of this host: its name in the manager, its host name, and the addresses of the default routes.
fn own_names(host: Option<&str>) -> Vec<String> {
    // These networks are reserved for documentation (RFC 5737, RFC 3849), so the default route leads to them.
    let away = [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let routes = away.map(routed_from);
    let mut names: Vec<String> = Vec::new();
    let own = [host.map(str::to_owned), Some(host_name())].into_iter();
    for name in own.chain(routes.map(|address| address.map(|address| address.to_string()))).flatten() {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c));
        if plain && !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// As rank 0, publishes its place; as another rank, reads it.
fn publish_or_read(
    descriptor: usize,
    place: Option<Published>,
    deadline: Instant,
) -> std::result::Result<Published, Problem> {
    let mut spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = *spent {
        return Err(why.to_owned());
    }
    if let Some(library) = mpi_library() {
        return Err(format!(
            "the connection to the process manager belongs to {library}, which this process has loaded"
        ));
    }
    let descriptor =
        RawFd::try_from(descriptor).map_err(|_| format!("PMI_FD={descriptor} is no descriptor"))?;
    // SAFETY: The launcher has opened this descriptor for this process and names it in PMI_FD; nothing here closes it. If it is not
    // open, or is something else, the calls below give an error: they read and write a socket only.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let is_socket = fstat(socket).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    let stream = socket.try_clone_to_owned().ok().filter(|_| is_socket).map(UnixStream::from);
    let Some(stream) = stream else {
        return Err(format!("PMI_FD={descriptor} is not an open socket of this process"));
    };
    *spent = Some("this process has met the others through it before, and can do so only once");
    exchange(&Connection { stream, deadline }, place)
}

/// The MPI library that this process has loaded, if it has.
fn mpi_library() -> Option<String> {
    let maps = outside::read_text(Path::new("/proc/self/maps"), MAX_MAPS).ok()?;
    let names = maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    let mut libraries = names.filter(|name| name.starts_with("libmpi") && name.contains(".so"));
    libraries.next().map(str::to_owned)
}

fn exchange(manager: &Connection, place: Option<Published>) -> std::result::Result<Published, Problem> {
    manager.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    let reply = manager.ask("cmd=get_my_kvsname", "my_kvsname")?;
    let table = value(&reply, "kvsname").ok_or("it does not name its table")?.to_owned();
    if let Some(place) = &place {
        let text = place.written();
        manager.ask(&format!("cmd=put kvsname={table} key={KEY} value={text}"), "put_result")?;
    }
    manager.ask("cmd=barrier_in", "barrier_out")?;
    let published = match place {
        Some(place) => place,
        None => {
            let reply = manager.ask(&format!("cmd=get kvsname={table} key={KEY}"), "get_result")?;
            let text = value(&reply, "value").unwrap_or_default();
            Published::read(text).ok_or("the entry of rank 0 in its table is invalid")?
        }
    };
    manager.ask("cmd=finalize", "finalize_ack")?;
    Ok(published)
}

/// The value of a key in a message.
fn value<'a>(message: &'a str, key: &str) -> Option<&'a str> {
    message.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// The connection to a process manager.
struct Connection {
    stream: UnixStream,
    deadline: Instant,
}

impl Connection {
    /// Sends a command and returns the answer, which must be `wanted`.
    fn ask(&self, command: &str, wanted: &str) -> std::result::Result<String, Problem> {
        let asked = value(command, "cmd").unwrap_or_default();
        let answer = self.answer(command).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock if asked == "barrier_in" => {
                "not all ranks have come in time".to_owned()
            }
            io::ErrorKind::WouldBlock => {
                format!("the process manager does not answer {asked}: it did not answer in time")
            }
            _ => format!("the process manager does not answer {asked}: {error}"),
        })?;
        let done = value(&answer, "rc").is_none_or(|status| status == "0");
        if value(&answer, "cmd") != Some(wanted) || !done {
            let shown: String = answer.chars().take(200).filter(|c| !c.is_control()).collect();
            return Err(format!("the process manager answers {asked} by {shown:?}"));
        }
        Ok(answer)
    }

    /// Sends a command and reads the line that answers it. The manager sends only answers, so nothing follows the line.
    fn answer(&self, command: &str) -> io::Result<String> {
        let mut stream = &self.stream;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(self.left()))?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        let (mut line, mut some) = (Vec::new(), [0_u8; 1024]);
        while line.len() <= MAX_LINE {
            stream.set_read_timeout(Some(self.left()))?;
            match stream.read(&mut some) {
                Ok(0) => return Err(io::Error::other("it has closed the connection")),
                Ok(count) => line.extend_from_slice(some.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            match line.iter().position(|&byte| byte == b'\n') {
                Some(end) if end + 1 == line.len() => {
                    line.pop();
                    return String::from_utf8(line).map_err(|_| io::Error::other("its answer is not text"));
                }
                Some(_) => return Err(io::Error::other("its answer has more than one line")),
                None => {}
            }
        }
        Err(io::Error::other("its answer has no end"))
    }

    /// The time until the deadline, and a moment after it, because a time of 0 would mean none.
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        sync::{Arc, Barrier},
        thread,
    };

    use proptest::prelude::*;

    use super::*;

    fn place() -> Published {
        Published {
            hosts: vec!["h1".into(), "fd00::1".into(), "10.0.0.1".into()],
            port: 4711,
            secret: "5ec2e7".into(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    /// Serves one rank as MPICH's manager does, whose words are those that MPICH 5.0.2 and Intel MPI 2021 were seen to say.
    fn serve(stream: &UnixStream, table: &Mutex<Option<String>>, all: &Barrier) {
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let answer = match value(&line, "cmd").unwrap() {
                "init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2".to_owned(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_27921_0".to_owned(),
                "put" => {
                    assert_eq!(value(&line, "kvsname"), Some("kvs_27921_0"));
                    *table.lock().unwrap() = value(&line, "value").map(str::to_owned);
                    "cmd=put_result rc=0 msg=success".to_owned()
                }
                "barrier_in" => {
                    all.wait();
                    "cmd=barrier_out tag=0".to_owned()
                }
                "get" => format!(
                    "cmd=get_result rc=0 msg=success value={}",
                    table.lock().unwrap().as_ref().unwrap()
                ),
                "finalize" => "cmd=finalize_ack rc=0".to_owned(),
                other => panic!("{other}"),
            };
            // The answer comes in two pieces, as a stream may deliver it.
            let (one, two) = answer.split_at(answer.len() / 2);
            (&*stream).write_all(one.as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(1));
            (&*stream).write_all(format!("{two}\n").as_bytes()).unwrap();
        }
    }

    #[test]
    fn all_ranks_hear_where_rank_0_is() {
        const RANKS: usize = 4;
        let (table, all) = (Arc::new(Mutex::new(None)), Arc::new(Barrier::new(RANKS)));
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (table, all) = (Arc::clone(&table), Arc::clone(&all));
                thread::spawn(move || serve(&theirs, &table, &all));
                thread::spawn(move || {
                    let manager = Connection { stream: ours, deadline: soon() };
                    exchange(&manager, (rank == 0).then(place)).unwrap()
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), place()));
    }

    /// The result of an exchange with a manager that says this, whatever it is asked, and then closes the connection or sends nothing more.
    fn after(said: &[u8], closes: bool, deadline: Instant) -> std::result::Result<Published, Problem> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(said).unwrap();
        if closes {
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
        }
        exchange(&Connection { stream: ours, deadline }, Some(place()))
    }

    #[test]
    fn a_manager_that_makes_no_sense_is_an_error_in_time() {
        for (said, problem) in [
            (&b""[..], "closed the connection"),
            (b"cmd=response_to_init rc=-1\n", "answers init by"),
            (b"cmd=maxes\n", "answers init by"),
            (b"cmd=response_to_init\nmore\n", "more than one line"),
            (b"cmd=response_to_init \xff\n", "is not text"),
            (&[b'x'; 2 * MAX_LINE], "has no end"),
        ] {
            let message = after(said, true, soon()).unwrap_err();
            assert!(message.contains(problem), "{message}");
        }
        let message = after(b"cmd=response", false, Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert!(message.contains("did not answer in time"), "{message}");
    }

    proptest! {
        #[test]
        fn any_answer_is_taken_or_refused(said in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(after(&said, true, soon()).is_err());
        }

        #[test]
        fn any_value_is_read_or_refused(text in ".{0,64}") {
            if let Some(published) = Published::read(&text) {
                prop_assert_eq!(Published::read(&published.written()), Some(published));
            }
        }
    }

    #[test]
    fn a_place_is_short_enough_for_any_table() {
        let hosts = (0..100).map(|i| format!("a-rather-long-name-of-a-host-{i}")).collect();
        let text = Published { hosts, ..place() }.written();
        assert!(text.len() <= MAX_VALUE);
        assert!(Published::read(&text).unwrap().hosts.len() > 5);
        assert_eq!(Published::read(&place().written()), Some(place()));
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        for descriptor in [usize::MAX, 1 << 20] {
            let message = publish_or_read(descriptor, None, soon()).unwrap_err();
            assert!(message.contains("PMI_FD="), "{message}");
        }
    }
}
