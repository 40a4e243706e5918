//! Which algorithm does a collective of a given size, and with what chunks and lanes.
//!
//! The choice depends only on what all ranks know alike, so that they choose alike.

use std::fmt;

use crate::Collective::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::{
    Topology,
    algorithm::{ALGORITHMS, Algorithm},
};

/// What was chosen.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The algorithm; it can do the collective.
    pub algorithm: &'static Algorithm,
    /// The most bytes of a message, a multiple of 64.
    pub chunk_bytes: usize,
    /// The most lanes.
    pub lanes: usize,
}

impl Choice {
    /// What becomes of it in a group configured so: on at most so many lanes, in messages of at most so many bytes; in
    /// those of eager windows if it wants one lane, however large the whole is.
    #[must_use]
    pub fn within(self, chunk_bytes: usize, eager_bytes: usize, lanes: usize) -> Self {
        // They may be written straight into outputs, too, and are then those of the other windows.
        let most = if self.lanes == 1 { eager_bytes.min(chunk_bytes) } else { chunk_bytes };
        Self { chunk_bytes: self.chunk_bytes.min(most), lanes: self.lanes.min(lanes), ..self }
    }

    /// What becomes of it in a call of many tensors that would be written straight into outputs if they lay in one piece:
    /// all of it comes through slots, and leaves by staging. In a ring those of one neighbour are in use, which stay in the
    /// inner caches, and what has come is forwarded from where it is; in two shots those of all peers. 1,000 tensors of 4 KiB
    /// beside one all_reduce of the same bytes, in two shots (chunks of 128 KiB) and in a ring (256), medians of 7 runs over
    /// TCP on two cores, Intel Xeon, 2026-11-25: among 3 ranks 1.25 and 1.22, among 4 1.34 and 1.22, among 8 1.25 and 1.27
    /// (11.6 and 11.3 ms); between 2, each other's only neighbour, the ring's shorter messages take 8 % longer.
    #[must_use]
    pub fn coalesced(self, ranks: usize, allowed: impl Fn(&Algorithm) -> bool) -> Self {
        let ring = crate::algorithm::find("ring")
            .filter(|ring| ranks > 2 && self.algorithm.name == "two_shot" && allowed(ring));
        Self { algorithm: ring.unwrap_or(self.algorithm), ..self }
    }
}

/// A line of the table: for a collective of at most so many ranks and bytes, this algorithm.
struct Row {
    collective: Collective,
    ranks: usize,
    bytes: usize,
    /// Whether there may be so many bytes for each rank.
    each: bool,
    algorithm: &'static str,
    /// Chunks are made small enough to give every lane one, but within these bounds.
    chunk: (usize, usize),
    lanes: usize,
}

impl Row {
    /// The same, but for so many bytes for each rank.
    const fn each(self) -> Self {
        Self { each: true, ..self }
    }

    /// The most bytes, among so many ranks.
    const fn most(&self, ranks: usize) -> usize {
        if self.each { self.bytes.saturating_mul(ranks) } else { self.bytes }
    }
}

const KIB: usize = 1 << 10;
const ANY: usize = usize::MAX;
/// For one message, whatever its size.
const WHOLE: (usize, usize) = (256 * KIB, 256 * KIB);
/// For two ranks of one host ([`Topology::is_pair`]).
const LONG: (usize, usize) = (512 * KIB, 512 * KIB);
/// For pipelines.
const PIPED: (usize, usize) = (128 * KIB, 256 * KIB);

const fn row(
    collective: Collective,
    ranks: usize,
    bytes: usize,
    algorithm: &'static str,
    chunk: (usize, usize),
    lanes: usize,
) -> Row {
    Row { collective, ranks, bytes, each: false, algorithm, chunk, lanes }
}

const MIB: usize = 1 << 20;

