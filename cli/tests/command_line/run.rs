//! `unisono run` with real processes: the ranks' environment, their output, and the end of a job.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    process::{Pid, Signal, kill_process},
};

mod output;

/// The launcher with these arguments.
fn unisono(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("run").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a shell script as `ranks` ranks.
fn script(ranks: u32, script: &str) -> Output {
    unisono(&["-n", &ranks.to_string(), "--", "sh", "-c", script]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The lines of an output, in an order that does not depend on which rank was first.
fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Starts a job whose ranks print their process numbers, and reads these; other lines are skipped.
fn start(ranks: usize, script: &str) -> (Child, BufReader<impl Read>, Vec<Pid>) {
    started(ranks, unisono(&["-n", &ranks.to_string(), "sh", "-c", script]))
}

/// Works like [`start`], with this launcher.
fn started(ranks: usize, mut launcher: Command) -> (Child, BufReader<impl Read>, Vec<Pid>) {
    let mut launcher = launcher.spawn().unwrap();
    let mut output = BufReader::new(launcher.stdout.take().unwrap());
    let mut pids = Vec::new();
    while pids.len() < ranks {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "the job ended before all its ranks had begun");
        let number = line.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        pids.extend(number.and_then(Pid::from_raw));
    }
    (launcher, output, pids)
}

/// True if a process is running; one that waits to be reaped is not.
fn runs(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

/// Waits until none of these processes runs.
fn gone(pids: &[Pid]) {
    let begun = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| runs(**pid)) {
        assert!(begun.elapsed() < Duration::from_secs(3), "process {pid:?} still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ranks_know_their_numbers() {
    let script_text = "echo $UNISONO_RANK $UNISONO_WORLD_SIZE $UNISONO_LOCAL_RANK $UNISONO_LOCAL_WORLD_SIZE \
                $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE";
    let output = script(3, script_text);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sorted(&output.stdout), ["[0] 0 3 0 3 0 3 0 3", "[1] 1 3 1 3 1 3 1 3", "[2] 2 3 2 3 2 3 2 3"]);
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn ranks_get_the_address_of_the_store() {
    let (mut launcher, mut output, pids) =
        start(2, "echo $$; echo $UNISONO_STORE $UNISONO_TOKEN $MASTER_ADDR $MASTER_PORT; exec sleep 60");
    let mut line = String::new();
    while !line.contains("tcp+served://") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[2].len(), 32);
    TcpStream::connect(words[1].strip_prefix("tcp+served://").unwrap()).unwrap();
    // This is another port, at which a program may serve its store.
    drop(TcpListener::bind((words[3], words[4].parse::<u16>().unwrap())).unwrap());
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    launcher.wait().unwrap();
    gone(&pids);
}

#[test]
fn ranks_share_a_token_that_no_command_line_shows() {
    let script = "echo ${UNISONO_TOKEN_FILE-none} $UNISONO_TOKEN; \
                case $(cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ') in *$UNISONO_TOKEN*) echo shown;; esac";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "secret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let run = |set: &str| {
        let mut run = unisono(&["-n", "2", "--no-prefix", "--", "sh", "-c", script]);
        let output = run.env(set, &file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = sorted(&output.stdout);
        assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
        lines[0].strip_prefix("none ").unwrap().to_owned()
    };
    let [one, other] = ["UNISONO_TOKEN_FILE", "UNISONO_TOKEN"].map(run);
    assert!(one.len() == 32 && one != other, "{one} {other}");
    // A token that other users can read is refused, even if it is not needed here.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for words in [&["run", "-n", "2", "true"][..], &["bench", "barrier", "--ranks", "2"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
        let output = command.args(words).env("UNISONO_TOKEN_FILE", &file).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains("UNISONO_TOKEN_FILE") && said.contains("0644"),
            "{said}"
        );
    }
}

#[test]
fn libfabric_is_told_what_serves_us_unless_somebody_said_otherwise() {
    let name = "FI_CXI_ENABLE_WRITEDATA";
    let output_with = |value: Option<&str>| {
        let mut run = unisono(&["-n", "1", "--no-prefix", "--", "sh", "-c", &format!("echo ${name}")]);
        match value {
            Some(value) => run.env(name, value),
            None => run.env_remove(name),
        };
        text(&run.output().unwrap().stdout).trim().to_owned()
    };
    assert_eq!([output_with(None), output_with(Some("0"))], ["1", "0"]);
}

#[test]
fn options_reach_the_environment_and_arguments_the_program() {
    let script = "echo $UNISONO_PROVIDER $UNISONO_TIMEOUT $0 $*";
    let options =
        ["-n", "1", "--provider", "shm", "--timeout", "7", "sh", "-c", script, "-n", "--provider", "x"];
    let output = unisono(&options).output().unwrap();
    assert_eq!(text(&output.stdout), "[0] shm 7 -n --provider x\n");
}

#[test]
fn sixteen_ranks_with_long_lines_do_not_mix() {
    // Each rank writes 4 lines of 64 KiB of its character to each stream.
    let long = "char=$(printf \"\\\\$(printf %03o $((97 + RANK)))\"); \
                for i in 1 2 3 4; do head -c 65536 /dev/zero | tr '\\0' $char; echo; done | tee /dev/stderr";
    let output = script(16, long);
    assert!(output.status.success());
    for stream in [&output.stdout, &output.stderr] {
        let lines = sorted(stream);
        assert_eq!(lines.len(), 64);
        for rank in 0..16_u8 {
            let wanted = format!("[{rank}] {}", char::from(b'a' + rank).to_string().repeat(65536));
            assert_eq!(lines.iter().filter(|line| **line == wanted).count(), 4, "lines of rank {rank}");
        }
    }
}

#[test]
fn output_is_bytes_and_the_last_line_is_kept() {
    let output = script(1, "printf 'a\\377\\000b\\n\\nlast'; printf error >&2");
    assert_eq!(output.stdout, b"[0] a\xff\0b\n[0] \n[0] last\n");
    assert_eq!(output.stderr, b"[0] error\n");
    let output = unisono(&["-n", "1", "--no-prefix", "printf", "as\\nit is"]).output().unwrap();
    assert_eq!(output.stdout, b"as\nit is");
}

#[test]
fn ranks_stop_and_go_on_with_the_launcher() {
    let state = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next().map(str::to_owned))
    };
    // One process for each rank: a shell whose child is stopped between vfork and exec shows "D", not "T".
    let (mut launcher, _output, pids) = start(3, "echo $$; exec sleep 60");
    let all: Vec<Pid> = pids.iter().copied().chain([Pid::from_child(&launcher)]).collect();
    let until = |stopped: bool| {
        let begun = Instant::now();
        while let Some(pid) = all.iter().find(|pid| (state(**pid).as_deref() == Some("T")) != stopped) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{pid:?} is {:?}: {stopped}", state(*pid));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for _ in 0..2 {
        kill_process(Pid::from_child(&launcher), Signal::TSTP).unwrap();
        until(true);
        kill_process(Pid::from_child(&launcher), Signal::CONT).unwrap();
        until(false);
    }
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
    gone(&pids);
}

