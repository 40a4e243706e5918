//! The ends of programs under `unisono run`: a failure that only leaving finds is in the status of the job, and an
//! error of `unisono::main` reaches all ranks. The ranks are this test itself, by the name of the test `rank`.

use std::{
    env,
    error::Error,
    process::{Command, ExitCode, Stdio, exit},
    thread,
    time::Duration,
};

use unisono::{ProcessGroup, ReduceOp};

/// The variable that makes a process a rank, with its role.
const ROLE: &str = "ENDS_ROLE";

/// The status, standard output and standard error of a job of these ranks.
struct Job {
    status: Option<i32>,
    out: String,
    errors: String,
}

/// Starts a program that does not leave, and then another until it can join, which it cannot while another rank is in the first world.
const AGAIN: &str = "ENDS_ROLE=exit \"$0\" \"$@\"; for i in $(seq 100); do ENDS_ROLE=agree \"$0\" \"$@\" && exit; sleep 0.1; done; exit 1";

fn job(ranks: u32, role: &str) -> Job {
    let mut run = Command::new(env!("CARGO_BIN_EXE_unisono"));
    run.args(["run", "-n", &ranks.to_string(), "--timeout", "60s", "--"]);
    if role == "exit, then agree" {
        run.args(["sh", "-c", AGAIN]);
    }
    run.arg(env::current_exe().unwrap());
    run.args(["--exact", "ends::rank", "--nocapture", "--test-threads", "1"]);
    run.env(ROLE, role).env_remove("RUST_LOG").stdin(Stdio::null());
    let output = run.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Job { status: output.status.code(), out: text(&output.stdout), errors: text(&output.stderr) }
}

impl Job {
    /// The lines of standard error that contain this.
    fn lines(&self, words: &str) -> usize {
        self.errors.lines().filter(|line| line.contains(words)).count()
    }
}

/// Makes the process a rank, if it is to be one.
#[test]
fn rank() {
    if let Ok(role) = env::var(ROLE) {
        let code = play(&role);
        println!("ended");
        // `ExitCode` cannot be compared.
        exit(i32::from(format!("{code:?}") != format!("{:?}", ExitCode::SUCCESS)));
    }
}

fn play(role: &str) -> ExitCode {
    if let Some(how) = role.strip_prefix("main ") {
        return unisono::main(|group| program(group, how));
    }
    let group = ProcessGroup::from_env().unwrap();
    let (rank, mut data) = (group.rank(), [1_f32; 5]);
    match role {
        // After the first call, a small call that needs no data of others returns before these know of it.
        "roots" => group.barrier().and_then(|()| group.broadcast(&mut data, rank)).unwrap(),
        "agree" => group.broadcast(&mut data, 0).unwrap(),
        "unreceived" => group.send(&data, ((rank + 1) % group.size(), 3)).unwrap(),
        // These end the process and do not drop the group.
        "exit" => group.barrier().map(|()| exit(0)).unwrap(),
        // A rank whose call comes late learns from it that the other has ended.
        "exit roots" => {
            drop(group.barrier().and_then(|()| group.broadcast(&mut data, rank)));
            exit(0);
        }
        "exit unreceived" => {
            drop(group.barrier().and_then(|()| group.send(&data, ((rank + 1) % group.size(), 3))));
            exit(0);
        }
        "exit of one roots" => {
            group.barrier().and_then(|()| group.broadcast(&mut data, rank)).unwrap();
            if rank == 0 {
                // The other's call, which may come late, returns before this ends.
                thread::sleep(Duration::from_millis(500));
                exit(0);
            }
        }
        "exit of one unreceived" => {
            group.barrier().and_then(|()| group.send(&data, ((rank + 1) % group.size(), 3))).unwrap();
            if rank == 0 {
                thread::sleep(Duration::from_millis(500));
                exit(0);
            }
        }
        "handled" => {
            let len = data.len() - rank;
            group.all_reduce(&mut data[..len], ReduceOp::Sum).unwrap_err();
        }
        "leave" => {
            group.barrier().and_then(|()| group.broadcast(&mut data, rank)).unwrap();
            println!("left: {:?}", group.leave().is_ok());
            return ExitCode::SUCCESS;
        }
        "again" => {
            // A job may form a world after another has failed. Both ranks must be in it: a rank that still joins gets the
            // abort from that call, and the abort may reach the barrier of the other rank.
            drop(group.barrier());
            group.abort("once more");
            drop(group);
            let group = ProcessGroup::from_env().unwrap();
            group.barrier().unwrap();
        }
        "panic" => {
            group.barrier().unwrap();
            if rank == 0 {
                panic!("the loss is NaN");
            }
            println!("{}", group.barrier().unwrap_err());
        }
        "early" if rank == 0 => drop(group.barrier()),
        "early" => drop(
            group
                .barrier()
                .and_then(|()| group.all_reduce(&mut data, ReduceOp::Sum))
                .inspect_err(|error| println!("{error}")),
        ),
        other => panic!("{other}"),
    }
    ExitCode::SUCCESS
}