/// Where ranks share few cores ([`Topology::crowded`]), the first row that fits of these is taken, if one does; measured
/// among 4 and 8 ranks over TCP on two cores. The hub of a star sends or takes the bytes of all, so with more ranks it is
/// for smaller sizes.
static CROWDED: &[Row] = &[
    row(AllReduce, 8, 128 * KIB, "star", PIPED, 2),
    row(AllReduce, 16, 64 * KIB, "star", PIPED, 2),
    row(AllReduce, 64, 16 * KIB, "star", PIPED, 2),
    row(AllReduce, 4, ANY, "two_shot", WHOLE, 2),
    row(ReduceScatter, 4, 8 * KIB, "star", PIPED, 1),
    row(ReduceScatter, 4, 16 * KIB, "rabenseifner", PIPED, 2),
    row(ReduceScatter, 4, 48 * KIB, "direct", WHOLE, 1),
    row(ReduceScatter, 8, 16 * KIB, "star", PIPED, 1),
    row(ReduceScatter, 8, ANY, "ring", WHOLE, 2),
    row(ReduceScatter, 16, 2 * KIB, "star", PIPED, 1),
    row(ReduceScatter, 64, 256, "star", PIPED, 1),
    row(AllGather, 8, 8 * KIB, "star", PIPED, 1),
    row(AllGather, 16, 2 * KIB, "star", PIPED, 1),
    row(AllGather, 64, 256, "star", PIPED, 1),
    row(AllGather, 4, 16 * KIB, "rabenseifner", PIPED, 2),
    row(AllGather, 4, ANY, "direct", PIPED, 2),
    row(AllGather, 8, 64 * KIB, "rabenseifner", PIPED, 2),
    row(AllGather, 8, ANY, "direct", PIPED, 2),
    row(Broadcast, 8, 48 * KIB, "direct", WHOLE, 1),
    row(Broadcast, 8, 192 * KIB, "binomial", PIPED, 2),
    row(Broadcast, 8, ANY, "direct", PIPED, 2),
    row(Broadcast, 64, 512 * KIB, "binomial", PIPED, 2),
    row(Barrier, 64, ANY, "star", WHOLE, 1),
    row(AllToAll, 4, 8 * KIB, "star", PIPED, 1),
    row(AllToAll, 8, 8 * KIB, "star", PIPED, 1),
    row(AllToAll, 16, KIB, "star", PIPED, 1),
    row(AllToAll, 64, 64, "star", PIPED, 1),
];

/// Between two ranks of one host ([`Topology::is_pair`]) the first row that fits of these is taken, if one does. A message costs each
/// of them some 5 µs over TCP however long it is, and a second hop the same again. p50 in µs over TCP on two cores of an AMD
/// EPYC, medians of 5 runs in turn, 2026-11-25: all_reduce in two shots of 128 to 256 KiB, and as here, 128 KiB 55.8 and 40.7, 512 KiB
/// 143 and 97, 1 MiB 270 and 193, 4 MiB 1208 and 1116; reduce_scatter in chunks of 128 to 256 KiB and as here, 512 KiB 68.6
/// and 58.9, 1 MiB 149 and 97, 32 MiB 6541 and 6323; reduce in two trees, and as here, 512 KiB 115 and 93, 4 MiB 826 and 791.
static PAIR: &[Row] = &[
    row(AllReduce, 2, 512 * KIB, "direct", LONG, 2),
    row(AllReduce, 2, ANY, "two_shot", LONG, 2),
    row(ReduceScatter, 2, 8 * KIB, "direct", WHOLE, 1),
    row(ReduceScatter, 2, ANY, "ring", LONG, 2),
    row(Reduce, 2, 32 * KIB, "direct", WHOLE, 1),
    row(Reduce, 2, 64 * KIB, "tree", PIPED, 2),
    row(Reduce, 2, ANY, "direct", LONG, 2),
];

