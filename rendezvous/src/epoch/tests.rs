//! The rules explored: every order of events for three processes and a newcomer of which two die, and random ones for seven. Messages may be
//! lost, late, repeated and in any order, and a process may take a live one for silent. Mutants of the rules must be found.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher as _, RandomState},
};

use super::{
    Effects, Epoch, EpochMessage, Participant, Places, Quorum, RegroupOptions, RegroupOutcome,
    RegroupRefusal, SKIPPED,
};

use crate::random::Random;

type Process = u8;

/// What is wrong with the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The default quorum is any.
    NoQuorum,
    /// A process forgets what it has promised when it asks another one.
    ForgetsPromises,
    /// A silent process counts as dead.
    SilentIsDead,
    /// A coordinator commits without the last promise.
    CommitsEarly,
}

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    Begins(Process),
    Arrives(Process, Process, EpochMessage<Process>),
    Dies(Process),
    /// One process notices that another is dead, or believes that it is silent.
    Loses(Process, Process, bool),
    Repeats(Process),
    TimeIsOver(Process),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scene {
    members: Vec<Participant<Process>>,
    alive: Vec<bool>,
    begun: Vec<bool>,
    /// Messages on their way.
    wire: BTreeSet<(Process, Process, EpochMessage<Process>)>,
    ended: Vec<Option<RegroupOutcome<Process>>>,
    deaths: usize,
    suspicions: usize,
    repeats: usize,
}

struct Model {
    options: RegroupOptions,
    mutant: Mutant,
    /// The highest number of an epoch that is explored.
    highest: u64,
    /// Whether the time of a regroup may be over.
    ends: bool,
}

impl Model {
    fn new(mutant: Mutant) -> Self {
        let quorum = if mutant == Mutant::NoQuorum { Quorum::Any } else { Quorum::Majority };
        Self {
            options: RegroupOptions { least: 1, quorum, places: Places::Last },
            mutant,
            highest: 3,
            ends: false,
        }
    }

    /// Some processes of one world, and newcomers that know all of them.
    fn scene(
        &self,
        processes: Process,
        newcomers: Process,
        [deaths, suspicions, repeats]: [usize; 3],
        begun: bool,
    ) -> Scene {
        let list: Vec<Process> = (0..processes).collect();
        let epoch = Epoch::first(list.clone());
        let old = list.iter().map(|&me| Participant::of(me, epoch.clone()));
        let new = (processes..processes + newcomers).map(|me| Participant::newcomer(me, list.clone()));
        let all = usize::from(processes + newcomers);
        let start = Scene {
            members: old.chain(new).collect(),
            alive: vec![true; all],
            begun: vec![begun; all],
            wire: BTreeSet::new(),
            ended: vec![None; all],
            deaths,
            suspicions,
            repeats,
        };
        let all = (0..processes + newcomers).filter(|_| begun);
        all.fold(start, |scene, process| self.after(&scene, &Event::Begins(process)).unwrap())
    }

    fn events(&self, scene: &Scene) -> Vec<Event> {
        let alive = |process: Process| scene.alive[usize::from(process)];
        let all = (0..).zip(&scene.members).filter(|(process, _)| alive(*process));
        let mut events: Vec<_> = scene
            .wire
            .iter()
            .filter(|(_, to, _)| alive(*to))
            .map(|(from, to, message)| Event::Arrives(*from, *to, message.clone()))
            .collect();
        for (process, member) in all {
            if !scene.begun[usize::from(process)] {
                events.push(Event::Begins(process));
            }
            if scene.deaths > 0 {
                events.push(Event::Dies(process));
            }
            for other in member.awaits() {
                if !alive(other) {
                    events.push(Event::Loses(process, other, true));
                } else if scene.suspicions > 0 {
                    events.push(Event::Loses(process, other, false));
                }
            }
            if member.call.is_some() {
                if scene.repeats > 0 {
                    events.push(Event::Repeats(process));
                }
                if self.ends {
                    events.push(Event::TimeIsOver(process));
                }
            }
        }
        events
    }

    /// The scene after an event; an error if two epochs of one number are committed.
    fn after(&self, scene: &Scene, event: &Event) -> Result<Scene, String> {
        let mut next = scene.clone();
        let (process, effects) = match event {
            Event::Begins(process) => {
                next.begun[usize::from(*process)] = true;
                (*process, next.members[usize::from(*process)].begin(self.options))
            }
            Event::Arrives(from, to, message) => {
                next.wire.remove(&(*from, *to, message.clone()));
                (*to, next.members[usize::from(*to)].heard(*from, message.clone()))
            }
            Event::Dies(process) => {
                next.alive[usize::from(*process)] = false;
                next.deaths -= 1;
                next.wire.retain(|(_, to, _)| to != process);
                (*process, Effects::default())
            }
            Event::Loses(process, other, dead) => {
                next.suspicions -= usize::from(!dead);
                let dead = *dead || self.mutant == Mutant::SilentIsDead;
                (*process, next.members[usize::from(*process)].lost(*other, dead))
            }
            Event::Repeats(process) => {
                next.repeats = next.repeats.saturating_sub(1);
                (*process, next.members[usize::from(*process)].tick())
            }
            Event::TimeIsOver(process) => (*process, next.members[usize::from(*process)].deadline()),
        };
        let index = usize::from(process);
        let calls = scene.members[index].call.is_some() || matches!(event, Event::Begins(_));
        if calls && next.members[index].call.is_none() != effects.outcome.is_some() {
            return Err(format!("they end with {:?}", effects.outcome));
        }
        self.apply(&mut next, process, effects);
        next.judged()
    }

