//! Copies a file from the root to other ranks.
//!
//! A file for one other rank is broadcast in a group of the two. The pieces of the file and all agreements go by collectives of the
//! group. A rank that cannot continue takes part until the next agreement and reports its problem there; then all ranks stop and
//! return the same error, and the group still works.

mod agree;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, Hasher},
    iter,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono::{Buffer, ProcessGroup, ReduceOp, schedule::Rank};

use self::{
    agree::{RankOutcome, TransferRanks, Trouble},
    stream::{BUFFERS, PieceStream, TRAILER},
};
use crate::{
    error::{Problem, Result},
    local::{self, FileIdentity, Marker, SentFile, Target},
    options::{Delivered, Options},
    plan::{FilePlan, PieceSet, of_piece},
};

/// The description of a transfer, which the root sends first.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    plan: FilePlan,
    /// A random number that identifies this transfer.
    transfer: u64,
    /// If only some tensors of a file are sent: the identity of that file, so that no rank replaces the file by them.
    origin: Option<FileIdentity>,
}

/// The parts of the file that a writing rank already has.
#[derive(Debug, Default)]
struct Have {
    /// The partial file; `None` if a complete file is there.
    target: Option<Target>,
    /// The checksum of each piece; 0 for a piece that is not there.
    sums: Vec<u128>,
}

/// A call on one rank.
pub(crate) struct Handover<'c> {
    ranks: TransferRanks<'c>,
    /// The file, at the root.
    file: &'c Path,
    /// The directory that gets the file; `None` at a root that gets no copy.
    directory: Option<&'c Path>,
}

impl Have {
    fn sum(&self, piece: u64) -> u128 {
        of_piece(&self.sums, piece)
    }
}

impl<'c> Handover<'c> {
    /// Copies the root's `file` to the `directory` of every rank of the group that gives one.
    pub(crate) const fn new(
        group: &'c ProcessGroup,
        file: &'c Path,
        directory: Option<&'c Path>,
        root: Rank,
    ) -> Self {
        Self { ranks: TransferRanks { group, root }, file, directory }
    }

    /// Copies the file.
    pub(crate) fn run(&self, mut options: Options<'_>) -> Result<Delivered> {
        let begun = Instant::now();
        let (source, Opening { plan, transfer, origin }) = self.open(&options)?;
        let source = source.as_ref();
        let path = self.path(&plan);
        let writes = self.writes(transfer, origin, source, &path)?;
        let mut have = self.look(&plan, &path, writes)?;
        self.compare(&plan, source, &mut have)?;
        self.prepare(&plan, &path, &mut have)?;
        self.punch(&plan, source, &path, &mut have)?;

        let own = PieceSet::of(plan.pieces(), |piece| have.as_ref().is_none_or(|have| have.sum(piece) != 0));
        let mut all = own.clone();
        self.ranks.group.all_reduce(&mut all.words, ReduceOp::BitAnd)?;
        let target = have.as_mut().and_then(|have| have.target.as_mut());
        let [lack, write] = self.which([own.missing().next().is_some(), target.is_some()])?;
        let sent = all.missing().map(|piece| plan.range(piece).1 as u64).sum();
        if sent > 0 {
            let buffers = self.buffers(&plan, &all, &lack, &path)?;
            let members = self.members(&lack, &path)?;
            let members = if buffers.is_empty() { None } else { members.as_ref().or(Some(self.ranks.group)) };
            let stream = PieceStream {
                ranks: self.ranks,
                members,
                plan: &plan,
                all: &all,
                own: &own,
                source,
                file: self.file,
                target: target.as_deref(),
                path: &path,
            };
            let outcome = stream.run(buffers, &mut options.progress)?;
            self.ranks.agree(outcome)?;
        }
        let moved = Instant::now();
        let wrote = target.is_some();
        self.complete(source, target, &path)?;
        let writers = write.into_iter().filter(|&writes| writes).count();
        let (moving, syncing) = (moved - begun, moved.elapsed());
        Ok(Delivered { file: path, bytes: plan.len, sent, wrote, writers, moving, syncing })
    }

    /// The path of the file on this rank after the transfer.
    fn path(&self, plan: &FilePlan) -> PathBuf {
        self.directory.map_or_else(|| self.file.to_owned(), |directory| directory.join(plan.name()))
    }

