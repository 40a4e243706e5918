//! CPU affinity and scheduling policy of the progress thread. Wakers and destructors that it runs inherit both.

use rustix::{
    process::getpriority_process,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use thread_priority::{
    NormalThreadSchedulePolicy::{Batch, Other},
    ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id, thread_schedule_policy,
};

use crate::{
    config::{Config, ThreadCores},
    error::{Error, Result},
    hardware::{Hardware, Processors},
};

/// The processors of the progress thread; empty if it may run wherever the process may.
#[derive(Debug)]
pub(crate) struct Affinity(Vec<usize>);

impl Affinity {
    /// The processors that the configuration asks for.
    ///
    /// # Errors
    /// [`Error::Config`] if this process may not run there, or its local rank is not known.
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let Some(asked) = &config.thread_cores else { return Ok(Self(Vec::new())) };
        let problem = |problem: String| Error::Config {
            name: "UNISONO_THREAD_CORES".to_owned(),
            value: Some(asked.to_string()),
            problem,
        };
        let local = config.local_rank.or_else(|| (config.ranks == 1).then_some(0));
        let allowed = Processors::allowed().map_err(|error| {
            problem(format!("the system does not say on which processors this process may run: {error}"))
        })?;
        match asked {
            ThreadCores::Each(each) => one_of(each, local, &allowed).map(|one| vec![one]),
            // Without a local rank, the rank in the world keeps the ranks of a host apart as well.
            ThreadCores::Auto => own_cores(&allowed)
                .map(|cores| from_the_last(cores, local.unwrap_or(config.rank)))
                .map_err(|error| format!("the system does not say which cores there are: {error}")),
        }
        .map(Self)
        .map_err(problem)
    }

    /// Binds the calling thread to these processors.
    pub(crate) fn bind(&self) -> std::io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Ok(sched_setaffinity(None, &set_of(&self.0))?)
    }
}

/// The set of these processors, without those whose numbers the type cannot hold.
fn set_of(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().filter(|&&it| it < CpuSet::MAX_CPU).for_each(|&it| set.set(it));
    set
}

/// Moves the calling thread to a processor, and then lets it run on all its earlier processors again.
pub(crate) fn begin_on(processor: usize) {
    let moved = sched_getaffinity(None).and_then(|all| {
        sched_setaffinity(None, &set_of(&[processor]))?;
        sched_setaffinity(None, &all)
    });
    if let Err(error) = moved {
        crate::log::debug!(processor, %error, "cannot move this thread to its own processor");
    }
}

/// Gives the calling thread the policy `SCHED_BATCH` (sched(7)): when it wakes, it does not preempt the thread that has just begun an
/// operation and continues to compute. Its share of the processor stays the same: docs/decisions/030-progress-thread-placement.md.
pub(crate) fn defer() {
    let batch = ThreadSchedulePolicy::Normal(Batch);
    // A policy that the user has chosen stays.
    if !matches!(thread_schedule_policy(), Ok(ThreadSchedulePolicy::Normal(Other))) {
        return;
    }
    // The call also sets the niceness, which must stay the same.
    let nice = getpriority_process(None);
    let priority = (0..=*ThreadPriorityValue::MAX)
        .filter_map(|value| ThreadPriorityValue::try_from(value).ok().map(ThreadPriority::Crossplatform))
        .find(|priority| priority.to_posix(batch).ok() == nice.ok());
    let done = priority.map(|priority| set_thread_priority_and_policy(thread_native_id(), priority, batch));
    if !matches!(done, Some(Ok(()))) {
        crate::log::debug!(?done, "cannot give the progress thread the policy SCHED_BATCH");
    }
}

/// The processor that a list gives to a rank of the host.
fn one_of(each: &[usize], local: Option<usize>, allowed: &Processors) -> std::result::Result<usize, String> {
    let count = each.len();
    let one = match (local, each) {
        (None, &[one]) => one,
        (None, _) => {
            return Err(format!(
                "it lists processors for {count} ranks of a host, and which of them this is is not known; set \
                 UNISONO_LOCAL_RANK"
            ));
        }
        (Some(local), _) => *each.get(local).ok_or_else(|| {
            format!(
                "it lists processors for {count} ranks of a host, and this is number {local}, counted from 0"
            )
        })?,
    };
    if allowed.contains(one) {
        return Ok(one);
    }
    Err(format!("this process may not run on processor {one}, or there is none; it may on {allowed}"))
}

