//! The rules of shared slots, explored: ranks that are late at any step, and one that stops for ever at any step, in every
//! order. Each access to memory is a separate step, and bytes take two, so that a torn read shows. What is published is asked of the
//! real predicates, in real memory. Mutants of the rules must be found.

use std::collections::HashSet;

use unisono_schedule::Rank;
use unisono_transport::{Memory, Region};

use super::{SharedSlots, layout};
use crate::{access, call::Signature};

/// What an operation does; each number is of a root.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageKind {
    All,
    /// The root alone gives, and the others alone wait.
    Broadcast(Rank),
    /// The others alone give, and the root alone waits.
    Reduce(Rank),
}

impl MessageKind {
    fn sources(self, me: Rank, ranks: usize) -> Vec<Rank> {
        let others = (0..ranks).filter(|&rank| rank != me);
        match self {
            Self::All => others.collect(),
            Self::Broadcast(root) => others.filter(|&rank| rank == root).collect(),
            Self::Reduce(root) => others.filter(|_| me == root).collect(),
        }
    }
}

/// What ranks do otherwise than the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    OneSlot,
    EntersAlone,
    /// It waits for those alone whose bytes it had needed.
    EntersAfterSources,
    PublishesFirst,
    ReadsEarly,
    ChecksEarly,
}

/// The next step of a rank in its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// It waits until it may enter, and compares the operation before.
    Enter,
    Write(u8),
    Publish,
    /// It waits for this source of its, and reads the first half of its bytes, or reads the second half.
    Read(u8, u8),
}

/// The words of a slot: its number, the description, and bytes in two halves.
type Words = [u64; 4];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    slots: Vec<[Words; 2]>,
    /// Of each rank the number of the operation that it is in, or enters, and its next step there.
    ranks: Vec<(u64, Step)>,
    stopped: Option<Rank>,
}

struct Model<'p> {
    program: &'p [MessageKind],
    mutant: Mutant,
    /// The slots of all, and what each sees of the others'.
    memory: Vec<Region>,
    views: Vec<SharedSlots>,
}

/// The bytes of a rank in an operation.
const BYTES: usize = 2 * size_of::<u64>();

fn half(rank: Rank, number: u64, half: u8) -> u64 {
    number << 16 | (rank as u64) << 8 | u64::from(half) | 1 << 40
}

impl<'p> Model<'p> {
    fn new(ranks: usize, program: &'p [MessageKind], mutant: Mutant) -> Self {
        let memory: Vec<_> =
            (0..ranks).map(|_| Region::unregistered(Memory::map(layout::LEN).unwrap())).collect();
        let views = (0..ranks).map(|me| SharedSlots {
            own: Some(memory[me].clone()),
            views: memory.iter().enumerate().map(|(rank, it)| (rank != me).then(|| it.clone())).collect(),
            ..SharedSlots::default()
        });
        let views = views.collect();
        Self { program, mutant, memory, views }
    }

    fn slot(&self, number: u64) -> usize {
        layout::slot(if self.mutant == Mutant::OneSlot { 0 } else { number })
    }

    fn read(&self, rank: Rank, at: usize) -> u64 {
        access::load(&self.memory[rank], at).unwrap()
    }

    fn write(&self, rank: Rank, at: usize, word: u64) {
        access::store(&self.memory[rank], at, &word).unwrap();
    }

    /// Where the words of a slot lie.
    fn places(slot: usize) -> [usize; 4] {
        let description = slot + size_of::<u64>() + std::mem::offset_of!(Signature, count);
        let bytes = slot + layout::elements(0, BYTES) - layout::slot(0);
        [slot, description, bytes, bytes + size_of::<u64>()]
    }

    /// Makes the memory what it was in a state.
    fn restore(&self, state: &State) {
        for (rank, both) in state.slots.iter().enumerate() {
            for (number, words) in both.iter().enumerate() {
                let places = Self::places(layout::slot(number as u64));
                places.into_iter().zip(words).for_each(|(at, &word)| self.write(rank, at, word));
            }
        }
    }

    fn saved(&self) -> Vec<[Words; 2]> {
        let words = |rank, number| Self::places(layout::slot(number)).map(|at| self.read(rank, at));
        (0..self.memory.len()).map(|rank| [words(rank, 0), words(rank, 1)]).collect()
    }

    fn sources(&self, me: Rank, number: u64) -> Vec<Rank> {
        let before = number.checked_sub(1).and_then(|at| self.program.get(usize::try_from(at).ok()?));
        before.map_or_else(Vec::new, |kind| kind.sources(me, self.memory.len()))
    }

