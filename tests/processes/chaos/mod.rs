//! A random campaign: one rank's call differs from the others' in some field, or ranks die, end, abort or stop at some
//! moment. Every survivor must end in time, with the right result or with the same error as the others.
//!
//! Case number N of seed S is case 0 of seed S + N: `UNISONO_TEST_SEED=SEED UNISONO_TEST_CASES=1` runs it again.
//! `make chaos` runs more, with a seed from the clock.

mod call;
mod plan;
mod settings;

use std::{
    collections::BTreeMap,
    env,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use unisono::{Error, Failure, ProcessGroup};

use self::plan::{Fate, Field, Kind, Moment, Plan};
use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, config, say, signal_myself},
    suite::brief,
    world::{Result, TestJob},
};

pub(crate) const CASES: Table = &[("random campaign", campaign)];

pub(crate) const ROLES: &[Role] = &[("chaos", play)];

/// The timeout of ranks in cases that end by a deadline.
const TIMEOUT: &str = "4s";
/// The timeout of joining in cases in which a rank may never come.
const JOIN_TIMEOUT: &str = "10s";
/// The time after which a rank counts as hanging: far more than both timeouts, also on a busy machine.
const HANGS: Duration = Duration::from_secs(150);
/// The number of worlds that run at once; most wait for a deadline.
const AT_ONCE: usize = 6;

/// The result of a case, which was as expected.
struct Came {
    outcome: String,
    /// The error that the survivors, or one of them, returned.
    text: String,
    /// The time that the slowest survivor spent in the failed call.
    took: Duration,
}

/// The results of the cases of a kind.
#[derive(Default)]
struct Row {
    cases: usize,
    outcomes: BTreeMap<String, usize>,
    slowest: Duration,
}

fn campaign(provider: &str) -> Outcome {
    let number = |name: &str, default: u64| match env::var(name) {
        Ok(text) => text.parse().map_err(|error| format!("{name}={text}: {error}")),
        Err(_) => Ok(default),
    };
    // Two hundred cases with each libfabric, different ones over each provider; in brief, the first of them.
    let (first, cases) = if provider == "tcp" { (33, 140) } else { (173, 60) };
    let cases = if brief() { 20 } else { cases };
    let cases = number("UNISONO_TEST_CASES", cases)?;
    let first = number("UNISONO_TEST_SEED", first)?;
    let (next, rows, findings) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= cases {
                        break;
                    }
                    let plan = Plan::new(first + number);
                    let judged = judge(provider, &plan);
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    let row: &mut Row = rows.entry(plan.kind.name()).or_default();
                    row.cases += 1;
                    match judged {
                        Ok(Came { outcome, text, took }) => {
                            // For a person who runs one case again, print it.
                            if cases == 1 {
                                println!("         {}: {outcome}: {text}", plan.words());
                            }
                            *row.outcomes.entry(outcome).or_default() += 1;
                            row.slowest = row.slowest.max(took);
                        }
                        Err(error) => {
                            *row.outcomes.entry("FAILED".to_owned()).or_default() += 1;
                            let finding = format!("seed {}: {}: {error}", first + number, plan.words());
                            findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
                        }
                    }
                }
            });
        }
    });
    for (kind, Row { cases, outcomes, slowest }) in rows.into_inner().unwrap_or_else(PoisonError::into_inner)
    {
        let outcomes: Vec<_> = outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        println!("         {kind:<26} {cases:>4} cases: {:<60} at most {slowest:.1?}", outcomes.join(", "));
    }
    let findings = findings.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        findings.is_empty(),
        "{} of {cases} cases, seed {first}:\n{}",
        findings.len(),
        findings.join("\n")
    );
    Ok(Verdict::Measured(format!("{cases} cases, seed {first}")))
}

/// The name in the table of a survivor's result.
struct Said<'e> {
    rank: usize,
    outcome: &'e str,
    text: &'e str,
}

/// Runs a plan.
fn judge(provider: &str, plan: &Plan) -> Result<Came> {
    let mut world = TestJob::new(provider, plan.ranks, 1)?;
    let join = if matches!(plan.kind, Kind::Dies(_, Moment::Joining(_))) { JOIN_TIMEOUT } else { "60s" };
    let waits = matches!(plan.kind, Kind::Dies(Fate::Stops, _));
    let more = [("UNISONO_TIMEOUT", if waits { TIMEOUT } else { "60s" }), ("UNISONO_JOIN_TIMEOUT", join)];
    for rank in 0..plan.ranks {
        let wrong = if rank == plan.victim { plan.wrong() } else { None };
        world.start(rank, &format!("chaos {}", plan.seed), &[&more[..], wrong.as_slice()].concat())?;
    }
    let ends = world.end(|rank| !(waits && rank == plan.victim))?;
    if waits {
        world.signal(plan.victim, Signal::KILL)?;
    }
    let (mut said, mut took) = (Vec::new(), Duration::ZERO);
    for end in ends.iter().filter(|end| plan.survives(end.rank)) {
        let ended = end.said("ended").map_err(|error| format!("it hangs or died: {error}"))?;
        let (outcome, text) = ended.split_once(": ").unwrap_or((ended, ""));
        said.push(Said { rank: end.rank, outcome, text });
        took = took.max(Duration::from_micros(u64::try_from(end.number("took")?)?));
    }
    let (outcome, text) = verdict(plan, &said)?;
    Ok(Came { outcome: outcome.to_owned(), text: text.to_owned(), took })
}

