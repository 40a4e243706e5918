//! Settings of the environment, and the words to the other ranks if this process cannot join them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_core::error::{Error, Failure, Refusal, Result};

use crate::{
    LINGER, Store,
    config::{Config, StoreAddress},
};

impl Config {
    /// Reads all settings from the environment: rank, world size, store and job as the launcher set them, the others from the `UNISONO_`
    /// variables.
    ///
    /// # Errors
    /// [`Error::Config`] if a variable is missing or not valid. If the variables say where the store is, this tells the other ranks the
    /// error, for at most five seconds.
    pub fn from_env() -> Result<Self> {
        match Self::read_or_tell()? {
            (config, None) => Ok(config),
            (config, Some(problem)) => Err(config.cannot_join(problem)),
        }
    }

    /// Tells the other ranks of this world, which has not begun, that this process cannot join for this reason, so that they fail at once
    /// and do not wait for it. Returns the reason. If it does not reach the store, it gives up after five seconds.
    ///
    /// ```no_run
    /// # use unisono_rendezvous::config::Config;
    /// # fn main() -> unisono_core::Result<()> {
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

    /// As [`read_env`](Self::read_env). If nothing can be read, this tells the other ranks.
    #[doc(hidden)]
    pub fn read_or_tell() -> Result<(Self, Option<Error>)> {
        Self::read_env().inspect_err(|problem| {
            if let Some(known) = Self::partial_env() {
                report(&known.config, &known.jobs, &problem.to_string());
            }
        })
    }

    /// If there is a store of this rank's job, tells it that this rank cannot join because it could not open its own. Returns `error`.
    #[doc(hidden)]
    #[must_use]
    pub fn not_opened(&self, error: Error) -> Error {
        let Some(address) = &self.store else { return error };
        let why = match &error {
            Error::Refused { refusal: refusal @ Refusal::Token, .. } => refusal.to_string(),
            // Another process that also has rank 0 may serve the store there.
            Error::Rendezvous { problem, .. } if serves(self, address) => problem.clone(),
            _ => return error,
        };
        tell(self, address, &[], &why, Instant::now() + TELL);
        error
    }
}

/// How long a rank without a store tries to tell the store of another rank that it cannot join.
const TELL: Duration = Duration::from_secs(1);

fn serves(config: &Config, address: &StoreAddress) -> bool {
    let elsewhere = matches!(address, StoreAddress::Tcp { served: true, .. } | StoreAddress::Pmi { .. });
    config.rank == 0 && !elsewhere
}

/// Tells the other ranks' store that this process cannot join.
fn tell(config: &Config, address: &StoreAddress, jobs: &[String], why: &str, deadline: Instant) {
    if let Err(error) = Store::cannot_join(address, &config.member(), jobs, why, deadline) {
        untold(config, &error);
    }
}

fn untold(config: &Config, error: &Error) {
    unisono_transport::log::info!(rank = config.rank, %error, "cannot tell the other ranks that this rank cannot join");
}

/// If it reaches the store, tells the other ranks that this process cannot join. The process may belong to one of `jobs`.
fn report(config: &Config, jobs: &[String], why: &str) {
    let Some(address) = config.store.as_ref().filter(|_| config.ranks != 1) else { return };
    let deadline = Instant::now() + LINGER.min(config.join_timeout);
    if !serves(config, address) {
        return tell(config, address, jobs, why, deadline);
    }
    // This rank serves the store, which tells the other ranks.
    let config = Config { ranks: config.ranks.max(2), ..config.clone() };
    let failure = Failure::Joining { rank: config.rank, why: why.to_owned() };
    let store = Store::open(address, &config.member(), deadline);
    let watch = store.and_then(|store| Ok((store.watch(Arc::default(), Arc::default())?, store)));
    match watch {
        Ok((watch, _store)) => {
            watch.report(&failure);
            watch.leave();
        }
        Err(error) => untold(&config, &error),
    }
}
