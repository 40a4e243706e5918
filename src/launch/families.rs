//! The variables by which launchers tell rank and world size.

use super::variables::{number, wrong};
use crate::error::{Error, Result};

/// The variables of one launcher.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) rank: &'static str,
    pub(super) ranks: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_ranks: &'static str,
}

/// All launchers; the first one whose variables are set counts. MPI launchers precede Slurm, because they start their daemons by
/// `srun`, and their ranks inherit the daemons' task numbers (with Open MPI 5.0.11 and Slurm 22.05: 4 ranks in a step of 2 tasks).
const FAMILIES: [Family; 5] = [
    Family {
        name: "unisono",
        rank: "UNISONO_RANK",
        ranks: "UNISONO_WORLD_SIZE",
        local_rank: "UNISONO_LOCAL_RANK",
        local_ranks: "UNISONO_LOCAL_WORLD_SIZE",
    },
    Family {
        name: "torchrun",
        rank: "RANK",
        ranks: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_ranks: "LOCAL_WORLD_SIZE",
    },
    Family {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Family {
        name: "MPICH",
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_ranks: "MPI_LOCALNRANKS",
    },
    Family {
        name: "Slurm",
        rank: "SLURM_PROCID",
        // Not SLURM_NTASKS, which a batch script has too, with SLURM_PROCID=0, although it is no step.
        ranks: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: "SLURM_STEP_TASKS_PER_NODE",
    },
];

/// Further variables, which tell a process its job and where its ranks meet.
const OTHERS: [&str; 6] =
    ["MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "PMIX_NAMESPACE"];

/// The launchers' variables that tell a process its rank, the world size, its job and where its ranks meet.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let of = |family: &'static Family| [family.rank, family.ranks, family.local_rank, family.local_ranks];
    FAMILIES.iter().filter(|family| family.name != "unisono").flat_map(of).chain(OTHERS)
}

/// Whether a launcher, or a user by hand, has given this process a rank or a world size; `variable` returns the value of a
/// variable.
pub fn is_set(variable: &impl Fn(&str) -> Option<String>) -> bool {
    FAMILIES.iter().any(|family| [family.rank, family.ranks].iter().any(|name| variable(name).is_some()))
}

/// What a user can do if no variable is set.
const WAYS: &str = "this process does not know its rank. Start it in one of three ways: `unisono run -n 4 PROGRAM` on \
    one host; `torchrun`, `srun` or `mpirun`, which set what is needed; or by hand, with UNISONO_RANK, \
    UNISONO_WORLD_SIZE and UNISONO_STORE=tcp://HOST:PORT of rank 0's host";

/// The launcher that has set both a rank and a world size, and the world size.
pub(super) fn family(variable: &impl Fn(&str) -> Option<String>) -> Result<(&'static Family, usize)> {
    for (i, family) in FAMILIES.iter().enumerate() {
        let has = [family.rank, family.ranks].map(|name| variable(name).is_some());
        // If only one of this library's own two variables is set, that is an error whatever else is set.
        if has[0] && has[1] || i == 0 && has[0] != has[1] {
            let ranks = number(variable, family.ranks)?;
            return match (ranks, has[0]) {
                (Some(0), _) => Err(wrong(variable, family.ranks, "must be at least 1".into())),
                (Some(ranks), true) => Ok((family, ranks)),
                _ => Err(half(variable, family)),
            };
        }
    }
    if variable("SLURM_PROCID").is_some() && variable("SLURM_JOB_ID").is_some() {
        return Err(wrong(
            variable,
            "SLURM_STEP_NUM_TASKS",
            "is not set: this is a Slurm batch script, not a step with ranks; start the program by `srun` in it".into(),
        ));
    }
    let halves =
        FAMILIES.iter().find(|family| variable(family.rank).is_some() != variable(family.ranks).is_some());
    Err(match halves {
        Some(family) => half(variable, family),
        None => wrong(variable, "UNISONO_RANK", format!("is not set, nor what a launcher would set: {WAYS}")),
    })
}

/// The error of a launcher's rank without a world size, or the other way round.
fn half(variable: &impl Fn(&str) -> Option<String>, family: &Family) -> Error {
    let (there, missing) = match variable(family.rank) {
        Some(_) => (family.rank, family.ranks),
        None => (family.ranks, family.rank),
    };
    wrong(variable, missing, format!("is not set, though {there} is; {} sets both", family.name))
}
