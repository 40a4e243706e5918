//! Decides which launcher started this process if several have set their variables.
//!
//! If one launcher starts another, the second is nearer to the process: its ranks inherit the variables of both. A shell may also have
//! variables left over from another program. These must not win without an error: `RANK=0 WORLD_SIZE=1` would make each of mpirun's ranks a
//! separate world.

use unisono_core::error::{Error, Result};

use super::{
    families::{DetectedLauncher, found, none},
    variables::{Lookup, number, wrong},
};

/// The variables by which a pod or another outer job says where its ranks meet.
const MASTER: &[&str] = &["MASTER_ADDR", "MASTER_PORT"];

/// Variables that `unisono run` sets for its ranks, and that a process which a rank starts must not read. torchrun overwrites the last two;
/// a script need not.
const STORE: &[&str] = &["UNISONO_STORE"];
const RUN: &[&str] = &["UNISONO_STORE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// The launcher that started this process, and the variables that must not be read because they describe another process: the variables of
/// a launcher that started this one. `None` if no variable shows a launcher.
///
/// # Errors
/// [`Error::Config`] if a launcher has set only a part of its variables, or two launchers contradict each other.
pub(super) fn family(variable: Lookup<'_>) -> Result<Option<Nearest>> {
    match nearest(variable, &found(variable)?)? {
        Some(nearest) => Ok(Some(nearest)),
        None => none(variable).map_or(Ok(None), Err),
    }
}

/// The nearest launcher, and the variables that must not be read.
type Nearest = (DetectedLauncher, &'static [&'static str]);

/// The nearest of the launchers, which come in the order of `FAMILIES`, and the variables that belong only to another one.
///
/// # Errors
/// [`Error::Config`] names two launchers that contradict each other, with their variables and values.
fn nearest(variable: Lookup<'_>, found: &[DetectedLauncher]) -> Result<Option<Nearest>> {
    let (mut all, mut hidden) = (found, &[] as &[&str]);
    while let [near, farther @ ..] = all {
        if farther.iter().any(|far| is_outer(variable, near, far)) {
            // `near` started first; the launcher that started this process afterwards is among the others.
            hidden = match near.family.name {
                "unisono" if is_torchrun(variable) => STORE,
                "unisono" => RUN,
                "torchrun" => MASTER,
                _ => hidden,
            };
            all = farther;
            continue;
        }
        // PALS, Flux and srun set MPICH's variables too, so their own variables say whether they may have started `near`.
        let own = |far: &&DetectedLauncher| {
            let sets = |other: &DetectedLauncher| {
                ["PALS", "Flux", "Slurm"].contains(&other.family.name) && agree(other, far)
            };
            far.family.name != "MPICH" || near.family.name == "Flux" || !found.iter().any(sets)
        };
        let fits = |far: &&DetectedLauncher| agree(near, far) || starts(variable, far, near);
        match farther.iter().filter(own).find(|far| !fits(far)) {
            None => return Ok(Some((*near, hidden))),
            Some(far) => return Err(contradiction(variable, near, far)),
        }
    }
    Ok(None)
}

/// True if both give the same rank and world size.
fn agree(one: &DetectedLauncher, other: &DetectedLauncher) -> bool {
    (one.rank, one.ranks) == (other.rank, other.ranks)
}

/// True if torchrun itself has set its variables, and not a user, a script or a pod that sets some of the same variables.
fn is_torchrun(variable: Lookup<'_>) -> bool {
    variable("TORCHELASTIC_RUN_ID").is_some()
}

/// True if `unisono run` has set the variables of this library: it serves the store itself.
fn is_run(variable: Lookup<'_>) -> bool {
    variable("UNISONO_STORE").is_some_and(|store| store.trim().starts_with("tcp+served://"))
}

