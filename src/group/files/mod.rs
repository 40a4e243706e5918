//! Files from one rank to all, and to one other: `broadcast_file`, `send_file` and `recv_file`.
//!
//! A file for one other is broadcast in a group of the two, which these make for it and without the others.
//! What ranks agree on travels by the collectives there are, and so does the file. A rank that cannot go on does not
//! stop: it says so at the next occasion, all stop there, and each returns the same error; the group works on.

mod agree;
#[cfg(test)]
mod tests;
mod transfer;

use std::{
    hash::{BuildHasher, Hasher},
    iter,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

use self::{
    agree::{Outcome, Trouble},
    transfer::{BUFFERS, TRAILER, Transfer},
};
use super::ProcessGroup;
use crate::{
    buffer::Buffer,
    error::{Error, Result},
    file::{self, Delivered, FileOptions, FileProblem, Marker, Origin, Pieces, Plan, Source, Target},
    reduce::ReduceOp,
};

/// What the root tells first.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    plan: Plan,
    /// A number of this transfer alone.
    transfer: u64,
    /// Where only some tensors of a file are sent: which it is, so that nobody puts them in its place.
    origin: Option<Origin>,
}

/// What a rank that writes has of the file.
#[derive(Debug, Default)]
struct Have {
    /// Where it comes in; none if the whole is there.
    target: Option<Target>,
    /// The checksum of each piece that is there; 0 of the others.
    sums: Vec<u128>,
}

/// A call on one rank.
struct Call<'c> {
    name: &'static str,
    group: &'c ProcessGroup,
    file: &'c Path,
    /// Where the file goes; none at a root that keeps none.
    directory: Option<&'c Path>,
    root: Rank,
}

impl ProcessGroup {
    /// Gives a file of the root's to all ranks: when the call returns, each finds it in its `directory`, under the same
    /// name, as old, and with its permissions (those of reading, writing and running it, less this process's umask). `file`
    /// matters at the root alone; `directory` is each rank's own, and made if there is none.
    /// Where ranks share a directory, one of them writes. The root's gets the file too, unless it lies there already. No
    /// other thread may use the group meanwhile.
    ///
    /// The file goes in pieces, each with a checksum, and however long it is a rank needs memory for four of them. While
    /// it comes it lies in the directory as `.NAME.unisono-part`, beside a journal, `.NAME.unisono-journal`
    /// (both with a checksum in place of a NAME of more than 238 bytes). When the whole is on the disks of all ranks it
    /// takes its name, in place of what had it. A call that was cut short leaves the two behind, and the next one of the
    /// same file goes on from there: it sends only what a rank lacks, or has otherwise than the root. A file that is there already, as long and as old, is compared likewise,
    /// and stays whoever's it is. Where another user has made or linked something under one of the hidden names, that is left
    /// alone, and this process's number of user is added to both. Holes of the file are not sent, and arrive as holes.
    ///
    /// # Errors
    /// [`Error::File`], on all ranks the same, if the file cannot be read or written somewhere, there is no room for it,
    /// it changes meanwhile, a piece arrives damaged, or some tensors of a file would take the place of the whole; the
    /// group works on. [`Error::Argument`] if there is no such root; [`Error::Failed`] if the ranks disagree or the
    /// group is over.
    pub fn broadcast_file(
        &self,
        file: &Path,
        directory: &Path,
        root: Rank,
        options: FileOptions<'_>,
    ) -> Result<Delivered> {
        if root >= self.size() {
            let problem = format!("the root is rank {root}; there are ranks 0 to {}", self.size() - 1);
            return Err(Error::Argument { call: "broadcast_file", problem });
        }
        Call { name: "broadcast_file", group: self, file, directory: Some(directory), root }.run(options)
    }

