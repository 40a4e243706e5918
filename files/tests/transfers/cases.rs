//! Files among processes: transfers whose receiver is killed and that are resumed, to all ranks and to one, and limits that
//! would kill.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use unisono::ProcessGroup;
use unisono_files::{Delivered, Error, Options, Problem, Progress, broadcast, recv, send};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, say, signal_myself},
    world::{TestJob, same},
};

/// What is tried.
pub(crate) const CASES: Table = &[
    ("a file is resumed after a kill", killed),
    ("a file is longer than a rank may write", limited),
    ("a file for one rank is resumed after a kill", killed_alone),
    ("files go to one rank and back, many times", to_and_fro),
];

pub(crate) const ROLES: &[Role] =
    &[("broadcasts", play), ("sends", play_sends), ("to-and-fro", play_to_and_fro)];

/// Of the file: not a whole number of pieces.
const LEN: usize = 20_000_003;
const PIECE: u64 = 256 << 10;
/// When rank 1 is killed.
const KILLED: u64 = 12_000_000;

/// A place for all files of a case, removed with it.
fn place() -> std::io::Result<(tempfile::TempDir, String)> {
    let place = tempfile::tempdir()?;
    let bytes: Vec<u8> = (0..LEN).map(|at| u8::try_from((at ^ at >> 8) % 256).unwrap_or(0)).collect();
    fs::write(place.path().join("model"), bytes)?;
    let name = place.path().to_string_lossy().into_owned();
    Ok((place, name))
}

fn killed(provider: &str) -> Outcome {
    let (place, name) = place()?;
    let role = |then: &str| format!("broadcasts {then} {name}");
    let mut world = TestJob::new(provider, 3, 1)?;
    for rank in 0..3 {
        world.start(rank, &role(if rank == 1 { "dies" } else { "fails" }), &[])?;
    }
    for end in world.end_all()? {
        ensure!(end.rank == 1 || end.status.success(), "rank {}: {}", end.rank, end.errors);
    }
    ensure!(!place.path().join("0/model").exists(), "a file that is not there everywhere has its name");
    let partial = place.path().join("1/.model.unisono-part");
    ensure!(partial.metadata()?.len() == LEN as u64, "no partial file at rank 1");
    // What a crash of the machine can do: a piece is noted and was never written.
    fs::File::options().write(true).open(&partial)?.write_all_at(&[0; 1000], 0)?;

    let mut world = TestJob::new(provider, 3, 1)?;
    world.start_all(&role("ends"), &[])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(|end| end.well())?;
    let sent: usize = same(&ends.iter().collect::<Vec<_>>(), "sent")?.parse()?;
    let piece = usize::try_from(PIECE)?;
    // All but those in its buffers were written, and the rounds of 16 keep the others as close.
    ensure!((piece..LEN - 24 * piece).contains(&sent), "{sent} bytes were sent again");
    let whole = fs::read(place.path().join("model"))?;
    for rank in 0..3 {
        let to = place.path().join(rank.to_string());
        ensure!(fs::read(to.join("model"))? == whole, "rank {rank} has another file");
        ensure!(fs::read_dir(&to)?.count() == 1, "rank {rank} has more than the file");
    }
    Ok(Verdict::Measured(format!("{sent} of {LEN} bytes were sent again")))
}

fn limited(provider: &str) -> Outcome {
    let (place, name) = place()?;
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start(0, &format!("broadcasts fails {name}"), &[])?;
    world.start(1, &format!("broadcasts limited {name}"), &[])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(|end| end.well())?;
    let said = same(&ends.iter().collect::<Vec<_>>(), "problem")?;
    ensure!(said.contains("on rank 1") && said.contains("ulimit -f"), "{said}");
    ensure!(fs::read_dir(place.path().join("1"))?.next().is_none(), "something was left behind");
    Ok(Verdict::Passed)
}

