//! Many mixed operations at 8 ranks, every result checked: all collectives, messages and objects, blocking and asynchronous, in plain
//! and registered memory, in groups that come and go. At each tenth, every rank prints its use of the system's resources, which must not grow.
//!
//! `UNISONO_TEST_SOAK` is the number of operations (4,000, in brief 800), `UNISONO_TEST_SEED` the seed. `make soak` runs a million.

mod call;

use std::{
    env, fs,
    time::{Duration, Instant},
};

use unisono::ProcessGroup;

use self::call::{Call, Pending};
use crate::{
    Outcome, Table, Verdict, ensure,
    random::Random,
    rank::{self, Role, join, say},
    suite::brief,
    world::{End, TestJob},
};

pub(crate) const CASES: Table = &[("mixed operations", soak)];

pub(crate) const ROLES: &[Role] = &[("soak", play)];

const RANKS: usize = 8;
/// The number of operations whose end this rank has not waited for.
const PENDING: usize = 12;
/// The number of groups besides the world.
const GROUPS: usize = 6;
const TENTHS: usize = 10;
/// Resources are compared from this tenth on: until then everything has been used once.
const WARM: usize = 2;

/// The most that a rank may grow from the second to the last tenth: memory in kB, then descriptors, and threads. Allocators keep some of
/// the freed memory, and windows of groups that were just left may still be open.
const GROWTH: [(&str, i64); 4] =
    [("resident kB", 24 << 10), ("mapped kB", 48 << 10), ("files", 24), ("threads", 0)];

/// A group, with its members' ranks in the world; this rank may be none of them.
struct Group {
    members: Vec<usize>,
    handle: Option<ProcessGroup>,
}

/// The resources of this process, in the order of [`GROWTH`].
fn taken() -> rank::Result<[i64; 4]> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> rank::Result<i64> {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let count = |of: &str| -> rank::Result<i64> { Ok(i64::try_from(fs::read_dir(of)?.count())?) };
    Ok([field("VmRSS:")?, field("VmSize:")?, count("/proc/self/fd")?, count("/proc/self/task")?])
}

fn play(arguments: &str) -> rank::Outcome {
    let numbers = arguments.split(' ').map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?;
    let [seed, many] = numbers[..] else { return Err("a seed and a number are wanted".into()) };
    let (world, many) = (join()?, usize::try_from(many)?);
    let mut chance = Random(seed);
    let mut groups = vec![Group { members: (0..RANKS).collect(), handle: None }];
    let mut pending: Vec<Pending> = Vec::new();
    let begun = Instant::now();
    for number in 0..many {
        step(&mut chance, number as u64, &world, &mut groups, &mut pending)
            .map_err(|error| format!("operation {number} of seed {seed}: {error}"))?;
        if (number + 1) % many.div_ceil(TENTHS) == 0 || number + 1 == many {
            world.barrier()?;
            let [resident, mapped, files, threads] = taken()?;
            let tenth = (number + 1).div_ceil(many.div_ceil(TENTHS));
            let seconds = begun.elapsed().as_secs();
            say(
                &format!("tenth {tenth}"),
                format!("{resident} {mapped} {files} {threads} {} {seconds}", world.usage().memory),
            );
        }
    }
    for pending in pending {
        pending()?;
    }
    drop(groups);
    world.leave()?;
    Ok(())
}

/// One operation, and sometimes a group that comes or goes. All ranks draw the same numbers.
fn step(
    chance: &mut Random,
    number: u64,
    world: &ProcessGroup,
    groups: &mut Vec<Group>,
    pending: &mut Vec<Pending>,
) -> rank::Outcome {
    if chance.below(60) == 0 {
        come_or_go(chance, world, groups)?;
    }
    let which = if chance.below(2) == 0 { 0 } else { chance.below(groups.len()) };
    let Group { members, handle } = &groups[which];
    let call = Call::any(chance, number, members.len());
    let wait = (chance.below(3) == 0).then(|| chance.below(PENDING));
    let group = if which == 0 { Some(world) } else { handle.as_ref() };
    if let Some(group) = group {
        let later = call.run(group).map_err(|error| format!("{call:?} of {}: {error}", group.name()))?;
        pending.extend(later);
    }
    if let Some(at) = wait.filter(|&at| at < pending.len()) {
        pending.swap_remove(at)()?;
    }
    while pending.len() > PENDING {
        pending.remove(0)()?;
    }
    Ok(())
}