    /// Sends a file to another rank, which receives it by [`recv_file`](Self::recv_file) with the same tag. Returns when it
    /// is safe on that rank's disk.
    ///
    /// Only the two take part: they make a group of their own for it, and leave it at the end. The others, and other threads
    /// of these two, may do anything meanwhile, also send each other files; two ranks that do so at the same time need a
    /// thread for each way. Otherwise as [`broadcast_file`](Self::broadcast_file), but that this rank writes nothing: the file
    /// goes in pieces, each with a checksum, and what was cut short is resumed by the next such calls. What the sender
    /// asks for by its `options` holds.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, it is this one, or the two are in as many groups already,
    /// taken together, as there may be at once (256); [`Error::File`], on both ranks the same, as of `broadcast_file`: the
    /// group works on; [`Error::Failed`] if the receiver asked for something else than a file, or did not ask before the
    /// deadline, or if the group is over.
    pub fn send_file(&self, file: &Path, to: Rank, tag: u32, options: FileOptions<'_>) -> Result<Delivered> {
        let name = "send_file";
        let pair = self.open_pair(name, to, tag)?;
        Call { name, group: &pair, file, directory: None, root: 0 }.run(options)
    }

    /// Receives a file into a directory, which is made if there is none, and tells who sent it. It has the name and the age
    /// that it has at the sender. See [`send_file`](Self::send_file).
    ///
    /// # Errors
    /// As [`send_file`](Self::send_file).
    pub fn recv_file(
        &self,
        directory: &Path,
        from: impl Into<super::Source>,
        tag: u32,
        options: FileOptions<'_>,
    ) -> Result<(Delivered, Rank)> {
        let name = "recv_file";
        let (pair, from) = self.join_pair(name, from.into(), tag)?;
        let call = Call { name, group: &pair, file: Path::new(""), directory: Some(directory), root: 0 };
        Ok((call.run(options)?, from))
    }
}

impl Have {
    fn sum(&self, piece: u64) -> u128 {
        usize::try_from(piece).ok().and_then(|piece| self.sums.get(piece)).copied().unwrap_or_default()
    }
}

