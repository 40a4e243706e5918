//! Reads the environment of this process. Nothing else in the library does.

use std::{
    env,
    os::unix::process::parent_id,
    path::{Path, PathBuf},
};

use super::{detect, meeting::Meeting, private_directory, variables::wrong};
use crate::{
    config::{Config, StoreAddress},
    error::{Error, Result},
    outside,
};

/// The longest `/proc/PID/stat`.
const MAX_STAT: u64 = 4 << 10;

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
