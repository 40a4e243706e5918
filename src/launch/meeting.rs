//! Where the ranks of a job meet, from the variables of launchers.

use super::{families::Family, slurm, variables::wrong};
use crate::{
    config::{StoreAddress, fnv},
    error::Result,
};

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// At this store.
    At(StoreAddress),
    /// In a directory of this host: all ranks are on it, and no variable names a store.
    ThisMachine,
    /// Nowhere: a world of one rank.
    Nowhere,
}

/// The place to meet: `UNISONO_STORE`, else `MASTER_ADDR`, else the first host of the Slurm step, else this host if all ranks are
/// on it.
pub(super) fn meeting(
    variable: &impl Fn(&str) -> Option<String>,
    family: &Family,
    ranks: usize,
    alone: bool,
    job: &str,
) -> Result<Meeting> {
    if let Some(text) = variable("UNISONO_STORE") {
        return match StoreAddress::parse(text.trim()) {
            Ok(StoreAddress::Tcp { port: 0, .. }) if ranks > 1 => {
                let problem = "port 0 takes any free port, which the other ranks cannot know; wanted a port from 1 to 65535";
                Err(wrong(variable, "UNISONO_STORE", problem.into()))
            }
            Ok(address) => Ok(Meeting::At(address)),
            Err(problem) => Err(wrong(variable, "UNISONO_STORE", problem)),
        };
    }
    let torchrun = family.name == "torchrun";
    if let Some(host) = variable("MASTER_ADDR") {
        let host = host_in(&host).map_err(|problem| wrong(variable, "MASTER_ADDR", problem))?.to_owned();
        let mut port = match variable("MASTER_PORT") {
            Some(text) => text
                .trim()
                .parse::<u16>()
                .ok()
                .filter(|&port| port > 0)
                .ok_or_else(|| wrong(variable, "MASTER_PORT", "wanted a port, from 1 to 65535".into()))?,
            None if !torchrun && !job.is_empty() => port_of(job),
            None => {
                let problem = "is not set, though MASTER_ADDR is; wanted a free port of rank 0's machine";
                return Err(wrong(variable, "MASTER_PORT", problem.into()));
            }
        };
        // torchrun's agent listens at MASTER_PORT itself.
        if torchrun && variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.trim() == "True") {
            port = port.checked_add(1).ok_or_else(|| {
                let problem = "torchrun's agent has this port and there is none above it; choose a lower one";
                wrong(variable, "MASTER_PORT", problem.into())
            })?;
        }
        return Ok(Meeting::At(StoreAddress::Tcp { host, port, served: false }));
    }
    let asked_for = |name: &str, wanted: &str| {
        let problem = format!(
            "is not set, and {ranks} ranks with the variables of {} need a place to meet: wanted {wanted}",
            family.name
        );
        wrong(variable, name, problem)
    };
    match family.name {
        _ if ranks == 1 => Ok(Meeting::Nowhere),
        "unisono" => Err(asked_for("UNISONO_STORE", "tcp://HOST:PORT of rank 0's machine")),
        "torchrun" => Err(asked_for("MASTER_ADDR", "rank 0's machine, and in MASTER_PORT a free port of it")),
        "Slurm" => match slurm::first_host(variable, false)? {
            Some(host) => Ok(Meeting::At(StoreAddress::Tcp { host, port: port_of(job), served: false })),
            None => Err(asked_for("SLURM_STEP_NODELIST", "what srun sets, or MASTER_ADDR")),
        },
        _ if alone => Ok(Meeting::ThisMachine),
        // mpirun's daemons are a step, which does not include the host of mpirun itself.
        name => match slurm::first_host(variable, name == "Open MPI")? {
            Some(host) if !job.is_empty() => {
                Ok(Meeting::At(StoreAddress::Tcp { host, port: port_of(job), served: false }))
            }
            _ => Err(wrong(
                variable,
                "MASTER_ADDR",
                format!(
                    "is not set, and {} does not say where rank 0 is: set MASTER_ADDR to rank 0's machine and \
                     MASTER_PORT to a free port there (mpirun -x MASTER_ADDR=... or mpiexec -genv MASTER_ADDR ...)",
                    family.name
                ),
            )),
        },
    }
}

/// The host in a value of `MASTER_ADDR`: a name or an address; an IPv6 address may have brackets and a zone.
///
/// # Errors
/// A sentence that says what is wrong with the text, and what is valid.
pub fn host_in(text: &str) -> std::result::Result<&str, String> {
    let wanted = "wanted rank 0's machine alone, its name or address";
    match StoreAddress::host_in(text.trim()) {
        Ok(host) => Ok(host),
        Err(problem) => Err(format!("{problem}; {wanted}, and the port in MASTER_PORT")),
    }
}

/// The port of a job for which no variable names one: from 20000 to 29999, below the ports that Linux gives to clients (32768 and
/// up).
fn port_of(job: &str) -> u16 {
    20000 + u16::try_from(fnv(job.as_bytes()) % 10000).unwrap_or_default()
}
