//! The hidden subcommand that starts the ranks of one host, for a launcher on another one.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    sync::mpsc::Sender,
    thread,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::run::{
    cores,
    job::{self, EventChannel, Job, JobPlace},
    link::{CONTINUE, END, HostHello, HostMark, JobOfHost, Places, Reached, STOP, Task},
    port::ReservedPort,
    ranks::Event,
};
use crate::words::host;

/// The name of the subcommand.
pub(crate) const NAME: &str = "run-ranks-of-host";

/// How long an address is tried.
const PATIENCE: Duration = Duration::from_secs(3);

/// Starts the ranks that standard input describes, and ends them when it is closed.
pub(crate) fn run() -> ExitCode {
    match job::begin().and_then(serve) {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)),
        Err(error) => {
            crate::complain!("unisono run: on {}: {error}", host());
            ExitCode::FAILURE
        }
    }
}

/// Executes what the launcher asks for; returns the exit status.
fn serve(events: EventChannel) -> io::Result<i32> {
    let port = ReservedPort::keep()?;
    let [from, at] = job::ssh_addresses();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    say(&HostHello { unisono: version, host: host(), cores: cores(), from, at, port: port.number })?;
    let Some(Places { addresses }) = hear()? else { return Ok(0) };
    say(&Reached { reached: reached(&addresses) })?;
    let Some(task) = hear::<Task>()? else { return Ok(0) };
    let mark = HostMark::new(task.mark.clone());
    listen(events.0.clone())?;
    let failed = |status: i32, problem: &dyn std::fmt::Display| {
        crate::complain!("unisono run: on {}: {problem}", task.host);
        let mut out = io::stdout();
        out.write_all(&[mark.failed(status), mark.end(status)].concat())
            .and_then(|()| out.flush())
            .map(|()| status)
    };
    if std::env::set_current_dir(&task.directory).is_err() {
        crate::complain!(
            "unisono run: {} has no directory {}, in which the job was started; its ranks begin in the home directory",
            task.host,
            task.directory.display()
        );
    }
    if let Err((status, problem)) = task.program.find() {
        return failed(status.into(), &problem);
    }
    job::make_room(task.ranks, 5)?;
    let meet = job::meet(task.store, task.token, task.master);
    let job = JobOfHost { host: task.host.clone(), others: task.world > task.ranks, mark: mark.clone() };
    let place = JobPlace { first: task.first, world: task.world, meet, host: Some(job) };
    match (Job { ranks: task.ranks, program: task.program }).run_at(&place, events) {
        Ok(end) => Ok(end.status()),
        Err(error) => failed(1, &error),
    }
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

/// Forwards the launcher's messages while ranks run.
fn listen(tell: Sender<Event>) -> io::Result<()> {
    let hear = move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let event = match line.as_str() {
                END => Event::EndAll,
                STOP => Event::Stopped(true),
                CONTINUE => Event::Stopped(false),
                _ => continue,
            };
            if tell.send(event).is_err() {
                return;
            }
        }
        drop(tell.send(Event::EndAll));
    };
    thread::Builder::new().name("launcher".into()).spawn(hear).map(drop)
}
