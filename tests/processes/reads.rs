//! Plain memory that ranks of one host read in each other's processes, where all of them and the system allow it.

use unisono::ProcessGroup;

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, say},
    world::{End, TestJob},
};

pub(crate) const CASES: Table = &[("ranks read each other's memory where all allow it", all_or_none)];

pub(crate) const ROLES: &[Role] = &[("reads", play)];

/// Elements of 4 bytes: on both sides of the sizes from which and up to which memory is read, some of them in several parts.
const COUNTS: [usize; 6] = [20_000, 32_768, 100_001, 5_000, 250_000, 1_050_000];

fn play(_: &str) -> rank::Outcome {
    let group = join()?;
    for (round, count) in COUNTS.into_iter().chain(COUNTS).take(COUNTS.len() + 3).enumerate() {
        moved(&group, u32::try_from(round)?, count)?;
    }
    say("reads", group.usage().peer_reads);
    Ok(())
}

/// Every call by which memory may be read, with data that differ from rank to rank and round to round.
fn moved(group: &ProcessGroup, round: u32, count: usize) -> rank::Outcome {
    let (me, ranks, root) = (group.rank(), group.size(), round as usize % group.size());
    let of = |rank: usize, len: usize| -> Vec<u32> {
        let seed = u32::try_from(rank + 1).unwrap_or(0).wrapping_mul(0x9e37_79b9) ^ round;
        (0_u32..).take(len).map(|at| at.wrapping_mul(2_654_435_761) ^ seed).collect()
    };
    let mut data = if me == root { of(root, count) } else { vec![0; count] };
    group.broadcast(&mut data, root)?;
    ensure!(data == of(root, count), "broadcast of {count} in round {round}");
    let block = count / ranks;
    let mut all = vec![0; block * ranks];
    group.all_gather((&of(me, block), &mut all))?;
    let wanted: Vec<u32> = (0..ranks).flat_map(|rank| of(rank, block)).collect();
    ensure!(all == wanted, "all_gather of {count} in round {round}");
    group.all_to_all((&of(me, block * ranks), &mut all))?;
    let part = |rank| of(rank, block * ranks)[me * block..(me + 1) * block].to_vec();
    ensure!(all == (0..ranks).flat_map(part).collect::<Vec<_>>(), "all_to_all of {count} in round {round}");
    let mut own = vec![0; block];
    let given = if me == root { of(root, block * ranks) } else { Vec::new() };
    group.scatter((&given, &mut own), root)?;
    ensure!(own == part(root), "scatter of {count} in round {round}");
    // Each sends to the next.
    let (to, from) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let sent = group.begin().send(of(me, count), to)?;
    let mut got = vec![0; count];
    group.recv(&mut got, from)?;
    sent.wait()?;
    ensure!(got == of(from, count), "a message of {count} in round {round}");
    Ok(())
}

fn all_or_none(provider: &str) -> Outcome {
    // Over mux, the ranks count as several hosts.
    let shares = provider == "shm";
    for (ranks, forbids) in [(2, None), (3, None), (2, Some(1)), (3, Some(0))] {
        let mut world = TestJob::new(provider, ranks, 1)?;
        for rank in 0..ranks {
            let setting = if forbids == Some(rank) { "no" } else { "yes" };
            world.start(rank, "reads", &[("UNISONO_PEER_READS", setting)])?;
        }
        let ends = world.end_all()?;
        End::all_well(&ends)?;
        for end in &ends {
            let reads = end.said("reads")? == "true";
            if shares && forbids.is_none() && !reads {
                return Ok(Verdict::Skipped(
                    "the system does not let processes read each other's memory".into(),
                ));
            }
            ensure!(reads == (shares && forbids.is_none()), "rank {} of {ranks}: {reads}", end.rank);
        }
    }
    Ok(Verdict::Passed)
}
