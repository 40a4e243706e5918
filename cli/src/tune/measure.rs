//! Measures several algorithms of one collective in alternating rounds, so that drift affects all of them alike.

use std::time::Instant;

use unisono::{Config, Pipeline, ProcessGroup, reduce::ReduceOp};
use unisono_schedule::{
    Job,
    algorithm::Plan,
    cost::Fabric,
    select::{
        self, Choice,
        shown::{PlainMemory, SLOT_BYTES},
    },
};

use super::{Result, decide::same};
use crate::{
    bench::{
        check::RankPart,
        data::{self, Sample, with_dtype},
        operands::CallMemory,
        progress::Progress,
        rows::median,
    },
    cost::Case,
};

/// Seconds to spend on a size; more if the fewest rounds take longer.
const SECONDS: f64 = 0.8;
/// The fewest and the most rounds.
const ROUNDS: (usize, usize) = (7, 100);
/// Up to this many bytes, each way is called several times in a round, because its first call may find other data in the caches.
const SMALL: usize = 64 << 10;
const CALLS: usize = 4;

/// After a number of rounds, how many times the time of the fastest a way may take to be measured further.
const LIMITS: [(usize, f64); 4] = [(1, 3.0), (3, 1.6), (7, 1.3), (20, 1.15)];

/// The numbers of bytes that a rank copies to its slots at once.
const COPIES: [usize; 2] = [128 << 10, SLOT_BYTES];

/// A way to do a collective: the choice, and a handle whose calls use it.
pub(crate) struct Way {
    pub(crate) choice: Choice,
    handle: ProcessGroup,
}

impl Way {
    pub(crate) fn new(group: &ProcessGroup, choice: Choice) -> unisono::Result<Self> {
        let Choice { algorithm, chunk_bytes, lanes, .. } = choice;
        let handle = group.with_algorithms(algorithm.name)?;
        Ok(Self { choice, handle: handle.with_pipeline(Pipeline::Messages { chunk_bytes, lanes })? })
    }

    /// Plain memory moves in this way, or in the default messages.
    fn plain(group: &ProcessGroup, choice: Choice, way: PlainMemory) -> unisono::Result<Self> {
        let choice = Choice { shown: choice.shown.map(|_| way), ..choice };
        let pipeline = match way {
            PlainMemory::Messages => Pipeline::Slots { bytes: 0 },
            PlainMemory::Copied(bytes) => Pipeline::Slots { bytes },
            PlainMemory::Read => Pipeline::Reads,
        };
        Ok(Self { choice, handle: group.with_pipeline(pipeline)? })
    }
}

/// The group's default choice of messages, others that may be faster, and ways through slots if the ranks share these. The same on all
/// ranks.
pub(super) fn candidates(group: &ProcessGroup, case: &Case) -> Result<Vec<Way>> {
    let choice = usual(group, case)?;
    // `Pipeline::Messages` cannot express all choices of the built-in table.
    let usual = Way::plain(&group.with_algorithms(choice.algorithm.name)?, choice, PlainMemory::Messages)?;
    let cuts = |bytes: &usize| *bytes == SLOT_BYTES || *bytes < case.given();
    let copied = COPIES.into_iter().filter(cuts).map(PlainMemory::Copied);
    // Where the ranks may not read each other's memory, this is the default way.
    let read = (!case.collective.reduces()).then_some(PlainMemory::Read);
    let ways = copied.chain(read).filter(|_| choice.shown.is_some());
    let slots: Vec<Way> = ways.map(|way| Way::plain(group, choice, way)).collect::<unisono::Result<_>>()?;
    let fabric = Fabric { cheap_registration: group.limits().cheap_registration, ..case.fabric };
    let case = Case { chunk: group.usage().chunk_bytes, fabric, ..*case };
    let others = others(group.config(), &case).into_iter().filter(|other| !same(other, &usual.choice));
    let others: Vec<Way> = others.map(|choice| Way::new(group, choice)).collect::<unisono::Result<_>>()?;
    Ok(std::iter::once(usual).chain(others).chain(slots).collect())
}

/// The group's default choice, as a table expresses it. The same on all ranks.
pub(super) fn usual(group: &ProcessGroup, case: &Case) -> unisono::Result<Choice> {
    Ok(explicit(group.config(), group.choice(case.collective, case.count, case.dtype)?))
}

/// The choice in a table with which a group of this configuration makes `choice`.
fn explicit(config: &Config, choice: Choice) -> Choice {
    Choice {
        // The limit to the configured chunk makes it the same again.
        chunk_bytes: choice.chunk_bytes.next_multiple_of(64),
        // One lane in a table means small messages. Two lanes become one if one is configured.
        lanes: if choice.chunk_bytes > config.eager() { choice.lanes.max(2) } else { choice.lanes },
        ..choice
    }
}