    /// Opens the file at the root, and sends its description to all ranks.
    fn open(&self, options: &Options<'_>) -> Result<(Option<SentFile>, Opening)> {
        if !self.ranks.is_root() {
            return Ok((None, self.agreed(None)?));
        }
        let opened = (|| {
            let source = SentFile::open(self.file)?;
            #[cfg(feature = "safetensors")]
            let source = if options.tensors.is_empty() { source } else { source.only(options.tensors)? };
            let plan = source.plan(options.piece)?;
            Ok((source, plan))
        })();
        // Its seed is random.
        let transfer = std::hash::RandomState::new().build_hasher().finish();
        let (source, opening) = match opened {
            Ok((source, plan)) => {
                let origin = source.is_part().then(|| source.origin());
                (Some(source), Ok(Opening { plan, transfer, origin }))
            }
            Err(problem) => (None, Err(Trouble::new(self.file, problem))),
        };
        Ok((source, self.agreed(Some(opening))?))
    }

    /// The root's description, checked. Only the root gives `mine`.
    fn agreed(&self, mine: Option<RankOutcome<Opening>>) -> Result<Opening> {
        let Opening { plan, transfer, origin } = self.ranks.told_by_root(mine)?;
        // All ranks check the same bytes, and so return the same error.
        let name = plan.name();
        let refused = |problem| self.ranks.error(self.ranks.root, Trouble::new(Path::new(&name), problem));
        Ok(Opening { plan: plan.check().map_err(refused)?, transfer, origin })
    }

    /// True if this rank writes into its directory. If ranks share a directory, the root or else the lowest of them writes.
    fn writes(
        &self,
        transfer: u64,
        origin: Option<FileIdentity>,
        source: Option<&SentFile>,
        path: &Path,
    ) -> Result<bool> {
        let (rank, root) = (self.ranks.group.rank(), self.ranks.root);
        let mark = self.directory.map(|directory| Marker::leave(directory, transfer, rank)).transpose();
        self.ranks.group.barrier()?;
        let mut before = iter::once(root).chain(0..rank).filter(|_| rank != root);
        let own = mark.as_ref().ok().and_then(Option::as_ref);
        let seen = |directory| before.any(|other| Marker::seen(directory, transfer, other, own));
        let other = self.directory.is_some_and(seen);
        // After the barrier no rank looks for marks.
        self.ranks.group.barrier()?;
        let same = source.is_some_and(|source| source.is(path));
        let writes = match mark {
            _ if other => Ok(false),
            Err(problem) => Err(problem),
            Ok(None) => Ok(false),
            // The complete file would be lost. It may be in this rank's directory and not in the root's.
            Ok(_) if origin.is_some_and(|origin| same || origin.is(path)) => Err(Problem::Io {
                doing: "replacing it".to_owned(),
                reason: "these are some tensors of this very file; name another directory".to_owned(),
                code: None,
            }),
            Ok(_) => Ok(!same),
        };
        self.ranks.agree_on(self.directory.unwrap_or(self.file), writes)
    }

    /// Finds which pieces of the file this rank already has; `None` if it does not write.
    fn look(&self, plan: &FilePlan, path: &Path, writes: bool) -> Result<Option<Have>> {
        let found = self.ranks.meanwhile(|stop| {
            let Some(directory) = self.directory.filter(|_| writes) else { return Ok(None) };
            if let Some(there) = Target::whole(directory, plan)? {
                return Ok(Some(Have { target: None, sums: local::sums(&there, plan, None, stop) }));
            }
            let (target, noted) = Target::open(directory, plan)?;
            let sums = local::sums(target.file(), plan, Some(&noted), stop);
            Ok(Some(Have { target: Some(target), sums }))
        })?;
        self.ranks.agree_on(path, found)
    }

    /// Discards the pieces that differ from the source's.
    fn compare(&self, plan: &FilePlan, source: Option<&SentFile>, have: &mut Option<Have>) -> Result<()> {
        let mut found =
            PieceSet::of(plan.pieces(), |piece| have.as_ref().is_some_and(|it| it.sum(piece) != 0));
        self.ranks.group.all_reduce(&mut found.words, ReduceOp::BitOr)?;
        if found.is_empty() {
            return Ok(());
        }
        let sums =
            self.ranks.meanwhile(|stop| source.map(|source| source.sums(plan, &found, stop)).transpose())?;
        let sums = self.ranks.agree_on(self.file, sums)?.unwrap_or_default();
        let mut words: Vec<[u64; 2]> = sums.iter().map(|&sum| halves(sum)).collect();
        words.resize(usize::try_from(plan.pieces()).unwrap_or(usize::MAX), [0; 2]);
        self.ranks.group.broadcast(words.as_flattened_mut(), self.ranks.root)?;
        for (sum, words) in have.iter_mut().flat_map(|have| &mut have.sums).zip(words) {
            if halves(*sum) != words {
                *sum = 0;
            }
        }
        Ok(())
    }

