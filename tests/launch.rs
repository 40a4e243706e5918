//! Detection of rank, world size and store, from environments that real launchers made (captured from Open MPI 5.0.11, MPICH 5.0.2
//! and Slurm 22.05, some of them nested) and from broken ones.

#![allow(clippy::unwrap_used, clippy::panic)]

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
    launch::{Launch, Meeting, detect},
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
/// `sbatch -n2`: the script itself, which is no step.
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

/// The expected launch: launcher, rank, ranks, local rank, local ranks, job.
type Told = (&'static str, usize, usize, Option<usize>, Option<usize>, &'static str);

#[test]
fn real_launchers_are_understood() {
    let cases: [(&str, Told); 8] = [
        (TORCHRUN, ("torchrun", 3, 4, Some(1), Some(2), "job7")),
        (OPEN_MPI, ("Open MPI", 1, 2, Some(1), Some(2), "prterun-vm-11994@1")),
        (MPICH, ("MPICH", 1, 2, Some(1), Some(2), "")),
        (SLURM, ("Slurm", 2, 3, Some(0), Some(1), "slurm-1.0")),
        (SLURM_PMI2, ("MPICH", 1, 2, Some(1), Some(2), "slurm-3.0")),
        (MPICH_IN_SLURM, ("MPICH", 3, 4, Some(1), Some(2), "slurm-5.0")),
        (OPEN_MPI_IN_SLURM, ("Open MPI", 3, 4, Some(3), Some(4), "prterun-vm-30171@1")),
        ("UNISONO_RANK=0 UNISONO_WORLD_SIZE=1", ("unisono", 0, 1, None, None, "")),
    ];
    for (environment, told) in cases {
        let it = launch(environment).unwrap_or_else(|error| panic!("{error}\n{environment}"));
        let got = (it.launcher, it.rank, it.ranks, it.local_rank, it.local_ranks, it.job.as_str());
        assert!(it.token.is_empty(), "a job's id is no secret: {environment}");
        assert_eq!(got, told, "{environment}");
    }
}

/// The port of a `tcp://` meeting, whose host must be this.
fn port_at(meeting: Meeting, wanted: &str) -> u16 {
    match meeting {
        Meeting::At(StoreAddress::Tcp { host, port, served: false }) if host == wanted => port,
        other => panic!("{other:?}, not at {wanted}"),
    }
}

