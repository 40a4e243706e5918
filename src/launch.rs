//! Who this process is, by what its launcher says: the variables of torchrun, Slurm, Open MPI, MPICH, Intel
//! MPI and our own. A launcher is one row of `FAMILIES` and, where it tells of a place to meet, one step
//! of `meeting`.

mod secret;
mod slurm;

use std::{
    env,
    os::unix::process::parent_id,
    path::{Path, PathBuf},
};

use unisono_schedule::Rank;

pub use self::secret::token;
pub(crate) use self::secret::{holds, private_directory};
use crate::{
    config::{Config, StoreAddress, Token, fnv},
    error::{Error, Result},
    outside,
};

/// The longest `/proc/PID/stat`.
const MAX_STAT: u64 = 4 << 10;

/// What the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// By whose variables: `torchrun`, `Slurm`, `Open MPI`, `MPICH` or `unisono`.
    pub launcher: &'static str,
    /// This process's rank.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// Its number among the ranks of its machine, where that is told.
    pub local_rank: Option<usize>,
    /// How many ranks its machine has, where that is told.
    pub local_ranks: Option<usize>,
    /// Where ranks meet.
    pub meeting: Meeting,
    /// What the launcher calls this job; empty where it calls it nothing. No secret.
    pub job: String,
    /// The job's secret, if there is one.
    pub token: Token,
}

/// Where ranks meet, as far as the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// There.
    At(StoreAddress),
    /// All ranks are on this machine, and nothing more is told: they meet in a directory of its own.
    ThisMachine,
    /// A world of one meets nobody.
    Nowhere,
}

/// How a launcher names what every launcher tells.
struct Family {
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    local_ranks: &'static str,
}

/// In the order in which they are believed. An MPI's launcher goes before Slurm, because it starts its
/// daemons by `srun`, and its ranks then see the daemons' task numbers (seen with Open MPI 5.0.11 and Slurm
/// 22.05: 4 ranks in a step of 2 tasks).
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
        // Not SLURM_NTASKS, which a batch script has too, with SLURM_PROCID=0, though it is no step.
        ranks: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: "SLURM_STEP_TASKS_PER_NODE",
    },
];

/// What to do if the environment says nothing.
const WAYS: &str = "this process does not know its rank. Start it in one of three ways: `unisono run -n 4 PROGRAM` on \
    one machine; `torchrun`, `srun` or `mpirun`, which set what is needed; or by hand, with UNISONO_RANK, \
    UNISONO_WORLD_SIZE and UNISONO_STORE=tcp://HOST:PORT of rank 0's machine";

impl Config {
    /// Reads everything from the environment: who this process is from its launcher, the settings from the
    /// `UNISONO_` variables.
    ///
    /// # Errors
    /// [`Error::Config`] if something is missing, incomplete or has no sense. An environment that says
    /// nothing is an error, not a world of one.
    pub fn from_env() -> Result<Self> {
        Self::read_env().and_then(|(config, problem)| problem.map_or(Ok(config), Err))
    }

    /// The same, also where settings have no sense: with the first problem, and defaults from there on. Such a rank can
    /// still meet the others, and tell them.
    pub(crate) fn read_env() -> Result<(Self, Option<Error>)> {
        let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        for row in Self::variables() {
            if env::var_os(row.name).is_some_and(|value| value.to_str().is_none()) {
                return Err(wrong(
                    &variable,
                    row.name,
                    "is not UTF-8, and would be read as something else".into(),
                ));
            }
        }
        let launch = detect(&variable)?;
        // Once is enough.
        for (name, _) in env::vars_os().filter(|_| launch.rank == 0) {
            let name = name.to_string_lossy();
            if name.starts_with("UNISONO_") && !Self::variables().iter().any(|row| row.name == name) {
                tracing::warn!("{name} is set, but no variable of this version");
            }
        }
        let job = match launch.meeting {
            Meeting::ThisMachine if launch.job.is_empty() => {
                let starter = daemon(launch.launcher).unwrap_or_else(parent_id);
                format!("job-{starter}")
            }
            // One Slurm step may start several: in an interactive one, or by daemons that no srun starts.
            Meeting::ThisMachine if launch.launcher == "MPICH" => match daemon(launch.launcher) {
                Some(daemon) => format!("{}-{daemon}", launch.job),
                None => launch.job,
            },
            _ => launch.job,
        };
        let mut config = Self {
            rank: launch.rank,
            ranks: launch.ranks,
            local_rank: launch.local_rank,
            local_ranks: launch.local_ranks,
            job,
            token: launch.token,
            store: match launch.meeting {
                Meeting::At(address) => Some(address),
                Meeting::ThisMachine => Some(StoreAddress::File(directory()?)),
                Meeting::Nowhere => None,
            },
            ..Self::default()
        };
        let problem = config.set_from(&variable).and_then(|()| config.validate_from(&variable)).err();
        Ok((config, problem))
    }
}

