//! Real launchers: each that is on this machine starts two ranks of a bench. One that is missing, or does not work, is skipped with
//! the reason. If `UNISONO_TEST_LAUNCHERS` names launchers (separated by commas, for instance `mpiexec.hydra`), only these run, and
//! must.

use std::process::{Command, Output, Stdio};

/// Runs a command to its end; `None` if there is no such program.
fn run(words: &[&str]) -> Option<Output> {
    let mut command = Command::new(words[0]);
    // A test under a launcher must not forward its own rank.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["UNISONO_", "SLURM_", "PMI_", "OMPI_", "PMIX_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    command.args(&words[1..]).stdin(Stdio::null()).output().ok()
}

/// Starts two ranks by a launcher's command, or returns the reason why it cannot start two processes of any program.
fn started_by(launcher: &[&str]) -> Result<(), String> {
    let tried = run(&[launcher, &["echo", "here"]].concat()).ok_or("it is not on this machine")?;
    let said = String::from_utf8_lossy(&tried.stdout).lines().filter(|line| *line == "here").count();
    if said != 2 {
        let why = String::from_utf8_lossy(&tried.stderr);
        let why = why.lines().next().unwrap_or("no word");
        return Err(format!("it starts no two processes here: {why}"));
    }
    let bench = [
        env!("CARGO_BIN_EXE_unisono"),
        "bench",
        "all_reduce",
        "--provider",
        "tcp",
        "-b",
        "8",
        "-e",
        "4096",
        "-f",
        "8",
        "-n",
        "3",
    ];
    let output = run(&[launcher, &bench[..]].concat()).unwrap();
    assert!(output.status.success(), "{launcher:?}: {output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("# all_reduce on 2 ranks over "), "{launcher:?}: {table}");
    // One line for each size, from rank 0 alone.
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 4, "{launcher:?}: {table}");
    Ok(())
}

/// The launchers, each with the options for two ranks on this machine.
const LAUNCHERS: &[&[&str]] = &[
    &["srun", "--immediate=5", "--ntasks=2", "--overcommit"],
    // The launcher of MPICH and libraries derived from it.
    &["mpiexec.hydra", "-n", "2"],
    // Open MPI's.
    &["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2"],
];

#[test]
fn launchers_start_ranks() {
    let named = std::env::var("UNISONO_TEST_LAUNCHERS");
    let all: Vec<_> = LAUNCHERS.iter().map(|launcher| launcher[0]).collect();
    for name in named.as_deref().map_or_else(|_| all.clone(), |named| named.split(',').collect()) {
        let Some(launcher) = LAUNCHERS.iter().find(|launcher| launcher[0] == name) else {
            panic!("UNISONO_TEST_LAUNCHERS names {name:?}, which is none of {all:?}");
        };
        match started_by(launcher) {
            Ok(()) => println!("ran under {launcher:?}"),
            Err(why) if named.is_err() => println!("SKIPPED: {launcher:?}: {why}"),
            Err(why) => panic!("{launcher:?} must run here, and {why}"),
        }
    }
}
