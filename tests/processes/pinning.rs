//! The processors of the progress thread, as the system reports them.

use rustix::thread::{CpuSet, sched_getaffinity};
use unisono::{Error, ProcessGroup, ReduceOp};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, say},
    world::{End, TestJob},
};

pub(crate) const CASES: Table =
    &[("a thread on a processor for each rank", each), ("a thread on a processor that there is not", none)];

pub(crate) const ROLES: &[Role] = &[("pinned", play)];

fn play(_: &str) -> rank::Outcome {
    let group = match join() {
        Ok(group) => group,
        Err(error) => {
            ensure!(matches!(error.downcast_ref(), Some(Error::Config { .. })), "not a setting: {error:?}");
            say("words", error);
            return Ok(());
        }
    };
    bound(&group)
}

/// Prints the processors on which the progress thread may run; the process's other threads may run on all.
pub(crate) fn bound(group: &ProcessGroup) -> rank::Outcome {
    let sum = group.begin().all_reduce(vec![1_i32; 1000], ReduceOp::Sum)?.wait()?;
    ensure!(sum == vec![i32::try_from(group.size())?; 1000], "a wrong sum");
    let mut found = false;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let status = std::fs::read_to_string(task.join("status"))?;
        let of =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim();
        if of("Name:") == "unisono" {
            ensure!(!found, "there are two such threads");
            found = true;
            say("thread", of("Cpus_allowed_list:"));
            // The 41st of proc_pid_stat(5), of which the second is a name in parentheses.
            let stat = std::fs::read_to_string(task.join("stat"))?;
            let policy = stat.rsplit(')').next().and_then(|after| after.split_whitespace().nth(38));
            ensure!(policy == Some("3"), "the thread does not defer to others: {stat}");
        } else {
            let all = sched_getaffinity(None)?;
            ensure!(count(of("Cpus_allowed_list:"))? == all.count() as usize, "the process is bound too");
        }
    }
    ensure!(found, "there is no such thread");
    Ok(())
}

/// The number of processors in a list: `0-3,7`.
pub(crate) fn count(list: &str) -> Result<usize, Box<dyn std::error::Error>> {
    let mut count = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        count += 1 + last.parse::<usize>()? - first.parse::<usize>()?;
    }
    Ok(count)
}

/// The processors on which this process may run.
pub(crate) fn processors() -> Result<Vec<usize>, Box<dyn std::error::Error>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
}

fn each(provider: &str) -> Outcome {
    let processors = processors()?;
    let (&[first, ..], &[.., last]) = (&processors[..], &processors[..]) else {
        return Err("this process runs nowhere".into());
    };
    if first == last {
        return Ok(Verdict::Skipped(
            "there is one processor, to which all threads are bound as they are".into(),
        ));
    }
    let started = |cores: &str, numbered: bool| -> Result<Vec<End>, Box<dyn std::error::Error>> {
        let mut world = TestJob::new(provider, 2, 1)?;
        for rank in 0..2 {
            let local = rank.to_string();
            let mut more = vec![("UNISONO_THREAD_CORES", cores)];
            if numbered {
                more.extend([("UNISONO_LOCAL_RANK", &*local), ("UNISONO_LOCAL_WORLD_SIZE", "2")]);
            }
            world.start(rank, "pinned", &more)?;
        }
        let ends = world.end_all()?;
        End::all_well(&ends)?;
        Ok(ends)
    };
    let ends = started(&format!("{last},{first}"), true)?;
    for end in &ends {
        let wanted = [last, first][end.rank].to_string();
        ensure!(end.said("thread")? == wanted, "rank {} is on {}", end.rank, end.said("thread")?);
    }
    let ends = started(&last.to_string(), false)?;
    for end in &ends {
        ensure!(end.said("thread")? == last.to_string(), "rank {} is on {}", end.rank, end.said("thread")?);
    }
    for end in &started("auto", true)? {
        let given = count(end.said("thread")?)?;
        ensure!(given >= 1 && given <= processors.len(), "rank {} is on {given}", end.rank);
    }
    Ok(Verdict::Passed)
}

fn none(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 1, 1)?;
    world.start(0, "pinned", &[("UNISONO_THREAD_CORES", "1023")])?;
    for end in world.end_all()? {
        end.well()?;
        let said = end.said("words")?;
        let words = "this process may not run on processor 1023, or there is none; it may on";
        ensure!(said.contains(words), "{said}");
    }
    Ok(Verdict::Passed)
}
