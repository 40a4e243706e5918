//! The settings of a process and their defaults.

use std::{path::PathBuf, time::Duration};

use unisono_core::reduce::Reduction;
use unisono_schedule::{Rank, windows};
use unisono_transport::ofi::Interfaces;

use super::{JobIdentity, Member, StoreAddress, ThreadCores, Token};

/// How a process joins a group, and how the group works. Some fields must be the same on all ranks, as their descriptions say; ranks
/// compare them when they join. Each rank chooses the other fields for itself.
///
/// The default is a world of one rank, with the defaults of [`Config::variables`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process's rank.
    pub rank: Rank,
    /// The world size, from 1 to 524288. It must be the same on all ranks.
    pub ranks: usize,
    /// This rank's number among the ranks of its host, if it is known.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, if it is known.
    pub local_ranks: Option<usize>,
    /// The store at which ranks meet. It must be the same on all ranks. A world of one rank needs none.
    pub store: Option<StoreAddress>,
    /// The launcher's id of this job, which tells it from other jobs at the same store. It is no secret. It must be the same on all ranks.
    pub job: String,
    /// The job's secret, by which the store and this process prove to each other that they belong to the job. It must be the same on all
    /// ranks.
    pub token: Token,
    /// The transport that moves the bytes: `shm` (memory that ranks share), a provider of libfabric, or both (`shm,verbs`). It must be the
    /// same on all ranks. `None` selects `shm` between ranks of one host, network namespace and user, and between others the first of efa,
    /// cxi, opx, verbs and tcp that works. `psm3` is used only if it is named here.
    pub provider: Option<String>,
    /// The network interfaces or NICs that may be used: a list, separated by commas, of names (`eth0`, `mlx5_0`), addresses and
    /// networks (`10.0.0.0/8`). A `^` before the list excludes these. `None` selects the interface on the route to the store.
    pub interface: Option<Interfaces>,
    /// The longest wait for another rank. The default is 300 s.
    pub timeout: Duration,
    /// The longest time that joining may take, until the last rank has come. The default is 60 s.
    pub join_timeout: Duration,
    /// The longest time that leaving the world waits for ranks that live and have not begun to leave. If it passes, all ranks get an error.
    /// `None` waits as long as those ranks live, because a rank may have more to do alone than the others, such as writing a checkpoint.
    pub leave_timeout: Option<Duration>,
    /// The unit of pipelining, in bytes, from 16 to 64 MiB. The default is 256 KiB. It must be the same on all ranks. If the limit on locked
    /// memory of one rank is too small for the windows, that rank logs a warning and all ranks use a smaller chunk.
    pub chunk: usize,
    /// The number of chunks in progress at the same time, from 1 to 32. The default is 2. It must be the same on all ranks.
    pub lanes: usize,
    /// How long a wait polls without yielding its processor. It then yields between polls, for at most 200 µs, and then sleeps;
    /// both times get shorter while waits are long. `None` selects 20 µs, or 0 if this host has more ranks than processors for them.
    pub spin: Option<Duration>,
    /// The processors of the progress thread, which advances asynchronous calls while no thread waits for them, and runs their
    /// wakers. `None` selects all processors of the process.
    pub thread_cores: Option<ThreadCores>,
    /// The algorithms that may be used: a list of names separated by commas. It must be the same on all ranks. A `^` before the list
    /// excludes these. A list for one collective follows its name and a colon; semicolons separate lists. Examples: `ring`, `^ring`,
    /// `all_reduce:two_shot,ring;broadcast:binomial`. If no algorithm of the list can do a call, another one does it. `None` allows all.
    pub algorithm: Option<String>,
    /// Whether this process and other ranks of its host may read all of each other's memory (process_vm_readv), where the system allows it.
    /// The default is true. Otherwise elements of plain memory are copied once more.
    pub peer_reads: bool,
    /// A tuning file, which `unisono tune` has written. Its contents must be the same on all ranks. `None` uses the built-in table alone.
    pub tuning: Option<PathBuf>,
    /// The largest object, in bytes. The default is 1 GiB. It must be the same on all ranks. It bounds the memory that another rank can make
    /// this one allocate. A larger object is an error on all ranks.
    pub object_limit: usize,
    /// How reductions are computed, the fastest way or reproducibly. It must be the same on all ranks.
    pub reduction: Reduction,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rank: 0,
            ranks: 1,
            local_rank: None,
            local_ranks: None,
            store: None,
            job: String::new(),
            token: Token::default(),
            provider: None,
            interface: None,
            timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(60),
            leave_timeout: None,
            chunk: windows::CHUNK_BYTES,
            lanes: windows::LANES,
            spin: None,
            thread_cores: None,
            algorithm: None,
            peer_reads: true,
            tuning: None,
            object_limit: 1 << 30,
            reduction: Reduction::Fastest,
        }
    }
}

impl Config {
    /// The settings that must be the same on all ranks: their names, with the variables that set them, and values.
    #[doc(hidden)]
    pub fn same_on_all_ranks(&self) -> Vec<(&'static str, String)> {
        let or_auto = |choice: &Option<String>| choice.clone().unwrap_or_else(|| "auto".into());
        vec![
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("ranks (UNISONO_WORLD_SIZE)", self.ranks.to_string()),
            ("provider (UNISONO_PROVIDER)", or_auto(&self.provider)),
            ("chunk (UNISONO_CHUNK)", self.chunk.to_string()),
            ("lanes (UNISONO_LANES)", self.lanes.to_string()),
            ("algorithm (UNISONO_ALGORITHM)", or_auto(&self.algorithm)),
            ("object_limit (UNISONO_OBJECT_LIMIT)", self.object_limit.to_string()),
            ("reduction (UNISONO_REDUCTION)", self.reduction.name().into()),
        ]
    }

    /// The largest message of schedules with one lane (small data), in bytes: a chunk, but from 128 to 32 KiB.
    #[must_use]
    pub const fn eager(&self) -> usize {
        windows::eager_bytes(self.chunk)
    }

    /// Rank, world size and job of this process, for the rendezvous.
    #[must_use]
    pub fn member(&self) -> Member {
        let job = JobIdentity { id: self.job.clone(), token: self.token.clone() };
        Member { rank: self.rank, ranks: self.ranks, job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_must_be_the_same_are_listed_and_nothing_else() {
        let usual = Config::default().same_on_all_ranks();
        assert_eq!(
            Config { rank: 0, timeout: Duration::from_secs(1), ..Config::default() }.same_on_all_ranks(),
            usual
        );
        let changed = [
            Config { chunk: 64, ..Config::default() },
            Config { lanes: 1, ..Config::default() },
            Config { ranks: 3, ..Config::default() },
            Config { object_limit: 1, ..Config::default() },
            Config { provider: Some("tcp".into()), ..Config::default() },
            Config { algorithm: Some("ring".into()), ..Config::default() },
            Config { reduction: Reduction::Reproducible, ..Config::default() },
        ];
        assert!(changed.iter().all(|config| config.same_on_all_ranks() != usual));
        // Each is named as a user sets it, except the version.
        for (name, _) in usual.iter().filter(|(name, _)| *name != "version") {
            let variable = name.split(['(', ')']).nth(1).unwrap_or_default();
            assert!(Config::variables().iter().any(|row| row.name == variable), "{name}");
        }
    }
}
