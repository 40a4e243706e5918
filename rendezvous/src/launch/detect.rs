//! Reads the variables of launchers.

use unisono_core::error::Result;
use unisono_schedule::Rank;

use super::{
    families::{DetectedLauncher, Family},
    nearest::family,
    rendezvous::{RendezvousPoint, rendezvous_point},
    secret::token,
    slurm,
    variables::{Lookup, number, wrong},
};
use crate::config::Token;

/// The launch information that a process gets from its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The launcher whose variables were read: `unisono`, `torchrun`, `Open MPI`, `PALS`, `MPICH`, `Flux`, `Slurm` or `LeaderWorkerSet`;
    /// `none` if no variable shows a launcher, so that the process is a world of one rank.
    pub launcher: &'static str,
    /// This process's rank.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// The process's number among the ranks of its host, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// The number of ranks on its host, if the launcher sets it.
    pub local_ranks: Option<usize>,
    /// The place where ranks meet.
    pub rendezvous: RendezvousPoint,
    /// The launcher's id of this job; empty if it has none. Not a secret.
    pub job: String,
    /// The job's secret, if there is one.
    pub token: Token,
}

/// Reads the variables that launchers set; `variable` returns the value of a variable. If no variable shows a launcher or a place where
/// ranks meet, the process is a world of one rank.
///
/// # Errors
/// [`Error::Config`](unisono_core::Error::Config) names the variable, its value and the valid values, or two launchers that contradict each other.
pub fn detect(variable: Lookup<'_>) -> Result<Launch> {
    let Some((DetectedLauncher { family, rank, ranks }, hidden)) = family(variable)? else {
        // No launcher started the process: it is a world of one rank.
        let (rank, ranks, local_rank, local_ranks) = (0, 1, None, None);
        let (rendezvous, job, token) = (RendezvousPoint::None, String::new(), token(variable)?);
        return Ok(Launch { launcher: "none", rank, ranks, local_rank, local_ranks, rendezvous, job, token });
    };
    let variable = &|name: &str| if hidden.contains(&name) { None } else { variable(name) };
    let [(local_rank, rank_name), (local_ranks, ranks_name)] = local(variable, family, rank, ranks)?;
    for (name, value, below, of) in [
        (family.rank, Some(rank), ranks, family.ranks),
        (rank_name, local_rank, local_ranks.unwrap_or(ranks), ranks_name),
        (ranks_name, local_ranks, ranks + 1, family.ranks),
    ] {
        if value.is_some_and(|value| value >= below) {
            return Err(wrong(variable, name, format!("must be less than {below}, by {of}")));
        }
    }
    if local_ranks == Some(0) {
        return Err(wrong(variable, ranks_name, "must be at least 1".into()));
    }
    let job = job(variable, family);
    let token = token(variable)?;
    let alone = local_ranks == Some(ranks);
    let rendezvous = rendezvous_point(variable, family, ranks, alone, &job)?;
    Ok(Launch { launcher: family.name, rank, ranks, local_rank, local_ranks, rendezvous, job, token })
}

/// A rank's number on its host and the number of ranks there, if the launcher sets them, each with the variable that contains it.
fn local(
    variable: Lookup<'_>,
    family: &Family,
    rank: Rank,
    ranks: usize,
) -> Result<[(Option<usize>, &'static str); 2]> {
    // srun may also set MPICH's variables, except those of the host.
    if family.name == "Slurm" || family.name == "MPICH" && slurm::is_step(variable, family.local_rank, ranks)
    {
        let (rank, ranks) = slurm::local(variable, rank)?;
        return Ok([(rank, "SLURM_LOCALID"), (ranks, "SLURM_STEP_TASKS_PER_NODE")]);
    }
    let (local, number) = (number(variable, family.local_rank)?, number(variable, family.local_ranks)?);
    let ranks = match family.name {
        "Flux" => (number == Some(1)).then_some(ranks),
        _ => number,
    };
    Ok([(local, family.local_rank), (ranks, family.local_ranks)])
}

/// The launcher's id of this job: the same on all its ranks, and not a secret.
pub(super) fn job(variable: Lookup<'_>, family: &Family) -> String {
    let step = || Some(format!("slurm-{}.{}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?));
    let job = match family.name {
        "torchrun" => variable("TORCHELASTIC_RUN_ID"),
        // Open MPI 4 sets the second variable.
        "Open MPI" => variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid")),
        "PALS" => variable("PALS_APID"),
        "Flux" => variable("FLUX_JOB_ID"),
        // MPICH sets no id; under Slurm its daemons are one step.
        "MPICH" | "Slurm" => step(),
        _ => None,
    };
    job.unwrap_or_default()
}
