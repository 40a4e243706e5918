//! The shown forms of direct and two-shot: ranks that share memory show their elements and read those of the others. There is no
//! message, and no copy except into the output, unless the engine copies what is shown to a slot.
//!
//! Direct shows each rank's elements once, and each rank reduces or copies those that are for it. Two-shot shows the input, reduces
//! one part of it on each rank, and shows the results. Both work in chunks, of which a rank shows at most [`Job::chunk`] elements.
//!
//! Each rank writes to its own memory alone, and others see by a flag that it has (Richard Graham and Galen Shipman, "MPI support for
//! multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008).

use std::ops::Range;

use super::{
    chunks::{Lanes, Pattern, PatternShape, Steps},
    wrapped,
};
use crate::{Collective, Job, Own, Rank, Schedule, Showing, Shown, Span, Step, partition};

/// Chunks and parts begin at multiples of this many elements, so that those of 4 bytes begin at cache lines.
const LINE: usize = 16;

/// One rank's part in the collective.
struct Shows {
    collective: Collective,
    rank: Rank,
    ranks: usize,
    root: Rank,
    /// The elements of a block: those that one rank has for another.
    count: usize,
    /// The elements of a block in each chunk but the last, which may have fewer.
    chunk: usize,
    chunks: usize,
    two_shot: bool,
    /// If true, some elements are read in place, and ranks wait at the end until these have been read.
    settles: bool,
}

/// This rank's schedule, for a job that is [shown](Job::shown): that of two-shot, or else of direct.
pub(super) fn schedule(job: &Job<'_>, two_shot: bool) -> Box<dyn Schedule> {
    let mut shows = Shows {
        collective: job.collective,
        rank: job.rank,
        ranks: job.ranks,
        root: job.root,
        count: if job.collective == Collective::Barrier { 0 } else { job.count },
        chunk: 0,
        chunks: 1,
        two_shot,
        settles: job.shown == Some(Showing::InPlace),
    };
    let most = (job.chunk / shows.blocks()).max(1);
    let most = if most > LINE { most / LINE * LINE } else { most };
    shows.chunk = shows.count.min(most);
    shows.chunks = partition::chunks(shows.count, most);
    Lanes::schedule(&Job { lanes: 1, ..*job }, shows)
}

impl Shows {
    /// The number of blocks that a rank shows.
    fn blocks(&self) -> usize {
        match self.collective {
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => self.ranks,
            _ => 1,
        }
    }

    /// The elements of a block in a chunk.
    fn len(&self, chunk: usize) -> usize {
        (self.count - chunk * self.chunk).min(self.chunk)
    }

    /// The elements of a chunk in a block of an operand.
    fn input(&self, block: usize, chunk: usize) -> Span {
        let offset = block.saturating_mul(self.count).saturating_add(chunk * self.chunk);
        Span::input(offset, self.len(chunk))
    }

    fn output(&self, block: usize, chunk: usize) -> Span {
        Span { place: crate::Place::Output, ..self.input(block, chunk) }
    }

    fn after(&self, distance: usize) -> Rank {
        wrapped(self.rank + distance, self.ranks)
    }

    /// True if one rank has elements for another, or tells it that it has come to a barrier.
    fn speaks(&self, from: Rank, to: Rank) -> bool {
        match self.collective {
            Collective::Broadcast | Collective::Scatter => from == self.root,
            Collective::Reduce | Collective::Gather => to == self.root,
            _ => true,
        }
    }

    /// What a rank shows of a chunk.
    fn shown(&self, rank: Rank, chunk: usize) -> Shown {
        match self.collective {
            Collective::Broadcast if rank == self.root => Shown::one(self.output(0, chunk)),
            Collective::Scatter if rank != self.root => Shown::NOTHING,
            Collective::Reduce | Collective::Gather if rank == self.root => Shown::NOTHING,
            Collective::Barrier | Collective::Broadcast => Shown::NOTHING,
            _ if self.blocks() > 1 => {
                let len = self.len(chunk);
                let own = Own { at: rank.saturating_mul(len), len };
                Shown::several(self.input(0, chunk), self.blocks(), self.count).but(own)
            }
            _ => Shown::one(self.input(0, chunk)),
        }
    }

