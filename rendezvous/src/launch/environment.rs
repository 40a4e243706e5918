//! Reads the environment of this process. No other file of the library does.

use std::{
    env,
    os::unix::process::parent_id,
    path::{Path, PathBuf},
};

use unisono_core::{
    error::{Error, Result},
    outside,
};

use super::{
    Launch, detect,
    partial::{Partial, partial},
    private_directory,
    rendezvous::RendezvousPoint,
    variables::{Lookup, wrong},
};
use crate::config::{Config, StoreAddress};

/// The longest `/proc/PID/stat`.
const MAX_STAT: u64 = 4 << 10;

impl Config {
    /// Sets the fields whose `UNISONO_` variables are set in the environment, except rank, world size, store and token, for a process whose
    /// launcher is another program.
    ///
    /// # Errors
    /// [`Error::Config`] names a variable whose value is not valid.
    pub fn set_from_env(&mut self) -> Result<()> {
        self.set_from(&read)
    }

    /// Returns the configuration as [`from_env`](Self::from_env) does; but if a setting is wrong, returns the first such error and the
    /// settings that precede it, with defaults for the others. With these the rank can meet the others and report the error to them. If
    /// only the place to meet is unknown, that is the error, and the store is `None` although there are several ranks.
    #[doc(hidden)]
    pub fn read_env() -> Result<(Self, Option<Error>)> {
        for row in Self::variables() {
            if env::var_os(row.name).is_some_and(|value| value.to_str().is_none()) {
                return Err(wrong(&read, row.name, "is not UTF-8; wanted text in UTF-8".into()));
            }
        }
        let (launch, nowhere) = match detect(&read) {
            Ok(launch) => (launch, None),
            Err(problem) => (elsewhere(&read).ok_or_else(|| problem.clone())?, Some(problem)),
        };
        if launch.launcher == "none" {
            unisono_transport::log::info!(
                "no launcher has set this process's rank: it is a world of one rank"
            );
        }
        // One rank warns for all.
        for (name, _) in env::vars_os().filter(|_| launch.rank == 0) {
            let name = name.to_string_lossy();
            if name.starts_with("UNISONO_") && !Self::variables().iter().any(|row| row.name == name) {
                unisono_transport::log::warn!("{name} is set, but this version has no such variable");
            }
        }
        let job = match launch.rendezvous {
            RendezvousPoint::ThisHost if launch.job.is_empty() => {
                let starter = daemon(launch.launcher).unwrap_or_else(parent_id);
                format!("job-{starter}")
            }
            // One Slurm step may start several jobs: in an interactive step, or by daemons that srun did not start.
            RendezvousPoint::ThisHost if launch.launcher == "MPICH" => match daemon(launch.launcher) {
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
            store: match launch.rendezvous {
                RendezvousPoint::Store(address) => Some(address),
                RendezvousPoint::ThisHost => Some(StoreAddress::File(directory()?)),
                RendezvousPoint::None => None,
            },
            ..Self::default()
        };
        let problem = config.set_from(&read).and_then(|()| config.validate_from(&read)).err();
        match (nowhere, problem) {
            (Some(nowhere), None) => Ok((Self { store: None, ..config }, Some(nowhere))),
            (Some(nowhere), Some(_)) => Err(nowhere),
            (None, problem) => Ok((config, problem)),
        }
    }

    /// The error of a program that says itself where ranks meet, but that no launcher has started.
    #[doc(hidden)]
    pub fn unlaunched() -> Option<Error> {
        at_any_place(&read).err()
    }

    /// Reads the settings that [`read_env`](Self::read_env) could not read because of an error in other variables; `None` if the store is
    /// not known.
    pub(crate) fn partial_env() -> Option<Partial> {
        partial(&read)
    }
}

/// The value of a variable of this process.
fn read(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The launch that the variables describe if they say everything except where ranks meet, because the program may say that; a placeholder
/// stands for the place.
fn elsewhere(variable: Lookup<'_>) -> Option<Launch> {
    if variable("UNISONO_STORE").is_some() || variable("MASTER_ADDR").is_some() {
        return None;
    }
    at_any_place(variable).ok()
}

/// The launch, with a placeholder for the place where ranks meet.
fn at_any_place(variable: Lookup<'_>) -> Result<Launch> {
    detect(&|name: &str| if name == "UNISONO_STORE" { Some("file:///".to_owned()) } else { variable(name) })
}

/// The directory for jobs whose ranks are all on this host; only this user has access. It is below /tmp if possible, because some launchers
/// and sites give each rank a separate TMPDIR.
fn directory() -> Result<PathBuf> {
    let name = format!("unisono-{}", rustix::process::geteuid().as_raw());
    let shared = Path::new("/tmp").join(&name);
    let Err(problem) = private_directory(&shared) else { return Ok(shared) };
    let base = env::temp_dir().join(&name);
    private_directory(&base).map_err(|also| Error::Rendezvous {
        store: base.display().to_string(),
        problem: format!(
            "{also} (and {problem}); set UNISONO_STORE=file:///DIRECTORY or TMPDIR to a directory that all ranks of this host share"
        ),
    })?;
    Ok(base)
}

/// The process id of the nearest ancestor that is a launcher's daemon. It is the same for all ranks that the daemon started on this host,
/// even if a shell script stands between.
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
