//! Sends the pieces: while one piece is sent, the root reads the next, and receivers write the one before.

use std::{
    sync::{
        OnceLock,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Instant,
};

use unisono::{Buffer, ProcessGroup, ReduceOp};

use super::{
    Handover,
    agree::{RankOutcome, Trouble},
};
use crate::{
    error::Result,
    local::{SentFile, Target},
    options::Progress,
    plan::PieceSet,
};

/// The number of pieces that a rank has in memory: one that is read, one that is sent or received, one that is written, and one
/// more, because these take different times.
pub(super) const BUFFERS: usize = 4;
/// The pieces of a round, after which all ranks say whether they can continue.
const ROUND: usize = 16;
/// A round ends early after this part of the timeout, because ranks that send and receive nothing wait for its end.
const PATIENCE: u32 = 4;

/// Bytes that follow a piece: its checksum, and a word of flags.
pub(super) const TRAILER: usize = 24;
/// Flag: the piece could not be read.
const VOID: u64 = 1;
/// Flag: the round ends.
const ENDS: u64 = 2;

/// A rank's status at the end of a round: it continues, all pieces are sent, or it has trouble. The highest value of all ranks
/// counts.
const ON: u64 = 0;
const OVER: u64 = 1;
const TROUBLE: u64 = 2;

/// The transfer of pieces on one rank.
pub(super) struct PieceStream<'t> {
    pub handover: &'t Handover<'t>,
    /// The group of the ranks that send or receive, if this rank is one of them.
    pub members: Option<&'t ProcessGroup>,
    /// The pieces that all ranks have.
    pub all: &'t PieceSet,
    /// The pieces that this rank has or does not want.
    pub own: &'t PieceSet,
    /// If this rank writes, the partial file.
    pub target: Option<&'t Target>,
}

/// A piece in memory.
struct Loaded {
    piece: u64,
    buffer: Buffer<u8>,
    /// Its checksum; `None` if it could not be read.
    sum: Option<u128>,
}

impl PieceStream<'_> {
    /// Sends and receives the pieces that some rank lacks, through these buffers. Returns this rank's trouble, if it has any.
    pub(super) fn run(
        &self,
        buffers: Vec<Buffer<u8>>,
        progress: &mut Option<&mut dyn FnMut(Progress)>,
    ) -> Result<RankOutcome<()>> {
        let ranks = self.handover.ranks;
        let Some(members) = self.members else {
            while self.status(ON)? == ON {}
            return Ok(Ok(()));
        };
        // The first trouble on this rank.
        let first = OnceLock::new();
        let moved = thread::scope(|scope| {
            let (give, empty) = mpsc::channel();
            for buffer in buffers {
                // It succeeds, because the receiver is in this function.
                drop(give.send(buffer));
            }
            let (fill, filled) = mpsc::channel();
            let (hand, handed) = mpsc::channel();
            let spawn = || {
                let (back, first) = (give.clone(), &first);
                thread::Builder::new().spawn_scoped(scope, move || self.write(&handed, &back, first))?;
                let Some(source) = &self.handover.source else { return Ok(Some(empty)) };
                thread::Builder::new()
                    .spawn_scoped(scope, move || self.read(source, &empty, &fill, first))?;
                Ok(None)
            };
            let empty = spawn().map_err(|error| ranks.no_thread(&error))?;
            drop(give);
            self.transfer(members, empty.as_ref(), &filled, &hand, &first, progress)
        });
        moved?;
        Ok(first.into_inner().map_or(Ok(()), Err))
    }

    /// Sends, or receives, piece after piece.
    fn transfer(
        &self,
        members: &ProcessGroup,
        empty: Option<&Receiver<Buffer<u8>>>,
        filled: &Receiver<Loaded>,
        hand: &Sender<Loaded>,
        first: &OnceLock<Trouble>,
        progress: &mut Option<&mut dyn FnMut(Progress)>,
    ) -> Result<()> {
        let Handover { ranks, plan, source, .. } = self.handover;
        let root = members.members().local(ranks.group.members()[ranks.root]).unwrap_or_default();
        let patience = ranks.group.config().timeout / PATIENCE;
        let mut left: u64 = self.all.missing().map(|piece| plan.range(piece).1 as u64).sum();
        let (mut count, mut begun) = (0, Instant::now());
        for piece in self.all.missing() {
            let loaded = match empty {
                None => filled.recv(),
                Some(empty) => empty.recv().map(|buffer| Loaded { piece, buffer, sum: None }),
            };
            // The channel is closed only if the thread at its other end has panicked.
            let Ok(mut loaded) = loaded else { return Err(ranks.panicked()) };
            let len = plan.range(piece).1;
            left -= len as u64;
            count += 1;
            if source.is_some() {
                let ends = left == 0 || count == ROUND || begun.elapsed() > patience;
                seal(&mut loaded, len, ends);
            }
            let message = loaded.buffer.get_mut(..len + TRAILER).unwrap_or_default();
            members.broadcast(message, root)?;
            let ends;
            (loaded.sum, ends) = unseal(&loaded, len);
            // It fails only if the writing thread has panicked, and then this thread panics at the end of the scope.
            hand.send(loaded).map_err(|_| ranks.panicked())?;
            if let Some(tell) = progress {
                tell(Progress { done: plan.len - left, whole: plan.len });
            }
            if ends {
                let over = if left == 0 { OVER } else { ON };
                if self.status(first.get().map_or(over, |_| TROUBLE))? != ON {
                    break;
                }
                (count, begun) = (0, Instant::now());
            }
        }
        Ok(())
    }

    /// Tells all ranks whether this one can continue; returns the highest value of all ranks.
    fn status(&self, mine: u64) -> Result<u64> {
        let mut all = [mine];
        self.handover.ranks.group.all_reduce(&mut all, ReduceOp::Max)?;
        Ok(all[0])
    }

    /// Reads pieces ahead of the one that is sent.
    fn read(
        &self,
        source: &SentFile,
        empty: &Receiver<Buffer<u8>>,
        fill: &Sender<Loaded>,
        first: &OnceLock<Trouble>,
    ) {
        for piece in self.all.missing() {
            let Ok(mut buffer) = empty.recv() else { return };
            let (start, len) = self.handover.plan.range(piece);
            let bytes = buffer.get_mut(..len).unwrap_or_default();
            let sum = source.read_summed(start, bytes);
            let sum = sum.map_err(|problem| first.set(Trouble::new(self.handover.file, problem))).ok();
            if fill.send(Loaded { piece, buffer, sum }).is_err() {
                return;
            }
        }
    }

    /// Checks and writes pieces behind the one that is received.
    fn write(&self, handed: &Receiver<Loaded>, back: &Sender<Buffer<u8>>, first: &OnceLock<Trouble>) {
        let Handover { plan, source, path, .. } = self.handover;
        for Loaded { piece, buffer, sum } in handed {
            let wanted = sum.filter(|_| !self.own.has(piece) && first.get().is_none());
            if let (Some(wanted), Some(target)) = (wanted, self.target) {
                let bytes = buffer.get(..plan.range(piece).1).unwrap_or_default();
                let written = match source {
                    // The root has just made the checksum.
                    Some(_) => target.write(piece, bytes, wanted),
                    None => target.receive(piece, bytes, wanted),
                };
                written.unwrap_or_else(|problem| drop(first.set(Trouble::new(path, problem))));
            }
            // At the end this fails, because no buffer is needed any more.
            drop(back.send(buffer));
        }
    }
}

