//! The place where the ranks of a job meet, from the variables of launchers.

use unisono_core::error::Result;

use super::{
    families::Family,
    slurm,
    variables::{Lookup, number, wrong},
};
use crate::config::{StoreAddress, fnv};

/// The place where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousPoint {
    /// At this store.
    Store(StoreAddress),
    /// In a directory of this host: all ranks are on it, and no variable names a store.
    ThisHost,
    /// A world of one rank needs no store.
    None,
}

/// The number of ports of a job. Among 64 jobs on a host, the first port belongs to another job in 9 % of cases.
const PORTS: u64 = 8;

/// The port of a LeaderWorkerSet's leader if no variable names one. Each pod has its ports for itself.
const POD_PORT: u16 = 29500;

/// The place to meet: `UNISONO_STORE`, else `MASTER_ADDR`, else this host if all ranks are on it, else the place that the launcher gives:
/// hosts of the Slurm step, the leader's pod, or PMI.
pub(super) fn rendezvous_point(
    variable: Lookup<'_>,
    family: &Family,
    ranks: usize,
    alone: bool,
    job: &str,
) -> Result<RendezvousPoint> {
    if let Some(text) = variable("UNISONO_STORE") {
        return match StoreAddress::parse(text.trim()) {
            Ok(StoreAddress::Tcp { port: 0, .. }) if ranks > 1 => {
                let problem = "port 0 takes any free port, which the other ranks cannot know; wanted a port from 1 to 65535";
                Err(wrong(variable, "UNISONO_STORE", problem.into()))
            }
            Ok(address) => Ok(RendezvousPoint::Store(address)),
            Err(problem) => Err(wrong(variable, "UNISONO_STORE", problem)),
        };
    }
    if let Some(host) = variable("MASTER_ADDR") {
        let host = host_in(&host).map_err(|problem| wrong(variable, "MASTER_ADDR", problem))?.to_owned();
        return at_master(variable, family, host, job).map(RendezvousPoint::Store);
    }
    let asked_for = |name: &str, wanted: &str| {
        let problem = format!(
            "is not set, and {ranks} ranks with the variables of {} need a place to meet: wanted {wanted}",
            family.name
        );
        wrong(variable, name, problem)
    };
    match family.name {
        _ if ranks == 1 => Ok(RendezvousPoint::None),
        "unisono" => Err(asked_for("UNISONO_STORE", "tcp://HOST:PORT of rank 0's machine")),
        "torchrun" => Err(asked_for("MASTER_ADDR", "rank 0's machine, and in MASTER_PORT a free port of it")),
        _ if alone => Ok(RendezvousPoint::ThisHost),
        "LeaderWorkerSet" => {
            let name = "LWS_LEADER_ADDRESS";
            let host = variable(name).ok_or_else(|| asked_for(name, "the leader's pod"))?;
            let host = StoreAddress::host_in(host.trim()).map_err(|problem| wrong(variable, name, problem))?;
            let port = master_port(variable)?.unwrap_or(POD_PORT);
            Ok(RendezvousPoint::Store(StoreAddress::Tcp { host: host.to_owned(), port, served: false }))
        }
        "Slurm" => match slurm::hosts(variable, false)? {
            hosts if !hosts.is_empty() && !job.is_empty() => Ok(RendezvousPoint::Store(among(hosts, job))),
            _ => Err(asked_for("SLURM_STEP_NODELIST", "what srun sets, or MASTER_ADDR")),
        },
        name => by_other_means(variable, family, ranks, job)?.map(RendezvousPoint::Store).ok_or_else(|| {
            let problem = format!(
                "is not set, and {name} does not say where rank 0 is: set MASTER_ADDR to rank 0's machine and MASTER_PORT to a \
                 free port there (mpirun -x MASTER_ADDR=... or mpiexec -genv MASTER_ADDR ...)"
            );
            wrong(variable, "MASTER_ADDR", problem)
        }),
    }
}

/// The place where ranks on several hosts meet if their launcher is not Slurm: through PMI, else on a host of the Slurm job in which the
/// launcher runs.
fn by_other_means(
    variable: Lookup<'_>,
    family: &Family,
    ranks: usize,
    job: &str,
) -> Result<Option<StoreAddress>> {
    let step = slurm::is_step(variable, family.local_rank, ranks);
    // Slurm's PMI server accepts one initialization from each task, and MPI may need it.
    if matches!(family.name, "MPICH" | "Flux")
        && !step
        && let Some(descriptor) = number(variable, "PMI_FD")?
    {
        let host = variable("PMI_HOSTNAME").filter(|host| StoreAddress::host_in(host).is_ok());
        return Ok(Some(StoreAddress::Pmi { descriptor, host }));
    }
    // mpirun's daemons are a step, which does not include the host of mpirun itself; a namespace has the name of that host.
    let mut hosts = slurm::hosts(variable, !step)?;
    if let Some(namespace) = variable("PMIX_NAMESPACE").filter(|_| family.name == "Open MPI")
        && let Some(likeliest) = hosts.iter().position(|host| namespace.contains(&format!("-{host}-")))
    {
        hosts[..=likeliest].rotate_right(1);
    }
    Ok((!hosts.is_empty() && !job.is_empty()).then(|| among(hosts, job)))
}

/// The store at `MASTER_ADDR`.
fn at_master(variable: Lookup<'_>, family: &Family, host: String, job: &str) -> Result<StoreAddress> {
    let torchrun = family.name == "torchrun";
    let mut port = match master_port(variable)? {
        Some(port) => port,
        None if family.name == "LeaderWorkerSet" => POD_PORT,
        None if !torchrun && !job.is_empty() => return Ok(among(vec![host], job)),
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
    Ok(StoreAddress::Tcp { host, port, served: false })
}

fn master_port(variable: Lookup<'_>) -> Result<Option<u16>> {
    let name = "MASTER_PORT";
    let Some(text) = variable(name) else { return Ok(None) };
    let port = text.trim().parse::<u16>().ok().filter(|&port| port > 0);
    port.map(Some).ok_or_else(|| wrong(variable, name, "wanted a port, from 1 to 65535".into()))
}

/// The store on one of these hosts, at one of the ports of a job.
fn among(hosts: Vec<String>, job: &str) -> StoreAddress {
    StoreAddress::Among { hosts, ports: ports_of(job) }
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

/// The ports of a job if no variable names one, in the order in which they are tried: from 20000 to 29999, below the ports that Linux gives
/// to clients (32768 and up). Jobs with the same first port differ in the others.
fn ports_of(job: &str) -> Vec<u16> {
    let hash = fnv(job.as_bytes());
    // The step is odd and not a multiple of 5, so it shares no factor with 10000.
    let step = hash / 10_000 % 1000 * 10 + 3;
    let port = |i: u64| 20_000 + u16::try_from((hash % 10_000 + i * step) % 10_000).unwrap_or_default();
    (0..PORTS).map(port).collect()
}
