//! Ranks leave at very different times: all in good order, and none waits longer than the others stay.

use std::{thread, time::Duration};

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, now, say},
    world::{self, End, TestJob},
};

pub(crate) const CASES: Table = &[("ranks leave far apart", far_apart)];

pub(crate) const ROLES: &[Role] = &[("parts", play)];

/// The default of the time between the first rank that leaves and the last, in seconds: longer than the ranks' timeout, and than the
/// time that the store waits for a rank that does not say that it is leaving.
const GAP: u64 = 6;
const TIMEOUT: (&str, &str) = ("UNISONO_TIMEOUT", "2s");

/// Leaves so many milliseconds after the others.
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
                // Errors of this kind do not go from thread to thread.
                leave().map_err(|error: Box<dyn std::error::Error>| error.to_string())
            })
        });
        let joined = worlds.into_iter().map(|world| world.join().unwrap_or_else(|_| Err("a panic".into())));
        joined.map(|ends| ends.map_err(Into::into)).collect()
    });
    let mut longest = 0;
    for ends in ends {
        let ends = ends?;
        ends.iter().try_for_each(End::well)?;
        let took = ends.iter().map(|end| end.number("leaving took")).collect::<Result<Vec<_>, _>>()?;
        let last = took.iter().min().copied().unwrap_or_default();
        ensure!(last < 2_000_000, "the last rank that leaves waits for {last} µs");
        longest = longest.max(last);
    }
    Ok(Verdict::Measured(format!("the last to leave takes at most {:.1} ms", longest as f64 / 1e3)))
}
