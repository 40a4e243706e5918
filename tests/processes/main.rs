//! Real ranks as real processes over libfabric and shared memory: the collectives against an oracle, messages, failures, refusals at join.
//!
//! The suite starts itself again as the ranks, which meet at stores that it serves; `suite.rs` says over which providers.
//! `UNISONO_TEST_RANKS` sets the numbers of ranks of the collectives, 1,2,3,4,8 by default; `UNISONO_TEST_BRIEF`, which `make test` sets, checks
//! them among 1 to 3 ranks with fewer types and counts, and has fewer random cases and mixed operations. `UNISONO_TEST_GAP` sets how
//! many seconds apart ranks leave, 6 by default. `UNISONO_TEST_CASES` and `UNISONO_TEST_SEED` are those of the random campaign,
//! `UNISONO_TEST_SOAK` is the number of mixed operations.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own defects may end it")]

mod again;
#[path = "../../transport/tests/arguments/mod.rs"]
mod arguments;
mod blocks;
mod chaos;
mod collectives;
mod drops;
mod ending;
mod erased;
mod failures;
mod forking;
mod groups;
mod joining;
mod leaving;
mod machine;
mod members;
mod memlock;
mod messages;
mod mismatch;
mod numbers;
mod objects;
#[path = "../../transport/tests/observed/mod.rs"]
mod observed;
mod pinning;
#[path = "../ports/mod.rs"]
mod ports;
#[path = "../random/mod.rs"]
mod random;
mod rank;
mod reach;
mod reads;
mod signals;
mod soak;
mod strangers;
mod stuck;
mod suite;
mod world;

use std::process::ExitCode;

pub(crate) use suite::{Case, Outcome, Table, Verdict, ensure};

use crate::{rank::Role, suite::Cases};

const ROLES: &[&[Role]] = &[
    collectives::ROLES,
    messages::ROLES,
    erased::ROLES,
    objects::ROLES,
    pinning::ROLES,
    forking::ROLES,
    groups::ROLES,
    members::ROLES,
    failures::ROLES,
    mismatch::ROLES,
    joining::ROLES,
    again::ROLES,
    drops::ROLES,
    ending::ROLES,
    leaving::ROLES,
    machine::ROLES,
    signals::ROLES,
    memlock::ROLES,
    strangers::ROLES,
    chaos::ROLES,
    stuck::ROLES,
    reach::ROLES,
    reads::ROLES,
    soak::ROLES,
];

fn cases(provider: &str) -> Cases {
    let all = if suite::brief() { "1,2,3" } else { "1,2,3,4,8" };
    let ranks = std::env::var("UNISONO_TEST_RANKS").unwrap_or_else(|_| all.into());
    let mut cases = suite::of(&[drops::CASES]);
    if provider == rank::DEFAULT {
        cases.extend(suite::of(&[chaos::CASES, soak::CASES]));
        return cases;
    }
    for ranks in ranks.split(',').map(|ranks| ranks.parse().expect("UNISONO_TEST_RANKS holds numbers")) {
        let case: Case = Box::new(move |provider| collectives::case(provider, ranks));
        cases.push((format!("collectives, {ranks} ranks"), case));
    }
    let tables = [
        machine::CASES,
        messages::CASES,
        erased::CASES,
        groups::CASES,
        members::CASES,
        failures::CASES,
        mismatch::CASES,
        signals::CASES,
        chaos::CASES,
        reads::CASES,
    ];
    cases.extend(suite::of(&tables));
    // Over shm and TCP together, only the cases that depend on transports run.
    if provider != rank::MUX {
        let rest = [
            objects::CASES,
            pinning::CASES,
            joining::CASES,
            again::CASES,
            ending::CASES,
            memlock::CASES,
            strangers::CASES,
            stuck::CASES,
            reach::CASES,
            soak::CASES,
        ];
        cases.extend(suite::of(&rest));
    }
    cases
}

/// Cases that mostly wait; they run concurrently with the others.
fn waiting(provider: &str) -> Cases {
    if provider == rank::DEFAULT {
        return Cases::new();
    }
    let stuck = if provider == rank::MUX { &[][..] } else { stuck::WAITING };
    suite::of(&[forking::CASES, leaving::CASES, groups::WAITING, stuck])
}

fn main() -> ExitCode {
    // ci/test.sh divides them between its runs.
    suite::main(("processes", "tcp,shm,mux,default"), cases, waiting, ROLES)
}
