//! Ranks that are killed leave nothing in /dev/shm once the job has ended.

#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Each rank is a program that is killed while it has an endpoint of shm. It prints the names of its files.
const RANK: &str = r#"
"$PROGRAM" bench all_reduce --provider shm -b 8 -e 8 -n 100000000 >/dev/null 2>&1 &
for _ in $(seq 200); do
    sleep 0.05
    memory=$(grep -o '/dev/shm/.*' /proc/$!/maps | sort -u)
    # All have met when the first of them has mapped the others' memory too.
    [ "$(echo "$memory" | grep -c .)" -gt 1 ] && break
done
echo "$memory"
kill -KILL $!
wait
exit 3
"#;

#[test]
fn killed_ranks_leave_no_shared_memory_behind() {
    let program = env!("CARGO_BIN_EXE_unisono");
    let run = Command::new(program)
        .args(["run", "-n", "3", "--no-prefix", "--", "sh", "-c", RANK])
        .env("PROGRAM", program)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let had: Vec<_> = said.lines().filter(|line| line.starts_with("/dev/shm/")).collect();
    if had.is_empty() {
        println!("SKIPPED  shm has no endpoint here: {}", String::from_utf8_lossy(&run.stderr));
        return;
    }
    let left: Vec<_> = had.iter().filter(|file| Path::new(file).exists()).collect();
    assert!(left.is_empty(), "of {had:?} these are left: {left:?}");
}
