//! Joining the world that a launcher's environment describes.

use super::join::report;
use crate::{config::Config, error::Result, group::ProcessGroup};

impl ProcessGroup {
    /// Joins the world that the environment describes: the variables of torchrun, Slurm, Open MPI, MPICH or `unisono run` (see
    /// [`crate::launch`]), and the settings of [`Config`].
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if variables are missing or invalid, otherwise as [`Self::join`]. As far as the variables
    /// say where the store is, the other ranks are told of the error and do not wait for this rank.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(|_| ())
    }

    /// As [`from_env`](Self::from_env), with settings that the program changes before it joins.
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
        let (mut config, problem) = Config::read_env().map_err(|problem| match Config::partial_env() {
            Some(known) => report(&known.config, &known.jobs, problem),
            None => problem,
        })?;
        change(&mut config);
        match problem {
            None => Self::join(config),
            Some(problem) => Err(report(&config, &[], problem)),
        }
    }
}