/// The result of a plan, if it is as expected.
fn verdict<'s>(plan: &Plan, said: &[Said<'s>]) -> Result<(&'s str, &'s str)> {
    let all = || {
        let each = said.iter().map(|Said { rank, outcome, text }| format!("rank {rank}: {outcome}: {text}"));
        each.collect::<Vec<_>>().join("; ")
    };
    let Some(&Said { outcome, text, .. }) = said.first() else { return Ok(("nobody", "")) };
    // Each rank's error has the time that this rank has waited.
    let alike = |text: &'s str| text.find("still waits for").map_or(text, |at| &text[at..]);
    ensure!(
        said.iter().all(|it| it.outcome == outcome && alike(it.text) == alike(text)),
        "ranks differ: {}",
        all()
    );
    let due = plan.due();
    ensure!(due.contains(&outcome), "{outcome} where {} was due: {}", due.join(" or "), all());
    let victim = plan.victim;
    let blamed = match outcome {
        "died" | "ended" | "aborted" => plan.blames(text),
        "missing" => text.contains(&format!("still waits for 1 of {} ranks: {victim};", plan.ranks)),
        "deadline" => text.contains(&format!("rank {victim}")) || text.contains(&format!("ranks {victim}")),
        _ => true,
    };
    ensure!(blamed, "rank {victim} is not blamed: {}", all());
    Ok((outcome, text))
}

/// Makes the calls of the plan for this rank, and prints their results.
fn play(seed: &str) -> rank::Outcome {
    thread::spawn(|| {
        thread::sleep(HANGS);
        eprintln!("hangs");
        std::process::exit(98);
    });
    let plan = Plan::new(seed.parse()?);
    let begun = Instant::now();
    let mut since = begun;
    let result = run(&plan, &mut since);
    say("took", since.elapsed().as_micros());
    match result {
        Ok(()) => say("ended", "right"),
        Err(error) => match error.downcast_ref::<Error>() {
            Some(Error::Failed(failure)) => say("ended", format!("{}: {failure}", name(failure))),
            Some(missing @ Error::Missing { .. }) => say("ended", format!("missing: {missing}")),
            Some(other) => say("ended", format!("local: {other}")),
            None => say("ended", format!("wrong: {error}")),
        },
    }
    Ok(())
}

/// The name of a failure in the table.
fn name(failure: &Failure) -> &'static str {
    match failure {
        Failure::Mismatch { .. } | Failure::Message { .. } => "mismatch",
        Failure::Deadlock { .. } => "deadlock",
        Failure::Left { .. } => "left",
        Failure::Settings { .. } => "settings",
        Failure::Deadline { .. } | Failure::Undelivered { .. } => "deadline",
        Failure::Died { .. } => "died",
        Failure::Joining { .. } | Failure::NoRank { .. } => "could not join",
        Failure::Ended { .. } => "ended",
        Failure::Aborted { .. } => "aborted",
        _ => "other",
    }
}

fn run(plan: &Plan, since: &mut Instant) -> rank::Outcome {
    let mut config = config(0)?;
    let mine = config.rank == plan.victim;
    let fate = plan.fate(config.rank);
    if let Some((fate, Moment::Joining(delay))) = fate {
        meet_fate(fate, delay, None);
    }
    let _file = match plan.kind {
        Kind::Differs(Field::Setting(at)) if mine => settings::ALL[at].apply(&mut config)?,
        _ => None,
    };
    let world = rank::join_with(config)?;
    let some = world.new_group(&plan.members)?;
    let rounds = if matches!(plan.kind, Kind::Dies(..) | Kind::ThreeDie) { 2000 } else { 1 };
    for round in 0..rounds {
        for (at, call) in plan.calls(world.rank()).iter().enumerate() {
            *since = Instant::now();
            if let Some((fate, Moment::Call { round: when, at: place, delay })) = fate
                && (round, at) == (when, place)
            {
                meet_fate(fate, delay, Some(&world));
            }
            thread::sleep(plan.idle(world.rank(), at));
            call.run(&world, some.as_ref())?;
        }
    }
    *since = Instant::now();
    drop(some);
    if matches!(plan.kind, Kind::Ends(_)) {
        drop(world);
        return unisono::late_failure().map_or(Ok(()), |failure| Err(Error::Failed(failure).into()));
    }
    Ok(world.leave()?)
}

/// Ends or stops this process now, or after a delay, while it makes a call.
fn meet_fate(fate: Fate, delay: Duration, group: Option<&ProcessGroup>) {
    let act = move || match fate {
        Fate::Killed => drop(signal_myself(Signal::KILL)),
        Fate::Terminated => drop(signal_myself(Signal::TERM)),
        Fate::Stops => drop(signal_myself(Signal::STOP)),
        Fate::AbortsProcess => std::process::abort(),
        Fate::Exits => std::process::exit(3),
        Fate::Aborts => {}
    };
    match group {
        Some(group) if fate == Fate::Aborts => drop(group.abort("the loss is NaN")),
        _ if delay.is_zero() => act(),
        _ => drop(thread::spawn(move || {
            thread::sleep(delay);
            act();
        })),
    }
}
