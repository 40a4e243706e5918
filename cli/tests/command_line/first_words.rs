//! Commands that people type first: a bench without a number of ranks, and names with typing mistakes.

use std::process::{Command, Stdio};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The program on these cores, without the variables that a launcher may have set for this test.
fn unlaunched(cores: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("taskset");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["UNISONO_", "SLURM_", "OMPI_", "PMI_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.env_remove("RANK").env_remove("WORLD_SIZE");
    command.args(["-c", cores, env!("CARGO_BIN_EXE_unisono")]).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn alone_it_starts_a_rank_for_each_core_and_two_at_least() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let own: Vec<String> = (0..1024).filter(|&cpu| allowed.is_set(cpu)).map(|cpu| cpu.to_string()).collect();
    let most = std::thread::available_parallelism().unwrap().get().min(4);
    let sweep = ["-b", "8", "-e", "8", "-n", "2", "--no-raw"];
    for count in 1..=most {
        let cores = own[..count].join(",");
        let run = |what: &str| {
            let put = what == "put";
            let sweep = if put { &sweep[..sweep.len() - 1] } else { &sweep[..] };
            let output = unlaunched(&cores, &[&["bench", what], sweep].concat()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
        };
        let (table, said) = run("all_reduce");
        let ranks = count.max(2);
        assert!(table.contains(&format!(" {ranks} ranks")), "{table}");
        let noted: Vec<_> = said.lines().filter(|line| line.starts_with("unisono bench: ")).collect();
        assert!(noted.len() == 1 && noted[0].contains(&format!("{ranks} ranks on this host")), "{said}");
        assert!(noted[0].contains("core") && noted[0].contains("--ranks"), "{said}");
        assert!(run("put").1.contains("2 ranks on this host"));
    }
    // The program prints the error before it starts ranks, and nothing else.
    let output = unlaunched(&own[0], &["bench", "broadcast", "-r", "2"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).lines().count()), (Some(1), 1), "{output:?}");
}

#[test]
fn half_a_launcher_is_an_error_and_not_a_separate_job() {
    let words = ["bench", "all_reduce", "-e", "8"];
    let batch = &[("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "7")][..];
    for (set, wanted) in [(&[("UNISONO_RANK", "0")][..], "UNISONO_WORLD_SIZE"), (batch, "srun")] {
        let output = unlaunched("0-1023", &words).envs(set.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.lines().count() == 1 && said.contains(wanted), "{said}");
    }
}

#[test]
fn what_was_meant_is_asked() {
    for (arguments, meant) in [
        (&["bench", "allreduce"][..], "did you mean all_reduce?"),
        (&["bench", "all-reduce"], "did you mean all_reduce?"),
        (&["bench", "AllReduce"], "did you mean all_reduce?"),
        (&["bench", "all_reduce_perf"], "did you mean all_reduce?"),
        (&["bench", "osu_ibcast"], "did you mean broadcast?"),
        (&["bench", "osu_bw"], "did you mean send_recv?"),
        (&["bench", "all_reduce", "-d", "fp32"], "did you mean f32?"),
        (&["bench", "all_reduce", "-o", "maximum"], "did you mean max?"),
        (&["bench", "all_reduce", "--algorithm", "recursive-doubling"], "did you mean recursive_doubling?"),
        (&["bench", "all_reduce", "--provider", "tpc"], "did you mean tcp?"),
        (&["run", "-n", "1", "--provider", "infiniband", "true"], "did you mean verbs?"),
        (&["explain", "allreduce"], "did you mean all_reduce?"),
        (&["bench", "all_reduce", "--rank", "2"], "'--ranks'"),
        (&["bnch"], "'bench'"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_unisono")).args(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(meant), "{arguments:?}: {said}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}