    fn has_published(&self, me: Rank, rank: Rank, number: u64) -> bool {
        match self.mutant {
            Mutant::OneSlot => self.read(rank, self.slot(number)) == number,
            _ => self.views[me].has_published(rank, number),
        }
    }

    /// The ranks that a rank's next step waits for.
    fn waits(&mut self, me: Rank, (number, step): (u64, Step)) -> Vec<Rank> {
        match (step, self.mutant) {
            (Step::Enter, Mutant::EntersAlone | Mutant::ChecksEarly) => Vec::new(),
            (Step::Enter, Mutant::EntersAfterSources) => {
                let mut sources = self.sources(me, number - 1);
                sources.retain(|&source| !self.has_published(me, source, number - 1));
                sources
            }
            (Step::Enter, Mutant::OneSlot) => {
                let others = (0..self.memory.len()).filter(|&it| it != me && number > 1);
                others.filter(|&it| self.read(it, self.slot(0)) < number - 1).collect()
            }
            (Step::Enter, _) => {
                self.views[me].number = number - 1;
                self.views[me].behind().collect()
            }
            (Step::Read(_, 0), Mutant::ReadsEarly) => Vec::new(),
            (Step::Read(at, 0), _) => {
                let source = self.sources(me, number)[usize::from(at)];
                if self.has_published(me, source, number) { Vec::new() } else { vec![source] }
            }
            _ => Vec::new(),
        }
    }

    /// Does a step that waits for nobody. Returns what is next, or what is wrong.
    fn step(&self, me: Rank, (number, step): (u64, Step)) -> Result<(u64, Step), String> {
        let [front, description, bytes @ ..] = Self::places(self.slot(number));
        let next = match step {
            Step::Enter => {
                let before = number - 1;
                let all = self.sources(me, before).len() + 1 == self.memory.len();
                let compares = !matches!(self.mutant, Mutant::EntersAlone | Mutant::EntersAfterSources);
                let compares = compares && before > 0 && !all;
                for other in (0..self.memory.len()).filter(|&it| it != me && compares) {
                    let seen = self.read(other, Self::places(self.slot(before))[1]);
                    if seen != before {
                        return Err(format!("{me} compares {before} with {seen} of {other}"));
                    }
                }
                if self.mutant == Mutant::PublishesFirst { Step::Publish } else { Step::Write(0) }
            }
            Step::Write(which) => {
                self.write(me, description, number);
                self.write(me, bytes[usize::from(which)], half(me, number, which));
                match (which, self.mutant) {
                    (0, _) => Step::Write(1),
                    (_, Mutant::PublishesFirst) => Step::Read(0, 0),
                    _ => Step::Publish,
                }
            }
            Step::Publish => {
                access::publish(&self.memory[me], front, number).unwrap();
                if self.mutant == Mutant::PublishesFirst { Step::Write(0) } else { Step::Read(0, 0) }
            }
            Step::Read(at, which) => {
                let source = self.sources(me, number)[usize::from(at)];
                let (seen, wanted) =
                    (self.read(source, bytes[usize::from(which)]), half(source, number, which));
                if seen != wanted {
                    return Err(format!("{me} reads {seen:#x} of {source} in {number}, not {wanted:#x}"));
                }
                if which == 0 { Step::Read(at, 1) } else { Step::Read(at + 1, 0) }
            }
        };
        Ok(match next {
            Step::Read(at, 0) if usize::from(at) == self.sources(me, number).len() => {
                (number + 1, Step::Enter)
            }
            next => (number, next),
        })
    }

    /// Whether each that waits does so for the rank that has stopped, or for one that does.
    fn wait_for(&self, waits: &[Vec<Rank>], stopped: Rank) -> bool {
        let mut held = vec![stopped];
        for _ in 0..waits.len() {
            let more = (0..waits.len()).filter(|&rank| waits[rank].iter().any(|it| held.contains(it)));
            held = more.chain([stopped]).collect();
        }
        (0..waits.len()).all(|rank| waits[rank].is_empty() || held.contains(&rank))
    }

