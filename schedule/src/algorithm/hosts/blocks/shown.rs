//! The collectives of blocks where ranks of a host show each other their scratch ([`Job::shown`](crate::Job::shown)): elements that a
//! message would carry inside a host are read in place, in the order in which they are needed. Messages between hosts are the same in
//! both forms, so that each host decides for itself.
//!
//! Scratch belongs to the engine, so that others can read it even if they cannot read the caller's memory. A rank copies to it the
//! blocks that others read.

use std::sync::Arc;

use super::Blocks;
use crate::{
    Collective, Rank, Shown, Span, Step,
    algorithm::compose::{At, StagePart},
};

/// The elements of each rank of a host that are reduced before the next ones: few enough to stay in the caches.
const PIECE: usize = 16 << 10;

/// Steps of the only lane, in the memory of the whole.
#[derive(Default)]
struct Steps(Vec<Step>);

impl Steps {
    /// Shows elements of scratch.
    fn show(&mut self, at: usize, len: usize) {
        self.0.push(Step::Show { shown: Shown::one(Span::scratch(at, len)) });
    }

    fn show_nothing(&mut self) {
        self.0.push(Step::Show { shown: Shown::NOTHING });
    }

    /// Views what a rank shows of its scratch.
    fn view(&mut self, from: Rank, at: usize, len: usize) {
        self.0.push(Step::View { from, shown: Shown::one(Span::scratch(at, len)) });
    }

    fn copy(&mut self, from: Span, into: Span) {
        if into.len > 0 {
            self.0.push(Step::Copy { from, into });
        }
    }

    fn part(self) -> Option<StagePart> {
        Some(StagePart::Steps(Box::new(self.0.into_iter())))
    }
}

/// Elements from number `at` on of what a rank shows.
const fn landed(from: Rank, at: usize, len: usize) -> Span {
    Span { offset: at, ..Span::landed(from, len) }
}

impl Blocks {
    /// The number of stages: on this host, between hosts, on this host.
    pub(super) const SHOWN_STAGES: usize = 3;

    pub(super) fn shown_stage(&self, stage: usize) -> Option<StagePart> {
        match (stage, self.collective) {
            (0, Collective::AllGather) => self.collect(),
            (0, Collective::ReduceScatter) => self.reduce(),
            (0, _) => self.pack(),
            (1, Collective::AllGather) => {
                let own = if self.alone() { At::INPUT } else { At::scratch(self.bundle()) };
                self.between(self.bundles(), own, At::scratch(0))
            }
            (1, Collective::ReduceScatter) => self.reduce_scatter(2),
            (1, _) => self.all_to_all(3),
            (_, Collective::AllGather) => self.distribute(),
            (_, Collective::ReduceScatter) => {
                let mut steps = Steps::default();
                self.share(self.sums()[1].offset, self.count, &mut steps);
                self.end(steps)
            }
            _ => self.unpack(),
        }
    }

    /// The elements of scratch.
    pub(super) fn shown_scratch(&self) -> usize {
        let class = if self.alone() || self.index > 0 { 0 } else { self.mates.len() };
        match self.collective {
            Collective::AllGather if self.index > 0 => self.count,
            Collective::AllGather => self.carried(),
            _ if self.index > 0 => self.all(),
            Collective::ReduceScatter => self.all() + self.carried() + class * self.count,
            _ => self.places()[2] + class * self.all(),
        }
    }

    fn me(&self) -> Rank {
        self.host[self.place]
    }

    /// The other ranks of this host, from the next place on.
    fn others(&self) -> impl Iterator<Item = usize> {
        (1..self.host.len()).map(|turn| (self.place + turn) % self.host.len())
    }

    /// True if some class has several ranks of this host.
    fn has_mates(&self) -> bool {
        self.host.len() > self.classes
    }

    /// The ranks of a class on all hosts, as they are ordered, and the number of ordered blocks before theirs.
    fn class_of(&self, class: usize) -> (&[Rank], usize) {
        let before = self.totals[..class].iter().sum();
        let order = self.order.as_deref().unwrap_or_default();
        (order.get(before..before + self.totals[class]).unwrap_or_default(), before)
    }

    /// No rank of this host ends while another may still read its scratch.
    fn end(&self, mut steps: Steps) -> Option<StagePart> {
        steps.show_nothing();
        let view = |place| Step::View { from: self.host[place], shown: Shown::NOTHING };
        steps.0.extend(self.others().map(view));
        steps.part()
    }

    /// The carriers of this host get the blocks of their class.
    fn collect(&self) -> Option<StagePart> {
        let (count, mut steps) = (self.count, Steps::default());
        if !self.has_mates() {
            return None;
        }
        if self.index > 0 {
            steps.copy(Span::input(0, count), Span::scratch(0, count));
            steps.show(0, count);
            return steps.part();
        }
        steps.show_nothing();
        if !self.alone() {
            let place = |index| Span::scratch(self.bundle() + index * count, count);
            steps.copy(Span::input(0, count), place(0));
            for (index, &mate) in self.mates.iter().enumerate().skip(1) {
                steps.view(mate, 0, count);
                steps.copy(landed(mate, 0, count), place(index));
            }
        }
        steps.part()
    }

