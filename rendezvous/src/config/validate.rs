//! Checks the values of all settings together.

use unisono_core::error::{Error, Result};

use super::{Config, Lookup, parse::YEAR};

impl Config {
    /// Checks all settings, alone and together.
    ///
    /// # Errors
    /// [`Error::Config`] names a field whose value is not valid, its value, and the valid ones.
    pub fn validate(&self) -> Result<()> {
        self.validate_rendezvous()?;
        let ranks = self.ranks;
        let within = |name: &str, value: usize, least: usize, most: usize| {
            check(name, &value, (least..=most).contains(&value), || format!("must be from {least} to {most}"))
        };
        if let Some(local) = self.local_ranks {
            within("local_ranks", local, 1, ranks)?;
            if let Some(rank) = self.local_rank {
                check("local_rank", &rank, rank < local, || {
                    format!("must be less than local_ranks {local}")
                })?;
            }
        }
        within("chunk", self.chunk, 16, 64 << 20)?;
        within("lanes", self.lanes, 1, 32)?;
        let times = [("timeout", self.timeout), ("join_timeout", self.join_timeout)].into_iter();
        for (name, time) in times.chain(self.leave_timeout.map(|time| ("leave_timeout", time))) {
            let sensible = !time.is_zero() && time <= YEAR;
            check(name, &format!("{time:?}"), sensible, || {
                "must be longer than 0 and at most a year".into()
            })?;
        }
        Ok(())
    }

    /// As [`validate`](Self::validate), after [`set_from`](Self::set_from): errors name the variable and its text, not the field.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn validate_from(&self, variable: Lookup<'_>) -> Result<()> {
        self.validate().map_err(|error| match error {
            Error::Config { name, value, problem } => {
                let asked = format!("UNISONO_{}", name.to_uppercase());
                match variable(&asked) {
                    Some(text) => Error::Config { name: asked, value: Some(text), problem },
                    None => Error::Config { name, value, problem },
                }
            }
            other => other,
        })
    }

    /// Checks the settings that this process needs to meet the other ranks and tell them of any other error.
    pub(crate) fn validate_rendezvous(&self) -> Result<()> {
        let ranks = self.ranks;
        check("ranks", &ranks, (1..=1 << 19).contains(&ranks), || format!("must be from 1 to {}", 1 << 19))?;
        check("rank", &self.rank, self.rank < ranks, || format!("must be less than the world size {ranks}"))?;
        check("store", &"none", self.store.is_some() || ranks == 1, || {
            format!("{ranks} ranks need a place to meet, for instance tcp://host:port of rank 0's host")
        })?;
        Ok(())
    }
}

fn check(name: &str, value: &impl ToString, right: bool, wanted: impl FnOnce() -> String) -> Result<()> {
    if right {
        return Ok(());
    }
    Err(Error::Config { name: name.into(), value: Some(value.to_string()), problem: wanted() })
}