/// The first row that fits is taken, of an algorithm that may be. Bytes are those of the collective's count: the whole
/// vector of an all_reduce, a reduce or a broadcast, one rank's block otherwise.
///
/// Up to 8 ranks the rows were measured over TCP on two cores. Beyond, they are what the cost model says of NDR 400
/// InfiniBand with one rank on a host (`unisono simulate`), but for schedules in which a rank takes chunks from all
/// others, which would want too much memory for windows: there, small slots on one lane must do. Of an all_reduce and a
/// broadcast a ring has a hop for each rank, which costs as much as so many bytes for each rank do in a tree or by halves.
const TABLE: &[Row] = &[
    row(AllReduce, 3, 16 * KIB, "direct", WHOLE, 1),
    row(AllReduce, 4, 32 * KIB, "recursive_doubling", WHOLE, 1),
    row(AllReduce, 8, 8 * KIB, "recursive_doubling", WHOLE, 1),
    // For those that need contributions in the order of ranks, as below.
    row(AllReduce, 8, 4 * KIB, "direct", WHOLE, 1),
    row(AllReduce, 4, ANY, "two_shot", PIPED, 3),
    row(AllReduce, 8, 256 * KIB, "rabenseifner", PIPED, 2),
    row(AllReduce, 8, ANY, "two_shot", PIPED, 3),
    row(AllReduce, ANY, 16 * KIB, "recursive_doubling", WHOLE, 1),
    row(AllReduce, ANY, 256 * KIB, "rabenseifner", PIPED, 4).each(),
    row(AllReduce, ANY, ANY, "ring", PIPED, 4),
    // Taken by those that need contributions in the order of ranks.
    row(AllReduce, ANY, 8 * KIB, "direct", WHOLE, 1),
    row(AllReduce, ANY, ANY, "two_shot", WHOLE, 1),
    row(ReduceScatter, 8, 8 * KIB, "direct", WHOLE, 1),
    row(ReduceScatter, 8, ANY, "ring", PIPED, 4),
    row(ReduceScatter, ANY, 128 * KIB, "rabenseifner", PIPED, 4),
    row(ReduceScatter, ANY, ANY, "ring", PIPED, 4),
    row(ReduceScatter, ANY, ANY, "direct", WHOLE, 1),
    row(AllGather, 8, 8 * KIB, "direct", WHOLE, 1),
    row(AllGather, 2, 48 * KIB, "ring", PIPED, 4),
    row(AllGather, 2, ANY, "direct", PIPED, 4),
    row(AllGather, 8, ANY, "ring", PIPED, 4),
    row(AllGather, ANY, 256 * KIB, "rabenseifner", PIPED, 4),
    row(AllGather, ANY, ANY, "ring", PIPED, 4),
    row(Broadcast, 2, 64 * KIB, "binomial", WHOLE, 1),
    row(Broadcast, 2, ANY, "direct", PIPED, 4),
    row(Broadcast, 4, 16 * KIB, "direct", WHOLE, 1),
    row(Broadcast, ANY, 64 * KIB, "binomial", WHOLE, 1),
    row(Broadcast, 8, MIB, "tree", PIPED, 4),
    row(Broadcast, 8, ANY, "ring", PIPED, 4),
    row(Broadcast, ANY, 128 * KIB, "tree", PIPED, 4).each(),
    row(Broadcast, ANY, ANY, "ring", PIPED, 4),
    row(Barrier, 4, ANY, "direct", WHOLE, 1),
    row(Barrier, ANY, ANY, "dissemination", WHOLE, 1),
    row(Reduce, 8, 16 * KIB, "direct", WHOLE, 1),
    row(Reduce, ANY, 32 * KIB, "binomial", WHOLE, 1),
    row(Reduce, ANY, ANY, "tree", PIPED, 4),
    row(Reduce, ANY, ANY, "direct", WHOLE, 1),
    row(Gather, 8, 8 * KIB, "direct", WHOLE, 1),
    row(Gather, 8, ANY, "direct", PIPED, 4),
    row(Gather, 16, ANY, "direct", WHOLE, 1),
    row(Gather, ANY, 32 * KIB, "binomial", WHOLE, 1),
    row(Gather, ANY, ANY, "direct", WHOLE, 1),
    row(Scatter, 8, 8 * KIB, "direct", WHOLE, 1),
    row(Scatter, 8, ANY, "direct", PIPED, 4),
    row(Scatter, 16, ANY, "direct", WHOLE, 1),
    row(Scatter, ANY, 8 * KIB, "binomial", WHOLE, 1),
    row(Scatter, ANY, ANY, "direct", WHOLE, 1),
    row(AllToAll, 8, 8 * KIB, "direct", WHOLE, 1),
    row(AllToAll, 8, ANY, "direct", PIPED, 4),
    row(AllToAll, ANY, 512, "bruck", WHOLE, 1),
    row(AllToAll, ANY, ANY, "direct", WHOLE, 1),
];

