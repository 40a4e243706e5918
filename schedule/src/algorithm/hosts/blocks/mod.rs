//! The collectives of blocks between hosts: all_gather, reduce_scatter, gather, scatter and all_to_all.
//!
//! A place of a host is in a **class**: its number modulo the number of classes. The first rank of a class, its carrier, sends and gets
//! the blocks of all ranks of its class between hosts; with equal hosts each class has one rank. A leader is the carrier of the only
//! class. If blocks are ordered by class, then by host, then by place, a stage moves consecutive blocks. Where that is not the order of
//! ranks, blocks are copied to that order, or from it.

mod shown;

use std::sync::Arc;

use super::{FEW, Places, binomial, exchange};
use crate::{
    Collective, Job, Rank, Showing, Span, Step,
    algorithm::{
        Plan,
        chunks::PatternShape,
        compose::{AlgorithmStage, At, Lengths, StagePart, Stages},
    },
};

/// One rank's part. The root, or the first rank of a host, has place 0 in its host.
pub(super) struct Blocks {
    collective: Collective,
    ranks: usize,
    /// Elements of a block.
    count: usize,
    classes: usize,
    /// If true, there is one class, whose carrier is the host's leader.
    leader: bool,
    /// If true, ranks of this host show each other their scratch.
    shown: bool,
    max_message: usize,
    /// The ranks of this host, by place; and this rank's place.
    host: Arc<[Rank]>,
    place: usize,
    /// The ranks of this rank's class in this host, with this rank's index.
    mates: Arc<[Rank]>,
    index: usize,
    /// The carriers of this rank's class on all hosts, if this rank is one; this rank's host, and the root's.
    across: Arc<[Rank]>,
    home: usize,
    root: usize,
    is_root: bool,
    /// The number of ranks of each host, and of those in this rank's class.
    hosts: Vec<usize>,
    sizes: Vec<usize>,
    /// The number of ranks of each class on all hosts.
    totals: Vec<usize>,
    /// The ranks by class, host and place, if that is not their order or they show blocks in this order.
    order: Option<Arc<[Rank]>>,
    /// The ranks by host and place.
    by_host: Arc<[Rank]>,
}

/// The number of places of a class on a host of this many ranks.
const fn members(ranks: usize, classes: usize, class: usize) -> usize {
    (ranks + classes - 1 - class) / classes
}

impl Blocks {
    /// With as many carriers on each host as the smallest host has ranks, or with a leader. `None` if the elements that a host has
    /// for all ranks cannot be addressed.
    pub(super) fn new(job: &Job<'_>, lanes: bool) -> Option<Self> {
        let &Job { collective, ranks, count, .. } = job;
        let places = Places::of(job);
        let (least, most) = places.least_and_most();
        let Places { hosts: lists, home, place, root } = places;
        let hosts: Vec<_> = lists.iter().map(Vec::len).collect();
        let all = ranks.checked_mul(count)?;
        let host_has = all.checked_mul(most)?;
        // All places of scratch together must be addressable.
        host_has.checked_mul(4)?;
        let (leader, classes) = (!lanes, if lanes { least } else { 1 });
        let (class, index) = (place % classes, place / classes);
        let by_class = || {
            let of = |class| lists.iter().flat_map(move |host| host.iter().skip(class).step_by(classes));
            (0..classes).flat_map(of).copied()
        };
        let shown = job.shown == Some(Showing::InPlace);
        let order = (shown || !by_class().eq(0..ranks)).then(|| by_class().collect());
        let exchanges = collective == Collective::AllToAll;
        let by_host = if exchanges { lists.concat().into() } else { Arc::default() };
        let carriers = lists.iter().filter(|_| index == 0).map(|host| host[class]);
        let sizes = |class| hosts.iter().map(move |&of| members(of, classes, class));
        let host = &lists[home];
        Some(Self {
            collective,
            ranks,
            count,
            classes,
            leader,
            shown,
            max_message: job.chunk.min(if exchanges { host_has } else { all }),
            mates: host.iter().skip(class).step_by(classes).copied().collect(),
            host: host[..].into(),
            place,
            index,
            across: carriers.collect(),
            home,
            root,
            is_root: job.rank == job.root,
            sizes: sizes(class).collect(),
            totals: (0..classes).map(|class| sizes(class).sum()).collect(),
            hosts,
            order,
            by_host,
        })
    }