/// A new group of some ranks, by one of the ways to make one; or one is dropped, whether or not operations of it are under way.
fn come_or_go(chance: &mut Random, world: &ProcessGroup, groups: &mut Vec<Group>) -> rank::Outcome {
    if groups.len() > GROUPS || groups.len() > 1 && chance.below(3) == 0 {
        let gone = 1 + chance.below(groups.len() - 1);
        groups.swap_remove(gone);
        return Ok(());
    }
    let chosen = chance.bits();
    let mut members: Vec<usize> = (0..RANKS).filter(|rank| chosen >> rank & 1 == 1).collect();
    if members.len() < 2 {
        members = vec![0, RANKS - 1];
    }
    let (way, tag) = (chance.below(3), chance.bits() >> 33);
    let me = members.contains(&world.rank());
    let handle = match way {
        0 => world.new_group(&members)?,
        1 => world.split(me.then_some(1), 0)?,
        _ if me => Some(world.create_group(&members, tag)?),
        _ => None,
    };
    ensure!(handle.is_some() == me, "rank {} is in no group of {members:?}, or should not be", world.rank());
    groups.push(Group { members, handle });
    Ok(())
}

fn soak(provider: &str) -> Outcome {
    let number = |name: &str, default: u64| match env::var(name) {
        Ok(text) => text.parse().map_err(|error| format!("{name}={text}: {error}")),
        Err(_) => Ok(default),
    };
    let (seed, many) =
        (number("UNISONO_TEST_SEED", 32)?, number("UNISONO_TEST_SOAK", if brief() { 800 } else { 4000 })?);
    ensure!(many >= 100, "UNISONO_TEST_SOAK={many}: at least 100 operations are wanted");
    let mut job = TestJob::new(provider, RANKS, 1)?;
    // A million operations take hours on two cores. 20 ms is far more than an operation needs.
    job.set_patience(Duration::from_millis(many * 20));
    job.start_all(&format!("soak {seed} {many}"), &[])?;
    let ends = job.end_all()?;
    End::all_well(&ends)?;
    let tables = ends.iter().map(table).collect::<Result<Vec<_>, _>>()?;
    // The largest values of all ranks.
    let most: Vec<Vec<i64>> = (0..TENTHS)
        .map(|tenth| {
            (0..6).map(|at| tables.iter().map(|table| table[tenth][at]).max().unwrap_or(0)).collect()
        })
        .collect();
    if many > 10_000 {
        println!("         tenth  resident kB  mapped kB  files  threads  registered B  seconds");
        for (tenth, row) in most.iter().enumerate() {
            println!(
                "         {:>5}  {:>11}  {:>9}  {:>5}  {:>7}  {:>12}  {:>7}",
                tenth + 1,
                row[0],
                row[1],
                row[2],
                row[3],
                row[4],
                row[5]
            );
        }
    }
    for (rank, table) in tables.iter().enumerate() {
        for (at, (what, may)) in GROWTH.iter().enumerate() {
            let (early, late) = (table[WARM - 1][at], table[TENTHS - 1][at]);
            ensure!(
                late <= early + may,
                "seed {seed}: rank {rank} has {late} {what} after {many} operations, and had {early} after a fifth of them"
            );
        }
    }
    let last = &most[TENTHS - 1];
    Ok(Verdict::Measured(format!(
        "{many} operations, seed {seed}, at most {} MiB resident and {} files",
        last[0] >> 10,
        last[2]
    )))
}

/// The values that a rank has printed at each tenth.
fn table(end: &End) -> Result<Vec<Vec<i64>>, Box<dyn std::error::Error>> {
    let row = |tenth: usize| -> Result<Vec<i64>, Box<dyn std::error::Error>> {
        let said = end.said(&format!("tenth {tenth}"))?;
        Ok(said.split(' ').map(str::parse).collect::<Result<Vec<i64>, _>>()?)
    };
    (1..=TENTHS).map(row).collect()
}
