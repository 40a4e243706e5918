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
    hash::{BuildHasher, Hasher, RandomState},
    iter,
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono::{ProcessGroup, ReduceOp, schedule::Rank};

use self::{
    agree::{TransferRanks, Trouble},
    stream::{BUFFERS, PieceStream, TRAILER},
};
use crate::{
    error::{Problem, Result},
    local::{self, FileIdentity, Marker, SentFile, Target},
    options::{Delivered, Options, Progress},
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

/// The part of one rank in a transfer.
struct Handover<'c> {
    ranks: TransferRanks<'c>,
    /// The file, at the root.
    file: &'c Path,
    /// The directory that gets the file; `None` at a root that gets no copy.
    directory: Option<&'c Path>,
    /// The path of the file on this rank after the transfer.
    path: PathBuf,
    plan: FilePlan,
    /// The open file, at the root.
    source: Option<SentFile>,
}

/// Copies the root's `file` to the `directory` of every rank of the group that gives one.
pub(crate) fn run(
    group: &ProcessGroup,
    file: &Path,
    directory: Option<&Path>,
    root: Rank,
    mut options: Options<'_>,
) -> Result<Delivered> {
    let (begun, ranks) = (Instant::now(), TransferRanks { group, root });
    let (source, Opening { plan, transfer, origin }) = open(ranks, file, &options)?;
    let path = directory.map_or_else(|| file.to_owned(), |directory| directory.join(plan.name()));
    let handover = Handover { ranks, file, directory, path, plan, source };
    let writes = handover.writes(transfer, origin)?;
    let mut have = handover.look(writes)?;
    handover.compare(&mut have)?;
    handover.prepare(&mut have)?;
    handover.punch(&mut have)?;
    let (sent, writers) = handover.stream(&mut have, &mut options.progress)?;
    let moved = Instant::now();
    let target = have.and_then(|have| have.target);
    let wrote = target.is_some();
    handover.complete(target)?;
    let (moving, syncing) = (moved - begun, moved.elapsed());
    Ok(Delivered { file: handover.path, bytes: handover.plan.len, sent, wrote, writers, moving, syncing })
}

/// Opens the file at the root, and sends its description to all ranks, which check it.
fn open(ranks: TransferRanks<'_>, file: &Path, options: &Options<'_>) -> Result<(Option<SentFile>, Opening)> {
    let opened = ranks.is_root().then(|| {
        let source = SentFile::open(file)?;
        #[cfg(feature = "safetensors")]
        let source = if options.tensors.is_empty() { source } else { source.only(options.tensors)? };
        let plan = source.plan(options.piece)?;
        // Its seed is random.
        let transfer = RandomState::new().build_hasher().finish();
        let origin = source.is_part().then(|| source.origin());
        Ok((source, Opening { plan, transfer, origin }))
    });
    let (source, mine) = match opened {
        None => (None, None),
        Some(Ok((source, opening))) => (Some(source), Some(Ok(opening))),
        Some(Err(problem)) => (None, Some(Err(Trouble::new(file, problem)))),
    };
    let Opening { plan, transfer, origin } = ranks.told_by_root(mine)?;
    // All ranks check the same bytes, and so return the same error.
    let name = plan.name();
    let refused = |problem| ranks.error(ranks.root, Trouble::new(Path::new(&name), problem));
    Ok((source, Opening { plan: plan.check().map_err(refused)?, transfer, origin }))
}