/// From how many ranks a rank takes small messages, and chunks: what windows are made for as a rule, where ranks have a core
/// each. No choice of the table comes to more, but for those in which one takes from all others. More than 8 ranks do that
/// only at the root of a gather, in an all_to_all and in a reproducible reduction, and the hub of a star does. A window from
/// everybody is then what these cost; whoever never calls them is not to have smaller chunks because of it.
#[must_use]
pub fn neighbours(ranks: usize) -> (usize, usize) {
    let others = ranks.saturating_sub(1);
    let doublings = usize::try_from(ranks.next_power_of_two().ilog2()).unwrap_or(usize::MAX);
    // Halving takes from a rank for each doubling, two trees from four ranks.
    if ranks <= 8 { (others, others) } else { (others.min(2 * doublings), doublings.max(4)) }
}

/// The choice for a collective of `bytes` bytes in a world, of the algorithms that are `allowed`; `None` if
/// none of them can do it.
#[must_use]
pub fn choose(
    collective: Collective,
    world: Topology,
    bytes: usize,
    allowed: impl Fn(&Algorithm) -> bool,
) -> Option<Choice> {
    let Some((row, algorithm)) = applying(collective, world, bytes).find(|(_, algorithm)| allowed(algorithm))
    else {
        // One that the table would not take: in the largest chunks and on as many lanes as there may be.
        let able = |it: &&Algorithm| it.supports(collective) && allowed(it);
        let algorithm = ALGORITHMS.iter().find(able)?;
        return Some(Choice { algorithm, chunk_bytes: usize::MAX, lanes: usize::MAX });
    };
    // A round of an all_reduce has a piece for each rank, or messages of half its length; so have those of the trees.
    let pieces = match (row.algorithm, collective) {
        ("ring" | "two_shot", AllReduce) => world.ranks.max(1),
        ("rabenseifner", AllReduce) | ("tree", _) => 2,
        _ => 1,
    };
    let even = bytes.div_ceil(pieces.saturating_mul(row.lanes)).clamp(row.chunk.0, row.chunk.1);
    Some(Choice { algorithm, chunk_bytes: even.next_multiple_of(64), lanes: row.lanes })
}

/// The row of the table that applies, in words: why [`choose`] chooses as it does.
#[must_use]
pub fn reason(collective: Collective, world: Topology, bytes: usize) -> Option<String> {
    let row = applying(collective, world, bytes).next()?.0;
    let (place, special) = special(world);
    let place = if special.iter().any(|it| std::ptr::eq(it, row)) { place } else { "" };
    Some(format!("{place}{row}"))
}

/// The rows that come before those of [`TABLE`] in such a world, and what is special about it.
fn special(world: Topology) -> (&'static str, &'static [Row]) {
    match () {
        () if world.crowded() => ("where ranks share few cores, ", CROWDED),
        () if world.is_pair() => ("on one host, ", PAIR),
        () => ("", &[]),
    }
}

