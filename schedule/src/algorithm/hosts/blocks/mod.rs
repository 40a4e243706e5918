//! The collectives of blocks between hosts: all_gather, reduce_scatter, gather, scatter and all_to_all.
//!
//! A place of a host is in a **class**: its number modulo the number of classes. The first rank of a class, its carrier, sends and gets
//! the blocks of all ranks of its class between hosts; with equal hosts each class has one rank. A leader is the carrier of the only
//! class. If blocks are ordered by class, then by host, then by place, a stage moves consecutive blocks. Where that is not the order of
//! ranks, blocks are copied to that order, or from it.

mod shown;

use std::{ops::Range, sync::Arc};

use super::{FEW, Places, binomial, exchange};
use crate::{
    Collective, Job, Rank, Showing,
    algorithm::{
        Plan,
        chunks::Shape,
        compose::{At, Copies, Lengths, Part, Stage, Stages},
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
        let &Job { collective, rank, ranks, root, count, chunk, .. } = job;
        let places = Places::of(job);
        let (least, most) = places.least_and_most();
        let Places { hosts: lists, home, place, root: root_host } = places;
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
        let across = if index == 0 { lists.iter().map(|host| host[class]).collect() } else { Arc::default() };
        let total = |class| hosts.iter().map(|&of| members(of, classes, class)).sum();
        let host = &lists[home];
        Some(Self {
            collective,
            ranks,
            count,
            classes,
            leader,
            shown,
            max_message: chunk.min(if exchanges { host_has } else { all }),
            mates: host.iter().skip(class).step_by(classes).copied().collect(),
            host: host[..].into(),
            place,
            index,
            across,
            home,
            root: root_host,
            is_root: collective.has_root() && rank == root,
            sizes: hosts.iter().map(|&of| members(of, classes, class)).collect(),
            totals: (0..classes).map(total).collect(),
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
    fn sorted(&self, into_order: bool) -> Option<Part> {
        let (order, count, rank) = (self.order.clone()?, self.count, self.host[self.place]);
        let copies = (0..if count > 0 { order.len() } else { 0 }).map(move |at| {
            let (sorted, block) = (At::scratch(at * count), order[at] * count);
            match into_order {
                true => (At::INPUT.plus(block), sorted, count),
                false if order[at] == rank => (At::INPUT, At::OUTPUT.plus(block), count),
                false => (sorted, At::OUTPUT.plus(block), count),
            }
        });
        Some(Part::Copies(Box::new(copies)))
    }

    /// A stage among the ranks of this host.
    fn within(&self, plan: &'static Plan, lengths: Lengths, input: At, output: At) -> Part {
        let (members, rank) = (self.host.clone(), self.place);
        Part::Among(Stage {
            plan,
            members,
            rank,
            root: 0,
            lengths,
            input,
            output,
            last: false,
            settle: false,
        })
    }

    /// A stage among the ranks of this class in this host, with a block of this many elements each.
    fn in_class(&self, plan: &'static Plan, len: usize, input: At, output: At) -> Option<Part> {
        let (members, rank) = (self.mates.clone(), self.index);
        let lengths = Lengths::Blocks(vec![len; members.len()]);
        let stage =
            Stage { plan, members, rank, root: 0, lengths, input, output, last: false, settle: false };
        (!self.alone()).then_some(Part::Among(stage))
    }

    /// The plan among the carriers of this class on all hosts. A tree needs equal blocks.
    fn across(&self) -> &'static Plan {
        let hosts = self.hosts.len();
        let tree = hosts > FEW && self.hosts.iter().all(|&of| of == self.hosts[0]);
        match self.collective {
            Collective::Gather if tree => const { Plan::of(binomial::PLANS, Collective::Gather) },
            Collective::Scatter if tree => const { Plan::of(binomial::PLANS, Collective::Scatter) },
            collective => exchange(hosts, collective),
        }
    }

    /// A stage among the carriers of this class on all hosts.
    fn between(&self, lengths: Lengths, input: At, output: At) -> Option<Part> {
        (!self.across.is_empty()).then(|| {
            Part::Among(Stage {
                plan: self.across(),
                members: self.across.clone(),
                rank: self.home,
                root: if self.collective.has_root() { self.root } else { 0 },
                lengths,
                input,
                output,
                last: true,
                settle: false,
            })
        })
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

    fn all_gather(&self, stage: usize) -> Option<Part> {
        let whole = self.ordered(At::OUTPUT);
        let (class, bundle) = self.start();
        match stage {
            0 => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Gather) };
                self.in_class(plan, self.count, At::INPUT, whole.plus(bundle))
            }
            1 => {
                let own = if self.alone() { At::INPUT } else { whole.plus(bundle) };
                self.between(self.bundles(), own, whole.plus(class))
            }
            2 if self.leader => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Broadcast) };
                Some(self.within(plan, Lengths::Vector(self.all()), whole, whole))
            }
            2 => {
                let plan = exchange(self.host.len(), Collective::AllGather);
                let own = if self.index == 0 { whole.plus(class) } else { whole };
                Some(self.within(plan, Lengths::Blocks(self.by_class()), own, whole))
            }
            _ => self.sorted(false),
        }
    }

    /// The places of the sums of this host, and of those of all for this class, in a reduce_scatter.
    fn sums(&self) -> [At; 2] {
        [self.aside(), self.aside() + self.carried()].map(At::scratch)
    }

    fn reduce_scatter(&self, stage: usize) -> Option<Part> {
        let [own, sums] = self.sums();
        let input = self.ordered(At::INPUT);
        match stage {
            0 => self.sorted(true),
            1 if self.leader => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Reduce) };
                Some(self.within(plan, Lengths::Vector(self.all()), input, own))
            }
            1 => {
                let plan = exchange(self.host.len(), Collective::ReduceScatter);
                Some(self.within(plan, Lengths::Blocks(self.by_class()), input, own))
            }
            2 => self.between(self.bundles(), own, if self.alone() { At::OUTPUT } else { sums }),
            _ => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Scatter) };
                self.in_class(plan, self.count, sums, At::OUTPUT)
            }
        }
    }

    fn gather(&self, stage: usize) -> Option<Part> {
        let whole = self.ordered(At::OUTPUT);
        let bundle = if self.is_root { whole.plus(self.start().1) } else { At::scratch(0) };
        match stage {
            0 => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Gather) };
                self.in_class(plan, self.count, At::INPUT, bundle)
            }
            1 => self.between(self.bundles(), if self.alone() { At::INPUT } else { bundle }, whole),
            _ if self.is_root => self.sorted(false),
            _ => None,
        }
    }

    fn scatter(&self, stage: usize) -> Option<Part> {
        let bundle = At::scratch(if self.is_root { self.aside() } else { 0 });
        match stage {
            0 if self.is_root => self.sorted(true),
            0 => None,
            1 => {
                let output = if self.alone() { At::OUTPUT } else { bundle };
                self.between(self.bundles(), self.ordered(At::INPUT), output)
            }
            _ => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Scatter) };
                self.in_class(plan, self.count, bundle, At::OUTPUT)
            }
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

    /// What leaves for each host in an all_to_all, and what comes from it (elements).
    fn exchanged(&self) -> (Vec<usize>, Vec<usize>) {
        let (here, own) = (self.host.len(), self.sizes[self.home]);
        let leave = self.sizes.iter().map(|size| here * size * self.count).collect();
        (leave, self.hosts.iter().map(|of| of * own * self.count).collect())
    }

    fn all_to_all(&self, stage: usize) -> Option<Part> {
        let [came, leaves, sorted] = self.places().map(At::scratch);
        let here = self.host.len();
        match stage {
            0 => self.sorted(true),
            1 if self.leader => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Gather) };
                let lengths = Lengths::Blocks(vec![self.all(); here]);
                Some(self.within(plan, lengths, self.ordered(At::INPUT), came))
            }
            1 => {
                let each = if self.index == 0 { self.carried() } else { 0 };
                let lengths = Lengths::Exchange(self.by_class(), vec![each; here]);
                Some(self.within(exchange(here, self.collective), lengths, self.ordered(At::INPUT), came))
            }
            2 => (self.index == 0 && self.count > 0).then(|| Part::Copies(self.packed(came, leaves))),
            3 => {
                let (leave, come) = self.exchanged();
                self.between(Lengths::Exchange(leave, come), leaves, came)
            }
            4 => (self.index == 0 && self.count > 0).then(|| Part::Copies(self.unpacked(came, sorted))),
            _ => {
                let plan = const { Plan::of(binomial::PLANS, Collective::Scatter) };
                self.in_class(plan, self.all(), sorted, At::OUTPUT)
            }
        }
    }

    /// What each rank of this host has for this class, by host.
    fn packed(&self, from: At, into: At) -> Copies {
        let (here, carried, count) = (self.host.len(), self.carried(), self.count);
        let mut start = 0;
        let bundles: Vec<Range<usize>> = self
            .sizes
            .iter()
            .map(|size| {
                start += size * count;
                start - size * count..start
            })
            .collect();
        Box::new((0..here * bundles.len()).map(move |at| {
            let (place, bundle) = (at % here, &bundles[at / here]);
            let to = here * bundle.start + place * bundle.len();
            (from.plus(place * carried + bundle.start), into.plus(to), bundle.len())
        }))
    }

    /// Copies of what came from each rank for those of this class: to the output if this rank is the only one, otherwise in the
    /// order of receivers.
    fn unpacked(&self, from: At, sorted: At) -> Copies {
        let (ranks, own, count) = (self.by_host.clone(), self.mates.len(), self.count);
        let (into, all) = (if own == 1 { At::OUTPUT } else { sorted }, self.all());
        Box::new((0..ranks.len() * own).map(move |at| {
            let (sender, receiver) = (ranks[at / own], at % own);
            (from.plus(at * count), into.plus(receiver * all + sender * count), count)
        }))
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
    fn shape(&self) -> Shape {
        let turns = match self.collective {
            _ if self.shown => Self::SHOWN_STAGES,
            Collective::AllToAll => 6,
            Collective::AllGather | Collective::ReduceScatter => 4,
            _ => 3,
        };
        Shape {
            chunks: 1,
            turns,
            max_message: self.max_message,
            direct: false,
            scratch: if self.shown { self.shown_scratch() } else { self.scratch() },
            shows: None,
        }
    }

    fn stage(&self, _: usize, stage: usize) -> Option<Part> {
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