/// Writes the trailer of a piece.
fn seal(loaded: &mut Loaded, len: usize, ends: bool) {
    let flags = if loaded.sum.is_none() { VOID } else { 0 } | if ends { ENDS } else { 0 };
    let trailer = [&loaded.sum.unwrap_or_default().to_le_bytes()[..], &flags.to_le_bytes()].concat();
    if let Some(place) = loaded.buffer.get_mut(len..len + TRAILER) {
        place.copy_from_slice(&trailer);
    }
}

/// Reads the trailer of a piece: its checksum, if it could be read, and whether the round ends.
fn unseal(loaded: &Loaded, len: usize) -> (Option<u128>, bool) {
    let trailer: [u8; TRAILER] =
        loaded.buffer.get(len..len + TRAILER).and_then(|it| it.try_into().ok()).unwrap_or_default();
    let [low, high, flags]: [u64; 3] = bytemuck::cast(trailer);
    let sum = u128::from(u64::from_le(low)) | u128::from(u64::from_le(high)) << 64;
    let flags = u64::from_le(flags);
    ((flags & VOID == 0).then_some(sum), flags & ENDS != 0)
}

#[cfg(test)]
impl PieceStream<'_> {
    /// Lets a receiver write these pieces, whose checksums arrive as `arrive` says.
    pub(super) fn written<'p>(
        &self,
        pieces: impl Iterator<Item = (u64, &'p [u8])>,
        arrive: impl Fn(u64, u128) -> u128,
    ) -> Option<Trouble> {
        let (first, (hand, handed), (back, _empty)) = (OnceLock::new(), mpsc::channel(), mpsc::channel());
        for (piece, bytes) in pieces {
            let mut buffer = self.handover.ranks.group.buffer(bytes.len() + TRAILER).unwrap();
            buffer[..bytes.len()].copy_from_slice(bytes);
            let sum = Some(arrive(piece, crate::checksum::digest(bytes)));
            let mut loaded = Loaded { piece, buffer, sum };
            seal(&mut loaded, bytes.len(), piece == 0);
            assert_eq!(unseal(&loaded, bytes.len()), (sum, piece == 0));
            hand.send(loaded).unwrap();
        }
        drop(hand);
        self.write(&handed, &back, &first);
        first.into_inner()
    }
}