#[test]
fn ranks_get_the_address_of_the_store() {
    let meeting = |environment: &str| launch(environment).unwrap_or_else(|error| panic!("{error}")).meeting;
    // torchrun's agent has the port itself, if it says so.
    assert_eq!(port_at(meeting(TORCHRUN), "node01"), 29501);
    assert_eq!(port_at(meeting(&TORCHRUN.replace("=True", "=False")), "node01"), 29500);
    // Slurm's step names the machine, and the job's number gives the port, the same for all its tasks.
    let port = port_at(meeting(SLURM), "node01");
    assert!((20000..30000).contains(&port));
    assert_eq!(port_at(meeting(&SLURM.replace("PROCID=2", "PROCID=0")), "node01"), port);
    assert_ne!(port_at(meeting(&SLURM.replace("STEP_ID=0", "STEP_ID=1")), "node01"), port);
    port_at(meeting(MPICH_IN_SLURM), "node01");
    for alone in [OPEN_MPI, MPICH, SLURM_PMI2, OPEN_MPI_IN_SLURM] {
        assert_eq!(meeting(alone), Meeting::ThisMachine, "{alone}");
    }
    // Open MPI's ranks on mpirun's own machine are in no step, and those on others in one without it.
    let [here, there] = [OPEN_MPI_AT_HOME, OPEN_MPI_ELSEWHERE].map(meeting);
    assert_eq!(port_at(here, "node01"), port_at(there, "node01"));
    // What the user says goes first.
    for environment in [SLURM, MPICH, OPEN_MPI, MPICH_IN_SLURM] {
        let told = format!("{environment} MASTER_ADDR=10.0.0.1 MASTER_PORT=1234");
        assert_eq!(port_at(meeting(&told), "10.0.0.1"), 1234, "{environment}");
        let store = StoreAddress::File("/shared/here".into());
        assert_eq!(meeting(&format!("{told} UNISONO_STORE=file:///shared/here")), Meeting::At(store));
    }
    let slurm = format!("{SLURM} MASTER_ADDR=10.0.0.1");
    assert_eq!(port_at(meeting(&slurm), "10.0.0.1"), port, "the address alone is enough in Slurm");
    assert_eq!(meeting("RANK=0 WORLD_SIZE=1"), Meeting::Nowhere);
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
    for other in [TORCHRUN, OPEN_MPI, MPICH, SLURM, SLURM_BATCH] {
        let it = launch(&format!("{other} {ours}")).unwrap();
        assert_eq!((it.launcher, it.rank, it.ranks, &it.job[..]), ("unisono", 5, 9, ""), "{other}");
        assert_eq!(it.token.reveal(), "mine", "{other}");
        assert_eq!((it.local_rank, it.local_ranks), (Some(1), Some(3)), "{other}");
        let store = StoreAddress::Tcp { host: "127.0.0.1".into(), port: 77, served: true };
        assert_eq!(it.meeting, Meeting::At(store));
    }
    // A token that all of a user's jobs have tells none of them from the others.
    let it = launch(&format!("{SLURM} UNISONO_TOKEN=mine")).unwrap();
    assert_eq!((&it.job[..], it.token.reveal()), ("slurm-1.0", "mine"));
    assert_eq!(it.meeting, launch(SLURM).unwrap().meeting, "nothing that others see depends on the token");
}

#[test]
fn whatever_is_wrong_is_named() {
    let rank = |rank: &str| TORCHRUN.replace(" RANK=3", &format!(" RANK={rank}"));
    let cases = [
        (String::new(), "UNISONO_RANK", "unisono run"),
        ("PATH=/bin HOME=/root".into(), "UNISONO_RANK", "torchrun"),
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
        (
            MPICH.replace("LOCALNRANKS=2", "LOCALNRANKS=1").replace("RANKID=1", "RANKID=0"),
            "MASTER_ADDR",
            "mpiexec -genv",
        ),
        (
            SLURM.replace("STEP_NODELIST=node[01-02]", "STEP_NODELIST=node["),
            "SLURM_STEP_NODELIST",
            "a list of hosts",
        ),
        (SLURM.replace("PER_NODE=2,1", "PER_NODE=2"), "SLURM_STEP_TASKS_PER_NODE", "an entry for node 1"),
    ];
    for (environment, wanted, words) in cases {
        match launch(&environment) {
            Err(Error::Config { name, problem, .. }) if name == wanted && problem.contains(words) => {}
            other => panic!("{other:?}\nwanted {wanted}: {words}\n{environment}"),
        }
    }
    // The whole sentence, as people see it.
    assert_eq!(launch(&rank("4")).unwrap_err().to_string(), "RANK=4: must be less than 4, by WORLD_SIZE");
}

#[test]
#[ignore = "what the next test starts as a process of its own"]
fn a_process_that_tells_its_config() {
    match Config::from_env() {
        Ok(config) => println!("told {config:?}"),
        Err(error) => println!("told {error}"),
    }
}