    /// All ranks of this host copy the blocks that the carriers have.
    fn distribute(&self) -> Option<StagePart> {
        let (count, mut steps) = (self.count, Steps::default());
        match self.index {
            0 => steps.show(0, self.carried()),
            _ => steps.show_nothing(),
        }
        for class in (0..self.classes).map(|turn| (self.place + turn) % self.classes) {
            let (from, (ranks, _)) = (self.host[class], self.class_of(class));
            if from != self.me() {
                steps.view(from, 0, ranks.len() * count);
            }
            for (at, &rank) in ranks.iter().enumerate() {
                let block = match from == self.me() {
                    _ if rank == self.me() => Span::input(0, count),
                    true => Span::scratch(at * count, count),
                    false => landed(from, at * count, count),
                };
                steps.copy(block, Span::output(rank * count, count));
            }
        }
        self.end(steps)
    }

    /// All ranks of this host show the ordered blocks of their inputs, except those that they carry themselves.
    fn show_input(&self, carried: bool, steps: &mut Steps) {
        let count = self.count;
        for class in (0..self.classes).filter(|&it| carried || self.index > 0 || it != self.class()) {
            let (ranks, before) = self.class_of(class);
            for (at, &rank) in ranks.iter().enumerate() {
                steps.copy(Span::input(rank * count, count), Span::scratch((before + at) * count, count));
            }
        }
        steps.show(0, self.all());
        if self.index == 0 {
            self.others().for_each(|place| steps.view(self.host[place], 0, self.all()));
        }
    }

    /// The carriers of this host reduce the blocks of their class piece by piece: each piece of all ranks, then the next one.
    fn reduce(&self) -> Option<StagePart> {
        let mut steps = Steps::default();
        self.show_input(false, &mut steps);
        let (ranks, before) = self.class_of(self.class());
        let (ranks, others): (Arc<[_]>, Arc<[_]>) =
            (ranks.into(), self.others().map(|it| self.host[it]).collect());
        let (count, sums) = (self.count, self.sums()[0].offset);
        let (pieces, each) = (count.div_ceil(PIECE), others.len().max(1));
        let blocks = if self.index == 0 { ranks.len() } else { 0 };
        let reduced = (0..blocks.saturating_mul(pieces).saturating_mul(each)).map(move |step| {
            let (turn, piece, block) = (step % each, step / each % pieces, step / each / pieces);
            let first = piece * PIECE;
            let len = PIECE.min(count - first);
            let into = Span::scratch(sums + block * count + first, len);
            let own = Span::input(ranks[block] * count + first, len);
            match others.get(turn) {
                Some(&from) => Step::Reduce {
                    a: if turn == 0 { own } else { into },
                    b: landed(from, (before + block) * count + first, len),
                    into,
                    last: false,
                },
                None => Step::Copy { from: own, into },
            }
        });
        Some(StagePart::Steps(Box::new(steps.0.into_iter().chain(reduced))))
    }

    /// The carriers of this host put together the blocks that its ranks have for each host.
    fn pack(&self) -> Option<StagePart> {
        let mut steps = Steps::default();
        self.show_input(true, &mut steps);
        let here = self.host.len();
        let mut start = self.class_of(self.class()).1 * self.count;
        let mut into = self.places()[1];
        for size in self.sizes.iter().filter(|_| self.index == 0) {
            let len = size * self.count;
            for (place, &rank) in self.host.iter().enumerate() {
                let own = place == self.place;
                let from = if own { Span::scratch(start, len) } else { landed(rank, start, len) };
                steps.copy(from, Span::scratch(into + place * len, len));
            }
            (start, into) = (start + len, into + here * len);
        }
        steps.part()
    }

    /// The ranks of this host get the blocks that have come for them.
    fn unpack(&self) -> Option<StagePart> {
        let ([came, _, sorted], mut steps) = (self.places(), Steps::default());
        if self.index == 0 && self.count > 0 {
            steps.0.extend(self.unpacked(came, sorted));
        }
        self.share(sorted, self.all(), &mut steps);
        self.end(steps)
    }

    /// Each rank of a class of several gets its output of `len` elements from the carrier, which has them one after the other in its
    /// scratch.
    fn share(&self, at: usize, len: usize, steps: &mut Steps) {
        if !self.has_mates() {
            return;
        }
        let (carrier, all) = (self.mates[0], self.mates.len() * len);
        if self.index == 0 && !self.alone() {
            steps.show(at, all);
            steps.copy(Span::scratch(at, len), Span::output(0, len));
            return;
        }
        steps.show_nothing();
        if self.index > 0 {
            steps.view(carrier, at, all);
            steps.copy(landed(carrier, self.index * len, len), Span::output(0, len));
        }
    }
}