/// True if the ranks of `far` may be processes that have started those of `near`.
fn starts(variable: Lookup<'_>, far: &DetectedLauncher, near: &DetectedLauncher) -> bool {
    let outside = |names: &[&str]| names.contains(&far.family.name);
    let has = |name: &str| variable(name).is_some();
    let is = |name: &str, number: usize| variable(name).is_some_and(|text| text.trim() == number.to_string());
    match near.family.name {
        // If a user sets them by hand, they decide, except for a world of one rank, which does not need them.
        "unisono" => is_run(variable) || near.ranks > 1,
        // A step, a job or a pod of one rank is like a shell, in which a user may start ranks by hand.
        "torchrun" if far.ranks == 1 && near.ranks > 1 && outside(&["Slurm", "Flux", "LeaderWorkerSet"]) => {
            true
        }
        "torchrun" => is_torchrun(variable) || spawned(variable, far, near),
        // The daemons of mpirun and mpiexec are a step with one task on each host.
        "Open MPI" | "MPICH" if far.family.name == "Slurm" => {
            has(near.family.local_rank)
                && (!has("SLURM_STEP_NUM_NODES") || is("SLURM_STEP_NUM_NODES", far.ranks))
        }
        // The daemons of mpirun on a system with PALS are such a step, too.
        "Open MPI" if far.family.name == "PALS" => has(near.family.local_rank) && is("PALS_LOCAL_SIZE", 1),
        // Flux, if it was started by mpirun itself, removes only this one of mpirun's variables.
        "Open MPI" if far.family.name == "Flux" => has(near.family.local_rank) && has("PMIX_RANK"),
        "Open MPI" | "MPICH" => has(near.family.local_rank) && outside(&["Flux", "LeaderWorkerSet"]),
        "PALS" => outside(&["LeaderWorkerSet"]),
        // Flux's brokers may be ranks of PALS, and Flux has replaced the world size of PALS by its world size.
        "Flux" => outside(&["Slurm", "LeaderWorkerSet"]) || outside(&["PALS"]) && far.ranks == near.ranks,
        _ => outside(&["LeaderWorkerSet"]),
    }
}

/// True if the numbers of `near` fit several processes that each rank of `far` starts, host by host.
fn spawned(variable: Lookup<'_>, far: &DetectedLauncher, near: &DetectedLauncher) -> bool {
    let Ok(Some(local)) = number(variable, near.family.local_rank) else { return false };
    let each = near.ranks / far.ranks;
    near.ranks.is_multiple_of(far.ranks) && local < each && near.rank == far.rank * each + local
}

/// True if the process that `near` describes has started, perhaps indirectly, the ranks of `far`. All ranks of `far` must find the same,
/// even those whose numbers agree with `near` by chance.
fn is_outer(variable: Lookup<'_>, near: &DetectedLauncher, far: &DetectedLauncher) -> bool {
    let has = |name: &str| variable(name).is_some();
    match near.family.name {
        // `unisono run` sets RANK and WORLD_SIZE as well, and removes torchrun's variables: values that differ were set later.
        "unisono" => {
            far.family.name == "torchrun" && is_run(variable) && (is_torchrun(variable) || !agree(near, far))
        }
        // Either a pod's manifest has RANK and WORLD_SIZE, and a user calls mpirun or srun in the pod; or mpirun or srun has started a
        // script that sets both from its variables, and the place of the store if there are several hosts.
        "torchrun" => {
            let pod = has("KUBERNETES_SERVICE_HOST") || has("PET_NNODES");
            // Flux sets the number of hosts instead.
            let here = if far.family.name == "Flux" { 1 } else { far.ranks };
            let alone = variable(far.family.local_ranks).is_some_and(|text| text.trim() == here.to_string());
            pod && !is_torchrun(variable)
                && far.family.name != "LeaderWorkerSet"
                && (alone || !agree(near, far))
        }
        // Flux sets MPICH's variables, too, except these of the host, which remain if MPICH's launcher started Flux itself.
        "Flux" => {
            far.family.name == "MPICH"
                && has(far.family.local_rank)
                && (has("PMI_HOSTNAME") || !agree(near, far))
        }
        _ => false,
    }
}

/// The error of two launchers that contradict each other.
fn contradiction(variable: Lookup<'_>, near: &DetectedLauncher, far: &DetectedLauncher) -> Error {
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