/// Reads what launchers set, out of variables given by name.
///
/// # Errors
/// [`Error::Config`] names the variable, its value and what was wanted.
pub fn detect(variable: &impl Fn(&str) -> Option<String>) -> Result<Launch> {
    let (family, ranks) = family(variable)?;
    let rank = number(variable, family.rank)?.unwrap_or_default();
    let mut local_rank = number(variable, family.local_rank)?;
    let local_ranks;
    // srun may also set MPICH's variables, but then not those of the machine.
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

/// The launcher that has said both a rank and a world size, and the latter.
fn family(variable: &impl Fn(&str) -> Option<String>) -> Result<(&'static Family, usize)> {
    for (i, family) in FAMILIES.iter().enumerate() {
        let has = [family.rank, family.ranks].map(|name| variable(name).is_some());
        // Half of our own set is an error whatever else there is.
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

fn half(variable: &impl Fn(&str) -> Option<String>, family: &Family) -> Error {
    let (there, missing) = match variable(family.rank) {
        Some(_) => (family.rank, family.ranks),
        None => (family.ranks, family.rank),
    };
    wrong(variable, missing, format!("is not set, though {there} is; {} sets both", family.name))
}

/// Where to meet: as our own variable says, else at MASTER_ADDR, else on a Slurm step's first machine, else
/// on this machine if all ranks are here.
fn meeting(
    variable: &impl Fn(&str) -> Option<String>,
    family: &Family,
    ranks: usize,
    alone: bool,
    job: &str,
) -> Result<Meeting> {
    if let Some(text) = variable("UNISONO_STORE") {
        return match StoreAddress::parse(text.trim()) {
            Ok(StoreAddress::Tcp { port: 0, .. }) if ranks > 1 => {
                let problem =
                    "rank 0 would take any port, and nobody could tell the others which; wanted one from 1";
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
        // mpirun's daemons are a step that does not have mpirun's own machine, whose ranks are in none.
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

/// The host in what people write in `MASTER_ADDR`: a name or an address, an IPv6 one with or without brackets and zone.
///
/// # Errors
/// What else is there, in words.
pub fn host_in(text: &str) -> std::result::Result<&str, String> {
    let wanted = "wanted rank 0's machine alone, its name or address";
    match StoreAddress::host_in(text.trim()) {
        Ok(host) => Ok(host),
        Err(problem) => Err(format!("{problem}; {wanted}, and the port in MASTER_PORT")),
    }
}

/// A port for jobs that are told none: from 20000 to 29999, below what Linux gives to clients (32768 and up).
fn port_of(job: &str) -> u16 {
    20000 + u16::try_from(fnv(job.as_bytes()) % 10000).unwrap_or_default()
}

/// What the launcher calls this job: the same on all its ranks, and known to others too.
fn job(variable: &impl Fn(&str) -> Option<String>, family: &Family) -> String {
    let step = || Some(format!("slurm-{}.{}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?));
    let job = match family.name {
        "torchrun" => variable("TORCHELASTIC_RUN_ID"),
        // The second is Open MPI 4's.
        "Open MPI" => variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid")),
        // MPICH says nothing of its own; under Slurm its daemons are one step.
        "MPICH" | "Slurm" => step(),
        _ => None,
    };
    job.unwrap_or_default()
}

/// A number, if the variable is set.
fn number(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<usize>> {
    match variable(name).map(|text| text.trim().parse()) {
        None => Ok(None),
        Some(Ok(number)) if number < 1 << 31 => Ok(Some(number)),
        Some(_) => Err(wrong(variable, name, "wanted a number from 0".into())),
    }
}

fn wrong(variable: &impl Fn(&str) -> Option<String>, name: &str, problem: String) -> Error {
    // A secret is not shown, not even a wrong one.
    let value = variable(name).filter(|_| name != "UNISONO_TOKEN");
    Error::Config { name: name.into(), value, problem }
}

/// The directory in which jobs meet whose ranks are all on this machine: this user's alone.
fn directory() -> Result<PathBuf> {
    let base = env::temp_dir().join(format!("unisono-{}", rustix::process::geteuid().as_raw()));
    private_directory(&base).map_err(|problem| Error::Rendezvous {
        store: base.display().to_string(),
        problem: format!("{problem}; set TMPDIR or UNISONO_STORE"),
    })?;
    Ok(base)
}

/// The nearest ancestor that is a launcher's daemon: the same process for all ranks that it has started on this machine,
/// even if each has a shell script of its own above it.
fn daemon(launcher: &str) -> Option<u32> {
    let daemons: &[&str] =
        if launcher == "Open MPI" { &["prte", "orted", "mpirun"] } else { &["hydra_", "mpiexec"] };
    let mut at = parent_id();
    while at > 1 {
        // `pid (name) state parent ...`; a name may contain anything, but its last `)` ends it.
        let stat = outside::read_text(Path::new(&format!("/proc/{at}/stat")), MAX_STAT).ok()?;
        let (name, rest) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'))?;
        if daemons.iter().any(|daemon| name.starts_with(daemon)) {
            return Some(at);
        }
        at = rest.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}