impl Call<'_> {
    /// Hands the file over.
    fn run(&self, mut options: FileOptions<'_>) -> Result<Delivered> {
        let begun = Instant::now();
        let (source, Opening { plan, transfer, origin }) = self.open(&options)?;
        let source = source.as_ref();
        let path = self.path(&plan);
        let writes = self.writes(transfer, origin, source, &path)?;
        let mut have = self.look(&plan, &path, writes)?;
        self.compare(&plan, source, &mut have)?;
        self.prepare(&plan, &path, &mut have)?;
        self.punch(&plan, source, &path, &mut have)?;

        let own = Pieces::of(plan.pieces(), |piece| have.as_ref().is_none_or(|have| have.sum(piece) != 0));
        let mut all = own.clone();
        self.group.all_reduce(&mut all.words, ReduceOp::BitAnd)?;
        let target = have.as_mut().and_then(|have| have.target.as_mut());
        let [lack, write] = self.which([own.missing().next().is_some(), target.is_some()])?;
        let sent = all.missing().map(|piece| plan.range(piece).1 as u64).sum();
        if sent > 0 {
            let buffers = self.buffers(&plan, &all, &lack, &path)?;
            let members = self.members(&lack, &path)?;
            let members = if buffers.is_empty() { None } else { members.as_ref().or(Some(self.group)) };
            let transfer = Transfer {
                call: self,
                members,
                plan: &plan,
                all: &all,
                own: &own,
                source,
                target: target.as_deref(),
                path: &path,
            };
            let outcome = transfer.run(buffers, &mut options.progress)?;
            self.agree(outcome)?;
        }
        let moved = Instant::now();
        let wrote = target.is_some();
        self.complete(source, target, &path)?;
        let writers = write.into_iter().filter(|&writes| writes).count();
        let (moving, syncing) = (moved - begun, moved.elapsed());
        Ok(Delivered { file: path, bytes: plan.len, sent, wrote, writers, moving, syncing })
    }

    /// Where the file lies when all is done.
    fn path(&self, plan: &Plan) -> PathBuf {
        self.directory.map_or_else(|| self.file.to_owned(), |directory| directory.join(plan.name()))
    }

    /// Opens the file at the root, and tells all what it is.
    fn open(&self, options: &FileOptions<'_>) -> Result<(Option<Source>, Opening)> {
        if self.group.rank() != self.root {
            return Ok((None, self.told(None)?));
        }
        let opened = (|| {
            let source = Source::open(self.file)?;
            #[cfg(feature = "safetensors")]
            let source = if options.tensors.is_empty() { source } else { source.only(options.tensors)? };
            let plan = source.plan(options.piece)?;
            Ok((source, plan))
        })();
        let opened: Outcome<_> = opened.map_err(|problem| Trouble::new(self.file, problem));
        // Seeded at random by the system.
        let transfer = std::hash::RandomState::new().build_hasher().finish();
        let (source, opening) = match opened {
            Ok((source, plan)) => {
                let origin = source.is_part().then(|| source.origin());
                (Some(source), Ok(Opening { plan, transfer, origin }))
            }
            Err(trouble) => (None, Err(trouble)),
        };
        Ok((source, self.told(Some(opening))?))
    }

    /// Whether this rank is the one to write into its directory.
    fn writes(
        &self,
        transfer: u64,
        origin: Option<Origin>,
        source: Option<&Source>,
        path: &Path,
    ) -> Result<bool> {
        let (rank, root) = (self.group.rank(), self.root);
        let mark = self.directory.map(|directory| Marker::leave(directory, transfer, rank)).transpose();
        self.group.barrier()?;
        let mut before = iter::once(root).chain(0..rank).filter(|_| rank != root);
        let own = mark.as_ref().ok().and_then(Option::as_ref);
        let seen = |directory| before.any(|other| Marker::seen(directory, transfer, other, own));
        let other = self.directory.is_some_and(seen);
        // Nobody looks any more.
        self.group.barrier()?;
        let same = source.is_some_and(|source| source.is(path));
        let writes = match mark {
            _ if other => Ok(false),
            Err(problem) => Err(problem),
            Ok(None) => Ok(false),
            // The whole would be lost. It may lie where this rank writes and the root does not.
            Ok(_) if origin.is_some_and(|origin| same || origin.is(path)) => Err(FileProblem::Io {
                doing: "replacing it".to_owned(),
                reason: "these are some tensors of this very file; name another directory".to_owned(),
                code: None,
            }),
            Ok(_) => Ok(!same),
        };
        self.agree(writes.map_err(|problem| Trouble::new(self.directory.unwrap_or(self.file), problem)))
    }

    /// Looks for what is there of the file; `None` if this rank does not write.
    fn look(&self, plan: &Plan, path: &Path, writes: bool) -> Result<Option<Have>> {
        let found = self.meanwhile(|stop| {
            let Some(directory) = self.directory.filter(|_| writes) else { return Ok(None) };
            if let Some(there) = Target::whole(directory, plan)? {
                return Ok(Some(Have { target: None, sums: file::sums(&there, plan, None, stop) }));
            }
            let (target, noted) = Target::open(directory, plan)?;
            let sums = file::sums(target.file(), plan, Some(&noted), stop);
            Ok(Some(Have { target: Some(target), sums }))
        })?;
        self.agree(found.map_err(|problem| Trouble::new(path, problem)))
    }

    /// Keeps what is as it is in the source.
    fn compare(&self, plan: &Plan, source: Option<&Source>, have: &mut Option<Have>) -> Result<()> {
        let mut found = Pieces::of(plan.pieces(), |piece| have.as_ref().is_some_and(|it| it.sum(piece) != 0));
        self.group.all_reduce(&mut found.words, ReduceOp::BitOr)?;
        if found.is_empty() {
            return Ok(());
        }
        let sums = self.meanwhile(|stop| source.map(|source| source.sums(plan, &found, stop)).transpose())?;
        let sums = self.agree(sums.map_err(|problem| Trouble::new(self.file, problem)))?.unwrap_or_default();
        let mut words: Vec<[u64; 2]> = sums.iter().map(|&sum| halves(sum)).collect();
        words.resize(usize::try_from(plan.pieces()).unwrap_or(usize::MAX), [0; 2]);
        self.group.broadcast(words.as_flattened_mut(), self.root)?;
        for (sum, words) in have.iter_mut().flat_map(|have| &mut have.sums).zip(words) {
            if halves(*sum) != words {
                *sum = 0;
            }
        }
        Ok(())
    }

    /// Opens a partial file where what was there as a whole is another file.
    fn prepare(&self, plan: &Plan, path: &Path, have: &mut Option<Have>) -> Result<()> {
        let prepared = match (have, self.directory) {
            (Some(Have { target: target @ None, sums }), Some(directory)) if sums.contains(&0) => {
                sums.fill(0);
                Target::open(directory, plan).map(|(opened, _)| *target = Some(opened))
            }
            _ => Ok(()),
        };
        self.agree(prepared.map_err(|problem| Trouble::new(path, problem)))
    }

    /// Makes holes, instead of sending zeros, of the pieces that are nothing but holes at the root.
    fn punch(
        &self,
        plan: &Plan,
        source: Option<&Source>,
        path: &Path,
        have: &mut Option<Have>,
    ) -> Result<()> {
        if !plan.is_sparse() {
            return Ok(());
        }
        let none = || Pieces::of(plan.pieces(), |_| false);
        let mut holes = source.map_or_else(none, |source| source.holes(plan));
        self.group.broadcast(&mut holes.words, self.root)?;
        let punched = self.meanwhile(|stop| match have {
            Some(Have { target: Some(target), sums }) => target.punch(&holes, sums, stop),
            _ => Ok(()),
        })?;
        self.agree(punched.map_err(|problem| Trouble::new(path, problem)))
    }

    /// Of which ranks each of these is true.
    fn which<const N: usize>(&self, mine: [bool; N]) -> Result<[Vec<bool>; N]> {
        let mut all = vec![0; N * self.group.size()];
        self.group.all_gather(&mine.map(u8::from), &mut all)?;
        Ok(std::array::from_fn(|which| all.iter().skip(which).step_by(N).map(|&it| it == 1).collect()))
    }

    /// Memory for the pieces under way, on ranks that send or receive any.
    fn buffers(&self, plan: &Plan, all: &Pieces, lack: &[bool], path: &Path) -> Result<Vec<Buffer<u8>>> {
        let rank = self.group.rank();
        let count = if rank == self.root || lack.get(rank) == Some(&true) { BUFFERS } else { 0 };
        let bytes = plan.longest();
        let made = all.missing().take(count).map(|_| self.group.buffer(bytes + TRAILER));
        let made = match made.collect::<Result<Vec<_>>>() {
            Err(error @ Error::Failed(_)) => return Err(error),
            Err(error) => Err(FileProblem::Memory { bytes: bytes as u64, reason: error.to_string() }),
            Ok(made) => Ok(made),
        };
        self.agree(made.map_err(|problem| Trouble::new(path, problem)))
    }

    /// The group of the ranks that send or receive, unless these are all.
    fn members(&self, lack: &[bool], path: &Path) -> Result<Option<ProcessGroup>> {
        let members: Vec<Rank> = (0..self.group.size())
            .filter(|&rank| rank == self.root || lack.get(rank) == Some(&true))
            .collect();
        if members.len() == self.group.size() {
            return Ok(None);
        }
        let made = match self.group.new_group(&members) {
            Err(error @ Error::Failed(_)) => return Err(error),
            // Only members are told.
            Err(error) => Err(FileProblem::Group { reason: error.to_string() }),
            Ok(made) => Ok(made),
        };
        self.agree(made.map_err(|problem| Trouble::new(path, problem)))
    }

    /// Brings the file to all disks, and then under its name.
    fn complete(&self, source: Option<&Source>, target: Option<&mut Target>, path: &Path) -> Result<()> {
        let shared = target.as_deref();
        let synced = self.meanwhile(|_: &AtomicBool| {
            source.map_or(Ok(()), Source::unchanged).map_err(|problem| Trouble::new(self.file, problem))?;
            shared.map_or(Ok(()), Target::sync).map_err(|problem| Trouble::new(path, problem))
        })?;
        self.agree(synced)?;
        let renamed = target.map_or(Ok(()), Target::rename);
        self.agree(renamed.map_err(|problem| Trouble::new(path, problem)))
    }
}

/// A checksum as elements that travel.
fn halves(sum: u128) -> [u64; 2] {
    bytemuck::cast(sum.to_le_bytes())
}
