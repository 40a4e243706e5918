//! Joins the world that the environment describes, and tells the other ranks if this process cannot join.

use super::join::report;
use crate::{
    config::Config,
    error::{Error, Result},
    group::ProcessGroup,
};

impl Config {
    /// Reads all settings from the environment: rank, world size, store and job as the launcher set them, the others from the `UNISONO_`
    /// variables.
    ///
    /// # Errors
    /// [`Error::Config`] if a variable is missing or not valid. If the variables say where the store is, this tells the other ranks the
    /// error, for at most five seconds.
    pub fn from_env() -> Result<Self> {
        match read()? {
            (config, None) => Ok(config),
            (config, Some(problem)) => Err(config.cannot_join(problem)),
        }
    }

    /// Tells the other ranks of this world, which has not begun, that this process cannot join for this reason, so that they fail at once
    /// and do not wait for it. Returns the reason. If it does not reach the store, it gives up after five seconds.
    ///
    /// ```no_run
    /// # use unisono::Config;
    /// # fn main() -> unisono::Result<()> {
    /// let config = Config::from_env()?;
    /// if !std::path::Path::new("shard").exists() {
    ///     eprintln!("{}", config.cannot_join("its host has no file shard"));
    ///     std::process::exit(1);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn cannot_join<E: std::fmt::Display>(&self, reason: E) -> E {
        report(self, &[], &reason.to_string());
        reason
    }
}

impl ProcessGroup {
    /// Joins the world that the environment describes: the variables of torchrun, Slurm, Open MPI, MPICH or `unisono run` (see
    /// [`crate::launch`]), and the settings of [`Config`]. Without a launcher the process is a world of one rank.
    ///
    /// # Errors
    /// [`Error::Config`] if variables are missing or invalid, otherwise as [`Self::join`]. If the variables say where the store is, this
    /// tells the other ranks the error, and they do not wait for this rank.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(|_| ())
    }

    /// As [`from_env`](Self::from_env), with settings that the program changes before it joins. If the program sets a store, the process
    /// joins there, even if no variable says where ranks meet.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use unisono::ProcessGroup;
    /// # fn main() -> unisono::Result<()> {
    /// let group = ProcessGroup::from_env_with(|config| config.timeout = Duration::from_secs(20))?;
    /// # drop(group);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_env_with(change: impl FnOnce(&mut Config)) -> Result<Self> {
        let (mut config, problem) = read()?;
        let (placeless, ranks) = (config.store.is_none(), config.ranks);
        change(&mut config);
        let (nowhere, alone) = (placeless && ranks > 1, placeless && ranks == 1);
        if let (true, true, Some(problem)) = (alone, config.store.is_some(), Config::unlaunched()) {
            let unknown = Config { rank: usize::MAX, ranks: 0, ..config };
            return Err(unknown.cannot_join(problem));
        }
        match problem {
            Some(problem) if !nowhere || config.store.is_none() => Err(config.cannot_join(problem)),
            _ => Self::join(config),
        }
    }
}

/// The configuration, and the first error in it. If it cannot be read, this tells the other ranks.
fn read() -> Result<(Config, Option<Error>)> {
    Config::read_env().inspect_err(|problem| {
        if let Some(known) = Config::partial_env() {
            report(&known.config, &known.jobs, &problem.to_string());
        }
    })
}