    fn apply(&self, scene: &mut Scene, process: Process, effects: Effects<Process>) {
        let index = usize::from(process);
        if self.mutant == Mutant::ForgetsPromises
            && effects.messages.iter().any(|(_, message)| matches!(message, EpochMessage::Ask { .. }))
        {
            scene.members[index].promised.clear();
        }
        for (to, message) in effects.messages {
            if let (Mutant::CommitsEarly, EpochMessage::Propose(epoch)) = (self.mutant, &message)
                && epoch.members.len() == 2
            {
                scene.members[index].learn(epoch.clone());
            }
            if scene.alive[usize::from(to)] {
                scene.wire.insert((process, to, message));
            }
        }
        if effects.outcome.is_some() {
            scene.ended[index] = effects.outcome;
        }
    }

    /// All faults are over, and all messages arrive: everybody that lives ends in one epoch, unless a rule forbids it.
    fn settles(&self, mut scene: Scene) -> Result<(), String> {
        (scene.deaths, scene.suspicions) = (0, 0);
        let alive: Vec<Process> =
            (0..).zip(&scene.alive).filter(|(_, alive)| **alive).map(|it| it.0).collect();
        for _round in 0..40 {
            for &process in &alive {
                // A program regroups again until its group works.
                let apart = !scene.is_together(process);
                scene.members[usize::from(process)].come_back();
                let admits = scene.members[usize::from(process)].is_asked();
                if scene.members[usize::from(process)].call.is_none() && (apart || admits) {
                    scene = self.after(&scene, &Event::Begins(process))?;
                }
                for other in scene.members[usize::from(process)].awaits() {
                    if !scene.alive[usize::from(other)] {
                        scene = self.after(&scene, &Event::Loses(process, other, true))?;
                    }
                }
                scene = self.after(&scene, &Event::Repeats(process))?;
            }
            for _ in 0..1000 {
                let Some((from, to, message)) = scene.wire.pop_first() else { break };
                if scene.alive[usize::from(to)] {
                    scene = self.after(&scene, &Event::Arrives(from, to, message))?;
                }
            }
            if alive.iter().all(|&process| scene.is_settled(&alive, process)) {
                return Ok(());
            }
        }
        Err(format!("they do not come together: {scene:#?}"))
    }
}

impl Scene {
    fn judged(self) -> Result<Self, String> {
        let mut lists: BTreeMap<u64, &[Process]> = BTreeMap::new();
        for epoch in self.members.iter().filter_map(Participant::committed) {
            let first = lists.entry(epoch.number).or_insert(&epoch.members);
            if *first != epoch.members {
                return Err(format!("epoch {} is {first:?} and {:?}", epoch.number, epoch.members));
            }
        }
        // Processes that are not in a regroup work in their epoch. Two epochs must not both have all their processes at work.
        let mut working: Vec<&Epoch<Process>> = Vec::new();
        for epoch in self.known() {
            if self.is_at_work(epoch) && !working.contains(&epoch) {
                working.push(epoch);
            }
        }
        if working.len() > 1 {
            return Err(format!("two worlds go on: {working:?}"));
        }
        Ok(self)
    }

    /// The epochs of which a living process knows that they are committed.
    fn known(&self) -> impl Iterator<Item = &Epoch<Process>> {
        let living = self.members.iter().zip(&self.alive).filter(|(_, alive)| **alive);
        living.filter_map(|(member, _)| member.committed())
    }

    /// True if all processes of an epoch live, and neither regroup nor have promised another.
    fn is_at_work(&self, epoch: &Epoch<Process>) -> bool {
        let works = |name: &Process| {
            let member = &self.members[usize::from(*name)];
            self.alive[usize::from(*name)]
                && member.call.is_none()
                && member.promised.is_empty()
                && member.committed() == Some(epoch)
        };
        epoch.number > 0 && epoch.members.iter().all(works)
    }

    /// True if the epoch of a process is at work.
    fn is_together(&self, process: Process) -> bool {
        self.members[usize::from(process)].committed().is_some_and(|epoch| self.is_at_work(epoch))
    }

    /// True if nothing more can be wanted for a process.
    fn is_settled(&self, alive: &[Process], process: Process) -> bool {
        // A newcomer finds nobody.
        let member = &self.members[usize::from(process)];
        let alone = member.committed().is_none() && member.contacts.iter().all(|name| !alive.contains(name))
            || self.known().next().is_none();
        alone || self.is_together(process)
    }
}

