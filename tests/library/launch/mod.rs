//! Detection of rank, world size and store, from environments that real launchers made (captured from Open MPI 5.0.11, MPICH 5.0.2
//! and Slurm 22.05, some of them nested) and from broken ones.

mod pairs;

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::Path,
    process::Command,
};

use unisono::{
    Error,
    config::{Config, StoreAddress},
    launch::{Launch, RendezvousPoint, detect},
};

/// Reads `NAME=value` words.
fn launch(environment: &str) -> Result<Launch, Error> {
    let pairs: Vec<(&str, &str)> =
        environment.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
    detect(&|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
}

const TORCHRUN: &str = "LOCAL_RANK=1 RANK=3 GROUP_RANK=1 ROLE_RANK=3 ROLE_NAME=default LOCAL_WORLD_SIZE=2 \
    WORLD_SIZE=4 GROUP_WORLD_SIZE=2 ROLE_WORLD_SIZE=4 MASTER_ADDR=node01 MASTER_PORT=29500 \
    TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RUN_ID=job7 \
    TORCHELASTIC_USE_AGENT_STORE=True";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 \
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_num_procs=2 OMPI_UNIVERSE_SIZE=2 \
    OMPI_WORLD_LOCAL_SIZE=2 OMPI_WORLD_SIZE=2 PMIX_HOSTNAME=vm PMIX_NAMESPACE=prterun-vm-11994@1 PMIX_RANK=1";
const MPICH: &str =
    "HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=11 PMI_HOSTNAME=vm PMI_RANK=1 PMI_SIZE=2";
/// `srun -N2 -n3`, task 2.
const SLURM: &str = "SLURMD_NODENAME=node02 SLURM_GTIDS=2 SLURM_JOBID=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=node[01-02] \
    SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NODELIST=node[01-02] SLURM_NPROCS=3 \
    SLURM_NTASKS=3 SLURM_PROCID=2 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[01-02] \
    SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_TASKS_PER_NODE=2,1";
/// `sbatch -n2`: the script itself, which is not a step.
const SLURM_BATCH: &str = "SLURM_JOB_ID=2 SLURM_LOCALID=0 SLURM_NODELIST=node01 SLURM_NPROCS=2 SLURM_NTASKS=2 \
    SLURM_PROCID=0 SLURM_TASKS_PER_NODE=2";
/// `srun --mpi=pmi2 -n2`, task 1.
const SLURM_PMI2: &str = "PMI_FD=13 PMI_JOBID=3.0 PMI_RANK=1 PMI_SIZE=2 SLURM_JOB_ID=3 SLURM_LOCALID=1 SLURM_NTASKS=2 \
    SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 \
    SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=node01";
/// `mpiexec -n 4` in a batch script on two nodes, on the second: Slurm's variables describe the two daemons.
const MPICH_IN_SLURM: &str = "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=6 PMI_HOSTNAME=node02 PMI_RANK=3 PMI_SIZE=4 \
    SLURM_JOB_ID=5 SLURM_JOB_NODELIST=node[01-02] SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=2 SLURM_PROCID=1 \
    SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[01-02] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 \
    SLURM_STEP_TASKS_PER_NODE=1(x2)";
/// `mpirun -n 4` in a batch script, all on the first node.
const OPEN_MPI_IN_SLURM: &str = "OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_RANK=3 \
    OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=prterun-vm-30171@1 PMIX_RANK=3 SLURM_JOB_ID=4 \
    SLURM_JOB_NODELIST=node[01-02] SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_STEP_ID=0 \
    SLURM_STEP_NODELIST=node[01-02] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)";

/// The same on two nodes: PRRTE starts no daemon by srun on the node where mpirun itself runs (its plm_slurm).
const OPEN_MPI_AT_HOME: &str = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=1 \
    OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=prterun-node01-30171@1 PMIX_RANK=1 SLURM_JOB_ID=4 \
    SLURM_JOB_NODELIST=node[01-02] SLURM_NNODES=2 SLURM_NODELIST=node[01-02] SLURM_PROCID=0";
const OPEN_MPI_ELSEWHERE: &str = "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=2 \
    OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=prterun-node01-30171@1 PMIX_RANK=2 SLURM_JOB_ID=4 \
    SLURM_JOB_NODELIST=node[01-02] SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEP_ID=0 \
    SLURM_STEP_NODELIST=node02 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1";

/// `srun -N1 -n2 : -N2 -n2`, the first component on node03: its tasks 1 and 3. Slurm sorts the list of hosts, and SLURM_NODEID counts by
/// component.
const SLURM_HET: &str = "SLURMD_NODENAME=node03 SLURM_DISTRIBUTION=cyclic SLURM_GTIDS=0,1 SLURM_HET_SIZE=2 SLURM_JOB_ID=3 \
    SLURM_JOB_NODELIST=node[01-03] SLURM_JOB_NODELIST_PACK_GROUP_0=node03 SLURM_JOB_NODELIST_PACK_GROUP_1=node[01-02] \
    SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_PACK_SIZE=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[01-03] \
    SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=1(x2),2";
const SLURM_HET_LAST: &str = "SLURMD_NODENAME=node02 SLURM_DISTRIBUTION=cyclic SLURM_GTIDS=3 SLURM_HET_SIZE=2 SLURM_JOB_ID=3 \
    SLURM_JOB_NODELIST=node[01-03] SLURM_JOB_NODELIST_PACK_GROUP_0=node03 SLURM_JOB_NODELIST_PACK_GROUP_1=node[01-02] \
    SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_PACK_SIZE=2 SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[01-03] \
    SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=1(x2),2";
/// `srun -n3 -m arbitrary` with the hosts node02, node01, node02: task 1.
const SLURM_ARBITRARY: &str = "SLURM_DISTRIBUTION=arbitrary SLURM_GTIDS=1 SLURM_JOB_ID=5 SLURM_JOB_NODELIST=node[01-02] \
    SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[01-02] SLURM_STEP_NUM_NODES=2 \
    SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=1,2";
/// `mpiexec -n 4` over two hosts, by ssh: the second host's first.
const MPICH_ON_TWO: &str =
    "HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 PMI_FD=11 PMI_HOSTNAME=h2 PMI_RANK=2 PMI_SIZE=4";
/// From the documentation of flux-core: `flux run -N2 -n4`, task 3.
const FLUX: &str = "FLUX_JOB_ID=f23XMdGkqy FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_TASK_RANK=3 PMI_FD=9 \
    PMI_RANK=3 PMI_SIZE=4";
/// From the documentation of HPE's PALS: `mpiexec -n 4 --ppn 2`.
const PALS: &str = "PALS_APID=b15a8eb7 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_NODEID=1 PALS_RANKID=3 PMI_LOCAL_RANK=1 \
    PMI_LOCAL_SIZE=2 PMI_RANK=3 PMI_SIZE=4";
const PALS_AT_MASTER: &str = "PALS_APID=b15a8eb7 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_RANKID=3 PMI_RANK=3 PMI_SIZE=4 \
    MASTER_ADDR=node01 MASTER_PORT=29500";
/// From the documentation of LeaderWorkerSet.
const LWS: &str = "KUBERNETES_SERVICE_HOST=10.96.0.1 LWS_GROUP_SIZE=4 LWS_LEADER_ADDRESS=train-0.train.default LWS_WORKER_INDEX=2";

/// The expected launch: launcher, rank, ranks, local rank, local ranks, job.
type Wanted = (&'static str, usize, usize, Option<usize>, Option<usize>, &'static str);

#[test]
fn real_launchers_are_understood() {
    let cases: [(&str, Wanted); 17] = [
        (TORCHRUN, ("torchrun", 3, 4, Some(1), Some(2), "job7")),
        (OPEN_MPI, ("Open MPI", 1, 2, Some(1), Some(2), "prterun-vm-11994@1")),
        (MPICH, ("MPICH", 1, 2, Some(1), Some(2), "")),
        (SLURM, ("Slurm", 2, 3, Some(0), Some(1), "slurm-1.0")),
        (SLURM_PMI2, ("MPICH", 1, 2, Some(1), Some(2), "slurm-3.0")),
        (MPICH_IN_SLURM, ("MPICH", 3, 4, Some(1), Some(2), "slurm-5.0")),
        (OPEN_MPI_IN_SLURM, ("Open MPI", 3, 4, Some(3), Some(4), "prterun-vm-30171@1")),
        (SLURM_HET, ("Slurm", 1, 4, Some(1), Some(2), "slurm-3.0")),
        (SLURM_HET_LAST, ("Slurm", 3, 4, Some(0), Some(1), "slurm-3.0")),
        (SLURM_ARBITRARY, ("Slurm", 1, 3, Some(0), Some(1), "slurm-5.0")),
        (MPICH_ON_TWO, ("MPICH", 2, 4, Some(0), Some(2), "")),
        (FLUX, ("Flux", 3, 4, Some(1), None, "f23XMdGkqy")),
        (PALS_AT_MASTER, ("PALS", 3, 4, Some(1), Some(2), "b15a8eb7")),
        (LWS, ("LeaderWorkerSet", 2, 4, None, None, "")),
        ("UNISONO_RANK=0 UNISONO_WORLD_SIZE=1", ("unisono", 0, 1, None, None, "")),
        // Without variables of a launcher, a process is a world of one rank.
        ("", ("none", 0, 1, None, None, "")),
        ("PATH=/bin HOME=/root UNISONO_PROVIDER=shm", ("none", 0, 1, None, None, "")),
    ];
    for (environment, wanted) in cases {
        let it = launch(environment).unwrap_or_else(|error| panic!("{error}\n{environment}"));
        let got = (it.launcher, it.rank, it.ranks, it.local_rank, it.local_ranks, it.job.as_str());
        assert!(it.token.is_empty(), "a job's id is no secret: {environment}");
        assert_eq!(got, wanted, "{environment}");
    }
}

/// The port of a `tcp://` meeting, whose host must be this.
fn port_at(meeting: RendezvousPoint, wanted: &str) -> u16 {
    match meeting {
        RendezvousPoint::Store(StoreAddress::Tcp { host, port, served: false }) if host == wanted => port,
        other => panic!("{other:?}, not at {wanted}"),
    }
}

/// The hosts of a meeting among several, and their ports.
fn among(meeting: RendezvousPoint) -> (String, Vec<u16>) {
    match meeting {
        RendezvousPoint::Store(StoreAddress::Among { hosts, ports }) => (hosts.join(" "), ports),
        other => panic!("{other:?}, not among several"),
    }
}

#[test]
fn ranks_get_the_address_of_the_store() {
    let meeting =
        |environment: &str| launch(environment).unwrap_or_else(|error| panic!("{error}")).rendezvous;
    // torchrun's agent uses the port itself if a variable says so.
    assert_eq!(port_at(meeting(TORCHRUN), "node01"), 29501);
    assert_eq!(port_at(meeting(&TORCHRUN.replace("=True", "=False")), "node01"), 29500);
    // Slurm's step names the machines, and the job's number gives the ports, the same for all its tasks.
    let (hosts, ports) = among(meeting(SLURM));
    assert!(ports.iter().all(|port| (20000..30000).contains(port)), "{ports:?}");
    assert_eq!(ports.iter().collect::<std::collections::HashSet<_>>().len(), 8, "{ports:?}");
    assert_eq!(hosts, "node01 node02", "without its distribution task 0 may be on any");
    assert_eq!(
        among(meeting(&format!("{SLURM} SLURM_DISTRIBUTION=block"))),
        ("node01".to_owned(), ports.clone())
    );
    assert_eq!(
        among(meeting(&SLURM.replace("PROCID=2", "PROCID=0").replace("GTIDS=2", "GTIDS=0,1"))),
        (hosts, ports.clone())
    );
    assert_ne!(among(meeting(&SLURM.replace("STEP_ID=0", "STEP_ID=1"))).1, ports);
    assert_eq!(among(meeting(SLURM_ARBITRARY)).0, "node01 node02");
    // The first component has task 0.
    assert_eq!(among(meeting(SLURM_HET)), among(meeting(SLURM_HET_LAST)));
    assert_eq!(among(meeting(SLURM_HET)).0, "node03 node01 node02");
    let one_host = "SLURM_DISTRIBUTION=block SLURM_GTIDS=0,1 SLURM_JOB_ID=6 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=0 \
        SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node02 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2";
    let flux = FLUX.replace("NNODES=2", "NNODES=1");
    for alone in [OPEN_MPI, MPICH, SLURM_PMI2, OPEN_MPI_IN_SLURM, one_host, &flux] {
        assert_eq!(meeting(alone), RendezvousPoint::ThisHost, "{alone}");
    }
    // Open MPI's ranks on the machine of mpirun are in no step. Those on other machines are in a step that does not include that machine.
    let [here, there] = [OPEN_MPI_AT_HOME, OPEN_MPI_ELSEWHERE].map(meeting);
    assert_eq!(among(here.clone()), among(there));
    assert_eq!(among(here).0, "node01 node02");
    // Open MPI may use a part of the job's hosts, which need not begin with the host of mpirun.
    assert_eq!(
        among(meeting(&OPEN_MPI_ELSEWHERE.replace("prterun-node01", "prterun-node02"))).0,
        "node02 node01"
    );
    // The process manager knows the store. Ranks leave its connection alone if Slurm's variables suffice, because Slurm's manager
    // accepts one client.
    let pmi = |descriptor, host: Option<&str>| {
        RendezvousPoint::Store(StoreAddress::Pmi { descriptor, host: host.map(str::to_owned) })
    };
    assert_eq!(meeting(MPICH_ON_TWO), pmi(11, Some("h2")));
    assert_eq!(meeting(MPICH_IN_SLURM), pmi(6, Some("node02")));
    assert_eq!(meeting(FLUX), pmi(9, None));
    let pmi2 = SLURM_PMI2
        .replace("STEP_TASKS_PER_NODE=2", "STEP_TASKS_PER_NODE=1(x2)")
        .replace("node01", "node[01-02]")
        .replace("LOCALID=1", "LOCALID=0");
    assert_eq!(among(meeting(&pmi2)).0, "node01 node02");
    // A pod has its own ports.
    assert_eq!(port_at(meeting(LWS), "train-0.train.default"), 29500);
    assert_eq!(port_at(meeting(&format!("{LWS} MASTER_PORT=5")), "train-0.train.default"), 5);
    // The user's variables override all others.
    for environment in [SLURM, MPICH, OPEN_MPI, MPICH_IN_SLURM, MPICH_ON_TWO, FLUX, PALS, LWS] {
        let named = format!("{environment} MASTER_ADDR=10.0.0.1 MASTER_PORT=1234");
        assert_eq!(port_at(meeting(&named), "10.0.0.1"), 1234, "{environment}");
        let store = StoreAddress::File("/shared/here".into());
        assert_eq!(
            meeting(&format!("{named} UNISONO_STORE=file:///shared/here")),
            RendezvousPoint::Store(store)
        );
    }
    let slurm = format!("{SLURM} MASTER_ADDR=10.0.0.1");
    assert_eq!(
        among(meeting(&slurm)),
        ("10.0.0.1".to_owned(), ports),
        "the address alone is enough in Slurm"
    );
    assert_eq!(meeting("RANK=0 WORLD_SIZE=1"), RendezvousPoint::None);
    for (written, host) in [
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("[fe80::1%eth0]", "fe80::1%eth0"),
    ] {
        let environment = format!("RANK=0 WORLD_SIZE=1 MASTER_ADDR={written} MASTER_PORT=5");
        assert_eq!(port_at(meeting(&environment), host), 5);
    }
}

#[test]
fn our_own_variables_go_first() {
    let ours = "UNISONO_RANK=5 UNISONO_WORLD_SIZE=9 UNISONO_LOCAL_RANK=1 UNISONO_LOCAL_WORLD_SIZE=3 \
        UNISONO_STORE=tcp+served://127.0.0.1:77 UNISONO_TOKEN=mine";
    // `unisono run` sets RANK and WORLD_SIZE as well.
    let torchrun = "RANK=5 WORLD_SIZE=9 LOCAL_RANK=5 LOCAL_WORLD_SIZE=9";
    for other in [torchrun, OPEN_MPI, MPICH, SLURM, SLURM_BATCH, LWS, PALS, FLUX] {
        let it = launch(&format!("{other} {ours}")).unwrap();
        assert_eq!((it.launcher, it.rank, it.ranks, &it.job[..]), ("unisono", 5, 9, ""), "{other}");
        assert_eq!(it.token.reveal(), "mine", "{other}");
        assert_eq!((it.local_rank, it.local_ranks), (Some(1), Some(3)), "{other}");
        let store = StoreAddress::Tcp { host: "127.0.0.1".into(), port: 77, served: true };
        assert_eq!(it.rendezvous, RendezvousPoint::Store(store));
    }
    // A token that all jobs of a user share does not distinguish them.
    let it = launch(&format!("{SLURM} UNISONO_TOKEN=mine")).unwrap();
    assert_eq!((&it.job[..], it.token.reveal()), ("slurm-1.0", "mine"));
    assert_eq!(
        it.rendezvous,
        launch(SLURM).unwrap().rendezvous,
        "nothing that others see depends on the token"
    );
}

#[test]
fn launchers_that_contradict_each_other_are_named() {
    let alone = [
        "RANK=0 WORLD_SIZE=1",
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500",
        "UNISONO_RANK=0 UNISONO_WORLD_SIZE=1",
    ];
    let launchers =
        [OPEN_MPI, MPICH, MPICH_ON_TWO, PALS, FLUX, SLURM, SLURM_PMI2, SLURM_HET, MPICH_IN_SLURM, LWS];
    let left_over = alone.iter().flat_map(|left| launchers.map(|launcher| (*left, launcher)));
    let others = [
        ("PMI_RANK=0 PMI_SIZE=1", SLURM),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", SLURM),
        // The step has two tasks on one host, so that these are no daemons.
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
            SLURM,
        ),
        ("PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", SLURM_HET),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0", MPICH),
        ("PALS_RANKID=0", MPICH),
        ("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1", SLURM_PMI2),
        ("RANK=3 WORLD_SIZE=4", SLURM),
        ("RANK=1 WORLD_SIZE=4", OPEN_MPI),
        ("RANK=0 WORLD_SIZE=2", OPEN_MPI),
    ];
    for (left, launcher) in left_over.chain(others) {
        let environment = format!("{left} {launcher}");
        let error = launch(&environment).err().unwrap_or_else(|| panic!("taken: {environment}")).to_string();
        let words: Vec<_> = left.split_whitespace().take(2).collect();
        assert!(error.contains("contradict"), "{error}\n{environment}");
        // Both are named with their variables and values.
        let [one, two] = words[..] else {
            assert_eq!(words, ["PALS_RANKID=0"]);
            continue;
        };
        assert!([one, two].iter().all(|word| error.contains(word)), "{error}\n{environment}");
    }
    let error = launch(&format!("RANK=0 WORLD_SIZE=1 {OPEN_MPI}")).unwrap_err().to_string();
    let message = "RANK=0: RANK=0 and WORLD_SIZE=1 (torchrun) contradict OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 (Open MPI)";
    assert!(error.starts_with(message) && error.contains("Unset RANK and WORLD_SIZE"), "{error}");
}