#[test]
fn no_rank_reads_our_input() {
    let mut command = unisono(&["-n", "2", "cat"]);
    let mut launcher = command.stdin(Stdio::piped()).spawn().unwrap();
    // The input stays open while the job runs: a rank that held it would wait.
    let input = launcher.stdin.take();
    assert!(launcher.wait().unwrap().success());
    drop(input);
}

#[test]
fn the_first_failure_gives_the_status() {
    for (end, status, message) in [
        ("exit 3", 3, "rank 1 ended with status 3"),
        ("kill -9 $$", 137, "killed by signal 9 (SIGKILL)"),
        // This works only if the ranks do not inherit the launcher's mask, which blocks this signal.
        ("kill -TERM $$; sleep 9", 143, "signal 15"),
    ] {
        let begun = Instant::now();
        let output = script(4, &format!("if [ $RANK = 1 ]; then {end}; fi; exec sleep 60"));
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert_eq!(output.status.code(), Some(status));
        let said = text(&output.stderr);
        assert!(said.contains(message) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_rank_that_stays_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let deaf = directory.path().join("deaf");
    let stay = format!(
        "if [ $RANK = 1 ]; then until [ -e {0} ]; do sleep 0.02; done; exit 5; fi; \
         trap '' TERM; touch {0}; while :; do sleep 0.1; done",
        deaf.display()
    );
    let begun = Instant::now();
    let output = script(2, &stay);
    assert_eq!(output.status.code(), Some(5));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(6), "{waited:?}");
}

#[test]
fn a_program_that_cannot_start_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let (missing, plain) = (directory.path().join("missing"), directory.path().join("plain"));
    fs::write(&plain, "not a program").unwrap();
    for (program, status) in [("no-such-program-at-all", 127), (missing.to_str().unwrap(), 127), ("/", 126)] {
        let output = unisono(&["-n", "4", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{program}");
        let said = text(&output.stderr);
        assert!(said.lines().count() == 1 && said.contains(program), "{said}");
    }
    assert_eq!(unisono(&["-n", "2", plain.to_str().unwrap()]).output().unwrap().status.code(), Some(126));
}

#[test]
fn a_missing_interpreter_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    // Another process writes it: nobody can execute a file that is open for writing, as it may be in the child of a test that
    // forks meanwhile.
    let write = "printf '#!/no/such/interpreter\\n' > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(&script).status().unwrap().success());
    let output = unisono(&["-n", "1", script.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("the file is there, but not the interpreter"), "{output:?}");
}

#[test]
fn without_a_number_there_is_a_rank_for_each_core() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap().to_string();
    let cores = std::thread::available_parallelism().unwrap().get();
    for (within, wanted) in [(&["taskset", "-c", &first][..], 1), (&["env"], cores)] {
        let mut command = Command::new(within[0]);
        command.args(&within[1..]).arg(env!("CARGO_BIN_EXE_unisono"));
        let output = command.args(["run", "sh", "-c", "echo $RANK of $WORLD_SIZE"]).output().unwrap();
        let lines: Vec<_> = (0..wanted).map(|rank| format!("[{rank}] {rank} of {wanted}")).collect();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(sorted(&output.stdout).len(), lines.len(), "{output:?}");
        assert!(lines.iter().all(|line| sorted(&output.stdout).contains(line)), "{output:?}");
        let said = text(&output.stderr);
        assert!(
            said.lines().count() == 1 && said.contains("for each core") && said.contains("-n N"),
            "{said}"
        );
        assert!(said.contains(&format!("{wanted} rank")), "{said}");
    }
}

#[test]
fn wrong_options_are_refused_before_there_are_ranks() {
    for (options, word) in [
        (&["-n", "1", "--timeout", "soon"][..], "soon"),
        (&["-n", "1", "--timeout", "0"], "longer than 0"),
        (&["-n", "0"], "1..=65536"),
        (&["-n", "1", "--provider", ""], "--provider"),
        // This is not taken as the name of a program.
        (&["-n", "1", "--tiemout", "5"], "unexpected argument '--tiemout'"),
    ] {
        let output = unisono(&[options, &["echo", "begun"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
        assert!(text(&output.stderr).contains(word), "{options:?}: {output:?}");
        assert_eq!(text(&output.stdout), "", "{options:?}");
    }
}

#[test]
fn signals_end_all() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        if ignored(signal) {
            println!(
                "SKIPPED: {signal:?} ends all: it is ignored here, as under nohup, and so by what is started here"
            );
            continue;
        }
        let (mut launcher, _output, pids) = start(3, "echo $$; exec sleep 60");
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(status));
        gone(&pids);
    }
}

fn ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn what_was_ignored_at_the_beginning_ends_nothing() {
    let mut nohup = Command::new("nohup");
    nohup.args([env!("CARGO_BIN_EXE_unisono"), "run", "-n", "2", "sh", "-c", "echo $$; exec sleep 60"]);
    nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut launcher, _output, pids) = started(2, nohup);
    kill_process(Pid::from_child(&launcher), Signal::HUP).unwrap();
    // Ranks that got a signal to end would have ended by then.
    std::thread::sleep(Duration::from_millis(300));
    assert!(launcher.try_wait().unwrap().is_none() && pids.iter().all(|&pid| runs(pid)));
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
    gone(&pids);
}