    /// Opens a partial file if the complete file that was there differs from the source.
    fn prepare(&self, plan: &FilePlan, path: &Path, have: &mut Option<Have>) -> Result<()> {
        let prepared = match (have, self.directory) {
            (Some(Have { target: target @ None, sums }), Some(directory)) if sums.contains(&0) => {
                sums.fill(0);
                Target::open(directory, plan).map(|(opened, _)| *target = Some(opened))
            }
            _ => Ok(()),
        };
        self.ranks.agree_on(path, prepared)
    }

    /// Makes holes of the pieces that are holes at the root, so that no zeros are sent for them.
    fn punch(
        &self,
        plan: &FilePlan,
        source: Option<&SentFile>,
        path: &Path,
        have: &mut Option<Have>,
    ) -> Result<()> {
        if !plan.is_sparse() {
            return Ok(());
        }
        let none = || PieceSet::of(plan.pieces(), |_| false);
        let mut holes = source.map_or_else(none, |source| source.holes(plan));
        self.ranks.group.broadcast(&mut holes.words, self.ranks.root)?;
        let punched = self.ranks.meanwhile(|stop| match have {
            Some(Have { target: Some(target), sums }) => target.punch(&holes, sums, stop),
            _ => Ok(()),
        })?;
        self.ranks.agree_on(path, punched)
    }

    /// For each of these values, the ranks on which it is true.
    fn which<const N: usize>(&self, mine: [bool; N]) -> Result<[Vec<bool>; N]> {
        let mut all = vec![0; N * self.ranks.group.size()];
        self.ranks.group.all_gather((&mine.map(u8::from), &mut all))?;
        Ok(std::array::from_fn(|which| all.iter().skip(which).step_by(N).map(|&it| it == 1).collect()))
    }

    /// Buffers for the pieces in flight, on ranks that send or receive pieces.
    fn buffers(
        &self,
        plan: &FilePlan,
        all: &PieceSet,
        lack: &[bool],
        path: &Path,
    ) -> Result<Vec<Buffer<u8>>> {
        let rank = self.ranks.group.rank();
        let count = if rank == self.ranks.root || lack.get(rank) == Some(&true) { BUFFERS } else { 0 };
        let bytes = plan.longest();
        let made = all.missing().take(count).map(|_| self.ranks.group.buffer(bytes + TRAILER));
        let problem = |reason| Problem::Memory { bytes: bytes as u64, reason };
        self.made(path, made.collect(), problem)
    }

    /// The group of the ranks that send or receive pieces; `None` if these are all ranks.
    fn members(&self, lack: &[bool], path: &Path) -> Result<Option<ProcessGroup>> {
        let members: Vec<Rank> = (0..self.ranks.group.size())
            .filter(|&rank| rank == self.ranks.root || lack.get(rank) == Some(&true))
            .collect();
        if members.len() == self.ranks.group.size() {
            return Ok(None);
        }
        // Only members of the group get an argument's error.
        self.made(path, self.ranks.group.new_group(&members), |reason| Problem::Group { reason })
    }

    /// What the ranks have made, or the problem of one that could not, with the reason.
    fn made<T>(
        &self,
        path: &Path,
        made: unisono::Result<T>,
        problem: impl FnOnce(String) -> Problem,
    ) -> Result<T> {
        match made {
            Err(error @ unisono::Error::Failed(_)) => Err(error.into()),
            made => self.ranks.agree_on(path, made.map_err(|error| problem(error.to_string()))),
        }
    }

    /// Syncs the file to the disks of all ranks, then renames it.
    fn complete(&self, source: Option<&SentFile>, target: Option<&mut Target>, path: &Path) -> Result<()> {
        let shared = target.as_deref();
        let synced = self.ranks.meanwhile(|_: &AtomicBool| {
            source.map_or(Ok(()), SentFile::unchanged).map_err(|problem| Trouble::new(self.file, problem))?;
            shared.map_or(Ok(()), Target::sync).map_err(|problem| Trouble::new(path, problem))
        })?;
        self.ranks.agree(synced)?;
        let renamed = target.map_or(Ok(()), Target::rename);
        self.ranks.agree_on(path, renamed)
    }
}

/// A checksum as elements of a collective.
fn halves(sum: u128) -> [u64; 2] {
    bytemuck::cast(sum.to_le_bytes())
}
