//! The settings of a process and their defaults.

use std::{path::PathBuf, time::Duration};

use unisono_schedule::{Rank, windows};
use unisono_transport::ofi::Interfaces;

use super::{Job, Member, StoreAddress, ThreadCores, Token};
use crate::reduce::Reduction;

/// How a process joins a group and how the group works. Fields marked *alike* must be the same on every
/// rank, which is checked at join; the others are each rank's own affair.
///
/// The default is a world of one, with the defaults of [`Config::variables`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process's rank.
    pub rank: Rank,
    /// The world size, from 1 to 524288; alike.
    pub ranks: usize,
    /// Its number among the ranks of this machine, where it is known.
    pub local_rank: Option<usize>,
    /// How many ranks this machine has, where it is known.
    pub local_ranks: Option<usize>,
    /// Where ranks meet; alike. A world of one needs none.
    pub store: Option<StoreAddress>,
    /// What the launcher calls this job, which tells it from others that might meet it at the same store; alike. Not a secret.
    pub job: String,
    /// What proves to the store, and the store's to this process, that both belong to the job; alike.
    pub token: Token,
    /// The libfabric provider; alike. `None`: the first of efa, cxi, opx, verbs and tcp that works; `shm`, which ends at
    /// the machine, and `psm3` are taken only if asked for.
    pub provider: Option<String>,
    /// The network interfaces or cards that may be used: names (`eth0`, `mlx5_0`), addresses and networks (`10.0.0.0/8`) after
    /// commas, or, after a `^`, all but these. `None`: the one that leads to the store.
    pub interface: Option<Interfaces>,
    /// How long anything that waits for another rank may take, 300 s by default.
    pub timeout: Duration,
    /// How long joining may take, until the last rank has come: 60 s by default.
    pub join_timeout: Duration,
    /// The unit of pipelining, in bytes: from 16 to 64 MiB; alike. `None`: 512 KiB if there are two ranks, on one host, and
    /// 256 KiB otherwise. Where the limit on locked memory of any rank is too small for so large windows, all take a smaller
    /// one, and that one warns of it.
    pub chunk: Option<usize>,
    /// How many chunks are worked on side by side: from 1 to 64, 2 by default; alike. With `bulk_slots` at most 64 in all.
    pub lanes: usize,
    /// How many chunks from one neighbour may wait on one lane: from 2 to 64, 2 by default; alike.
    pub bulk_slots: usize,
    /// The largest message of schedules with one lane (small data), in bytes: from 128 to 1 MiB, 32 KiB by default; alike.
    pub eager: usize,
    /// How many such messages from one neighbour may wait: from 2 to 64, 8 by default; alike.
    pub eager_slots: usize,
    /// Whether windows and buffers are asked for in huge pages, not by default; where there are none, they have others.
    pub huge_pages: bool,
    /// How long a wait polls hot before it yields its processor between polls, for 200 µs at most, and then sleeps; both
    /// get shorter where waits are long. `None`: 20 µs, but not at all where the ranks of this machine outnumber the
    /// processors that they may run on.
    pub spin: Option<Duration>,
    /// Where the thread runs that goes on with asynchronous calls while nobody waits, and wakes whoever awaits them.
    /// `None`: wherever the process may.
    pub thread_cores: Option<ThreadCores>,
    /// The algorithms that may be taken; alike. Names after commas, all but those after a `^`, lists for one
    /// collective alone after its name and a colon, semicolons between lists: `ring`, `^ring`,
    /// `all_reduce:two_shot,ring;broadcast:binomial`; one list for each, and one for all. Where none of them can do what is
    /// called, others do it. `None`: all.
    pub algorithm: Option<String>,
    /// The file of a table of choices that `unisono tune` has measured; alike in its contents. `None`: the built-in
    /// table alone.
    pub tuning: Option<PathBuf>,
    /// The most bytes that one object may take, 1 GiB by default; alike. What a rank is told to make room for is no more
    /// than that, and a value that was not meant to be sent is an error on all ranks.
    pub object_limit: usize,
    /// What is asked of reductions beyond their result; alike.
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
            chunk: None,
            lanes: windows::LANES,
            bulk_slots: windows::BULK_SLOTS,
            eager: windows::EAGER_BYTES,
            eager_slots: windows::EAGER_SLOTS,
            huge_pages: false,
            spin: None,
            thread_cores: None,
            algorithm: None,
            tuning: None,
            object_limit: 1 << 30,
            reduction: Reduction::Fastest,
        }
    }
}

impl Config {
    /// What must be alike on all ranks, by name.
    #[must_use]
    pub fn alike(&self) -> Vec<(&'static str, String)> {
        let or_auto = |choice: &Option<String>| choice.clone().unwrap_or_else(|| "auto".into());
        vec![
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("ranks", self.ranks.to_string()),
            ("provider", or_auto(&self.provider)),
            ("chunk", self.chunk.map_or_else(|| "auto".into(), |bytes| bytes.to_string())),
            ("lanes", self.lanes.to_string()),
            ("bulk_slots", self.bulk_slots.to_string()),
            ("eager", self.eager.to_string()),
            ("eager_slots", self.eager_slots.to_string()),
            ("algorithm", or_auto(&self.algorithm)),
            ("object_limit", self.object_limit.to_string()),
            ("reduction", self.reduction.name().into()),
        ]
    }

    /// Who this process is, for the rendezvous.
    #[must_use]
    pub fn member(&self) -> Member {
        let job = Job { id: self.job.clone(), token: self.token.clone() };
        Member { rank: self.rank, ranks: self.ranks, job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_alike_is_listed_and_nothing_else() {
        let usual = Config::default().alike();
        assert_eq!(
            Config { rank: 0, timeout: Duration::from_secs(1), huge_pages: true, ..Config::default() }
                .alike(),
            usual
        );
        let changed = [
            Config { chunk: Some(64), ..Config::default() },
            Config { lanes: 1, ..Config::default() },
            Config { bulk_slots: 1, ..Config::default() },
            Config { eager: 128, ..Config::default() },
            Config { eager_slots: 1, ..Config::default() },
            Config { ranks: 3, ..Config::default() },
            Config { object_limit: 1, ..Config::default() },
            Config { provider: Some("tcp".into()), ..Config::default() },
            Config { algorithm: Some("ring".into()), ..Config::default() },
            Config { reduction: Reduction::Reproducible, ..Config::default() },
        ];
        assert!(changed.iter().all(|config| config.alike() != usual));
    }
}
