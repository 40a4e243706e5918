//! Computations that ranks do during a collective: a sleep, as if an accelerator computed, or work on every core. Both are
//! calibrated to a given duration; the caller measures how long they take.

use std::{
    hint::black_box,
    num::NonZero,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::set_current_timer_slack;
use unisono::{ProcessGroup, hardware::Processors};

use super::{Result, rows::median};
use crate::words;

/// How often the length of a computation is adjusted, and how often it is timed for each adjustment.
const STEPS: usize = 3;
const TRIES: usize = 3;

/// The number of rounds of the first attempt: some tens of microseconds.
pub(super) const FIRST: f64 = 300.0;

/// The threads that compute on this rank: its own, and enough others for all ranks of the host to use every processor together. They
/// sleep between computations.
pub(super) struct Crew {
    /// The number of rounds for each of the other threads.
    others: Vec<Sender<u64>>,
    /// Each of them reports that it is done.
    done: Receiver<()>,
}

impl Crew {
    /// This rank's share of the processors. Every rank must call it.
    pub(super) fn new(group: &ProcessGroup) -> Result<Self> {
        let mine = processors();
        let all = group.all_gather_object(&mine)?;
        let sharing = all.iter().filter(|theirs| **theirs == mine).count().max(1);
        Self::start(thread::available_parallelism().map_or(1, NonZero::get).div_ceil(sharing))
    }

    fn start(threads: usize) -> Result<Self> {
        let (finished, done) = channel();
        let start = |_| {
            let ((rounds, orders), finished) = (channel(), finished.clone());
            let compute = move || orders.iter().map(work).try_for_each(|()| finished.send(()));
            thread::Builder::new().name("compute".to_owned()).spawn(compute)?;
            Ok(rounds)
        };
        Ok(Self { others: (1..threads).map(start).collect::<Result<_>>()?, done })
    }

    /// The number of threads.
    pub(super) fn threads(&self) -> usize {
        self.others.len() + 1
    }

    /// Computes this many rounds on every thread.
    fn compute(&self, rounds: u64) {
        // A thread ends only by a panic, which is reported.
        let begun = self.others.iter().filter(|other| other.send(rounds).is_ok()).count();
        work(rounds);
        self.done.iter().take(begun).for_each(drop);
    }
}

/// The host's name, and the processors on which this process may run.
pub(super) fn processors() -> (String, Processors) {
    (words::host(), Processors::allowed().unwrap_or_default())
}

/// Computes in registers, so that it uses a core and no memory.
fn work(rounds: u64) {
    let mut lanes = black_box([1.0_f64; 8]);
    for _ in 0..rounds {
        for _ in 0..32 {
            for lane in &mut lanes {
                *lane = *lane * 0.999 + 0.001;
            }
        }
    }
    black_box(lanes);
}

/// A computation that lasts a given time.
pub(super) enum Computation<'c> {
    /// The thread sleeps for this many seconds.
    Idle(f64),
    /// All threads of the crew compute this many rounds.
    Busy(&'c Crew, f64),
}

impl Computation<'_> {
    /// Adjusts its length to `seconds`, by timing it. Every rank must call it.
    pub(super) fn lasting(mut self, group: &ProcessGroup, seconds: f64) -> Result<Self> {
        for _ in 0..STEPS {
            let mut times = Vec::new();
            for _ in 0..TRIES {
                // All ranks compute at once, as in the measurement.
                group.barrier()?;
                times.push(self.timed());
            }
            let time = median(times);
            match &mut self {
                // A sleep lasts longer than asked, by about the same time each.
                Self::Idle(asked) => *asked = (*asked + seconds - time).clamp(0.0, seconds),
                Self::Busy(_, rounds) => *rounds *= seconds / time.max(1e-9),
            }
        }
        Ok(self)
    }

    pub(super) fn run(&self) {
        match self {
            Self::Idle(seconds) => sleep(*seconds),
            #[allow(clippy::cast_possible_truncation, reason = "clamped")]
            Self::Busy(crew, rounds) => crew.compute(rounds.clamp(1.0, 1e15) as u64),
        }
    }

    /// Runs it. Returns how many seconds it took.
    pub(super) fn timed(&self) -> f64 {
        let begun = Instant::now();
        self.run();
        begun.elapsed().as_secs_f64()
    }
}

/// Sleeps with the smallest timer slack; the kernel's default is 50 µs. The slack is reset afterwards, because the library's waits are
/// measured with the default.
fn sleep(seconds: f64) {
    // If it is forbidden, the sleep is longer, and measured so.
    let _ = set_current_timer_slack(Some(NonZero::<u64>::MIN));
    thread::sleep(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(Duration::from_nanos(1)));
    let _ = set_current_timer_slack(None);
}

#[cfg(test)]
mod tests {
    use unisono::Config;
    use unisono_transport::inproc::Hub;

    use super::*;

    #[test]
    fn a_computation_of_either_kind_never_ends_before_its_time() {
        let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None).unwrap();
        let crew = Crew::new(&group).unwrap();
        assert_eq!(crew.threads(), thread::available_parallelism().unwrap().get());
        let idle = Computation::Idle(0.1).lasting(&group, 0.002).unwrap();
        let Computation::Idle(asked) = &idle else { panic!("{:?}", idle.timed()) };
        assert!((0.0..=0.002).contains(asked) && idle.timed() >= *asked, "{asked}");
        let Computation::Busy(_, rounds) = Computation::Busy(&crew, FIRST).lasting(&group, 0.002).unwrap()
        else {
            panic!("another kind")
        };
        assert!(rounds.is_finite() && rounds > 0.0, "{rounds}");
    }

    #[test]
    fn every_thread_does_its_rounds_again_and_again() {
        let crew = Crew::start(4).unwrap();
        for _ in 0..100 {
            // Returns when all have answered, or it would hang.
            crew.compute(1);
        }
        assert!(crew.done.try_recv().is_err(), "an answer too many");
    }
}
