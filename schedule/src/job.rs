//! The input of an algorithm: the collective, its sizes, and the limits of its messages.

use crate::{Rank, Spread, partition::Blocks};

/// A collective operation. Blocks are consecutive, in the order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// All ranks get the reduction of all inputs. Input and output: `count` elements.
    AllReduce,
    /// Rank r gets block r of the reduction. Input: a block for every rank; output: one block.
    ReduceScatter,
    /// All ranks get all inputs. Input: one block; output: a block of every rank.
    AllGather,
    /// All ranks get the root's data. Output: `count` elements, which are the input at the root.
    Broadcast,
    /// No rank continues before all have called it. No elements.
    Barrier,
    /// The root gets the reduction of all inputs. Input: `count` elements; output: as many at the root, none elsewhere.
    Reduce,
    /// The root gets all inputs. Input: one block; output: a block of every rank at the root, nothing elsewhere.
    Gather,
    /// Rank r gets block r of the root's input. Input: a block for every rank at the root, nothing elsewhere; output:
    /// one block.
    Scatter,
    /// Rank r gets block r of every rank's input. Input: a block for every rank; output: a block of every rank.
    AllToAll,
}

impl Collective {
    /// All collectives, in the order of their codes on the wire.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Barrier,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
    ];

    /// Its name, as in torch.distributed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
        }
    }

    /// The collective of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// True if it reduces elements.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// True if one rank, the root, gives or gets more than the others.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// True if, in place, the block from a rank replaces the block for it. Then no rank may write into the output while the input lies
    /// there: the engine puts the input aside first, or no rank writes.
    #[must_use]
    pub const fn exchanges(self) -> bool {
        matches!(self, Self::AllToAll)
    }

    /// True if the input or the output has a block for every rank. Then a job's `count` is the length of one block.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather | Self::Gather | Self::Scatter | Self::AllToAll)
    }
}

/// The lengths of blocks, in elements, if they are not all equal (the collectives whose names end in `_v`). The length of a block that
/// this rank neither sends nor receives may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uneven<'a> {
    /// The lengths of the input's blocks, by rank, if it has blocks.
    pub input: &'a [usize],
    /// The lengths of the output's blocks, by rank, if it has blocks.
    pub output: &'a [usize],
}

/// How the ranks of a job that share memory read what they [show](crate::Step::Show) each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Showing {
    /// Ranks copy their elements to slots, where others read them.
    Copied,
    /// Some ranks' elements are read where they lie.
    InPlace,
}

/// The input of an algorithm, the same on every rank except `rank` and `uneven`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job<'a> {
    /// The collective.
    pub collective: Collective,
    /// The rank whose schedule is made.
    pub rank: Rank,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of elements of the vector, or of one block if there are blocks ([`Collective::has_blocks`]), or of the longest
    /// block if they are uneven.
    pub count: usize,
    /// The lengths of the blocks if they are uneven; only for a [plan](crate::algorithm::Plan::uneven) that can.
    pub uneven: Option<Uneven<'a>>,
    /// If true, two ranks know only the lengths of their blocks for each other, and `count` is the longest of this rank's; only
    /// with uneven blocks, and for a [plan](crate::algorithm::Plan::pairwise) that can.
    pub pairwise: bool,
    /// The root of a collective that has one; 0 otherwise.
    pub root: Rank,
    /// The most elements of a message, at least 1.
    pub chunk: usize,
    /// The most lanes of the schedule, at least 1.
    pub lanes: usize,
    /// If true, the schedule may write into outputs ([`Step::Write`](crate::Step::Write)), if the algorithm can.
    pub direct: bool,
    /// If true, every rank lets others write into its output, so that writes may be longer than `chunk`. Counts only if `direct`.
    pub long: bool,
    /// If true, contributions are reduced in the order of ranks ([`Step::Fold`](crate::Step::Fold)); only for a
    /// [plan](crate::algorithm::Plan::ordered) that can.
    pub ordered: bool,
    /// How elements are shown, if no messages are sent; only for a [plan](crate::algorithm::Plan::shows) that can, with even blocks. A
    /// rank shows at most `chunk` elements at once. Of a [plan](crate::algorithm::Plan::shows_inside) of two levels: in place, if ranks of
    /// a host show each other scratch; messages go between hosts, the same as otherwise.
    pub shown: Option<Showing>,
    /// The hosts of the ranks, for a plan of two levels ([`Plan::flat`](crate::algorithm::Plan::flat)).
    pub spread: Spread<'a>,
}

impl Job<'_> {
    /// A job with even blocks, root 0, all ranks on one host, and one lane of messages of any length, which go through slots.
    #[must_use]
    pub const fn new(collective: Collective, rank: Rank, ranks: usize, count: usize) -> Self {
        Self {
            collective,
            rank,
            ranks,
            count,
            uneven: None,
            pairwise: false,
            root: 0,
            chunk: usize::MAX,
            lanes: 1,
            direct: false,
            long: false,
            ordered: false,
            shown: None,
            spread: Spread::Unknown,
        }
    }

    /// The same job with equal blocks, which does not depend on the places of the ranks.
    #[must_use]
    pub fn even(&self) -> Job<'static> {
        let Job { collective, rank, ranks, count, root, chunk, lanes, direct, long, ordered, shown, .. } =
            *self;
        let job = Job::new(collective, rank, ranks, count);
        Job { root, chunk, lanes, direct, long, ordered, shown, ..job }
    }

    /// The blocks of the input, if it has blocks.
    pub(crate) fn input_blocks(&self) -> Blocks {
        self.uneven.map_or(Blocks::Even(self.count), |uneven| Blocks::uneven(uneven.input))
    }

    /// The blocks of the output, if it has blocks.
    pub(crate) fn output_blocks(&self) -> Blocks {
        self.uneven.map_or(Blocks::Even(self.count), |uneven| Blocks::uneven(uneven.output))
    }

    /// The numbers of elements of this rank's input and output; `None` if one does not fit in a `usize`.
    #[must_use]
    pub fn lengths(&self) -> Option<(usize, usize)> {
        let whole = |lengths: Option<&[usize]>| match lengths {
            None => self.ranks.checked_mul(self.count),
            Some(lengths) => lengths.iter().try_fold(0_usize, |sum, &length| sum.checked_add(length)),
        };
        let own = |lengths: Option<&[usize]>| match lengths {
            None => self.count,
            Some(lengths) => lengths.get(self.rank).copied().unwrap_or_default(),
        };
        let (input, output) =
            (self.uneven.map(|uneven| uneven.input), self.uneven.map(|uneven| uneven.output));
        let at_root = self.rank == self.root;
        Some(match self.collective {
            Collective::AllReduce | Collective::Broadcast => (self.count, self.count),
            Collective::Reduce => (self.count, if at_root { self.count } else { 0 }),
            Collective::ReduceScatter => (whole(input)?, own(input)),
            Collective::AllGather => (own(output), whole(output)?),
            Collective::Gather => (own(output), if at_root { whole(output)? } else { 0 }),
            Collective::Scatter => (if at_root { whole(input)? } else { 0 }, own(input)),
            Collective::AllToAll => (whole(input)?, whole(output)?),
            Collective::Barrier => (0, 0),
        })
    }
}
