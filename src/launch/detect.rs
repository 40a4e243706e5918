//! Reads the variables of launchers.

use unisono_schedule::Rank;

use super::{
    families::{Family, family},
    meeting::{Meeting, meeting},
    secret::token,
    slurm,
    variables::{number, wrong},
};
use crate::{config::Token, error::Result};

/// What a launcher tells a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The launcher whose variables were read: `torchrun`, `Slurm`, `Open MPI`, `MPICH` or `unisono`.
    pub launcher: &'static str,
    /// This process's rank.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// Its number among the ranks of its host, if the launcher tells it.
    pub local_rank: Option<usize>,
    /// The number of ranks on its host, if the launcher tells it.
    pub local_ranks: Option<usize>,
    /// Where ranks meet.
    pub meeting: Meeting,
    /// The launcher's id of this job; empty if it has none. Not a secret.
    pub job: String,
    /// The job's secret, if there is one.
    pub token: Token,
}

/// Reads the variables that launchers set; `variable` returns the value of a variable.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) names the variable, its value and what was wanted.
pub fn detect(variable: &impl Fn(&str) -> Option<String>) -> Result<Launch> {
    let (family, ranks) = family(variable)?;
    let rank = number(variable, family.rank)?.unwrap_or_default();
    let mut local_rank = number(variable, family.local_rank)?;
    let local_ranks;
    // srun may also set MPICH's variables, except those of the host.
    let step = variable("SLURM_STEP_NUM_TASKS") == Some(ranks.to_string());
    if family.name == "Slurm" || family.name == "MPICH" && local_rank.is_none() && step {
        local_rank = number(variable, "SLURM_LOCALID")?;
        local_ranks = slurm::local_ranks(variable)?;
    } else {
        local_ranks = number(variable, family.local_ranks)?;
    }
    for (name, value, below, of) in [
        (family.rank, Some(rank), ranks, family.ranks),
        (family.local_rank, local_rank, local_ranks.unwrap_or(ranks), family.local_ranks),
        (family.local_ranks, local_ranks, ranks + 1, family.ranks),
    ] {
        if value.is_some_and(|value| value >= below) {
            return Err(wrong(variable, name, format!("must be less than {below}, by {of}")));
        }
    }
    if local_ranks == Some(0) {
        return Err(wrong(variable, family.local_ranks, "must be at least 1".into()));
    }
    let job = job(variable, family);
    let token = token(variable)?;
    let alone = local_ranks == Some(ranks);
    let meeting = meeting(variable, family, ranks, alone, &job)?;
    Ok(Launch { launcher: family.name, rank, ranks, local_rank, local_ranks, meeting, job, token })
}

/// The launcher's id of this job: the same on all its ranks, and not a secret.
fn job(variable: &impl Fn(&str) -> Option<String>, family: &Family) -> String {
    let step = || Some(format!("slurm-{}.{}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?));
    let job = match family.name {
        "torchrun" => variable("TORCHELASTIC_RUN_ID"),
        // The second is Open MPI 4's.
        "Open MPI" => variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid")),
        // MPICH has no id of its own; under Slurm its daemons are one step.
        "MPICH" | "Slurm" => step(),
        _ => None,
    };
    job.unwrap_or_default()
}
