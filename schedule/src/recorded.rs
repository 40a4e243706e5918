//! Records a short schedule as a list of steps, so that repeated calls need not make it again.

use std::{
    ops::{Deref, DerefMut, Range},
    sync::Arc,
};

use crate::{Job, Rank, Schedule, Step, algorithm::Plan, select::shown::copied_job};

/// The schedule of one operation.
pub enum CallSchedule {
    /// A schedule that was made for this operation.
    Made(Box<dyn Schedule>),
    /// A schedule that was recorded in an earlier operation, and needs no separate memory.
    Recorded(Recorded),
    /// Two schedules: ranks of a host may show each other elements.
    Inside(Box<Inside>),
}

/// The two schedules of an operation on several hosts. The ranks of this host agree which of them they run.
pub struct Inside {
    /// The schedule in which ranks of this host show each other elements.
    pub shown: Box<dyn Schedule>,
    /// The schedule in which they send each other messages.
    pub messages: Box<dyn Schedule>,
    /// The ranks of this host.
    pub host: Vec<Rank>,
    /// True if they have agreed to show elements.
    pub agreed: bool,
}

impl Deref for CallSchedule {
    type Target = dyn Schedule;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Made(schedule) => &**schedule,
            Self::Recorded(schedule) => schedule,
            Self::Inside(inside) if inside.agreed => &*inside.shown,
            Self::Inside(inside) => &*inside.messages,
        }
    }
}

impl DerefMut for CallSchedule {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Made(schedule) => &mut **schedule,
            Self::Recorded(schedule) => schedule,
            Self::Inside(inside) => match inside.agreed {
                true => &mut *inside.shown,
                false => &mut *inside.messages,
            },
        }
    }
}

/// A schedule of one lane whose steps were recorded. A clone shares the record, and begins where the original is.
#[derive(Clone, Debug)]
pub struct Recorded {
    known: Arc<Known>,
    /// The number of steps already returned.
    given: usize,
}

#[derive(Debug)]
struct Known {
    max_message: usize,
    direct: bool,
    scratch: usize,
    shows: Option<usize>,
    /// The job that is done instead where ranks share no memory.
    instead: Option<(&'static Plan, Job<'static>)>,
    /// The sources, and the elements of the output that each writes.
    sources: Vec<(Rank, Option<Range<usize>>)>,
    steps: Vec<Step>,
}

impl Recorded {
    /// Records a schedule, which must be at its beginning; `None` if it has several lanes or more than `most` steps.
    pub fn of(schedule: Box<dyn Schedule>, most: usize) -> Option<Self> {
        if schedule.lanes() != 1 {
            return None;
        }
        let known = Known::of(schedule, most.saturating_add(1));
        (known.steps.len() <= most).then(|| Self { known: Arc::new(known), given: 0 })
    }

    /// Records the schedule that shows the elements of a job in slots ([`Showing::Copied`](crate::Showing::Copied)), which hold all
    /// that a rank shows. If the ranks do not share memory, the same job is done by messages.
    #[must_use]
    pub fn shown(plan: &'static Plan, job: &Job<'static>) -> Self {
        let made = plan.make(&copied_job(job));
        let known = Known { instead: Some((plan, *job)), ..Known::of(made, usize::MAX) };
        Self { known: Arc::new(known), given: 0 }
    }

    /// Records the schedule that shows the elements of a job in place ([`Showing::InPlace`](crate::Showing::InPlace)), all at once.
    #[must_use]
    pub fn in_place(plan: &Plan, job: &Job<'_>) -> Self {
        Self { known: Arc::new(Known::of(plan.make(job), usize::MAX)), given: 0 }
    }

    /// All steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.known.steps
    }
}

impl Known {
    /// Records at most this many steps of lane 0.
    fn of(mut schedule: Box<dyn Schedule>, most: usize) -> Self {
        let mut sources = Vec::new();
        schedule.sources(&mut |from| sources.push((from, schedule.written_by(from))));
        Self {
            max_message: schedule.max_message(),
            direct: schedule.direct(),
            scratch: schedule.scratch(),
            shows: schedule.shows(),
            instead: None,
            sources,
            steps: std::iter::from_fn(|| schedule.next(0)).take(most).collect(),
        }
    }
}

