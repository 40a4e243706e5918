//! The hidden subcommand that starts the ranks of one host, for a launcher on another one.
//!
//! It writes its [`HostHello`], reads the addresses at which the store may be, writes for each whether it is reached, and reads a [`Task`],
//! each as a line of JSON. Then it reads signals' numbers; the end of its input means the same as SIGTERM.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::Sender,
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::run::{
    cores,
    end::End,
    frames::failure,
    job::{self, EventChannel, Job, JobPlace},
    port::ReservedPort,
    ranks::Event,
};
use crate::words::host;

/// The name of the subcommand.
pub(crate) const NAME: &str = "run-ranks-of-host";

/// How a host's first line begins; what login scripts print before it is skipped.
pub(super) const HELLO: &str = "{\"unisono\":";

/// The host's first line.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct HostHello {
    /// Its version.
    pub(super) unisono: String,
    /// The host's name for itself.
    pub(super) host: String,
    pub(super) cores: u32,
    /// The addresses of the launcher and of this host, between which ssh's connection is; `None` where there is no ssh.
    pub(super) from: Option<IpAddr>,
    pub(super) at: Option<IpAddr>,
    /// A port that is kept free here for MASTER_PORT.
    pub(super) port: u16,
}

/// The launcher's second line.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Task {
    /// The host as the user calls it.
    pub(super) host: String,
    pub(super) directory: PathBuf,
    pub(super) job: Job,
    pub(super) place: JobPlace,
}

/// How long an address is tried.
const PATIENCE: Duration = Duration::from_secs(3);

/// Starts the ranks that standard input describes, and ends them when it is closed.
pub(crate) fn run() -> ExitCode {
    match job::begin().and_then(serve) {
        Ok(end) => end.exit_code(),
        Err(error) => {
            crate::complain!("unisono run: on {}: {error}", host());
            ExitCode::FAILURE
        }
    }
}

/// Executes what the launcher asks for.
fn serve(events: EventChannel) -> io::Result<End> {
    let port = ReservedPort::keep()?;
    let [from, at] = job::ssh_addresses();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    say(&HostHello { unisono: version, host: host(), cores: cores(), from, at, port: port.number })?;
    let Some(addresses) = hear::<Vec<_>>()? else { return Ok(End::Status(0)) };
    say(&reached(&addresses))?;
    let Some(Task { host, directory, job, place }) = hear()? else { return Ok(End::Status(0)) };
    listen(events.0.clone())?;
    let failed = |status: i32, problem: &dyn std::fmt::Display| {
        crate::complain!("unisono run: on {host}: {problem}");
        let mut out = io::stdout();
        out.write_all(&failure(status)).and_then(|()| out.flush()).map(|()| End::Status(status))
    };
    if std::env::set_current_dir(&directory).is_err() {
        crate::complain!(
            "unisono run: {host} has no directory {}, in which the job was started; its ranks begin in the home directory",
            directory.display()
        );
    }
    if let Err((status, problem)) = job.program.find() {
        return failed(status.into(), &problem);
    }
    job::make_room(job.ranks, 5)?;
    job.run_at(&place, Some(host.clone()), events).or_else(|error| failed(1, &error))
}

fn say(words: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::to_string(words)?)?;
    out.flush()
}

/// The launcher's next line; `None` if it has ended.
fn hear<W: DeserializeOwned>() -> io::Result<Option<W>> {
    let mut line = String::new();
    match io::stdin().read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

/// Which of these addresses answer.
fn reached(addresses: &[SocketAddr]) -> Vec<bool> {
    let answers = |address| TcpStream::connect_timeout(address, PATIENCE).is_ok();
    thread::scope(|scope| {
        let tries: Vec<_> = addresses.iter().map(|address| scope.spawn(move || answers(address))).collect();
        tries.into_iter().map(|answer| answer.join().unwrap_or(false)).collect()
    })
}

/// Forwards the launcher's signals while ranks run.
fn listen(tell: Sender<Event>) -> io::Result<()> {
    let hear = move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let Some(signal) = line.parse().ok().and_then(Signal::from_named_raw) else { continue };
            if tell.send(Event::Launcher(signal)).is_err() {
                return;
            }
        }
        drop(tell.send(Event::Launcher(Signal::TERM)));
    };
    thread::Builder::new().name("launcher".into()).spawn(hear).map(drop)
}