fn program(group: &ProcessGroup, how: &str) -> Result<(), Box<dyn Error>> {
    group.barrier()?;
    match (how, group.rank()) {
        ("error", 0) => Err("no such shard: 7")?,
        ("panic", 0) => panic!("the loss is NaN"),
        ("roots", rank) => group.broadcast(&mut [1_f32; 5], rank)?,
        ("well", _) => {}
        _ => group.barrier()?,
    }
    // The error of another rank does not end this rank.
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

#[test]
fn what_only_a_drop_finds_is_in_the_status() {
    let job = job(2, "roots");
    let differ = "op 1: rank 0 calls broadcast(f32, root 0), rank 1 calls broadcast(f32, root 1)";
    assert_eq!((job.status, job.lines(differ)), (Some(1), 3), "{}{}", job.out, job.errors);
    for rank in 0..2 {
        let line =
            format!("[{rank}] ERROR unisono: rank {rank} did not leave its world in good order: {differ}");
        assert_eq!(job.lines(&line), 1, "{}", job.errors);
    }
    let message = "unisono run: all ranks ended with status 0, but rank ";
    assert_eq!((job.lines(message), job.out.matches("ended").count()), (1, 2), "{}", job.errors);
}

/// Also of a message to a rank itself, in a world of one.
#[test]
fn a_message_that_nobody_takes_is_in_the_status() {
    for ranks in [1, 2] {
        let job = job(ranks, "unreceived");
        let sends =
            |rank| format!("rank {rank} sends 5 f32 elements, rank {} receives nothing", (rank + 1) % ranks);
        let lines: usize = (0..ranks).map(|rank| job.lines(&sends(rank))).sum();
        assert_eq!((job.status, lines), (Some(1), 1 + ranks as usize), "{ranks}: {}{}", job.out, job.errors);
    }
}

/// A rank that does not leave cannot find a late failure, so its end is no success.
#[test]
fn a_process_that_ends_without_leaving_is_in_the_status() {
    let message = "unisono run: all ranks ended with status 0, but rank ";
    for (role, ranks) in
        [("exit", 1), ("exit", 2), ("exit roots", 2), ("exit unreceived", 1), ("exit unreceived", 2)]
    {
        let job = job(ranks, role);
        assert_eq!(
            (job.status, job.lines(message)),
            (Some(1), 1),
            "{role}, {ranks}: {}{}",
            job.out,
            job.errors
        );
        assert_eq!(job.lines("did not leave its world, by leave() or"), 1, "{}", job.errors);
    }
    for role in ["exit of one roots", "exit of one unreceived"] {
        let job = job(2, role);
        assert_eq!((job.status, job.lines(message)), (Some(1), 1), "{role}: {}{}", job.out, job.errors);
        let line = "[1] ERROR unisono: rank 1 did not leave its world in good order";
        assert_eq!(job.lines(line), 1, "{role}: {}", job.errors);
    }
    // Another program has joined since, in the same job.
    let job = job(2, "exit, then agree");
    assert_eq!((job.status, job.lines(message)), (Some(0), 0), "{}{}", job.out, job.errors);
}

#[test]
fn what_leave_returned_and_nobody_read_is_in_the_status() {
    let job = job(2, "leave");
    assert_eq!((job.status, job.out.matches("left: false").count()), (Some(1), 2), "{}", job.errors);
    assert_eq!(job.lines("unisono run: all ranks ended with status 0, but rank "), 1, "{}", job.errors);
}

#[test]
fn what_a_call_returned_is_the_programs() {
    for (role, ranks) in [("handled", 2), ("agree", 3), ("again", 2), ("agree", 1)] {
        let job = job(ranks, role);
        assert_eq!((job.status, job.errors.as_str()), (Some(0), ""), "{role}: {}", job.out);
    }
}

#[test]
fn a_rank_that_has_left_is_said_to_have_left() {
    let job = job(2, "early");
    let message = "op 1: rank 0 has left before it, rank 1 calls all_reduce(f32, sum)";
    assert!(job.out.contains(message), "{}{}", job.out, job.errors);
    // No call returned the failure at rank 0.
    assert_eq!(
        (job.status, job.lines(&format!("rank 0 did not leave its world in good order: {message}"))),
        (Some(1), 1)
    );
}

#[test]
fn a_panic_is_told_to_the_other_ranks() {
    for (role, message) in [
        ("panic", "rank 0 died (a panic ended its program after op 0)"),
        ("main panic", "rank 0 aborted the group: its program panicked: the loss is NaN"),
    ] {
        let job = job(2, role);
        assert!(job.status != Some(0) && job.errors.contains("the loss is NaN"), "{}", job.errors);
        // The launcher may end rank 1 before it prints the failure.
        let said = format!("{}{}", job.out, job.errors);
        let said = said.lines().filter(|line| line.starts_with("[1]") && line.contains("rank 0 "));
        said.for_each(|line| assert!(line.ends_with(message), "{line}"));
    }
}

#[test]
fn the_error_of_a_program_reaches_all_ranks() {
    let failed = job(3, "main error");
    assert!(failed.status != Some(0), "{}", failed.errors);
    assert_eq!(failed.lines("[0] Error: no such shard: 7"), 1, "{}", failed.errors);
    // The launcher may end them before they print the failure.
    let others = failed.errors.lines().filter(|line| line.starts_with("[1]") || line.starts_with("[2]"));
    for line in others.filter(|line| line.contains("Error: ")) {
        assert!(line.ends_with("Error: rank 0 aborted the group: no such shard: 7"), "{line}");
    }
}

#[test]
fn a_failure_on_leaving_is_an_error_of_main() {
    let job = job(2, "main roots");
    assert_eq!((job.status, job.lines("unisono run: rank")), (Some(1), 1), "{}", job.errors);
    assert!(job.lines("Error: op 1: rank 0 calls broadcast(f32, root 0)") >= 1, "{}", job.errors);
    assert_eq!(self::job(2, "main well").status, Some(0));
}
