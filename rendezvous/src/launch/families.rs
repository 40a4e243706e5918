//! The variables by which launchers give rank and world size.

use unisono_core::error::{Error, Result};
use unisono_schedule::Rank;

use super::variables::{Lookup, number, wrong};

/// The variables of one launcher.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) rank: &'static str,
    pub(super) ranks: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_ranks: &'static str,
}

impl Family {
    /// A launcher, and its variables of the rank, the world size, the rank on the host and the number of ranks there.
    const fn of(name: &'static str, [rank, ranks, local_rank, local_ranks]: [&'static str; 4]) -> Self {
        Self { name, rank, ranks, local_rank, local_ranks }
    }
}

/// All launchers, the nearest to the process first: each launcher may be started by those that follow it in the list, and its ranks then
/// inherit their variables. MPI launchers start their daemons by `srun`, and their ranks inherit the daemons' task numbers (with Open MPI
/// 5.0.11 and Slurm 22.05: 4 ranks in a step of 2 tasks). Flux and PALS precede MPICH because they set its variables as well, and PALS has
/// no variable for the size.
pub(super) const FAMILIES: [Family; 8] = [
    Family::of(
        "unisono",
        ["UNISONO_RANK", "UNISONO_WORLD_SIZE", "UNISONO_LOCAL_RANK", "UNISONO_LOCAL_WORLD_SIZE"],
    ),
    Family::of("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
    Family::of(
        "Open MPI",
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    // Flux sets the number of hosts of a job, not the number of ranks on each.
    Family::of("Flux", ["FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"]),
    Family::of("PALS", ["PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"]),
    Family::of("MPICH", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // SLURM_NTASKS is not read: a batch script has it too, with SLURM_PROCID=0, although it is not a step.
    Family::of(
        "Slurm",
        ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
    ),
    // A pod of a Kubernetes LeaderWorkerSet is one rank.
    Family::of("LeaderWorkerSet", ["LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "", ""]),
];

/// Further variables, which give a process its job and the place where its ranks meet.
const OTHERS: [&str; 19] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",
    "PMI_FD",
    "PMI_HOSTNAME",
    "PALS_APID",
    "FLUX_JOB_ID",
    "LWS_LEADER_ADDRESS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_GTIDS",
    "SLURM_NODEID",
    "SLURM_DISTRIBUTION",
    "SLURM_HET_SIZE",
    "SLURMD_NODENAME",
];

/// The launchers' variables that give a process its rank, the world size, its job and the place where its ranks meet.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let of = |family: &'static Family| [family.rank, family.ranks, family.local_rank, family.local_ranks];
    let theirs = FAMILIES.iter().filter(|family| family.name != "unisono").flat_map(of);
    theirs.filter(|name| !name.is_empty()).chain(OTHERS)
}

/// True if a launcher, or a user by hand, has given this process a rank or a world size; `variable` returns the value of a
/// variable.
pub fn is_set(variable: Lookup<'_>) -> bool {
    FAMILIES.iter().any(|family| [family.rank, family.ranks].iter().any(|name| variable(name).is_some()))
}

/// The advice to a user if no variable is set.
const WAYS: &str = "this process does not know its rank. Start it in one of three ways: `unisono run -n 4 PROGRAM` on \
    one host; `torchrun`, `srun` or `mpirun`, which set what is needed; or by hand, with UNISONO_RANK, \
    UNISONO_WORLD_SIZE and UNISONO_STORE=tcp://HOST:PORT of rank 0's host";

/// A launcher that has set both a rank and a world size.
#[derive(Clone, Copy, Debug)]
pub(super) struct DetectedLauncher {
    pub(super) family: &'static Family,
    pub(super) rank: Rank,
    pub(super) ranks: usize,
}

/// All launchers that have set both a rank and a world size.
pub(super) fn found(variable: Lookup<'_>) -> Result<Vec<DetectedLauncher>> {
    // If only one of this library's two variables is set, that is an error whatever other variables are set.
    if let [ours, ..] = &FAMILIES
        && variable(ours.rank).is_some() != variable(ours.ranks).is_some()
    {
        return Err(half(variable, ours));
    }
    let mut all = Vec::new();
    for family in &FAMILIES {
        if variable(family.rank).is_none() || variable(family.ranks).is_none() {
            continue;
        }
        let (rank, ranks) = (number(variable, family.rank)?, number(variable, family.ranks)?);
        match (rank, ranks) {
            (Some(_), Some(0)) => return Err(wrong(variable, family.ranks, "must be at least 1".into())),
            (Some(rank), Some(ranks)) => all.push(DetectedLauncher { family, rank, ranks }),
            _ => {}
        }
    }
    Ok(all)
}

/// Variables that say where the ranks of a job meet; a process that runs alone does not have them.
const PLACES: [&str; 2] = ["UNISONO_STORE", "MASTER_ADDR"];

/// The error if no launcher has set both a rank and a world size; `None` if no variable shows a launcher: then the process is a world of
/// one rank.
pub(super) fn none(variable: Lookup<'_>) -> Option<Error> {
    if variable("SLURM_PROCID").is_some() && variable("SLURM_JOB_ID").is_some() {
        let problem = "is not set: this is a Slurm batch script, not a step with ranks; start the program by `srun` in it";
        return Some(wrong(variable, "SLURM_STEP_NUM_TASKS", problem.into()));
    }
    let halves =
        FAMILIES.iter().find(|family| variable(family.rank).is_some() != variable(family.ranks).is_some());
    if let Some(family) = halves {
        return Some(half(variable, family));
    }
    PLACES.into_iter().find(|place| variable(place).is_some())?;
    let problem =
        format!("is not set, nor what a launcher would set, though it is said where ranks meet: {WAYS}");
    Some(wrong(variable, "UNISONO_RANK", problem))
}

/// The error of a launcher's rank without a world size, or of a world size without a rank.
fn half(variable: Lookup<'_>, family: &Family) -> Error {
    let (there, missing) = match variable(family.rank) {
        Some(_) => (family.rank, family.ranks),
        None => (family.ranks, family.rank),
    };
    wrong(variable, missing, format!("is not set, though {there} is; {} sets both", family.name))
}
