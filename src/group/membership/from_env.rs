//! Joins the world that the environment describes.

use crate::{config::Config, error::Result, group::ProcessGroup};

impl ProcessGroup {
    /// Joins the world that the environment describes: the variables of torchrun, Slurm, Open MPI, MPICH or `unisono run` (see
    /// [`crate::launch`]), and the settings of [`Config`]. Without a launcher the process is a world of one rank.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if variables are missing or invalid, otherwise as [`Self::join`]. If the variables say where the store is, this
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
        let (mut config, problem) = Config::read_or_tell()?;
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