#[test]
fn what_a_rank_leaves_behind_ends_with_the_job() {
    // The child of the rank holds the rank's output open.
    let (mut launcher, mut output, pids) = start(2, "sleep 60 & echo $!");
    assert!(launcher.wait().unwrap().success());
    gone(&pids);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn a_process_that_left_its_group_does_not_hold_us() {
    let begun = Instant::now();
    let output = script(1, "setsid sleep 6 & echo done");
    assert_eq!(text(&output.stdout), "[0] done\n");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// A script that prints `first` and ends when a process of it has left its process group, which then runs this.
fn leaving(first: &str, then: &str) -> String {
    // The script removes it.
    let directory = tempfile::tempdir().unwrap().keep();
    let file = directory.join("away").display().to_string();
    format!(
        "setsid sh -c 'touch {file}; while [ -e {file} ]; do sleep 0.01; done; {then}' &
        until [ -e {file} ]; do sleep 0.01; done; echo {first}; rm -r $(dirname {file})"
    )
}

#[test]
fn what_such_a_process_says_comes_through() {
    let output = script(1, &leaving("0", "for it in 1 2 3 4 5 6 7 8 9; do sleep 0.1; echo $it; done"));
    let wanted: String = (0..10).map(|it| format!("[0] {it}\n")).collect();
    assert_eq!(text(&output.stdout), wanted);
    assert!(output.status.success(), "{output:?}");
    // The same if the process never ends; then a signal ends the job.
    let for_ever = leaving("$$", "while sleep 0.1; do echo on; done");
    let (mut launcher, mut output, pids) = start(1, &for_ever);
    gone(&pids);
    let mut line = String::new();
    for _ in 0..10 {
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "[0] on\n");
    }
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
}

#[test]
fn a_killed_launcher_leaves_no_orphan() {
    // The ranks themselves, and what ranks have started.
    for started in ["echo $$; exec sleep 60", "sleep 60 & echo $!; wait"] {
        let (mut launcher, _output, pids) = start(4, started);
        launcher.kill().unwrap();
        gone(&pids);
        launcher.wait().unwrap();
    }
}

#[test]
fn a_reader_that_stops_ends_the_job() {
    let (mut launcher, output, pids) = start(2, "echo $$; while :; do echo more; done");
    drop(output);
    assert_eq!(launcher.wait().unwrap().code(), Some(141));
    gone(&pids);
}

#[test]
fn a_reader_that_stops_after_the_ranks_makes_it_no_success() {
    // More bytes than this test's pipe holds, and fewer than fit it and the rank's pipe.
    let (mut launcher, output, pids) = start(1, "echo $$; exec seq 15000");
    gone(&pids);
    drop(output);
    assert_eq!(launcher.wait().unwrap().code(), Some(141));
}

#[test]
fn a_signal_that_cuts_the_output_off_makes_it_no_success() {
    // As above, but no process reads the output.
    let (mut launcher, _output, pids) = start(1, "echo $$; exec seq 15000");
    gone(&pids);
    // Long enough for the launcher to know it. Before, a signal only ends the ranks, and another one ends the waiting.
    std::thread::sleep(Duration::from_millis(200));
    let status = loop {
        kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        if let Some(status) = launcher.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(143));
}

#[test]
fn more_ranks_than_there_may_be_descriptors_are_refused_in_words() {
    let limited = |limit: &str, ranks: &str| {
        let script = format!("ulimit {limit} && exec \"$0\" run -n {ranks} sh -c 'ulimit -Sn'");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_unisono")]).stdin(Stdio::null()).output().unwrap()
    };
    // Both limits; 5 descriptors for each rank, and 64.
    let output = limited("-n 113", "10");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("10 ranks take 114 file descriptors here") && said.contains("113 at most"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    // The soft limit alone is raised, also for 256 connections of strangers.
    let output = limited("-Sn 32", "10");
    assert!(output.status.success(), "{output:?}");
    assert!(sorted(&output.stdout).contains(&"[7] 370".to_owned()), "{output:?}");
}

#[test]
fn output_that_cannot_be_written_is_told_once() {
    if !Path::new("/dev/full").exists() {
        println!("SKIPPED: output that cannot be written: there is no /dev/full");
        return;
    }
    for (ranks, script, message) in [
        // The launcher knows it only when all ranks may have ended without an error.
        ("1", "echo result", "the ranks' output cannot be written: No space left"),
        ("2", "echo result", "the ranks' output cannot be written: No space left"),
        ("2", "echo result; exec sleep 60", "; ending the ranks"),
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let begun = Instant::now();
        let output = unisono(&["-n", ranks, "sh", "-c", script]).stdout(full).output().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{script}: {:?}", begun.elapsed());
        assert_eq!(output.status.code(), Some(1), "{script}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message) && said.lines().count() == 1, "{script}: {said}");
    }
}

#[test]
fn an_output_that_does_not_block_loses_nothing() {
    const LINES: usize = 100_000;
    let (mut reader, writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    // Only the launcher holds the pipe's other end: the command is dropped after this line.
    let mut launcher = unisono(&["-n", "1", "seq", &LINES.to_string()]).stdout(writer).spawn().unwrap();
    // Long enough for the pipe to be full.
    std::thread::sleep(Duration::from_millis(200));
    let mut output = Vec::new();
    reader.read_to_end(&mut output).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(0));
    let (output, mut count) = (text(&output), 0);
    for line in output.lines() {
        count += 1;
        assert_eq!(line, format!("[0] {count}"));
    }
    assert_eq!(count, LINES);
}

#[test]
fn where_the_ends_of_ranks_are_not_told_it_refuses() {
    // The rest of the command line, with SIGCHLD ignored.
    let ignoring = |words: &[&str]| {
        Command::new("env").arg("--ignore-signal=CHLD").args(words).stdin(Stdio::null()).output()
    };
    let back = ["env", "--default-signal=CHLD"];
    if !ignoring(&[&back[..], &["true"]].concat()).is_ok_and(|output| output.status.success()) {
        println!(
            "SKIPPED: SIGCHLD ignored: this takes an env(1) that sets signals, such as that of coreutils 8.31"
        );
        return;
    }
    let job = [env!("CARGO_BIN_EXE_unisono"), "run", "-n", "2", "echo", "begun"];
    let output = ignoring(&job).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("SIGCHLD is ignored") && said.contains("env --default-signal=CHLD"), "{said}");
    assert_eq!((said.lines().count(), text(&output.stdout).as_str()), (1, ""));
    // The advice in its error helps.
    let output = ignoring(&[&back[..], &job].concat()).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sorted(&output.stdout), ["[0] begun", "[1] begun"]);
}

#[test]
fn where_processes_and_threads_run_out_it_ends() {
    // A user that runs nothing else, so that the limit of processes and threads is exact.
    const USER: &str = "54321";
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("unisono");
    // Another process copies it, as the script above.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_unisono")).arg(&program).status().unwrap().success());
    let mut counts = 0;
    for most in 1..=16 {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "prlimit"]);
        command.arg(format!("--nproc={most}")).args(["timeout", "-k", "1", "20"]);
        command.arg(&program).args(["run", "-n", "4", "true"]);
        let output = match command.stdin(Stdio::null()).output() {
            // With one process, 127 is the status of setpriv, which only root may use in this way; it does not reach timeout(1).
            Ok(output) if most > 1 || output.status.code() != Some(127) => output,
            _ => {
                println!("SKIPPED: processes run out: this takes setpriv and prlimit, and root");
                return;
            }
        };
        let (code, said) = (output.status.code(), text(&output.stderr));
        assert!(code.is_some_and(|code| code != 124 && code != 137), "{most}: {output:?}");
        if code != Some(0) {
            assert_eq!(said.lines().count(), 1, "{most}: {output:?}");
            // Or timeout(1) could not start the launcher.
            counts += usize::from(said.starts_with("unisono run: "));
        }
    }
    assert!(counts > 0, "the launcher met none of these limits");
}
