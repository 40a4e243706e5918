//! Ranks leave at very different times: all in good order, and none waits longer than the others stay.

use std::{thread, time::Duration};

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, now, say},
    world::{self, End, TestJob},
};

pub(crate) const CASES: Table = &[
    ("ranks leave far apart", far_apart),
    ("a rank that does not leave is waited for as long as is set", limited),
];

pub(crate) const ROLES: &[Role] = &[("parts", play), ("stays", play_stays)];

/// The default of the time between the first rank that leaves and the last, in seconds: longer than the ranks' timeout, and than the
/// time that the store waits for a rank that does not say that it is leaving.
const GAP: u64 = 6;
const TIMEOUT: (&str, &str) = ("UNISONO_TIMEOUT", "2s");

/// Leaves this many milliseconds after the others.
fn play(late: &str) -> rank::Outcome {
    let group = join()?;
    let mut data = [1_u32; 10];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    thread::sleep(Duration::from_millis(late.parse()?));
    let begun = now();
    group.leave()?;
    say("leaving took", now() - begun);
    Ok(())
}

fn far_apart(provider: &str) -> Outcome {
    let gap = std::env::var("UNISONO_TEST_GAP").map_or(Ok(GAP), |gap| gap.parse())? * 1000;
    // Rank 0 serves the store.
    let first = |rank: usize, ranks: usize| gap * rank as u64 / (ranks as u64 - 1);
    let last = |rank: usize, ranks: usize| gap - first(rank, ranks);
    let ends: Vec<world::Result<Vec<End>>> = thread::scope(|scope| {
        let worlds = [(2, true), (2, false), (4, true), (4, false)].map(|(ranks, rank_0_first)| {
            scope.spawn(move || -> Result<Vec<End>, String> {
                let leave = || {
                    let mut world = TestJob::served_by_rank_0(provider, ranks)?;
                    for rank in 0..ranks {
                        let late = if rank_0_first { first(rank, ranks) } else { last(rank, ranks) };
                        world.start(rank, &format!("parts {late}"), &[TIMEOUT])?;
                    }
                    world.end_all()
                };
                // Errors of this type cannot move between threads.
                leave().map_err(|error: Box<dyn std::error::Error>| error.to_string())
            })
        });
        let joined = worlds.into_iter().map(|world| world.join().unwrap_or_else(|_| Err("a panic".into())));
        joined.map(|ends| ends.map_err(Into::into)).collect()
    });
    let mut longest = 0;
    for ends in ends {
        let ends = ends?;
        End::all_well(&ends)?;
        let took = ends.iter().map(|end| end.number("leaving took")).collect::<Result<Vec<_>, _>>()?;
        let last = took.iter().min().copied().unwrap_or_default();
        ensure!(last < 2_000_000, "the last rank that leaves waits for {last} µs");
        longest = longest.max(last);
    }
    Ok(Verdict::Measured(format!("the last to leave takes at most {:.1} ms", longest as f64 / 1e3)))
}

/// Rank 0 leaves. The others live, and make their next call after it has failed.
fn play_stays(_: &str) -> rank::Outcome {
    let group = join()?;
    group.barrier()?;
    let begun = now();
    let message = if group.rank() == 0 {
        group.leave().err()
    } else {
        while group.failure().is_none() && now() - begun < 20_000_000 {
            thread::sleep(Duration::from_millis(10));
        }
        group.barrier().err()
    };
    say("waited", now() - begun);
    say("told", message.ok_or("no failure")?.to_string());
    Ok(())
}

fn limited(provider: &str) -> Outcome {
    let mut world = TestJob::served_by_rank_0(provider, 3)?;
    world.start_all("stays", &[("UNISONO_LEAVE_TIMEOUT", "1s")])?;
    let ends = world.end_all()?;
    let mut longest = 0;
    for end in &ends {
        end.well()?;
        let message = end.said("told")?;
        let words = [
            "leave() did not finish within 1",
            "on rank 0",
            "ranks 1, 2 finished barrier() and called nothing since",
        ];
        ensure!(words.iter().all(|word| message.contains(word)), "{message}");
        ensure!(message == ends[0].said("told")?, "{message}");
        longest = longest.max(end.number("waited")?);
    }
    ensure!((1_000_000..6_000_000).contains(&longest), "after {longest} µs");
    Ok(Verdict::Measured(format!("told after {:.1} s", longest as f64 / 1e6)))
}