/// What a rank does beside broadcasting, and where.
fn play(case: &str) -> rank::Outcome {
    let (then, place) = case.split_once(' ').ok_or("no place")?;
    let place = Path::new(place);
    let group = join()?;
    if then == "limited" {
        // Over shm what is opened before is a file too.
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: Some(LEN as u64 - 1), maximum })?;
    }
    let to: PathBuf = place.join(group.rank().to_string());
    let mut tell = |progress: Progress| {
        if then == "dies" && progress.done >= KILLED {
            drop(signal_myself(Signal::KILL));
        }
    };
    #[allow(clippy::needless_update, reason = "a feature adds a field")]
    let options = Options { piece: PIECE, progress: Some(&mut tell), ..Options::default() };
    match broadcast(&group, &place.join("model"), &to, 0, options) {
        Ok(Delivered { sent, .. }) => say("sent", sent),
        Err(error @ Error::File { problem: Problem::NoSpace { .. }, .. }) => {
            say("problem", &error);
            // The group goes on.
            group.barrier()?;
        }
        Err(Error::Group(unisono::Error::Failed(_))) if then == "fails" => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// From rank 0 to rank 2, which is killed at first, while rank 1 waits for both.
fn killed_alone(provider: &str) -> Outcome {
    let (place, name) = place()?;
    let mut world = TestJob::new(provider, 3, 1)?;
    for rank in 0..3 {
        world.start(rank, &format!("sends {} {name}", if rank == 2 { "dies" } else { "fails" }), &[])?;
    }
    for end in world.end_all()? {
        ensure!(end.rank == 2 || end.status.success(), "rank {}: {}", end.rank, end.errors);
    }
    let to = place.path().join("2");
    ensure!(to.join(".model.unisono-part").metadata()?.len() == LEN as u64, "no partial file at rank 2");

    let mut world = TestJob::new(provider, 3, 1)?;
    world.start_all(&format!("sends ends {name}"), &[])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(|end| end.well())?;
    let two: Vec<_> = ends.iter().filter(|end| end.rank != 1).collect();
    let sent: usize = same(&two, "sent")?.parse()?;
    ensure!(sent < LEN - 24 * usize::try_from(PIECE)?, "{sent} bytes were sent again");
    ensure!(fs::read(to.join("model"))? == fs::read(place.path().join("model"))?, "rank 2 has another file");
    let [to, all] = [&to, place.path()].map(|it| fs::read_dir(it).map(Iterator::count));
    ensure!((to?, all?) == (1, 2), "there is more than the two files");
    Ok(Verdict::Measured(format!("{sent} of {LEN} bytes were sent again")))
}

fn play_sends(case: &str) -> rank::Outcome {
    let (then, place) = case.split_once(' ').ok_or("no place")?;
    let place = Path::new(place);
    let group = join()?;
    let mut tell = |progress: Progress| {
        if then == "dies" && progress.done >= KILLED {
            drop(signal_myself(Signal::KILL));
        }
    };
    #[allow(clippy::needless_update, reason = "a feature adds a field")]
    let options = Options { piece: PIECE, progress: Some(&mut tell), ..Options::default() };
    let done = match group.rank() {
        0 => send(&group, &place.join("model"), 2, 9, options).map(Some),
        1 => Ok(None),
        _ => recv(&group, &place.join("2"), 0, 9, options).map(|(delivered, _)| Some(delivered)),
    };
    match done.and_then(|done| Ok(group.barrier().map(|()| done)?)) {
        Ok(Some(Delivered { sent, .. })) => say("sent", sent),
        Ok(None) => {}
        Err(Error::Group(unisono::Error::Failed(_))) if then == "fails" => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    Ok(group.leave()?)
}

/// Between ranks 0 and 1, both ways at once, and a group of both after each.
fn to_and_fro(provider: &str) -> Outcome {
    let place = tempfile::tempdir()?;
    let mut world = TestJob::new(provider, 3, 1)?;
    world.start_all(&format!("to-and-fro {}", place.path().to_string_lossy()), &[])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(|end| end.well())?;
    let ends: Vec<_> = ends.iter().collect();
    ensure!(same(&ends, "threads and files")? == "true", "threads or open files are left");
    Ok(Verdict::Passed)
}

fn play_to_and_fro(place: &str) -> rank::Outcome {
    const EARLY: usize = 20;
    let count = |of: &str| fs::read_dir(of).map(Iterator::count);
    let taken = || Ok::<_, std::io::Error>((count("/proc/self/task")?, count("/proc/self/fd")?));
    let group = join()?;
    let own = Path::new(place).join(group.rank().to_string());
    fs::create_dir(&own)?;
    let mut early = None;
    for round in 0..150 {
        if group.rank() < 2 {
            exchange(&group, &own, round)?;
        }
        drop(group.split((group.rank() < 2).then_some(0), 0)?);
        if round == EARLY {
            group.barrier()?;
            early = Some(taken()?);
        }
    }
    group.barrier()?;
    say("threads and files", early == Some(taken()?));
    Ok(group.leave()?)
}

/// Sends the other one of two ranks a file, and receives one.
fn exchange(group: &ProcessGroup, own: &Path, round: usize) -> rank::Outcome {
    let bytes = |rank: usize| vec![u8::try_from((round + rank) % 256).unwrap_or(0); 1000 * (round % 90)];
    let (rank, other) = (group.rank(), 1 - group.rank());
    let file = own.join("mine");
    fs::write(&file, bytes(rank))?;
    let options = || Options { piece: 10_000, ..Options::default() };
    let received = std::thread::scope(|scope| {
        let sends = scope.spawn(|| send(group, &file, other, 3, options()));
        let received = recv(group, &own.join("theirs"), other, 3, options());
        match sends.join() {
            Ok(sent) => sent.and(received),
            Err(_) => received,
        }
    });
    let (Delivered { file, .. }, from) = received?;
    ensure!(from == other && fs::read(file)? == bytes(other), "round {round}: another file");
    Ok(())
}
