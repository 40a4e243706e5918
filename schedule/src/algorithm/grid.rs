//! The ranks as a grid, for halving and doubling among any number of ranks: pairs of rows, then cycles within each row.

use super::{
    doublings,
    halving::{Exchanges, Phase, PlaceRange, run},
    negabinary, wrapped,
};
use crate::{Job, Rank};

/// The pairs of a grid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GridPairs {
    /// The first are half of all ranks apart, and a block's place is its rank.
    Far,
    /// The first are neighbours, and the next are twice as far apart.
    Near,
    /// The first are neighbours, and the next are as near as those of [`negabinary::partner`].
    Bine,
}

/// The ranks as 2^bits rows with an odd number of seats, or as one row. Blocks are numbered by places, row by row; a rank's block has the rank's place.
/// First, pairs of rows exchange halves, the highest bit of the row first; then each row is a cycle.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    ranks: usize,
    bits: usize,
    seats: usize,
    levels: usize,
    pairs: GridPairs,
    rank: Rank,
    row: usize,
    seat: usize,
}

/// The lowest `bits` bits in reverse.
const fn reversed(number: usize, bits: usize) -> usize {
    if bits == 0 { 0 } else { number.reverse_bits() >> (usize::BITS as usize - bits) }
}

impl Grid {
    pub(super) fn new(job: &Job<'_>, pairs: GridPairs) -> Self {
        Self::with(job, pairs, job.ranks.trailing_zeros() as usize)
    }

    /// The ranks as one row, which any number of ranks can double: a cycle without pairs.
    pub(super) fn cycle(job: &Job<'_>) -> Self {
        Self::with(job, GridPairs::Far, 0)
    }

    fn with(job: &Job<'_>, pairs: GridPairs, bits: usize) -> Self {
        let (ranks, rank) = (job.ranks, job.rank);
        let seats = ranks >> bits;
        let (row, seat) = match pairs {
            GridPairs::Far => (rank / seats, rank % seats),
            GridPairs::Near => (reversed(rank, bits), rank >> bits),
            GridPairs::Bine => (reversed(negabinary::part(rank, bits), bits), rank >> bits),
        };
        Self { ranks, bits, seats, levels: bits + doublings(seats), pairs, rank, row, seat }
    }

    /// The rank with which this one exchanges a half of what both have, so that they continue in rows that differ in this bit.
    fn across(&self, bit: usize) -> Rank {
        let level = self.bits - 1 - bit;
        match self.pairs {
            GridPairs::Far => (self.row ^ 1 << bit) * self.seats + self.seat,
            GridPairs::Near => self.rank ^ 1 << level,
            GridPairs::Bine => negabinary::partner(self.rank, level, self.ranks),
        }
    }

    /// The rank in another seat of this row.
    fn beside(&self, seat: usize) -> Rank {
        if self.pairs == GridPairs::Far {
            self.row * self.seats + seat
        } else {
            seat << self.bits | self.rank & ((1 << self.bits) - 1)
        }
    }

    /// The place of this rank's block.
    fn place(&self) -> usize {
        self.row * self.seats + self.seat
    }

    /// The seat `hops` after one; `hops` is at most the number of seats.
    fn after(&self, seat: usize, hops: usize) -> usize {
        wrapped(seat + hops, self.seats)
    }

    /// For a level after those of pairs: the distance in the cycle, and the number of blocks that are exchanged, which the next level
    /// no longer has.
    fn skip(&self, level: usize) -> (usize, usize) {
        let left = |halvings: usize| ((self.seats - 1) >> halvings) + 1;
        let halvings = level - self.bits;
        (left(halvings + 1), left(halvings) - left(halvings + 1))
    }
}

impl Exchanges for Grid {
    fn levels(&self) -> usize {
        self.levels
    }

    fn blocks(&self, level: usize) -> usize {
        match (self.bits - self.bits.min(level)).checked_sub(1) {
            Some(bit) => self.seats << bit,
            None => self.skip(level).1,
        }
    }

    fn exchange(&self, level: usize, phase: Phase, gives: bool) -> (Rank, PlaceRange) {
        let halves = phase == Phase::Halving;
        if level < self.bits {
            let bit = self.bits - 1 - level;
            // When halving, the sender gives the receiver's row; when doubling, its own.
            let row = if gives == halves { self.row ^ 1 << bit } else { self.row };
            let half = run((row >> bit << bit) * self.seats, self.seats << bit, 0, self.ranks);
            return (self.across(bit), half);
        }
        let (skip, len) = self.skip(level);
        let other = self.after(self.seat, if gives { skip } else { self.seats - skip });
        let (giver, getter) = if gives { (self.seat, other) } else { (other, self.seat) };
        // When halving, from the receiver's place on; when doubling, up to the sender's place.
        let first = if halves { getter } else { self.after(giver, self.seats + 1 - len) };
        let base = self.row * self.seats;
        (self.beside(other), run(base + first, len, base, base + self.seats))
    }

    fn kept(&self) -> (usize, usize) {
        let half = self.ranks / 2;
        let first = if self.bits == 0 { self.place() } else { self.place() / half * half };
        (first, self.ranks - half)
    }

    fn left(&self) -> Option<usize> {
        (self.bits == 0).then(|| self.after(self.seat, self.seats / 2))
    }
}
