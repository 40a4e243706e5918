//! The collectives of a vector between hosts: all_reduce, broadcast, reduce, and barrier, whose vector is empty.

use std::{ops::Range, sync::Arc};

use super::{Places, binomial, dissemination, exchange, rabenseifner, recursive_doubling, tree};
use crate::{
    Collective, Job, Place, Rank,
    algorithm::{
        Plan,
        chunks::PatternShape,
        compose::{AlgorithmStage, At, Lengths, StagePart, Stages},
    },
    partition::{self, block},
};

/// One rank's part. The root, or the first rank of a host, has place 0 in its host.
pub(super) struct Vector {
    collective: Collective,
    count: usize,
    chunks: usize,
    /// The number of pieces of a chunk, each of which another rank of the host sends between hosts; `None` if the leader sends all
    /// of it.
    pieces: Option<usize>,
    max_message: usize,
    /// The ranks of this host, by place; and this rank's place.
    host: Arc<[Rank]>,
    place: usize,
    /// The ranks with the same place on all hosts, if this rank's place has a piece; this rank's host, and the root's.
    across: Arc<[Rank]>,
    home: usize,
    root: usize,
    is_root: bool,
}

impl Vector {
    /// With as many pieces as the smallest host has ranks, or with a leader.
    pub(super) fn new(job: &Job<'_>, lanes: bool) -> Self {
        let places = Places::of(job);
        let (least, most) = places.least_and_most();
        let Places { mut hosts, home, place, root } = places;
        let pieces = lanes.then_some(least);
        let width = pieces.unwrap_or(1);
        let count = if job.collective == Collective::Barrier { 0 } else { job.count };
        let chunks = partition::rounds(count, width, job.chunk);
        let longest = partition::longest(count, chunks);
        // Among many ranks a message has several pieces.
        let piece = partition::longest(longest, width);
        let max_message = if lanes && most > super::FEW { longest.min(job.chunk) } else { piece };
        let carriers = hosts.iter().filter(|_| place < width).map(|host| host[place]);
        let (across, is_root) = (carriers.collect(), job.rank == job.root);
        let (collective, host) = (job.collective, std::mem::take(&mut hosts[home]).into());
        Self { collective, count, chunks, pieces, max_message, host, place, across, home, root, is_root }
    }

    /// The elements of a chunk.
    fn chunk(&self, chunk: usize) -> Range<usize> {
        block(self.count, self.chunks, chunk)
    }

    /// The elements of a place's piece of a chunk, counted from the chunk's first.
    fn piece(&self, chunk: &Range<usize>, place: usize) -> Range<usize> {
        block(chunk.len(), self.pieces.unwrap_or(1), place)
    }

    /// The place of this rank's piece between the stages: the output, or scratch if this rank is not the root of a reduce.
    fn sum(&self, chunk: &Range<usize>) -> At {
        if self.collective == Collective::Reduce && !self.is_root {
            return At::scratch(0);
        }
        At::OUTPUT.plus(chunk.start + self.piece(chunk, self.place).start)
    }

    /// A stage among the ranks of this host.
    fn within(&self, plan: &'static Plan, chunk: &Range<usize>, input: At, output: At) -> AlgorithmStage {
        let lengths = if plan.collective.has_blocks() {
            Lengths::Blocks((0..self.host.len()).map(|place| self.piece(chunk, place).len()).collect())
        } else {
            Lengths::Vector(chunk.len())
        };
        AlgorithmStage::new(plan, self.host.clone(), self.place, lengths, input, output)
    }

    /// The ranks of this host reduce the chunk, or the root's host gets pieces of it.
    fn down(&self, chunk: &Range<usize>) -> Option<AlgorithmStage> {
        let plan = match (self.collective, self.pieces) {
            (Collective::Broadcast, Some(_)) if self.home == self.root => {
                exchange(self.host.len(), Collective::Scatter)
            }
            (Collective::Broadcast, _) => return None,
            (_, Some(_)) => exchange(self.host.len(), Collective::ReduceScatter),
            (_, None) => Plan::of(binomial::PLANS, Collective::Reduce),
        };
        let data = if self.collective == Collective::Broadcast { At::OUTPUT } else { At::INPUT };
        // Sums of the previous chunk may still be read from scratch.
        let settle = chunk.start > 0 && self.sum(chunk).place == Place::Scratch;
        Some(AlgorithmStage { settle, ..self.within(plan, chunk, data.plus(chunk.start), self.sum(chunk)) })
    }

    /// The ranks with this piece on all hosts do the collective.
    fn between(&self, chunk: &Range<usize>) -> Option<AlgorithmStage> {
        let plans = match (self.collective, self.pieces) {
            (Collective::AllReduce, None) => recursive_doubling::PLANS,
            (Collective::AllReduce, Some(_)) => rabenseifner::PLANS,
            (Collective::Barrier, _) => dissemination::PLANS,
            (_, None) => binomial::PLANS,
            (_, Some(_)) => tree::PLANS,
        };
        let (plan, sum) = (Plan::of(plans, self.collective), self.sum(chunk));
        let lengths = Lengths::Vector(self.piece(chunk, self.place).len());
        let stage = AlgorithmStage::new(plan, self.across.clone(), self.home, lengths, sum, sum);
        (!self.across.is_empty()).then_some(AlgorithmStage { root: self.root, last: true, ..stage })
    }

    /// The ranks of this host get the result, or the root gets its pieces.
    fn up(&self, chunk: &Range<usize>) -> Option<AlgorithmStage> {
        let plan = match (self.collective, self.pieces) {
            (Collective::Reduce, Some(_)) if self.home == self.root => {
                exchange(self.host.len(), Collective::Gather)
            }
            (Collective::Reduce, _) => return None,
            (_, Some(_)) => exchange(self.host.len(), Collective::AllGather),
            (_, None) => Plan::of(binomial::PLANS, Collective::Broadcast),
        };
        Some(self.within(plan, chunk, self.sum(chunk), At::OUTPUT.plus(chunk.start)))
    }
}

impl Stages for Vector {
    fn shape(&self) -> PatternShape {
        let sums = self.collective == Collective::Reduce && !self.is_root;
        let longest = self.chunk(0);
        PatternShape {
            chunks: self.chunks,
            turns: 3,
            max_message: self.max_message,
            scratch: if sums { self.piece(&longest, self.place).len() } else { 0 },
            ..PatternShape::default()
        }
    }

    fn stage(&self, chunk: usize, stage: usize) -> Option<StagePart> {
        let chunk = self.chunk(chunk);
        let stage = match stage {
            0 => self.down(&chunk),
            1 => self.between(&chunk),
            _ => self.up(&chunk),
        };
        stage.map(StagePart::Among)
    }
}