    fn class(&self) -> usize {
        self.place % self.classes
    }

    /// The position of this rank's class, and of its host in that, among all ordered blocks (elements).
    fn start(&self) -> (usize, usize) {
        let class = self.totals[..self.class()].iter().sum::<usize>() * self.count;
        (class, class + self.bundle())
    }

    /// The position of this host's blocks among those of this rank's class (elements).
    fn bundle(&self) -> usize {
        self.sizes[..self.home].iter().sum::<usize>() * self.count
    }

    /// The elements that all ranks have together.
    fn all(&self) -> usize {
        self.ranks * self.count
    }

    /// The elements of all blocks of this rank's class.
    fn carried(&self) -> usize {
        self.totals[self.class()] * self.count
    }

    /// True if this rank is the only one of its class on this host.
    fn alone(&self) -> bool {
        self.mates.len() == 1
    }

    /// The place where a rank that has all outputs keeps them in order.
    fn ordered(&self, place: At) -> At {
        if self.order.is_some() { At::scratch(0) } else { place }
    }

    /// The elements of scratch for ordered blocks.
    fn aside(&self) -> usize {
        if self.order.is_some() { self.all() } else { 0 }
    }

    /// Copies of the blocks of the input into order, or of ordered ones to the output. This rank's block comes from the input: in place
    /// it is there already, and a message may still read it.
    fn sorted(&self, into_order: bool) -> Option<StagePart> {
        let (order, count, rank) = (self.order.clone()?, self.count, self.host[self.place]);
        let copies = (0..if count > 0 { order.len() } else { 0 }).map(move |at| {
            let (sorted, block) = (Span::scratch(at * count, count), order[at] * count);
            let (from, into) = match into_order {
                true => (Span::input(block, count), sorted),
                false if order[at] == rank => (Span::input(0, count), Span::output(block, count)),
                false => (sorted, Span::output(block, count)),
            };
            Step::Copy { from, into }
        });
        Some(StagePart::Steps(Box::new(copies)))
    }

    /// A stage among the ranks of this host.
    fn within(&self, plan: &'static Plan, lengths: Lengths, input: At, output: At) -> Option<StagePart> {
        Some(StagePart::Among(AlgorithmStage::new(
            plan,
            self.host.clone(),
            self.place,
            lengths,
            input,
            output,
        )))
    }

    /// A stage among the ranks of this class in this host, which gather or scatter a block of this many elements each.
    fn in_class(&self, collective: Collective, len: usize, input: At, output: At) -> Option<StagePart> {
        let (plan, lengths) = (Plan::of(binomial::PLANS, collective), vec![len; self.mates.len()]);
        let (members, lengths) = (self.mates.clone(), Lengths::Blocks(lengths));
        (!self.alone())
            .then(|| StagePart::Among(AlgorithmStage::new(plan, members, self.index, lengths, input, output)))
    }

    /// A stage among the carriers of this class on all hosts. A tree needs equal blocks.
    fn between(&self, lengths: Lengths, input: At, output: At) -> Option<StagePart> {
        let (hosts, rooted) = (self.hosts.len(), self.collective.has_root());
        let plan = match rooted && hosts > FEW && self.hosts.iter().all(|&of| of == self.hosts[0]) {
            true => Plan::of(binomial::PLANS, self.collective),
            false => exchange(hosts, self.collective),
        };
        let stage = AlgorithmStage::new(plan, self.across.clone(), self.home, lengths, input, output);
        (!self.across.is_empty()).then_some(StagePart::Among(AlgorithmStage {
            root: self.root,
            last: true,
            ..stage
        }))
    }

    /// A block for each host, as long as all that its ranks of this class have.
    fn bundles(&self) -> Lengths {
        Lengths::Blocks(self.sizes.iter().map(|size| size * self.count).collect())
    }

