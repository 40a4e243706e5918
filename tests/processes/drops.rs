//! Small calls that end a program: ranks disagree in the last call before they drop their group, and no call can return it. The failure
//! that the drop finds is a line on standard error, and the store gets it, because no call has returned it.

use unisono::{Error, ProcessGroup, ReduceOp::Sum};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, config, say},
    world::{Result, TestJob},
};

pub(crate) const CASES: Table = &[
    ("what drops find, 2 ranks", |provider| all(provider, 2)),
    ("what drops find, 3 ranks", |provider| all(provider, 3)),
];

pub(crate) const ROLES: &[Role] = &[("drops", play)];

type Call = fn(&ProcessGroup) -> unisono::Result<()>;

/// The beginning of the line, before the failure.
const LINE: &str = "did not leave its world in good order: ";

/// The last call of rank 0, the last call of the others, and the text of the failure.
const ENDS: &[(&str, Call, Call, &[&str])] = &[
    (
        "two roots of a broadcast",
        |group| group.broadcast(&mut [1_f32; 5], 0),
        |group| group.broadcast(&mut [2_f32; 5], group.rank()),
        &["rank 0 calls broadcast(f32, root 0)", "rank 1 calls broadcast(f32, root 1)"],
    ),
    (
        "no root of a reduce",
        |group| group.reduce(&mut [1_f32; 5], Sum, 1),
        |group| group.reduce(&mut [2_f32; 5], Sum, 0),
        &["rank 0 calls reduce(f32, sum, root 1)", "rank 1 calls reduce(f32, sum, root 0)"],
    ),
    (
        "no root of a gather",
        |group| group.gather((&[1_i64; 5], &mut []), 1),
        |group| group.gather((&[2_i64; 5], &mut []), 0),
        &["rank 0 calls gather(i64, root 1)", "rank 1 calls gather(i64, root 0)"],
    ),
    (
        "two roots of a scatter",
        |group| group.scatter((&vec![1_u8; group.size()], &mut [0]), 0),
        |group| group.scatter((&vec![2_u8; group.size()], &mut [0]), group.rank()),
        &["rank 0 calls scatter(u8, root 0)", "rank 1 calls scatter(u8, root 1)"],
    ),
    (
        "a root of a broadcast with ranks that reduce",
        |group| group.broadcast(&mut [1_f32; 5], 0),
        |group| group.reduce(&mut [2_f32; 5], Sum, 0),
        &["rank 0 calls broadcast(f32, root 0)", "rank 1 calls reduce(f32, sum, root 0)"],
    ),
    (
        "a root that sends less",
        |group| group.broadcast(&mut [1_f32; 4], 0),
        |group| group.broadcast(&mut [2_f32; 5], 0),
        &["broadcast(f32, root 0)", "rank 0 has 4 elements", "rank 1 has 5 elements"],
    ),
    (
        "another type for the root",
        |group| group.reduce(&mut [1_f32; 4], Sum, 0),
        |group| group.reduce(&mut [2_i32; 4], Sum, 0),
        &["rank 0 calls reduce(f32, sum, root 0)", "rank 1 calls reduce(i32, sum, root 0)"],
    ),
    (
        "another reduction, after calls that agree",
        |group| {
            group.barrier()?;
            group.all_reduce(&mut [1_f32], Sum)?;
            group.reduce(&mut [1_f32], unisono::ReduceOp::Max, 0)
        },
        |group| {
            group.barrier()?;
            group.all_reduce(&mut [1_f32], Sum)?;
            group.reduce(&mut [1_f32], Sum, 0)
        },
        &["op 2: rank 0 calls reduce(f32, max, root 0)", "rank 1 calls reduce(f32, sum, root 0)"],
    ),
    (
        "two roots in a group of this case, dropped first",
        |group| group.split(Some(1), 0)?.map_or(Ok(()), |part| part.broadcast(&mut [1_f32; 5], 0)),
        |group| group.split(Some(1), 0)?.map_or(Ok(()), |part| part.broadcast(&mut [1_f32; 5], part.rank())),
        &["rank 0 calls broadcast(f32, root 0)", "rank 1 calls broadcast(f32, root 1)"],
    ),
    (
        "one call less",
        |_| Ok(()),
        |group| group.gather((&[2_i64; 5], &mut []), 0),
        &["rank 0", "rank 1 calls gather(i64, root 0)"],
    ),
    (
        "a message that nobody takes",
        |group| group.send(&[1_f32; 5], (1, 3)),
        |_| Ok(()),
        &["from rank 0 to rank 1, tag 3", "5 f32 elements"],
    ),
    (
        "a large message that nobody takes, whose work is dropped",
        |group| group.begin().send(vec![1_f32; 1_000_000], (1, 3)).map(drop),
        |_| Ok(()),
        &["from rank 0 to rank 1, tag 3", "1000000 f32 elements"],
    ),
    (
        "works that are dropped",
        |group| group.begin().all_reduce(vec![1_f32; 5], Sum).map(drop),
        |group| group.begin().all_reduce(vec![1_f32; 6], Sum).map(drop),
        &["all_reduce(f32, sum)", "rank 0 has 5 elements", "rank 1 has 6 elements"],
    ),
    (
        "a result of leaving that nobody reads",
        |group| group.broadcast(&mut [1_f32; 5], 0),
        |group| group.broadcast(&mut [1_f32; 5], group.rank()),
        LEAVES,
    ),
    (
        "calls that agree",
        |group| group.broadcast(&mut [1_f32; 5], 0),
        |group| group.broadcast(&mut [1_f32; 5], 0),
        &[],
    ),
];