/// The core of a rank: ranks take cores from the last one down.
fn from_the_last(mut cores: Vec<Vec<usize>>, local: usize) -> Vec<usize> {
    let back = local % cores.len().max(1);
    let core = cores.len().checked_sub(1 + back);
    core.map(|core| cores.swap_remove(core)).unwrap_or_default()
}

/// The processors of each core, without those on which this process may not run.
fn own_cores(allowed: &Processors) -> std::io::Result<Vec<Vec<usize>>> {
    let (hardware, doubt) = Hardware::own()?;
    if let Some(doubt) = doubt {
        crate::log::warn!("UNISONO_THREAD_CORES=auto takes each processor for its own core: {doubt}");
    }
    let cores = hardware.cores.into_iter().map(|core| core.and(allowed).iter().collect::<Vec<_>>());
    Ok(cores.filter(|core| !core.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use rustix::process::setpriority_process;

    use super::*;

    #[test]
    fn each_rank_of_a_machine_has_its_own() {
        let one_of =
            |each: &[usize], local, allowed| one_of(each, local, &Processors::parse(allowed).unwrap());
        assert_eq!(one_of(&[4, 2, 4], Some(1), "0,2,4"), Ok(2));
        assert_eq!(one_of(&[4], None, "0,2,4"), Ok(4));
        let error_of = |result: std::result::Result<usize, String>| result.unwrap_err();
        assert!(error_of(one_of(&[4, 2], None, "2,4")).contains("UNISONO_LOCAL_RANK"));
        assert!(
            error_of(one_of(&[4, 2], Some(2), "2,4"))
                .ends_with("for 2 ranks of a host, and this is number 2, counted from 0")
        );
        let words = "this process may not run on processor 3, or there is none; it may on 0-2,5";
        assert_eq!(error_of(one_of(&[3], Some(0), "0-2,5")), words);
    }

    #[test]
    fn cores_are_taken_from_the_last_and_over_again() {
        let cores = vec![vec![0, 4], vec![1, 5], vec![2]];
        let taken: Vec<_> = (0..5).map(|local| from_the_last(cores.clone(), local)).collect();
        assert_eq!(taken, [vec![2], vec![1, 5], vec![0, 4], vec![2], vec![1, 5]]);
        assert_eq!(from_the_last(Vec::new(), 3), Vec::<usize>::new());
    }

    #[test]
    fn a_thread_that_yields_keeps_its_niceness() {
        let deferred = |nice| {
            std::thread::spawn(move || {
                setpriority_process(None, nice).unwrap();
                defer();
                (thread_schedule_policy().unwrap(), getpriority_process(None).unwrap())
            })
        };
        let nice = getpriority_process(None).unwrap();
        for nice in nice..=19 {
            assert_eq!(deferred(nice).join().unwrap(), (ThreadSchedulePolicy::Normal(Batch), nice));
        }
        assert_eq!(getpriority_process(None), Ok(nice), "of this thread");
    }

    #[test]
    fn a_thread_that_is_moved_may_run_where_it_might_before() {
        std::thread::spawn(|| {
            let allowed = Processors::allowed().unwrap();
            for processor in allowed.iter().chain([CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX]) {
                begin_on(processor);
                assert_eq!(Processors::allowed().unwrap(), allowed);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let asked = |cores| Affinity::of(&Config { thread_cores: Some(cores), ..Config::default() });
        let error = asked(ThreadCores::Each(vec![1023])).unwrap_err().to_string();
        assert!(error.contains("UNISONO_THREAD_CORES") && error.contains("1023"), "{error}");
        let allowed: Vec<_> = Processors::allowed().unwrap().iter().collect();
        assert_eq!(asked(ThreadCores::Each(vec![allowed[0]])).unwrap().0, [allowed[0]]);
        let core = asked(ThreadCores::Auto).unwrap().0;
        assert!(core.contains(allowed.last().unwrap()), "{core:?} of {allowed:?}");
        assert!(Affinity::of(&Config::default()).unwrap().0.is_empty());
    }
}