/// Explores every order of events. Returns the number of scenes.
fn explore(model: &Model, start: Scene) -> Result<usize, String> {
    let hasher = RandomState::new();
    let mark = |scene: &Scene| hasher.hash_one(scene);
    let mut seen = HashSet::from([mark(&start)]);
    let mut path: Vec<(usize, Event)> = vec![(0, Event::Begins(0))];
    let mut todo = vec![(start, 0)];
    let story = |path: &[(usize, Event)], mut at: usize, fault: String| {
        let mut story = vec![fault];
        while at > 0 {
            story.push(format!("{:?}", path[at].1));
            at = path[at].0;
        }
        story.reverse();
        story.join("\n")
    };
    while let Some((scene, at)) = todo.pop() {
        for event in model.events(&scene) {
            path.push((at, event.clone()));
            let here = path.len() - 1;
            let next = model.after(&scene, &event).map_err(|fault| story(&path, here, fault))?;
            let steps = |number: u64| number % SKIPPED + number / SKIPPED;
            let high = next.members.iter().any(|member| steps(member.newest()) > model.highest);
            if !high && seen.insert(mark(&next)) {
                if seen.len() % 1000 == 0 {
                    model.settles(next.clone()).map_err(|fault| story(&path, here, fault))?;
                }
                todo.push((next, here));
            } else {
                path.pop();
            }
        }
    }
    Ok(seen.len())
}

/// Some processes and newcomers; how many die, are taken for silent, or repeat what they said; and whether all have begun to regroup.
type Case = (Process, Process, [usize; 3], bool);

/// A process that dies, one that is taken for silent, a newcomer, and three processes.
const CASES: &[Case] = &[(2, 0, [1, 1, 1], false), (2, 1, [1, 0, 0], true), (3, 0, [1, 0, 0], true)];

#[test]
fn in_every_order_of_events_one_world_goes_on() {
    let model = Model::new(Mutant::None);
    for &(processes, newcomers, faults, begun) in CASES {
        let start = model.scene(processes, newcomers, faults, begun);
        let scenes = explore(&model, start).unwrap_or_else(|fault| panic!("{fault}"));
        println!("{processes} processes, {newcomers} newcomers, faults {faults:?}: {scenes} scenes");
    }
}

/// Random events. Returns what goes wrong, with the events before.
fn walk(model: &Model, seed: u64, mut scene: Scene) -> Result<(), String> {
    let mut random = Random(seed);
    let mut story = vec![format!("seed {seed}")];
    for _ in 0..random.below(400) {
        let events = model.events(&scene);
        // Few events of the same kind would leave no room for others.
        let few = |event: &Event| match event {
            Event::Dies(_) | Event::TimeIsOver(_) => 40,
            Event::Loses(..) => 5,
            Event::Repeats(_) => 3,
            Event::Begins(_) | Event::Arrives(..) => 1,
        };
        let Some(event) = (!events.is_empty()).then(|| events[random.below(events.len())].clone()) else {
            break;
        };
        if random.below(few(&event)) > 0 {
            continue;
        }
        story.push(format!("{event:?}"));
        scene = model.after(&scene, &event).map_err(|fault| [story.join("\n"), fault].join("\n"))?;
    }
    model.settles(scene).map_err(|fault| [story.join("\n"), fault].join("\n"))
}

/// Walks from different seeds.
fn walks(mutant: Mutant, seeds: u64) -> Result<(), String> {
    let model = Model { highest: u64::MAX, ends: true, ..Model::new(mutant) };
    (0..seeds).try_for_each(|seed| {
        let [processes, newcomers] = [2 + seed % 6, seed / 6 % 3].map(|it| Process::try_from(it).unwrap());
        walk(&model, seed, model.scene(processes, newcomers, [3, 3, 40], seed % 4 < 2))
    })
}

#[test]
fn in_random_orders_of_events_one_world_goes_on() {
    walks(Mutant::None, 5_000).unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn a_process_without_a_quorum_says_so_when_its_time_is_over() {
    let model = Model::new(Mutant::None);
    let mut last = Participant::of(2, Epoch::first(vec![0, 1, 2]));
    last.begin(model.options);
    last.lost(0, false);
    last.lost(1, false);
    let why = RegroupRefusal::NoQuorum { epoch: 0, all: 3, present: 1, silent: vec![0, 1] };
    assert_eq!(last.deadline().outcome, Some(RegroupOutcome::Refused { why, promised: false }));
}

#[test]
fn mutants_are_found() {
    for mutant in [Mutant::NoQuorum, Mutant::ForgetsPromises, Mutant::SilentIsDead, Mutant::CommitsEarly] {
        let fault = walks(mutant, 30_000).expect_err(&format!("{mutant:?}"));
        let said = |line: &&str| ["epoch", "they", "two"].iter().any(|word| line.starts_with(word));
        println!("{mutant:?}: {}", fault.lines().find(said).unwrap_or_default());
    }
}