/// The words of the case whose ranks call `leave`.
const LEAVES: &[&str] = &["rank 0 calls broadcast(f32, root 0)", "rank 1 calls broadcast(f32, root 1)"];

fn all(provider: &str, ranks: usize) -> Outcome {
    for (number, (name, .., words)) in ENDS.iter().enumerate() {
        one(provider, ranks, number).map_err(|error| format!("{name}: {error}; wanted {words:?}"))?;
    }
    Ok(Verdict::Passed)
}

fn one(provider: &str, ranks: usize, number: usize) -> Result<()> {
    let (.., words) = ENDS[number];
    let mut world = TestJob::new(provider, ranks, 1)?;
    // Another level of the log would print more lines.
    world.start_all(&format!("drops {number}"), &[("RUST_LOG", "")])?;
    let ends = world.end(|_| true)?;
    let known = world.late();
    let mut late = 0;
    for end in &ends {
        end.well()?;
        let (call, left, of_process) = (end.said("call")?, end.said("left")?, end.said("late")?);
        let lines: Vec<&str> = end.errors.lines().filter(|line| line.contains(LINE)).collect();
        let message = match (call, left, &lines[..]) {
            ("Ok", "", []) if words.is_empty() => continue,
            ("Ok", "", [line]) => {
                ensure!(line.contains(&format!("rank {} {LINE}", end.rank)), "{line}");
                line
            }
            ("Ok", left, []) => left,
            (call, _, []) => call,
            _ => return Err(format!("rank {}: {call:?}, {left:?}, {}", end.rank, end.errors).into()),
        };
        // Among more than two ranks, it is chance which two were compared.
        let verb = |word: &str| word.find("calls ").or_else(|| word.find("has ")).unwrap_or_default();
        let part = |word: &'static str| {
            word[verb(word)..].trim_end_matches(|it: char| it == ')' || it.is_ascii_digit())
        };
        let said = |word: &&'static str| message.contains(if ranks > 2 { part(word) } else { word });
        // A rank that does not wait may be in its next call when the failure is found.
        let leaves = message.contains(" is at op ") && message.contains(" leave()");
        ensure!(leaves || words.iter().all(said), "rank {}: {message:?}", end.rank);
        ensure!((call == "Ok") == (of_process != "none"), "rank {}: {call:?}, {of_process:?}", end.rank);
        late += usize::from(call == "Ok");
    }
    ensure!(words.is_empty() || ends.len() == ranks, "{} of {ranks}", ends.len());
    ensure!(known.is_some() == (late > 0), "{late} ranks did not know, and the store has {known:?}");
    Ok(())
}

fn play(number: &str) -> rank::Outcome {
    let (_, first, others, words) = ENDS[number.parse::<usize>()?];
    let mut left = String::new();
    match rank::join_with(config(0)?) {
        Ok(group) => {
            let called = if group.rank() == 0 { first(&group) } else { others(&group) };
            say("call", called.map_or_else(|error| error.to_string(), |()| "Ok".to_owned()));
            match std::ptr::eq(words, LEAVES) {
                true => left = group.leave().err().map_or_else(String::new, |error: Error| error.to_string()),
                false => drop(group),
            }
        }
        // The others may have called, and one have left, before the last rank returns from joining.
        Err(error) => say("call", error),
    }
    say("left", left);
    say("late", unisono::late_failure().map_or_else(|| "none".to_owned(), |failure| failure.to_string()));
    Ok(())
}
