//! The launchers of clusters, the real ones: whichever of them is on this machine starts two ranks of a bench. One that
//! is not there, or does not work by itself, is skipped with the reason.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

/// Runs a command to its end; none if there is no such program.
fn run(words: &[&str]) -> Option<Output> {
    let mut command = Command::new(words[0]);
    // A test under a launcher must not pass on who it is itself.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["UNISONO_", "SLURM_", "PMI_", "OMPI_", "PMIX_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    command.args(&words[1..]).stdin(Stdio::null()).output().ok()
}

/// Starts two ranks by a launcher's words, if these start two processes of anything at all.
fn started_by(launcher: &[&str]) {
    let Some(tried) = run(&[launcher, &["echo", "here"]].concat()) else {
        println!("SKIPPED {}: it is not on this machine", launcher[0]);
        return;
    };
    let said = String::from_utf8_lossy(&tried.stdout).lines().filter(|line| *line == "here").count();
    if said != 2 {
        let why = String::from_utf8_lossy(&tried.stderr);
        println!(
            "SKIPPED {launcher:?}: it starts no two processes here: {}",
            why.lines().next().unwrap_or("no word")
        );
        return;
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
    println!("ran under {launcher:?}");
}

#[test]
fn slurm() {
    started_by(&["srun", "--immediate=5", "--ntasks=2", "--overcommit"]);
}

#[test]
fn mpich_and_its_kin() {
    started_by(&["mpiexec.hydra", "-n", "2"]);
}

#[test]
fn open_mpi() {
    started_by(&["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2"]);
}