#[test]
fn the_nearer_launcher_wins() {
    let run = "UNISONO_RANK=1 UNISONO_WORLD_SIZE=2 UNISONO_LOCAL_RANK=1 UNISONO_LOCAL_WORLD_SIZE=2 RANK=1 WORLD_SIZE=2 \
        LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 UNISONO_STORE=tcp+served://127.0.0.1:77";
    let by_hand = "UNISONO_RANK=2 UNISONO_WORLD_SIZE=3 UNISONO_STORE=tcp://h:7";
    // Two processes that each task of srun starts by itself, as deepspeed does.
    let spawned = "RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=7";
    let in_run = run.replace(" RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "");
    let pod = "KUBERNETES_SERVICE_HOST=10.96.0.1 RANK=1 WORLD_SIZE=4 MASTER_ADDR=train-0 MASTER_PORT=29500";
    let daemons =
        "SLURM_JOB_ID=5 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2";
    let cases = [
        (format!("{run} {SLURM}"), "unisono", 1, 2),
        (format!("{run} {LWS}"), "unisono", 1, 2),
        (format!("{run} {OPEN_MPI_IN_SLURM}"), "unisono", 1, 2),
        (format!("{by_hand} {SLURM}"), "unisono", 2, 3),
        (format!("{by_hand} {TORCHRUN}"), "unisono", 2, 3),
        (format!("{in_run} {TORCHRUN}"), "torchrun", 3, 4),
        (format!("{in_run} RANK=0 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=7"), "torchrun", 0, 3),
        // A script that sets no more than it must.
        (
            run.replace(" RANK=1 WORLD_SIZE=2", " RANK=2 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=7"),
            "torchrun",
            2,
            3,
        ),
        (run.replace(" RANK=1 WORLD_SIZE=2", " RANK=0 WORLD_SIZE=1"), "torchrun", 0, 1),
        (format!("{run} TORCHELASTIC_RUN_ID=inner MASTER_ADDR=h MASTER_PORT=7"), "torchrun", 1, 2),
        (format!("{TORCHRUN} {SLURM}"), "torchrun", 3, 4),
        (format!("{TORCHRUN} {OPEN_MPI}"), "torchrun", 3, 4),
        (format!("{TORCHRUN} {LWS}"), "torchrun", 3, 4),
        (format!("{spawned} {SLURM}"), "torchrun", 5, 6),
        (format!("RANK=2 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=7 {SLURM}"), "torchrun", 2, 3),
        (format!("{pod} {OPEN_MPI}"), "Open MPI", 1, 2),
        (format!("{pod} {}", SLURM.replace("node02 ", "")), "Slurm", 2, 3),
        (format!("{SLURM} {LWS}"), "Slurm", 2, 3),
        (format!("{OPEN_MPI} {LWS}"), "Open MPI", 1, 2),
        (format!("{OPEN_MPI} {daemons}"), "Open MPI", 1, 2),
        (format!("{MPICH} {LWS}"), "MPICH", 1, 2),
        (format!("{FLUX} {SLURM}"), "Flux", 3, 4),
        (format!("{MPICH} {FLUX}"), "MPICH", 1, 2),
    ];
    for (environment, launcher, rank, ranks) in cases {
        let it = launch(&environment).unwrap_or_else(|error| panic!("{error}\n{environment}"));
        assert_eq!((it.launcher, it.rank, it.ranks), (launcher, rank, ranks), "{environment}");
    }
    // The variables of the outer job are not read: neither the pod's store nor the store of `unisono run`.
    let meeting = |environment: String| launch(&environment).unwrap().rendezvous;
    assert_eq!(meeting(format!("{pod} {OPEN_MPI}")), RendezvousPoint::ThisHost);
    assert_eq!(port_at(meeting(format!("{in_run} {TORCHRUN}")), "node01"), 29501);
}

#[test]
fn whatever_is_wrong_is_named() {
    let rank = |rank: &str| TORCHRUN.replace(" RANK=3", &format!(" RANK={rank}"));
    let cases = [
        ("UNISONO_STORE=tcp://node01:29500".into(), "UNISONO_RANK", "unisono run"),
        ("MASTER_ADDR=node01 MASTER_PORT=29500".into(), "UNISONO_RANK", "though it is said where ranks meet"),
        (SLURM_BATCH.into(), "SLURM_STEP_NUM_TASKS", "start the program by `srun`"),
        (rank("4"), "RANK", "must be less than 4, by WORLD_SIZE"),
        (rank("-1"), "RANK", "wanted a number from 0"),
        (rank("x3"), "RANK", "wanted a number from 0"),
        (rank(""), "RANK", "wanted a number from 0"),
        (rank("99999999999999999999999"), "RANK", "wanted a number from 0"),
        (TORCHRUN.replace(" WORLD_SIZE=4", " WORLD_SIZE=0"), "WORLD_SIZE", "at least 1"),
        (TORCHRUN.replace(" WORLD_SIZE=4", ""), "WORLD_SIZE", "is not set, though RANK is"),
        (TORCHRUN.replace(" RANK=3", ""), "RANK", "is not set, though WORLD_SIZE is"),
        (
            TORCHRUN.replace("LOCAL_RANK=1", "LOCAL_RANK=2"),
            "LOCAL_RANK",
            "must be less than 2, by LOCAL_WORLD_SIZE",
        ),
        (
            TORCHRUN.replace("LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=5"),
            "LOCAL_WORLD_SIZE",
            "must be less than 5",
        ),
        (
            TORCHRUN.replace("LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=0").replace("LOCAL_RANK=1", ""),
            "LOCAL_WORLD_SIZE",
            "at least 1",
        ),
        (TORCHRUN.replace("=node01", "=tcp://node01"), "MASTER_ADDR", "a scheme in it, tcp://"),
        (TORCHRUN.replace("=node01", "=node01:29500"), "MASTER_ADDR", "a port in it, 29500"),
        (TORCHRUN.replace("=node01", "=[fd00::1]:29500"), "MASTER_ADDR", "and the port in MASTER_PORT"),
        (format!("{MPICH} UNISONO_STORE=tcp://node01:29500:29501"), "UNISONO_STORE", "a port in it, 29500"),
        (format!("{MPICH} UNISONO_TOKEN=a UNISONO_TOKEN_FILE=/b"), "UNISONO_TOKEN_FILE", "unset one of them"),
        (TORCHRUN.replace("MASTER_ADDR=node01", ""), "MASTER_ADDR", "need a place to meet"),
        (TORCHRUN.replace("MASTER_PORT=29500", ""), "MASTER_PORT", "is not set, though MASTER_ADDR is"),
        (TORCHRUN.replace("=29500", "=65536"), "MASTER_PORT", "from 1 to 65535"),
        (TORCHRUN.replace("=29500", "=65535"), "MASTER_PORT", "choose a lower one"),
        (format!("{MPICH} UNISONO_RANK=0"), "UNISONO_WORLD_SIZE", "is not set, though UNISONO_RANK is"),
        ("UNISONO_RANK=0 UNISONO_WORLD_SIZE=2".into(), "UNISONO_STORE", "need a place to meet"),
        (format!("{MPICH} UNISONO_STORE=tcp://host:0"), "UNISONO_STORE", "wanted a port from 1"),
        (format!("{MPICH} UNISONO_STORE=host:80"), "UNISONO_STORE", "wanted tcp://host:port"),
        (MPICH_ON_TWO.replace("PMI_FD=11", ""), "MASTER_ADDR", "mpiexec -genv"),
        (MPICH_ON_TWO.replace("PMI_FD=11", "PMI_FD=x"), "PMI_FD", "wanted a number"),
        (PALS.into(), "MASTER_ADDR", "PALS does not say where rank 0 is"),
        (PALS.replace("PMI_SIZE=4", ""), "PMI_SIZE", "is not set, though PALS_RANKID is"),
        (
            LWS.replace("LWS_LEADER_ADDRESS=train-0.train.default", ""),
            "LWS_LEADER_ADDRESS",
            "need a place to meet",
        ),
        (
            SLURM.replace("STEP_NODELIST=node[01-02]", "STEP_NODELIST=node["),
            "SLURM_STEP_NODELIST",
            "a list of hosts",
        ),
        (
            SLURM.replace("PER_NODE=2,1", "PER_NODE=2").replace("SLURM_GTIDS=2", ""),
            "SLURM_STEP_TASKS_PER_NODE",
            "an entry for node 1",
        ),
    ];
    for (environment, wanted, words) in cases {
        match launch(&environment) {
            Err(Error::Config { name, problem, .. }) if name == wanted && problem.contains(words) => {}
            other => panic!("{other:?}\nwanted {wanted}: {words}\n{environment}"),
        }
    }
    // The complete error, as users see it.
    assert_eq!(launch(&rank("4")).unwrap_err().to_string(), "RANK=4: must be less than 4, by WORLD_SIZE");
}

#[test]
#[ignore = "what the next test starts as a separate process"]
fn a_process_that_tells_its_config() {
    match Config::from_env() {
        Ok(config) => println!("told {config:?}"),
        Err(error) => println!("told {error}"),
    }
}

#[test]
fn the_real_environment_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let launched = |environment: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "launch::a_process_that_tells_its_config", "--ignored", "--nocapture"])
            .env_clear()
            .env("TMPDIR", directory.path())
            .envs(environment.split_whitespace().map(|word| word.split_once('=').unwrap()))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| Some(line.split_once("told ")?.1.to_owned())).unwrap()
    };
    let nothing = launched("");
    assert!(nothing.contains("rank: 0, ranks: 1,") && nothing.contains("store: None"), "{nothing}");
    let half = launched("UNISONO_STORE=tcp://node01:29500");
    assert!(half.contains("UNISONO_RANK") && half.contains("mpirun"), "{half}");
    let config = launched(&format!("{TORCHRUN} UNISONO_CHUNK=64K UNISONO_UNHEARD_OF=1"));
    assert!(config.contains("rank: 3, ranks: 4,") && config.contains("chunk: 65536,"), "{config}");
    let wrong = launched(&format!("{TORCHRUN} UNISONO_LANES=many"));
    assert!(wrong.starts_with("UNISONO_LANES=many: wanted a number"), "{wrong}");
    // All ranks are on one machine and no variable names a store: they use a directory that belongs to this user alone and does not depend
    // on a TMPDIR that may differ between ranks. The job is the process that started them, which all ranks know.
    let config = launched(MPICH);
    assert!(config.contains(&format!("job: \"job-{}\", token: Token(none)", std::process::id())), "{config}");
    let meeting = Path::new("/tmp").join(format!("unisono-{}", rustix::process::getuid().as_raw()));
    assert!(config.contains(&format!("store: Some(File({meeting:?}))")), "{config}");
    assert_eq!(meeting.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn jobs_that_one_slurm_step_starts_do_not_meet() {
    let directory = tempfile::tempdir().unwrap();
    // A daemon is recognised by its name alone. One of its ranks has a script between itself and the daemon.
    // This is a link and not a copy: if another test forks, its child has the copy open for writing, and nobody can execute it.
    let daemon = directory.path().join("hydra_pmi_proxy");
    symlink("/bin/sh", &daemon).unwrap();
    let rank = "\"$0\" --exact launch::a_process_that_tells_its_config --ignored --nocapture; :";
    let jobs = |environment: &str| -> Vec<String> {
        let output = Command::new(&daemon)
            .args(["-c", &format!("{rank}; sh -c '{rank}' \"$0\"; :")])
            .arg(std::env::current_exe().unwrap())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", directory.path())
            .envs(MPICH.split_whitespace().map(|word| word.split_once('=').unwrap()))
            .envs(environment.split_whitespace().map(|word| word.split_once('=').unwrap()))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let job = |line: &str| Some(line.split_once("job: \"")?.1.split_once('"')?.0.to_owned());
        text.lines().filter_map(job).collect()
    };
    let step = "SLURM_JOB_ID=5 SLURM_STEP_ID=0";
    let [first, second] = [jobs(step), jobs(step)];
    assert!(first.len() == 2 && first[0] == first[1] && first[0].starts_with("slurm-5.0-"), "{first:?}");
    assert_ne!(first, second);
}

#[test]
fn a_token_comes_from_a_file_that_nobody_else_reads() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let launched = |path: &Path| match launch(&format!("{MPICH} UNISONO_TOKEN_FILE={}", path.display())) {
        Ok(launch) => launch.token.reveal().to_owned(),
        Err(Error::Config { name, problem, .. }) if name == "UNISONO_TOKEN_FILE" => problem,
        Err(other) => panic!("{other}"),
    };
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    assert!(launched(&file).contains("cannot read it"));
    fs::write(&file, "a b\r\n").unwrap();
    mode(0o644);
    assert!(launched(&file).contains("mode 0644 gives access"), "{}", launched(&file));
    for closed in [0o600, 0o400] {
        mode(closed);
        assert_eq!(launched(&file), "a b");
    }
    // Secrets are mounted into containers in this form.
    let link = directory.path().join("link");
    symlink(&file, &link).unwrap();
    assert_eq!(launched(&link), "a b");
    mode(0o600);
    for (text, problem) in [("\n", "is empty"), (&"x".repeat(5000), "longer than 4096 bytes")] {
        fs::write(&file, text).unwrap();
        assert!(launched(&file).contains(problem), "{}", launched(&file));
    }
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for no_file in [&pipe, Path::new("/dev/zero"), directory.path()] {
        assert!(launched(no_file).contains("a regular file is wanted"), "{}", launched(no_file));
    }
    if rustix::process::geteuid().is_root() {
        fs::write(&file, "secret").unwrap();
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(launched(&file).contains("belongs to user 65534"), "{}", launched(&file));
    } else {
        println!("SKIPPED: the file of another user: only root can make one");
    }
}

#[test]
fn what_is_no_text_is_refused_and_a_token_not_shown() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "launch::a_process_that_tells_its_config", "--ignored", "--nocapture"])
        .env_clear()
        .envs(TORCHRUN.split_whitespace().map(|word| word.split_once('=').unwrap()))
        .env("UNISONO_STORE", OsStr::from_bytes(b"file:///tmp/caf\xe9"))
        .output()
        .unwrap();
    let message = String::from_utf8(output.stdout).unwrap();
    assert!(message.contains("told UNISONO_STORE=") && message.contains("is not UTF-8"), "{message}");
    for token in [&b"geheim"[..], b"geheim\xe9"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "launch::a_process_that_tells_its_config", "--ignored", "--nocapture"])
            .env_clear()
            .envs(TORCHRUN.split_whitespace().map(|word| word.split_once('=').unwrap()))
            .env("UNISONO_TOKEN", OsStr::from_bytes(token))
            .output()
            .unwrap();
        let message = String::from_utf8(output.stdout).unwrap();
        assert!(
            message.contains("Token(not shown)") || message.contains("UNISONO_TOKEN: is not UTF-8"),
            "{message}"
        );
        assert!(!message.contains("geheim"), "{message}");
    }
}