/// The rows that fit, the first of which is taken if it may be.
fn applying(
    collective: Collective,
    world: Topology,
    bytes: usize,
) -> impl Iterator<Item = (&'static Row, &'static Algorithm)> {
    let fits = move |row: &&Row| {
        row.collective == collective && world.ranks <= row.ranks && bytes <= row.most(world.ranks)
    };
    let of = |row: &Row| ALGORITHMS.iter().find(|algorithm| algorithm.name == row.algorithm);
    let (_, special) = special(world);
    special.iter().chain(TABLE).filter(fits).filter_map(move |row| Some((row, of(row)?)))
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective.name())?;
        match self.ranks {
            ANY => write!(f, ", any number of ranks")?,
            ranks => write!(f, ", at most {ranks} ranks")?,
        }
        match self.bytes {
            ANY => write!(f, ", any size")?,
            bytes if bytes < KIB => write!(f, ", at most {bytes} B")?,
            bytes => write!(f, ", at most {} KiB", bytes / KIB)?,
        }
        if self.each {
            write!(f, " for each rank")?;
        }
        let (least, most) = (self.chunk.0 / KIB, self.chunk.1 / KIB);
        let lanes = if self.lanes == 1 { "lane" } else { "lanes" };
        write!(f, ": {}, chunks of {least} to {most} KiB, at most {} {lanes}", self.algorithm, self.lanes)
    }
}

/// Whether a collective of so many bytes (as [`choose`] counts them), in chunks of at most `chunk_bytes`, is to write
/// straight into outputs: one that reduces from eight chunks on, others from two. With fewer, what is copied still lies in
/// the inner caches, and the copies cost less than the clear-to-sends: over TCP on two cores, in chunks of 256 KiB, writes of an
/// all_reduce took 5 % more processor time than copies at 1 MiB, 7 % less at 4 MiB and 15 % less at 32 MiB; a broadcast
/// between two ranks took 147 µs with writes and 160 without at 512 KiB, 549 and 668 at 2 MiB.
#[must_use]
pub const fn direct(collective: Collective, ranks: usize, bytes: usize, chunk_bytes: usize) -> bool {
    let whole = if collective.has_blocks() { bytes.saturating_mul(ranks) } else { bytes };
    whole / if collective.reduces() { 8 } else { 2 } >= chunk_bytes
}

/// Whether what one rank has for another goes in one write, however long, where every rank lets others write into its
/// output: by `direct`, from 64 KiB on. A write that waits for its clear to send costs more than it saves of less: over TCP on two
/// cores, p50 in µs of chunks in slots and of one write, `unisono bench all_to_all --ranks 2 -b 32K` and so on: 19 and 29
/// (blocks of 16 KiB), 24 and 33 (32 KiB), 57 and 54 (64 KiB), 85 and 70 (128 KiB); among 4 ranks 136 and 170 (16 KiB), 162
/// and 192 (32 KiB), 365 and 261 (64 KiB), 568 and 432 (128 KiB).
#[must_use]
pub fn long(algorithm: &Algorithm, bytes: usize) -> bool {
    algorithm.name == "direct" && bytes >= 64 * KIB
}

