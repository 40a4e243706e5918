//! Decides which launcher started this process, where several have set their variables.
//!
//! A launcher that another one started is nearer to the process: its ranks inherit the variables of both. A shell may also have
//! variables left over from another program, which must not win in silence: `RANK=0 WORLD_SIZE=1` would make each of mpirun's ranks a
//! world of its own.

use super::{
    families::{Found, found, none},
    variables::{number, wrong},
};
use crate::error::{Error, Result};

/// The variables by which a pod or another outer job says where its own ranks meet.
const MASTER: &[&str] = &["MASTER_ADDR", "MASTER_PORT"];

/// What `unisono run` sets for its ranks, and a process that these start must not read: torchrun sets the last two anew, a script may
/// not.
const STORE: &[&str] = &["UNISONO_STORE"];
const RUN: &[&str] = &["UNISONO_STORE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// The launcher that started this process, and the variables that must not be read because they describe another process: those of a
/// launcher that started this one.
///
/// # Errors
/// [`Error::Config`] if there is none, or two contradict each other.
pub(super) fn family(variable: &impl Fn(&str) -> Option<String>) -> Result<(Found, &'static [&'static str])> {
    nearest(variable, &found(variable)?)?.ok_or_else(|| none(variable))
}

/// The nearest of the launchers, which stand in the order of `FAMILIES`, and the variables that belong to another one alone.
///
/// # Errors
/// [`Error::Config`] names two launchers that contradict each other, with their variables and values.
fn nearest(
    variable: &impl Fn(&str) -> Option<String>,
    found: &[Found],
) -> Result<Option<(Found, &'static [&'static str])>> {
    let (mut all, mut hidden) = (found, &[] as &[&str]);
    while let [near, farther @ ..] = all {
        match farther.iter().find(|far| !fits(variable, near, far)) {
            None => return Ok(Some((*near, hidden))),
            // `near` was there first, and what started this process since is among the others.
            Some(far) if is_outer(variable, near, far) => {
                hidden = match near.family.name {
                    "unisono" if is_torchrun(variable) => STORE,
                    "unisono" => RUN,
                    "torchrun" => MASTER,
                    _ => hidden,
                };
                all = farther;
            }
            Some(far) => return Err(contradiction(variable, near, far)),
        }
    }
    Ok(None)
}

/// Whether `near` can be what started this process, although `far` has set its variables too.
fn fits(variable: &impl Fn(&str) -> Option<String>, near: &Found, far: &Found) -> bool {
    let agree = (near.rank, near.ranks) == (far.rank, far.ranks);
    if near.family.name == "unisono" && far.family.name == "torchrun" && is_run(variable) {
        // `unisono run` sets RANK and WORLD_SIZE as well, and removes what torchrun has set: what differs has been set since.
        return agree && !is_torchrun(variable);
    }
    agree || starts(variable, far, near)
}

/// Whether torchrun itself has set its variables, and not a user, a script or a pod that sets some of the same.
fn is_torchrun(variable: &impl Fn(&str) -> Option<String>) -> bool {
    variable("TORCHELASTIC_RUN_ID").is_some()
}

/// Whether `unisono run` has set the variables of this library: it serves the store itself.
fn is_run(variable: &impl Fn(&str) -> Option<String>) -> bool {
    variable("UNISONO_STORE").is_some_and(|store| store.trim().starts_with("tcp+served://"))
}

/// Whether the ranks of `far` may be processes that have started those of `near`.
fn starts(variable: &impl Fn(&str) -> Option<String>, far: &Found, near: &Found) -> bool {
    let outside = |names: &[&str]| names.contains(&far.family.name);
    let has = |name: &str| variable(name).is_some();
    match near.family.name {
        // Set by hand they decide, but for a world of one rank, for which nobody needs them.
        "unisono" => is_run(variable) || near.ranks > 1,
        "torchrun" => is_torchrun(variable) || spawned(variable, far, near),
        // The daemons of mpirun and mpiexec are a step with one task on each host.
        "Open MPI" | "MPICH" if far.family.name == "Slurm" => {
            has(near.family.local_rank)
                && variable("SLURM_STEP_NUM_NODES").is_none_or(|nodes| nodes.trim() == far.ranks.to_string())
        }
        "Open MPI" | "MPICH" => has(near.family.local_rank) && outside(&["Flux", "LeaderWorkerSet"]),
        "PALS" => outside(&["LeaderWorkerSet"]),
        "Flux" => outside(&["Slurm", "LeaderWorkerSet"]),
        _ => outside(&["LeaderWorkerSet"]),
    }
}

/// Whether `near` has the numbers of one of several processes that each rank of `far` starts, host by host.
fn spawned(variable: &impl Fn(&str) -> Option<String>, far: &Found, near: &Found) -> bool {
    let Ok(Some(local)) = number(variable, near.family.local_rank) else { return false };
    let each = near.ranks / far.ranks;
    near.ranks.is_multiple_of(far.ranks) && local < each && near.rank == far.rank * each + local
}

/// Whether the process that `near` describes has, further down, started the ranks of `far`.
fn is_outer(variable: &impl Fn(&str) -> Option<String>, near: &Found, far: &Found) -> bool {
    match near.family.name {
        "unisono" => far.family.name == "torchrun" && is_run(variable),
        // A pod whose manifest has RANK and WORLD_SIZE, in which somebody calls mpirun or srun.
        "torchrun" => {
            let pod = ["KUBERNETES_SERVICE_HOST", "PET_NNODES"].iter().any(|name| variable(name).is_some());
            pod && !is_torchrun(variable) && far.family.name != "LeaderWorkerSet"
        }
        // It sets MPICH's variables, too, but for these of the host.
        "Flux" => far.family.name == "MPICH" && variable(far.family.local_rank).is_some(),
        _ => false,
    }
}

/// The error of two launchers that contradict each other.
fn contradiction(variable: &impl Fn(&str) -> Option<String>, near: &Found, far: &Found) -> Error {
    let [one, other] = [near, far].map(|found| {
        let family = found.family;
        format!("{}={} and {}={} ({})", family.rank, found.rank, family.ranks, found.ranks, family.name)
    });
    let (rank, ranks) = (near.family.rank, near.family.ranks);
    let problem = format!(
        "{one} contradict {other}: which launcher started this process? Unset {rank} and {ranks} if they are left over from \
         another program, or {} and {} if those are; or set UNISONO_RANK, UNISONO_WORLD_SIZE and UNISONO_STORE for each \
         process, which decide",
        far.family.rank, far.family.ranks
    );
    wrong(variable, rank, problem)
}