#[test]
fn the_real_environment_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let told = |environment: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_tells_its_config", "--ignored", "--nocapture"])
            .env_clear()
            .env("TMPDIR", directory.path())
            .envs(environment.split_whitespace().map(|word| word.split_once('=').unwrap()))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| Some(line.split_once("told ")?.1.to_owned())).unwrap()
    };
    let nothing = told("");
    assert!(nothing.contains("UNISONO_RANK") && nothing.contains("mpirun"), "{nothing}");
    let config = told(&format!("{TORCHRUN} UNISONO_CHUNK=64K UNISONO_UNHEARD_OF=1"));
    assert!(config.contains("rank: 3, ranks: 4,") && config.contains("chunk: 65536,"), "{config}");
    let wrong = told(&format!("{TORCHRUN} UNISONO_LANES=many"));
    assert!(wrong.starts_with("UNISONO_LANES=many: wanted a number"), "{wrong}");
    // All ranks on one machine and no word of where to meet: a directory that is this user's alone, and the
    // process that started them, of which all ranks know.
    let config = told(MPICH);
    assert!(config.contains(&format!("job: \"job-{}\", token: Token(none)", std::process::id())), "{config}");
    let meeting = directory.path().join(format!("unisono-{}", rustix::process::getuid().as_raw()));
    assert!(config.contains(&format!("store: Some(File({meeting:?}))")), "{config}");
    assert_eq!(meeting.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn jobs_that_one_slurm_step_starts_do_not_meet() {
    let directory = tempfile::tempdir().unwrap();
    // A daemon by its name, which is all that it is known by. One of its ranks has a script of its own above it.
    // A link, not a copy: while another test forks, its child has the copy open for writing, and nobody can execute it.
    let daemon = directory.path().join("hydra_pmi_proxy");
    symlink("/bin/sh", &daemon).unwrap();
    let rank = "\"$0\" --exact a_process_that_tells_its_config --ignored --nocapture; :";
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
    let told = |path: &Path| match launch(&format!("{MPICH} UNISONO_TOKEN_FILE={}", path.display())) {
        Ok(launch) => launch.token.reveal().to_owned(),
        Err(Error::Config { name, problem, .. }) if name == "UNISONO_TOKEN_FILE" => problem,
        Err(other) => panic!("{other}"),
    };
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    assert!(told(&file).contains("cannot read it"));
    fs::write(&file, "a b\r\n").unwrap();
    mode(0o644);
    assert!(told(&file).contains("mode 0644 gives access"), "{}", told(&file));
    for closed in [0o600, 0o400] {
        mode(closed);
        assert_eq!(told(&file), "a b");
    }
    // As secrets are mounted into containers.
    let link = directory.path().join("link");
    symlink(&file, &link).unwrap();
    assert_eq!(told(&link), "a b");
    mode(0o600);
    for (text, problem) in [("\n", "is empty"), (&"x".repeat(5000), "longer than 4096 bytes")] {
        fs::write(&file, text).unwrap();
        assert!(told(&file).contains(problem), "{}", told(&file));
    }
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for no_file in [&pipe, Path::new("/dev/zero"), directory.path()] {
        assert!(told(no_file).contains("a regular file is wanted"), "{}", told(no_file));
    }
    if rustix::process::geteuid().is_root() {
        fs::write(&file, "secret").unwrap();
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(told(&file).contains("belongs to user 65534"), "{}", told(&file));
    } else {
        println!("SKIPPED the file of another user: only root can make one");
    }
}

#[test]
fn what_is_no_text_is_refused_and_a_token_not_shown() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_tells_its_config", "--ignored", "--nocapture"])
        .env_clear()
        .envs(TORCHRUN.split_whitespace().map(|word| word.split_once('=').unwrap()))
        .env("UNISONO_STORE", OsStr::from_bytes(b"file:///tmp/caf\xe9"))
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("told UNISONO_STORE=") && told.contains("is not UTF-8"), "{told}");
    for token in [&b"geheim"[..], b"geheim\xe9"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_tells_its_config", "--ignored", "--nocapture"])
            .env_clear()
            .envs(TORCHRUN.split_whitespace().map(|word| word.split_once('=').unwrap()))
            .env("UNISONO_TOKEN", OsStr::from_bytes(token))
            .output()
            .unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("Token(not shown)") || told.contains("UNISONO_TOKEN: is not UTF-8"), "{told}");
        assert!(!told.contains("geheim"), "{told}");
    }
}