/// The sizes at which another row is taken, in ascending order.
#[cfg(test)]
pub(crate) fn borders(collective: Collective, world: Topology) -> Vec<usize> {
    let row = |bytes| applying(collective, world, bytes).next().map(|(row, _)| std::ptr::from_ref(row));
    let rows = special(world).1.iter().chain(TABLE).filter(|row| row.collective == collective);
    let mut borders: Vec<_> = rows.map(|row| row.most(world.ranks)).filter(|&most| most < ANY).collect();
    borders.retain(|&most| row(most) != row(most + 1));
    borders.sort_unstable();
    borders.dedup();
    borders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    #[test]
    fn there_is_always_a_choice_that_can_do_it() -> Result<(), String> {
        for collective in Collective::ALL {
            for ranks in [1, 2, 3, 4, 5, 8, 9, 1000, usize::MAX] {
                for (bytes, cores) in [0, 1, 8, 4096, 1 << 20, 1 << 40, usize::MAX]
                    .into_iter()
                    .flat_map(|bytes| [(bytes, 1), (bytes, ranks)])
                {
                    let choice = choose(collective, Topology { ranks, cores, hosts: 1 }, bytes, |_| true)
                        .ok_or("no choice")?;
                    assert!(choice.algorithm.supports(collective), "{collective:?} {choice:?}");
                    assert!(choice.lanes > 0 && choice.chunk_bytes > 0 && choice.chunk_bytes % 64 == 0);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_choice_has_a_reason() {
        let told = reason(AllReduce, Topology::new(4), 64 * KIB).unwrap();
        assert_eq!(
            told,
            "all_reduce, at most 4 ranks, any size: two_shot, chunks of 128 to 256 KiB, at most 3 lanes"
        );
        let told = reason(AllReduce, Topology { hosts: 1, ..Topology::new(2) }, MIB).unwrap();
        assert_eq!(
            told,
            "on one host, all_reduce, at most 2 ranks, any size: two_shot, chunks of 512 to 512 KiB, at most 2 lanes"
        );
        let told = reason(Broadcast, Topology::new(1000), MIB).unwrap();
        assert!(
            told.starts_with("broadcast, any number of ranks, at most 128 KiB for each rank: tree"),
            "{told}"
        );
        assert!(reason(Broadcast, Topology::new(1000), usize::MAX).is_some_and(|told| told.contains("ring")));
    }

    #[test]
    fn few_cores_are_named_as_the_reason() {
        let told = reason(Barrier, Topology { ranks: 8, cores: 2, hosts: 1 }, 0).unwrap();
        assert!(
            told.starts_with("where ranks share few cores, barrier, at most 64 ranks, any size: star"),
            "{told}"
        );
        assert!(reason(Barrier, Topology::new(8), 0).is_some_and(|told| told.starts_with("barrier")));
    }

    /// How many sources rank 0 has by each row that many ranks may take, with default windows; and whether they are
    /// for small messages.
    fn sources(ranks: usize, bytes: usize) -> Vec<(&'static Row, usize, bool)> {
        let rows = TABLE.iter().filter(|row| row.ranks >= ranks);
        let of = |row: &'static Row| {
            let algorithm = ALGORITHMS.iter().find(|it| it.name == row.algorithm)?;
            let choice = Choice { algorithm, chunk_bytes: row.chunk.1, lanes: row.lanes }.within(
                256 * KIB,
                32 * KIB,
                2,
            );
            let job = Job {
                chunk: choice.chunk_bytes,
                lanes: choice.lanes,
                direct: direct(row.collective, ranks, bytes, 256 * KIB),
                ..Job::new(row.collective, 0, ranks, if row.collective == Barrier { 0 } else { bytes })
            };
            let schedule = algorithm.make(&job)?;
            let mut sources = 0;
            schedule.sources(&mut |_| sources += 1);
            Some((row, sources, schedule.is_small(1, 32 * KIB)))
        };
        rows.filter_map(of).collect()
    }

    #[test]
    fn neighbours_are_all_that_rows_come_to_but_for_those_who_take_from_everybody() {
        for ranks in [2, 3, 8, 9, 16, 100, 257, 1000] {
            let (small, chunks) = neighbours(ranks);
            for (row, sources, is_small) in
                [8, 20 * KIB, 8 * MIB].into_iter().flat_map(|bytes| sources(ranks, bytes))
            {
                let most = if is_small { small } else { chunks };
                let everybody = match row.algorithm {
                    "direct" => {
                        matches!(row.collective, Gather | AllToAll | AllReduce | ReduceScatter | Reduce)
                    }
                    name => name == "two_shot",
                };
                let fits = sources <= most;
                assert!(
                    fits || everybody && sources == ranks - 1,
                    "{row} among {ranks}: {sources} sources, {most}"
                );
            }
        }
    }

    #[test]
    fn every_row_names_an_algorithm_that_can_do_it() {
        for row in CROWDED.iter().chain(TABLE) {
            let found = ALGORITHMS.iter().find(|algorithm| algorithm.name == row.algorithm);
            assert!(found.is_some_and(|it| it.supports(row.collective)), "{}", row.algorithm);
        }
    }
}