    /// A block for each carrier of this host, as long as all that its class has.
    fn by_class(&self) -> Vec<usize> {
        (0..self.host.len())
            .map(|place| self.totals.get(place).map_or(0, |total| total * self.count))
            .collect()
    }

    fn all_gather(&self, stage: usize) -> Option<StagePart> {
        let whole = self.ordered(At::OUTPUT);
        let (class, bundle) = self.start();
        match stage {
            0 => self.in_class(Collective::Gather, self.count, At::INPUT, whole.plus(bundle)),
            1 => {
                let own = if self.alone() { At::INPUT } else { whole.plus(bundle) };
                self.between(self.bundles(), own, whole.plus(class))
            }
            2 if self.leader => {
                let plan = Plan::of(binomial::PLANS, Collective::Broadcast);
                self.within(plan, Lengths::Vector(self.all()), whole, whole)
            }
            2 => {
                let plan = exchange(self.host.len(), Collective::AllGather);
                let own = if self.index == 0 { whole.plus(class) } else { whole };
                self.within(plan, Lengths::Blocks(self.by_class()), own, whole)
            }
            _ => self.sorted(false),
        }
    }

    /// The places of the sums of this host, and of those of all for this class, in a reduce_scatter.
    fn sums(&self) -> [At; 2] {
        [self.aside(), self.aside() + self.carried()].map(At::scratch)
    }

    fn reduce_scatter(&self, stage: usize) -> Option<StagePart> {
        let [own, sums] = self.sums();
        let input = self.ordered(At::INPUT);
        match stage {
            0 => self.sorted(true),
            1 if self.leader => {
                let plan = Plan::of(binomial::PLANS, Collective::Reduce);
                self.within(plan, Lengths::Vector(self.all()), input, own)
            }
            1 => {
                let plan = exchange(self.host.len(), Collective::ReduceScatter);
                self.within(plan, Lengths::Blocks(self.by_class()), input, own)
            }
            2 => self.between(self.bundles(), own, if self.alone() { At::OUTPUT } else { sums }),
            _ => self.in_class(Collective::Scatter, self.count, sums, At::OUTPUT),
        }
    }

    fn gather(&self, stage: usize) -> Option<StagePart> {
        let whole = self.ordered(At::OUTPUT);
        let bundle = if self.is_root { whole.plus(self.start().1) } else { At::scratch(0) };
        match stage {
            0 => self.in_class(Collective::Gather, self.count, At::INPUT, bundle),
            1 => self.between(self.bundles(), if self.alone() { At::INPUT } else { bundle }, whole),
            _ if self.is_root => self.sorted(false),
            _ => None,
        }
    }

    fn scatter(&self, stage: usize) -> Option<StagePart> {
        let bundle = At::scratch(if self.is_root { self.aside() } else { 0 });
        match stage {
            0 if self.is_root => self.sorted(true),
            0 => None,
            1 => {
                let output = if self.alone() { At::OUTPUT } else { bundle };
                self.between(self.bundles(), self.ordered(At::INPUT), output)
            }
            _ => self.in_class(Collective::Scatter, self.count, bundle, At::OUTPUT),
        }
    }

    /// The first elements of scratch in an all_to_all, after ordered inputs: what comes from this host and then what comes from
    /// others; what leaves for others; what is for each rank of this class.
    fn places(&self) -> [usize; 3] {
        let (ours, theirs) =
            (self.host.len() * self.carried(), self.ranks * self.sizes[self.home] * self.count);
        let first = self.aside();
        let second = first + ours.max(theirs);
        [first, second, second + ours]
    }