impl CallSchedule {
    /// The two schedules of an operation in which ranks of this host show each other elements, if they agree to; `None` if they do not by
    /// this plan. `shared` is true if they share memory.
    #[must_use]
    pub fn inside(plan: &Plan, job: &Job<'_>, size: usize, shared: bool) -> Option<Self> {
        let host = job.spread.beside(job.rank, job.ranks);
        let shown = plan.inside(job, size, shared).filter(|_| host.len() > 1)?;
        let (shown, messages) = (plan.make(&Job { shown: Some(shown), ..*job }), plan.make(job));
        Some(Self::Inside(Box::new(Inside { shown, messages, host, agreed: false })))
    }

    /// The schedule of messages that does the same as this one, which shows elements.
    #[must_use]
    pub fn instead(&self) -> Option<Self> {
        let Self::Recorded(recorded) = self else { return None };
        let (plan, job) = recorded.known.instead.as_ref()?;
        Some(Self::Made(plan.make(job)))
    }
}

impl Schedule for Recorded {
    fn lanes(&self) -> usize {
        1
    }

    fn max_message(&self) -> usize {
        self.known.max_message
    }

    fn direct(&self) -> bool {
        self.known.direct
    }

    fn scratch(&self) -> usize {
        self.known.scratch
    }

    fn shows(&self) -> Option<usize> {
        self.known.shows
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.known.sources.iter().for_each(|&(from, _)| visit(from));
    }

    fn written_by(&self, source: Rank) -> Option<Range<usize>> {
        self.known.sources.iter().find(|(from, _)| *from == source)?.1.clone()
    }

    fn next(&mut self, lane: usize) -> Option<Step> {
        let step = if lane == 0 { self.known.steps.get(self.given).copied() } else { None };
        self.given += usize::from(step.is_some());
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, algorithm::ALGORITHMS};

    fn steps(mut schedule: Box<dyn Schedule>) -> Vec<Step> {
        std::iter::from_fn(|| schedule.next(0)).collect()
    }

    fn sources(schedule: &dyn Schedule) -> Vec<Rank> {
        let mut all = Vec::new();
        schedule.sources(&mut |from| all.push(from));
        all
    }

    #[test]
    fn a_recorded_schedule_says_what_it_was_made_of() {
        for (collective, algorithm) in Collective::ALL
            .into_iter()
            .flat_map(|collective| ALGORITHMS.iter().map(move |it| (collective, it)))
        {
            for (ranks, count) in [(1, 5), (2, 0), (2, 7), (5, 3)] {
                for rank in 0..ranks {
                    let job = Job { chunk: 4, direct: true, ..Job::new(collective, rank, ranks, count) };
                    let Some(made) = algorithm.make(&job) else { continue };
                    let all = steps(algorithm.make(&job).unwrap());
                    let recorded = Recorded::of(algorithm.make(&job).unwrap(), all.len()).unwrap();
                    assert_eq!(
                        (recorded.lanes(), recorded.max_message(), recorded.direct(), recorded.scratch()),
                        (made.lanes(), made.max_message(), made.direct(), made.scratch())
                    );
                    assert_eq!(sources(&recorded), sources(&*made));
                    for from in sources(&recorded) {
                        assert_eq!(recorded.written_by(from), made.written_by(from));
                    }
                    for _ in 0..2 {
                        assert_eq!(steps(Box::new(recorded.clone())), all, "{job:?}");
                    }
                    let longer = all.len().checked_sub(1);
                    assert!(longer.is_none_or(|most| Recorded::of(made, most).is_none()));
                }
            }
        }
    }

    #[test]
    fn several_lanes_are_not_recorded() {
        let job = Job { chunk: 1, lanes: 2, ..Job::new(Collective::Broadcast, 0, 2, 8) };
        let schedule = ALGORITHMS.iter().find_map(|algorithm| algorithm.make(&job)).unwrap();
        assert_eq!(schedule.lanes(), 2);
        assert!(Recorded::of(schedule, usize::MAX - 1).is_none());
    }
}
