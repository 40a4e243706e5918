//! Nested launchers: every launcher in a rank of every other one, with all small numbers of ranks, against a table in a user's words.

use std::collections::BTreeMap;

use unisono::{
    Error,
    launch::{Launch, detect},
};

type Variables = BTreeMap<String, String>;

/// A launcher, or the environment before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// `unisono run`.
    Run,
    /// `torchrun`.
    Torchrun,
    /// `mpirun` of Open MPI.
    Mpirun,
    /// `mpiexec` of PALS.
    Pals,
    /// `flux run`.
    Flux,
    /// `mpiexec` of MPICH.
    Mpiexec,
    /// `srun`.
    Srun,
    /// RANK and WORLD_SIZE by hand, or left over in a shell.
    Rank,
    /// UNISONO_RANK and UNISONO_WORLD_SIZE by hand.
    Ours,
    /// RANK and WORLD_SIZE in a pod's manifest.
    Pod,
    /// A pod of a LeaderWorkerSet.
    Lws,
}
use Who::{Flux, Lws, Mpiexec, Mpirun, Ours, Pals, Pod, Rank, Run, Srun, Torchrun};

impl Who {
    /// The name of its family, and the variables of rank and world size.
    fn family(self) -> [&'static str; 3] {
        match self {
            Run | Ours => ["unisono", "UNISONO_RANK", "UNISONO_WORLD_SIZE"],
            Torchrun | Rank | Pod => ["torchrun", "RANK", "WORLD_SIZE"],
            Mpirun => ["Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
            Pals => ["PALS", "PALS_RANKID", "PMI_SIZE"],
            Flux => ["Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"],
            Mpiexec => ["MPICH", "PMI_RANK", "PMI_SIZE"],
            Srun => ["Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
            Lws => ["LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"],
        }
    }

    /// Starts rank `rank` of `ranks` in a process with these variables, `each` ranks on every host.
    fn start(self, outer: &Variables, rank: usize, ranks: usize, each: usize) -> Variables {
        let (local, hosts) = (rank % each, ranks / each);
        let more = match self {
            Run => format!(
                "UNISONO_LOCAL_RANK={rank} UNISONO_LOCAL_WORLD_SIZE={ranks} RANK={rank} WORLD_SIZE={ranks} \
                 LOCAL_RANK={rank} LOCAL_WORLD_SIZE={ranks} UNISONO_STORE=tcp+served://127.0.0.1:77"
            ),
            Torchrun => format!(
                "LOCAL_RANK={local} LOCAL_WORLD_SIZE={each} MASTER_ADDR=h MASTER_PORT=7 TORCHELASTIC_RUN_ID=job"
            ),
            Mpirun => format!(
                "OMPI_COMM_WORLD_LOCAL_RANK={local} OMPI_COMM_WORLD_LOCAL_SIZE={each} PMIX_RANK={rank} \
                 PMIX_NAMESPACE=prterun-h-1@1 MASTER_ADDR=h MASTER_PORT=7"
            ),
            Pals => format!(
                "PALS_LOCAL_RANKID={local} PALS_LOCAL_SIZE={each} PALS_APID=a PMI_RANK={rank} MASTER_ADDR=h MASTER_PORT=7"
            ),
            Flux => format!(
                "FLUX_TASK_LOCAL_ID={local} FLUX_JOB_NNODES={hosts} FLUX_JOB_ID=f PMI_FD=9 PMI_RANK={rank} \
                 PMI_SIZE={ranks}"
            ),
            Mpiexec => {
                format!("MPI_LOCALRANKID={local} MPI_LOCALNRANKS={each} PMI_FD=11 PMI_HOSTNAME=h")
            }
            Srun => format!(
                "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_LOCALID={local} SLURM_NODEID={} SLURM_STEP_NUM_NODES={hosts} \
                 SLURM_STEP_TASKS_PER_NODE={each}{} SLURM_STEP_NODELIST=n[1-{hosts}]",
                rank / each,
                if hosts > 1 { format!("(x{hosts})") } else { String::new() },
            ),
            Rank => "MASTER_ADDR=h MASTER_PORT=7".to_owned(),
            Ours => "UNISONO_STORE=tcp://h:7".to_owned(),
            Pod => "MASTER_ADDR=h MASTER_PORT=7 KUBERNETES_SERVICE_HOST=10.96.0.1".to_owned(),
            Lws => "LWS_LEADER_ADDRESS=h KUBERNETES_SERVICE_HOST=10.96.0.1".to_owned(),
        };
        let removed: &[&str] = match self {
            Run => &["TORCHELASTIC_"],
            // A Flux instance clears these for the processes that it starts.
            Flux => &["SLURM_", "PMI_", "PMIX_"],
            _ => &[],
        };
        let [_, name, size] = self.family();
        let mut all = outer.clone();
        all.retain(|name, _| !removed.iter().any(|start| name.starts_with(start)));
        let own = [(name.to_owned(), rank.to_string()), (size.to_owned(), ranks.to_string())];
        let more = more.split_whitespace().filter_map(|word| word.split_once('='));
        all.extend(own.into_iter().chain(more.map(|(name, value)| (name.to_owned(), value.to_owned()))));
        all
    }
}

/// The right result if the numbers of both differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// The inner one has started this process.
    Inner,
    /// The outer one decides: people start it inside of the inner one, and the two cases look the same.
    Outer,
    /// An error that names both.
    Error,
    /// Nobody does this, or the variables do not show it: the numbers of one of the two, or an error.
    Any,
}
use Right::{Any, Error as Both, Inner, Outer};

/// The launcher of the process itself, by column.
const COLUMNS: [Who; 8] = [Run, Torchrun, Mpirun, Pals, Flux, Mpiexec, Srun, Rank];

/// The outer launcher: its ranks all on one host or one on each, its least and greatest world size, and the right result by column.
type Row = (Who, bool, [usize; 2], [Right; 8]);

#[rustfmt::skip]
const TABLE: [Row; 18] = [
    // The inner one:         Run,   Torchrun, Mpirun, Pals, Flux,  Mpiexec, Srun, Rank
    (Ours, true, [2, 3],     [Inner, Outer, Outer, Outer, Outer, Outer, Outer, Outer]),
    // A world of one rank needs no variables: these are left over.
    (Ours, true, [1, 1],     [Inner, Both,  Both,  Both,  Both,  Both,  Both,  Both]),
    // mpirun in a rank of `unisono run` looks like the other way round, and the store refuses a second process for a rank.
    (Run, true, [1, 3],      [Inner, Inner, Outer, Outer, Outer, Outer, Outer, Inner]),
    (Rank, true, [1, 1],     [Inner, Inner, Both,  Both,  Both,  Both,  Both,  Inner]),
    // srun or Flux with one task may have started the shell with RANK.
    (Rank, true, [2, 3],     [Inner, Inner, Both,  Both,  Any,   Both,  Any,   Inner]),
    (Pod, true, [1, 3],      [Inner, Inner, Inner, Inner, Inner, Inner, Inner, Inner]),
    // mpirun and srun start torchrun, not the other way round.
    (Torchrun, true, [1, 3], [Inner, Inner, Outer, Outer, Outer, Outer, Outer, Any]),
    (Mpirun, true, [1, 3],   [Inner, Inner, Inner, Any,   Both,  Both,  Any,   Both]),
    (Pals, false, [1, 3],    [Inner, Inner, Inner, Inner, Inner, Any,   Both,  Both]),
    (Pals, true, [2, 3],     [Inner, Inner, Both,  Inner, Inner, Any,   Both,  Both]),
    (Flux, true, [2, 3],     [Inner, Inner, Inner, Any,   Inner, Inner, Any,   Both]),
    (Flux, false, [1, 1],    [Inner, Inner, Inner, Any,   Inner, Inner, Any,   Inner]),
    (Mpiexec, true, [1, 3],  [Inner, Inner, Both,  Inner, Inner, Inner, Any,   Both]),
    // With one task on each host these are the daemons of mpirun and mpiexec.
    (Srun, false, [2, 3],    [Inner, Inner, Inner, Both,  Inner, Inner, Inner, Both]),
    (Srun, true, [2, 3],     [Inner, Inner, Both,  Both,  Inner, Both,  Inner, Both]),
    // `srun --pty bash`, or salloc with a separate shell.
    (Srun, true, [1, 1],     [Inner, Inner, Inner, Both,  Inner, Inner, Inner, Inner]),
    (Lws, false, [2, 3],     [Inner, Inner, Inner, Inner, Inner, Inner, Inner, Both]),
    (Lws, false, [1, 1],     [Inner, Inner, Inner, Inner, Inner, Inner, Inner, Inner]),
];

/// The ranks of worlds of these sizes.
fn numbers([least, most]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> {
    (least..=most).flat_map(|ranks| (0..ranks).map(move |rank| (rank, ranks)))
}

fn found(variables: &Variables) -> Result<Launch, Error> {
    detect(&|name| variables.get(name).cloned())
}

/// True if `error` says which variables of `who`, with their values, contradict others.
fn names(error: &str, who: Who, variables: &Variables) -> bool {
    let [name, rank, ranks] = who.family();
    let message = format!("{rank}={} and {ranks}={} ({name})", variables[rank], variables[ranks]);
    error.contains("contradict") && error.contains(&message)
}

#[test]
fn every_launcher_in_a_rank_of_every_other() {
    let mut failed = Vec::new();
    for (outer, alone, sizes, row) in TABLE {
        for ((inner, mut right), own) in
            COLUMNS.into_iter().zip(row).flat_map(|cell| numbers([1, 3]).map(move |own| (cell, own)))
        {
            for (rank, ranks) in numbers(sizes) {
                let before = outer.start(&Variables::new(), rank, ranks, if alone { ranks } else { 1 });
                // People make only worlds of several ranks by hand.
                if inner == Rank && own.1 == 1 && right == Inner && [Srun, Flux, Lws].contains(&outer) {
                    right = Both;
                }
                let all = inner.start(&before, own.0, own.1, own.1);
                let got = found(&all);
                let has = |numbers| got.as_ref().is_ok_and(|it| (it.rank, it.ranks) == numbers);
                let both = |error: &Error| {
                    let error = error.to_string();
                    [outer, inner].iter().all(|who| names(&error, *who, &all))
                };
                let well = match right {
                    _ if own == (rank, ranks) => has(own),
                    Inner => has(own),
                    Outer => has((rank, ranks)),
                    Both => got.as_ref().is_err_and(both),
                    Any => has(own) || has((rank, ranks)) || got.is_err(),
                };
                if !well {
                    failed.push(format!(
                        "{inner:?} {own:?} in {outer:?} {rank} of {ranks}, alone {alone}: {right:?}: {got:?}"
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
}

/// If each launcher may have started the next, and the first the last, then the last is the nearest. All ranks that it starts on one host
/// find it, and use one store.
#[test]
fn the_last_of_three_is_the_nearest() {
    let (mut failed, mut cases) = (Vec::new(), 0);
    let may = |row: &Row, inner: Who| {
        COLUMNS.iter().zip(row.3).any(|(column, right)| *column == inner && right == Inner)
    };
    let several = |row: &&Row| row.2[1] > 1;
    for first in TABLE.iter().filter(several) {
        for second in TABLE.iter().filter(several).filter(|row| may(first, row.0)) {
            // A rank by hand looks like the rank of `unisono run` around it if both have the same numbers.
            let last =
                COLUMNS.into_iter().filter(|who| *who != Rank && may(first, *who) && may(second, *who));
            for last in last {
                for (rank, ranks) in numbers([2, 2]) {
                    let each = |row: &Row, ranks| if row.1 { ranks } else { 1 };
                    let outer = first.0.start(&Variables::new(), 1, 3, each(first, 3));
                    let middle = second.0.start(&outer, rank, ranks, each(second, ranks));
                    let found: Vec<_> = (0..2).map(|rank| found(&last.start(&middle, rank, 2, 2))).collect();
                    let well = (0..2)
                        .all(|rank| found[rank].as_ref().is_ok_and(|it| (it.rank, it.ranks) == (rank, 2)));
                    let places: Vec<_> = found.iter().flatten().map(|it| &it.rendezvous).collect();
                    cases += 1;
                    if !well || places.windows(2).any(|pair| pair[0] != pair[1]) {
                        failed.push(format!("{last:?} in {:?} in {:?}: {found:?}", second.0, first.0));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {cases} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(cases > 100, "{cases}");
}

/// A rank that has the numbers of its pod by chance uses the store of the others.
#[test]
fn all_that_one_launcher_starts_in_a_pod_meet_in_one_place() {
    for inner in COLUMNS.into_iter().filter(|who| *who != Rank) {
        for (rank, ranks) in numbers([1, 3]) {
            let pod = Pod.start(&Variables::new(), rank, ranks, 1);
            let all = (0..ranks).map(|own| found(&inner.start(&pod, own, ranks, ranks)).unwrap());
            let all: Vec<_> = all.map(|it| (it.launcher, it.rendezvous)).collect();
            assert!(
                all.windows(2).all(|pair| pair[0] == pair[1]),
                "{inner:?} in pod {rank} of {ranks}: {all:?}"
            );
            assert_eq!(all[0].0, inner.family()[0]);
        }
    }
}