/// Every algorithm that can do the case, with the chunks and lanes that may matter; without those that need windows for more ranks
/// than the memory check of the join covers.
fn others(config: &Config, case: &Case) -> Vec<Choice> {
    let pairs = pairs(config, case.chunk, case.bytes());
    let (_, room) = select::neighbours(case.ranks);
    let choices = case.plans().flat_map(|(algorithm, plan)| {
        let choices = pairs.iter().map(move |&(chunk_bytes, lanes)| Choice {
            algorithm,
            chunk_bytes,
            lanes,
            shown: None,
        });
        choices.filter(move |choice| sources(config, case, plan, choice, 0) <= room)
    });
    choices.collect()
}

/// The number of ranks from which `rank` receives messages through windows for chunks. It is largest for rank 0, which is also the
/// root and the hub.
fn sources(config: &Config, case: &Case, plan: &Plan, choice: &Choice, rank: usize) -> usize {
    let schedule = plan.make(&Job { rank, ..case.job(plan, choice) });
    let mut sources = 0;
    // Small messages have other windows.
    if !schedule.is_small(case.dtype.size(), config.eager()) {
        schedule.sources(&mut |_| sources += 1);
    }
    sources
}

/// Pairs of a chunk, in multiples of 64 bytes as a table requires, and a number of lanes.
fn pairs(config: &Config, chunk: usize, bytes: usize) -> Vec<(usize, usize)> {
    let whole = |bytes: usize| bytes / 64 * 64;
    let eager = whole(config.eager().min(chunk));
    let mut pairs = Vec::new();
    // The data is one message, or a few small ones.
    if bytes <= eager.saturating_mul(8) || config.lanes == 1 {
        pairs.push((eager, 1));
    }
    if bytes > eager && config.lanes > 1 {
        // Of several chunks that are at least as large as the data, one suffices.
        let chunks = [0, 1, 2].map(|halvings| whole(chunk >> halvings));
        let cuts = |&(index, chunk): &(usize, usize)| index == 2 || chunk < bytes.saturating_mul(2);
        pairs.extend(chunks.into_iter().enumerate().filter(cuts).map(|(_, chunk)| (chunk, config.lanes)));
    }
    pairs.retain(|&(chunk, _)| chunk > 0);
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// The median time (s) of the slowest rank's call after a barrier, for each of these ways. The same on all ranks.
pub(crate) fn seconds(
    group: &ProcessGroup,
    case: &Case,
    ways: &[Way],
    progress: &Progress,
) -> Result<Vec<f64>> {
    with_dtype!(case.dtype, T => race::<T>(group, case, ways, progress))
}

fn race<T: Sample>(group: &ProcessGroup, case: &Case, ways: &[Way], progress: &Progress) -> Result<Vec<f64>> {
    let job = Job::new(case.collective, group.rank(), group.size(), case.count);
    let part = RankPart { job, op: ReduceOp::Sum };
    let mut operands = CallMemory::new(&part, false, data::zeros::<T>)?;
    let mut run = |way: usize| operands.call(&ways[way].handle, &part);

    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut alive: Vec<usize> = (0..ways.len()).collect();
    for &way in &alive {
        // The first call opens windows.
        run(way)?;
        run(way)?;
    }
    let calls = if case.whole() <= SMALL { CALLS } else { 1 };
    let begun = Instant::now();
    for round in 1..=ROUNDS.1 {
        progress.call(round, ROUNDS.1);
        let mut times = Vec::new();
        for &way in &alive {
            for _ in 0..calls {
                group.barrier()?;
                let begun = Instant::now();
                run(way)?;
                times.push(begun.elapsed().as_secs_f64());
            }
        }
        // All ranks get the same numbers, and so decide the same.
        times.push(begun.elapsed().as_secs_f64());
        group.all_reduce(&mut times, ReduceOp::Max)?;
        let elapsed = times.pop().unwrap_or_default();
        for (&way, times) in alive.iter().zip(times.chunks(calls)) {
            samples[way].extend_from_slice(times);
        }
        if let Some(&(_, limit)) = LIMITS.iter().find(|(after, _)| *after == round) {
            // Ways are compared by their fastest calls, because most of a few calls may have been disturbed.
            let least = |way: usize| samples[way].iter().copied().fold(f64::INFINITY, f64::min);
            let best = alive.iter().map(|&way| least(way)).fold(f64::INFINITY, f64::min);
            alive.retain(|&way| least(way) <= best * limit);
        }
        if elapsed > SECONDS && round >= ROUNDS.0 {
            break;
        }
    }
    Ok(samples.into_iter().map(median).collect())
}

#[cfg(test)]
mod tests {
    use unisono::dtype::Dtype;
    use unisono_schedule::{
        Collective::{self, AllReduce, Barrier},
        windows,
    };

    use super::*;

    #[test]
    fn what_a_table_is_told_of_a_choice_is_the_same_choice() {
        let configs = [
            Config::default(),
            Config { lanes: 1, ..Config::default() },
            Config { chunk: 1000, ..Config::default() },
            Config { chunk: 16, lanes: 1, ..Config::default() },
            Config { chunk: 64 << 10, lanes: 3, ..Config::default() },
        ];
        for config in configs {
            let chunk = config.chunk;
            let of = |choice: Choice| {
                let Choice { algorithm, chunk_bytes, lanes, .. } =
                    choice.within(chunk, config.eager(), config.lanes);
                (algorithm.code, chunk_bytes, lanes)
            };
            for (collective, ranks) in Collective::ALL.into_iter().flat_map(|it| [(it, 2), (it, 8), (it, 99)])
            {
                for bytes in [0, 8, 32 << 10, 150_000, 1 << 20, 1 << 28] {
                    let choice = Case::new(collective, ranks, 0, Dtype::U8)
                        .chooser()
                        .choose(collective, bytes, |_| true)
                        .unwrap();
                    let usual = choice.within(chunk, config.eager(), config.lanes);
                    let usual = explicit(&config, usual);
                    assert!(usual.chunk_bytes.is_multiple_of(64), "{usual:?}");
                    assert_eq!(of(usual), of(choice), "{collective:?} {ranks} {bytes} {config:?}");
                }
            }
        }
    }

    #[test]
    fn beyond_8_ranks_no_rank_receives_chunks_from_too_many() {
        let config = Config::default();
        for (ranks, collective) in
            [9, 16, 33].into_iter().flat_map(|ranks| Collective::ALL.map(|it| (ranks, it)))
        {
            let (_, room) = select::neighbours(ranks);
            for bytes in [8, 8 << 10, 100 << 10, 8 << 20] {
                let case = Case::new(collective, ranks, bytes, Dtype::F32);
                for (case, choice) in [false, true].into_iter().flat_map(|cheap_registration| {
                    let case = case.on(&Fabric { cheap_registration, ..case.fabric });
                    others(&config, &case).into_iter().map(move |choice| (case, choice))
                }) {
                    let plan = choice.algorithm.plan(collective).unwrap();
                    let most = (0..ranks).map(|rank| sources(&config, &case, plan, &choice, rank)).max();
                    assert!(most <= Some(room), "{collective:?} {bytes} {choice:?}: {most:?} of {ranks}");
                }
            }
        }
        let names = |ranks, collective, bytes| {
            let all = others(&config, &Case::new(collective, ranks, bytes, Dtype::F32));
            let mut names: Vec<_> = all.iter().map(|choice| choice.algorithm.name).collect();
            names.dedup();
            names
        };
        let (few, many) = (names(8, AllReduce, 1 << 20), names(9, AllReduce, 1 << 20));
        for name in ["direct", "two_shot", "star"] {
            assert!(few.contains(&name) && !many.contains(&name), "{few:?} {many:?}");
        }
        assert!(many.contains(&"ring") && many.contains(&"rabenseifner"), "{many:?}");
        assert!(names(9, Barrier, 0).contains(&"direct"));
    }

    #[test]
    fn pairs_are_within_the_configuration_and_none_is_for_nothing() {
        let config = Config::default();
        let chunk = windows::CHUNK_BYTES;
        assert_eq!(pairs(&config, chunk, 8), [(32 << 10, 1)]);
        assert_eq!(pairs(&config, chunk, 64 << 10), [(32 << 10, 1), (64 << 10, 2)]);
        assert_eq!(pairs(&config, chunk, 32 << 20), [(64 << 10, 2), (128 << 10, 2), (256 << 10, 2)]);
        assert_eq!(pairs(&Config { lanes: 1, ..config }, chunk, 32 << 20), [(32 << 10, 1)]);
        for chunk in [16, 64, 100, 1 << 20] {
            for configured in [128, 1 << 20] {
                for bytes in [0, 8, 1000, usize::MAX] {
                    let config = Config { chunk: configured, ..Config::default() };
                    let pairs = pairs(&config, chunk, bytes);
                    assert!(pairs.is_empty() == (chunk < 64), "{chunk} {configured} {bytes}: {pairs:?}");
                    assert!(
                        pairs.iter().all(|&(bytes, lanes)| bytes % 64 == 0 && bytes <= chunk && lanes <= 2)
                    );
                }
            }
        }
    }
}