    /// Goes through all orders. Returns the number of states, or what is wrong and where.
    fn explore(&mut self, stops: bool) -> Result<usize, String> {
        let ranks = self.memory.len();
        let first = State { slots: self.saved(), ranks: vec![(1, Step::Enter); ranks], stopped: None };
        let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
        while let Some(state) = left.pop() {
            self.restore(&state);
            let ended = |rank: Rank| state.ranks[rank].0 > self.program.len() as u64;
            let goes: Vec<_> = (0..ranks).filter(|&it| !ended(it) && state.stopped != Some(it)).collect();
            let mut waits = vec![Vec::new(); ranks];
            for &rank in &goes {
                waits[rank] = self.waits(rank, state.ranks[rank]);
            }
            let able: Vec<_> = goes.iter().copied().filter(|&rank| waits[rank].is_empty()).collect();
            let held = state.stopped.map_or(goes.is_empty(), |stopped| self.wait_for(&waits, stopped));
            if able.is_empty() && !held {
                return Err(format!("{state:?} waits for {waits:?}"));
            }
            let mut found = |next: State| {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            };
            for rank in able {
                self.restore(&state);
                let next =
                    self.step(rank, state.ranks[rank]).map_err(|wrong| format!("{wrong}: {state:?}"))?;
                let mut after = State { slots: self.saved(), ..state.clone() };
                after.ranks[rank] = next;
                found(after);
            }
            if stops && state.stopped.is_none() {
                goes.into_iter().for_each(|rank| found(State { stopped: Some(rank), ..state.clone() }));
            }
        }
        Ok(seen.len())
    }
}

/// All programs of this many operations of these kinds.
fn programs(kinds: &[MessageKind], len: usize) -> Vec<Vec<MessageKind>> {
    (0..len).fold(vec![Vec::new()], |shorter, _| {
        let longer =
            |before: Vec<MessageKind>| kinds.iter().map(move |&kind| [&before[..], &[kind]].concat());
        shorter.into_iter().flat_map(longer).collect()
    })
}

fn explored(ranks: usize, program: &[MessageKind], stops: bool) -> usize {
    let states = Model::new(ranks, program, Mutant::None).explore(stops);
    states.unwrap_or_else(|wrong| panic!("{ranks} ranks, {program:?}: {wrong}"))
}

#[test]
fn no_order_of_steps_reads_or_writes_what_it_may_not() {
    use MessageKind::*;
    let two: usize =
        [(3, &[All, Broadcast(0), Broadcast(1), Reduce(0), Reduce(1)][..]), (5, &[Broadcast(0), All])]
            .into_iter()
            .flat_map(|(len, kinds)| programs(kinds, len))
            .map(|program| explored(2, &program, true))
            .sum();
    let three: usize =
        programs(&[All, Broadcast(1), Reduce(2)], 3).iter().map(|it| explored(3, it, true)).sum();
    let long = explored(3, &[Broadcast(0), Reduce(0), Broadcast(0), All, Broadcast(2)], false);
    let four = explored(4, &[Broadcast(0), Reduce(0), Broadcast(3)], false);
    println!("{two} states of two ranks, {three} and {long} of three, {four} of four");
}

#[test]
fn mutants_of_the_rules_are_found() {
    use MessageKind::*;
    for (mutant, program) in [
        (Mutant::OneSlot, &[All, All, All][..]),
        (Mutant::EntersAlone, &[Broadcast(0), Broadcast(0), Broadcast(0)]),
        (Mutant::EntersAfterSources, &[Broadcast(0), Broadcast(0), Broadcast(0)]),
        (Mutant::PublishesFirst, &[All]),
        (Mutant::ReadsEarly, &[All]),
        (Mutant::ChecksEarly, &[Reduce(0), All]),
    ] {
        for ranks in [2, 3] {
            assert!(explored(ranks, program, false) > 0);
            let found = Model::new(ranks, program, mutant).explore(false);
            println!("{mutant:?} among {ranks}: {found:?}");
            assert!(found.is_err(), "{mutant:?} among {ranks} ranks is not found");
        }
    }
}

/// A rank that is behind may write there at any moment, once all have published what comes between.
#[test]
fn a_description_that_may_be_written_over_is_not_read() {
    let mut model = Model::new(2, &[], Mutant::None);
    let theirs = |model: &Model<'_>| model.views[0].calls().map(|(_, info)| info.count).collect::<Vec<_>>();
    assert_eq!(theirs(&model), [0; 0], "it has published nothing");
    for number in 1..=4 {
        model.views[0].number = number;
        assert_eq!(theirs(&model), [0; 0], "it has published {} alone", number - 1);
        let [front, description, ..] = Model::places(layout::slot(number));
        model.write(1, description, 100 + number);
        access::publish(&model.memory[1], front, number).unwrap();
        assert_eq!(theirs(&model), [100 + number]);
        model.views[0].number = number - 1;
        assert_eq!(theirs(&model), [100 + number], "it is ahead");
    }
}