impl Handover<'_> {
    /// True if this rank writes into its directory. If ranks share a directory, the root or else the lowest of them writes.
    fn writes(&self, transfer: u64, origin: Option<FileIdentity>) -> Result<bool> {
        let (rank, root) = (self.ranks.group.rank(), self.ranks.root);
        let mark = self.directory.map(|directory| Marker::leave(directory, transfer, rank)).transpose();
        self.ranks.group.barrier()?;
        let mut before = iter::once(root).chain(0..rank).filter(|_| rank != root);
        let own = mark.as_ref().ok().and_then(Option::as_ref);
        let seen = |directory| before.any(|other| Marker::seen(directory, transfer, other, own));
        let other = self.directory.is_some_and(seen);
        // After the barrier no rank looks for marks.
        self.ranks.group.barrier()?;
        let same = self.source.as_ref().is_some_and(|source| source.is(&self.path));
        let writes = match mark {
            _ if other => Ok(false),
            Err(problem) => Err(problem),
            Ok(None) => Ok(false),
            // The complete file would be lost. It may be in this rank's directory and not in the root's.
            Ok(_) if origin.is_some_and(|origin| same || origin.is(&self.path)) => {
                let reason = "these are some tensors of this very file; name another directory";
                Err(Problem::refused("replacing it", reason))
            }
            Ok(_) => Ok(!same),
        };
        self.ranks.agree_on(self.directory.unwrap_or(self.file), writes)
    }

    /// Finds which pieces of the file this rank already has; `None` if it does not write.
    fn look(&self, writes: bool) -> Result<Option<Have>> {
        let plan = &self.plan;
        let found = self.ranks.meanwhile(|stop| {
            let Some(directory) = self.directory.filter(|_| writes) else { return Ok(None) };
            if let Some(there) = Target::whole(directory, plan)? {
                return Ok(Some(Have { target: None, sums: local::sums(&there, plan, None, stop) }));
            }
            let (target, noted) = Target::open(directory, plan)?;
            let sums = local::sums(&target.partial, plan, Some(&noted), stop);
            Ok(Some(Have { target: Some(target), sums }))
        })?;
        self.ranks.agree_on(&self.path, found)
    }

    /// Discards the pieces that differ from the source's.
    fn compare(&self, have: &mut Option<Have>) -> Result<()> {
        let pieces = self.plan.pieces();
        let mut found =
            PieceSet::of(pieces, |piece| have.as_ref().is_some_and(|it| of_piece(&it.sums, piece) != 0));
        self.ranks.group.all_reduce(&mut found.words, ReduceOp::BitOr)?;
        if found.is_empty() {
            return Ok(());
        }
        let sums = self.ranks.meanwhile(|stop| {
            let source = self.source.as_ref();
            source.map_or_else(|| Ok(Vec::new()), |source| source.sums(&self.plan, &found, stop))
        })?;
        let mut sums = self.ranks.agree_on(self.file, sums)?;
        sums.resize(usize::try_from(pieces).unwrap_or(usize::MAX), 0);
        self.ranks.group.broadcast(bytemuck::cast_slice_mut::<u128, u64>(&mut sums), self.ranks.root)?;
        for (sum, wanted) in have.iter_mut().flat_map(|have| &mut have.sums).zip(sums) {
            if *sum != wanted {
                *sum = 0;
            }
        }
        Ok(())
    }

    /// Opens a partial file if the complete file that was there differs from the source.
    fn prepare(&self, have: &mut Option<Have>) -> Result<()> {
        let prepared = match (have, self.directory) {
            (Some(Have { target: target @ None, sums }), Some(directory)) if sums.contains(&0) => {
                sums.fill(0);
                Target::open(directory, &self.plan).map(|(opened, _)| *target = Some(opened))
            }
            _ => Ok(()),
        };
        self.ranks.agree_on(&self.path, prepared)
    }

    /// Makes holes of the pieces that are holes at the root, so that no zeros are sent for them.
    fn punch(&self, have: &mut Option<Have>) -> Result<()> {
        if !self.plan.is_sparse() {
            return Ok(());
        }
        let none = || PieceSet::of(self.plan.pieces(), |_| false);
        let mut holes = self.source.as_ref().map_or_else(none, |source| source.holes(&self.plan));
        self.ranks.group.broadcast(&mut holes.words, self.ranks.root)?;
        let punched = self.ranks.meanwhile(|stop| match have {
            Some(Have { target: Some(target), sums }) => target.punch(&holes, sums, stop),
            _ => Ok(()),
        })?;
        self.ranks.agree_on(&self.path, punched)
    }

    /// Sends the pieces that some rank lacks. Returns how many bytes that were, and the number of ranks that have written.
    fn stream(
        &self,
        have: &mut Option<Have>,
        progress: &mut Option<&mut dyn FnMut(Progress)>,
    ) -> Result<(u64, usize)> {
        let TransferRanks { group, root } = self.ranks;
        let own = PieceSet::of(self.plan.pieces(), |piece| {
            have.as_ref().is_none_or(|it| of_piece(&it.sums, piece) != 0)
        });
        let mut all = own.clone();
        group.all_reduce(&mut all.words, ReduceOp::BitAnd)?;
        let target = have.as_ref().and_then(|have| have.target.as_ref());
        let mine = [own.missing().next().is_some(), target.is_some()].map(u8::from);
        let mut flags = vec![[0; 2]; group.size()];
        group.all_gather((&mine, flags.as_flattened_mut()))?;
        let writers = flags.iter().filter(|[_, writes]| *writes == 1).count();
        let sent = all.missing().map(|piece| self.plan.range(piece).1 as u64).sum();
        if sent == 0 {
            return Ok((sent, writers));
        }
        // The ranks that send or receive pieces. Each has buffers for those in flight.
        let members: Vec<Rank> =
            (0..group.size()).filter(|&rank| rank == root || flags[rank][0] == 1).collect();
        let (bytes, joins) = (self.plan.longest(), members.contains(&group.rank()));
        let made = all.missing().take(if joins { BUFFERS } else { 0 }).map(|_| group.buffer(bytes + TRAILER));
        let buffers = self.made(made.collect(), |reason| Problem::Memory { bytes: bytes as u64, reason })?;
        let some = match members.len() == group.size() {
            true => None,
            // Only members of the group get an argument's error.
            false => self.made(group.new_group(&members), |reason| Problem::Group { reason })?,
        };
        let members = joins.then(|| some.as_ref().unwrap_or(group));
        let stream = PieceStream { handover: self, members, all: &all, own: &own, target };
        self.ranks.agree(stream.run(buffers, progress)?)?;
        Ok((sent, writers))
    }

    /// What the ranks have made, or the problem of one that could not, with the reason.
    fn made<T>(&self, made: unisono::Result<T>, problem: impl FnOnce(String) -> Problem) -> Result<T> {
        match made {
            Err(error @ unisono::Error::Failed(_)) => Err(error.into()),
            made => self.ranks.agree_on(&self.path, made.map_err(|error| problem(error.to_string()))),
        }
    }

    /// Syncs the file to the disks of all ranks, then renames it.
    fn complete(&self, mut target: Option<Target>) -> Result<()> {
        let synced = self.ranks.meanwhile(|_| {
            let (source, target) = (self.source.as_ref(), target.as_ref());
            source.map_or(Ok(()), SentFile::unchanged).map_err(|problem| Trouble::new(self.file, problem))?;
            target.map_or(Ok(()), Target::sync).map_err(|problem| Trouble::new(&self.path, problem))
        })?;
        self.ranks.agree(synced)?;
        self.ranks.agree_on(&self.path, target.as_mut().map_or(Ok(()), Target::rename))
    }
}