    /// The elements of a chunk of an all_reduce that a rank reduces.
    fn part(&self, rank: Rank, chunk: usize) -> Range<usize> {
        let len = self.len(chunk);
        let lines = partition::block(len.div_ceil(LINE), self.ranks, rank);
        let start = chunk * self.chunk;
        start + lines.start.saturating_mul(LINE).min(len)..start + lines.end.saturating_mul(LINE).min(len)
    }

    /// Elements from number `at` on of what a rank shows.
    fn landed(from: Rank, at: usize, len: usize) -> Span {
        Span { offset: at, ..Span::landed(from, len) }
    }

    /// Copies what another rank, or this one, has for a block of this rank's output.
    fn keep(&self, chunk: usize, from: Rank, steps: &mut Steps) {
        let whole = matches!(self.collective, Collective::Broadcast | Collective::Barrier);
        if !self.speaks(from, self.rank)
            || whole && from == self.rank
            || self.collective == Collective::Barrier
        {
            return;
        }
        let mine = if self.blocks() > 1 { self.rank } else { 0 };
        let theirs = match self.collective {
            Collective::AllGather | Collective::Gather | Collective::AllToAll => from,
            _ => 0,
        };
        let len = self.len(chunk);
        let source = match from == self.rank {
            true => self.input(mine, chunk),
            false => Self::landed(from, mine.saturating_mul(len), len),
        };
        steps.copy(source, self.output(theirs, chunk));
    }

    /// Reduces the contributions of all ranks.
    fn fold(&self, chunk: usize, steps: &mut Steps) {
        if !self.speaks(self.rank, self.rank) {
            return;
        }
        let block = if self.blocks() > 1 { self.rank } else { 0 };
        let at = block.saturating_mul(self.len(chunk));
        steps.push(Step::Fold { own: self.input(block, chunk), at, into: self.output(0, chunk) });
    }

    fn view(&self, from: Rank, chunk: usize, steps: &mut Steps) {
        if self.speaks(from, self.rank) {
            steps.push(Step::View { from, shown: self.shown(from, chunk) });
        }
    }

    /// The turns of two-shot: this rank's part is reduced and shown in turn `ranks`, and those of the others are copied in the turns
    /// after that.
    fn two_shot(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let span = |range: Range<usize>| Span::output(range.start, range.len());
        if turn == self.ranks {
            let mine = self.part(self.rank, chunk);
            let at = mine.start - chunk * self.chunk;
            let own = Span::input(mine.start, mine.len());
            steps.push(Step::Fold { own, at, into: span(mine.clone()) });
            steps.push(Step::Show { shown: Shown::one(span(mine)) });
        } else {
            let from = self.after(turn - self.ranks);
            let theirs = span(self.part(from, chunk));
            steps.push(Step::View { from, shown: Shown::one(theirs) });
            steps.copy(Span::landed(from, theirs.len), theirs);
        }
    }
}

impl Pattern for Shows {
    /// A turn to show this rank's elements, one to view those of each other rank, one for each rank to reduce or copy, and one to
    /// settle.
    fn shape(&self) -> PatternShape {
        let shows = self.chunk.saturating_mul(self.blocks());
        PatternShape {
            chunks: self.chunks,
            turns: 2 * self.ranks + 1,
            shows: Some(shows),
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        if turn == 0 {
            steps.push(Step::Show { shown: self.shown(self.rank, chunk) });
        } else if turn < self.ranks {
            self.view(self.after(turn), chunk, steps);
        } else if turn == 2 * self.ranks {
            if self.settles && chunk + 1 == self.chunks {
                steps.push(Step::Settle);
            }
        } else if self.two_shot {
            self.two_shot(chunk, turn, steps);
        } else if !self.collective.reduces() {
            self.keep(chunk, self.after(turn - self.ranks), steps);
        } else if turn == self.ranks {
            self.fold(chunk, steps);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (1..self.ranks)
            .map(|distance| self.after(distance))
            .filter(|&it| self.speaks(it, self.rank))
            .for_each(visit);
    }
}
