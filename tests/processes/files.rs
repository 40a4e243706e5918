//! Files among processes: a transfer whose receiver is killed and that is resumed, and limits that would kill.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use unisono::{
    Error,
    file::{Delivered, FileOptions, FileProblem, FileProgress},
};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, say, signal_myself},
    world::{World, same},
};

/// What is tried.
pub(crate) const CASES: Table =
    &[("a file is resumed after a kill", killed), ("a file is longer than a rank may write", limited)];

pub(crate) const ROLES: &[Role] = &[("broadcasts", play)];

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
    let mut world = World::new(provider, 3, 1)?;
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

    let mut world = World::new(provider, 3, 1)?;
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
    let mut world = World::new(provider, 2, 1)?;
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
fn play(told: &str) -> rank::Outcome {
    let (then, place) = told.split_once(' ').ok_or("no place")?;
    let place = Path::new(place);
    let group = join()?;
    if then == "limited" {
        // Over shm what is opened before is a file too.
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: Some(LEN as u64 - 1), maximum })?;
    }
    let to: PathBuf = place.join(group.rank().to_string());
    let mut tell = |progress: FileProgress| {
        if then == "dies" && progress.done >= KILLED {
            drop(signal_myself(Signal::KILL));
        }
    };
    let options = FileOptions { piece: PIECE, progress: Some(&mut tell), ..FileOptions::default() };
    match group.broadcast_file(&place.join("model"), &to, 0, options) {
        Ok(Delivered { sent, .. }) => say("sent", sent),
        Err(error @ Error::File { problem: FileProblem::NoSpace { .. }, .. }) => {
            say("problem", &error);
            // The group goes on.
            group.barrier()?;
        }
        Err(Error::Failed(_)) if then == "fails" => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