    fn all_to_all(&self, stage: usize) -> Option<StagePart> {
        let [came, leaves, sorted] = self.places();
        let (here, own, carries) =
            (self.host.len(), self.sizes[self.home], self.index == 0 && self.count > 0);
        match stage {
            0 => self.sorted(true),
            1 if self.leader => {
                let plan = Plan::of(binomial::PLANS, Collective::Gather);
                let lengths = Lengths::Blocks(vec![self.all(); here]);
                self.within(plan, lengths, self.ordered(At::INPUT), At::scratch(came))
            }
            1 => {
                let each = if self.index == 0 { self.carried() } else { 0 };
                let lengths = Lengths::Exchange(self.by_class(), vec![each; here]);
                let plan = exchange(here, self.collective);
                self.within(plan, lengths, self.ordered(At::INPUT), At::scratch(came))
            }
            2 => carries.then(|| StagePart::Steps(Box::new(self.packed(came, leaves)))),
            3 => {
                let leave = self.sizes.iter().map(|size| here * size * self.count).collect();
                let come = self.hosts.iter().map(|of| of * own * self.count).collect();
                self.between(Lengths::Exchange(leave, come), At::scratch(leaves), At::scratch(came))
            }
            4 => carries.then(|| StagePart::Steps(Box::new(self.unpacked(came, sorted)))),
            _ => self.in_class(Collective::Scatter, self.all(), At::scratch(sorted), At::OUTPUT),
        }
    }

    /// Copies of what each rank of this host has for this class, by host.
    fn packed(&self, came: usize, leaves: usize) -> impl Iterator<Item = Step> + Send + use<> {
        let (here, carried) = (self.host.len(), self.carried());
        let mut start = 0;
        let bundles = self.sizes.iter().map(|size| {
            start += size * self.count;
            (start - size * self.count, size * self.count)
        });
        let bundles: Vec<_> = bundles.collect();
        (0..here * bundles.len()).map(move |at| {
            let (place, (start, len)) = (at % here, bundles[at / here]);
            let from = Span::scratch(came + place * carried + start, len);
            Step::Copy { from, into: Span::scratch(leaves + here * start + place * len, len) }
        })
    }

    /// Copies of what came from each rank for those of this class: to the output if this rank is the only one, otherwise in the
    /// order of receivers.
    fn unpacked(&self, came: usize, sorted: usize) -> impl Iterator<Item = Step> + Send + use<> {
        let (ranks, own, count, all) = (self.by_host.clone(), self.mates.len(), self.count, self.all());
        (0..ranks.len() * own).map(move |at| {
            let (sender, receiver) = (ranks[at / own], at % own);
            let into = receiver * all + sender * count;
            let into = if own == 1 { Span::output(into, count) } else { Span::scratch(sorted + into, count) };
            Step::Copy { from: Span::scratch(came + at * count, count), into }
        })
    }

    /// The elements of scratch.
    fn scratch(&self) -> usize {
        let class = if self.alone() || self.index > 0 { 0 } else { self.mates.len() * self.count };
        let carried = if self.index == 0 { self.carried() } else { 0 };
        match self.collective {
            Collective::AllGather => self.aside(),
            Collective::ReduceScatter => self.aside() + carried + class,
            Collective::Gather if self.is_root => self.aside(),
            Collective::Scatter if self.is_root => self.aside() + class,
            Collective::AllToAll if self.index == 0 => {
                self.places()[2] + if self.alone() { 0 } else { self.mates.len() * self.all() }
            }
            Collective::AllToAll => self.aside(),
            _ => class,
        }
    }
}

impl Stages for Blocks {
    fn shape(&self) -> PatternShape {
        let turns = match self.collective {
            _ if self.shown => Self::SHOWN_STAGES,
            Collective::AllToAll => 6,
            Collective::AllGather | Collective::ReduceScatter => 4,
            _ => 3,
        };
        PatternShape {
            chunks: 1,
            turns,
            max_message: self.max_message,
            scratch: if self.shown { self.shown_scratch() } else { self.scratch() },
            ..PatternShape::default()
        }
    }

    fn stage(&self, _: usize, stage: usize) -> Option<StagePart> {
        match self.collective {
            _ if self.shown => self.shown_stage(stage),
            Collective::AllGather => self.all_gather(stage),
            Collective::ReduceScatter => self.reduce_scatter(stage),
            Collective::Gather => self.gather(stage),
            Collective::Scatter => self.scatter(stage),
            _ => self.all_to_all(stage),
        }
    }
}
