//! `unisono run --hosts` with an ssh that starts its command on this host: the distribution of ranks, their
//! input and environment, and the end of a job.
//! Real hosts are in `real_hosts.rs`.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{ffi::OsStrExt, fs::symlink, process::ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A directory with that ssh, and the file to which it writes its process numbers.
struct Ssh(TempDir);

impl Ssh {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command_line/run/ssh.sh");
        symlink(script, directory.path().join("ssh")).unwrap();
        Self(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("pids")
    }

    /// The launcher with these arguments.
    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").unwrap());
        command.arg("run").args(arguments).env("PATH", path).env("SSH_PIDS", self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a job whose ranks print their process numbers first, and reads these.
    fn start(&self, ranks: usize, arguments: &[&str]) -> (Child, BufReader<impl Read + use<>>, Vec<Pid>) {
        let mut launcher = self.run(arguments).spawn().unwrap();
        let mut output = BufReader::new(launcher.stdout.take().unwrap());
        let mut pids = Vec::new();
        while pids.len() < ranks {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "the job ended early");
            pids.extend(line.split_whitespace().nth(1).and_then(|word| Pid::from_raw(word.parse().ok()?)));
        }
        (launcher, output, pids)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The state of a process: R, S, T, Z; `None` if there is none.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// Waits until `is` holds for the states of all these processes.
fn until(pids: &[Pid], what: &str, is: impl Fn(Option<char>) -> bool) {
    let begun = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| !is(state(**pid))) {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "process {pid:?} is not {what}: {:?}",
            state(*pid)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn gone(pids: &[Pid]) {
    until(pids, "gone", |state| matches!(state, None | Some('Z' | 'X')));
}

const SLEEPS: &str = "echo $$; exec sleep 1000";

#[test]
fn ranks_are_spread_and_know_their_places() {
    let script = "echo $UNISONO_RANK $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE";
    for (arguments, wanted) in [
        (
            &["--hosts", "h1,h2", "-n", "3"][..],
            &["0 0 of 3, 0 of 2", "1 1 of 3, 1 of 2", "2 2 of 3, 0 of 1"][..],
        ),
        (&["--hosts", "h1:1,h2:2"], &["0 0 of 3, 0 of 1", "1 1 of 3, 0 of 2", "2 2 of 3, 1 of 2"]),
        // The launcher does not call the second host.
        (&["--hosts", "h1:2,unknown:2", "-n", "2"], &["0 0 of 2, 0 of 2", "1 1 of 2, 1 of 2"]),
        (&["--hosts", "localhost:1,h2:1"], &["0 0 of 2, 0 of 1", "1 1 of 2, 0 of 1"]),
    ] {
        let output = Ssh::new().run(&[arguments, &["--", "sh", "-c", script]].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let wanted: Vec<_> =
            wanted.iter().enumerate().map(|(rank, line)| format!("[{rank}] {line}")).collect();
        assert_eq!(sorted(&output.stdout), wanted, "{arguments:?}");
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    let output = Ssh::new().run(&["--hosts", "h1,h2:1", "true"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.contains(&format!("{} ranks: {cores} on h1, 1 on h2", cores + 1)),
        "{said}"
    );
}

#[test]
fn ranks_meet_and_no_command_line_shows_their_token() {
    // The other rank looks at the command line of `grep`, too.
    let shown = "printenv UNISONO_TOKEN | grep -qFf - /proc/[0-9]*/cmdline && echo shown || echo hidden; echo $UNISONO_TOKEN";
    let output = Ssh::new()
        .run(&["--hosts", "h1,h2", "-n", "2", "--no-prefix", "--", "sh", "-c", shown])
        .output()
        .unwrap();
    let lines = sorted(&output.stdout);
    assert!(output.status.success() && lines.len() == 4, "{output:?}");
    assert!(
        lines[0] == lines[1] && lines[0].len() == 32 && lines[2] == "hidden" && lines[3] == "hidden",
        "{lines:?}"
    );

    let unisono = env!("CARGO_BIN_EXE_unisono");
    let bench =
        [unisono, "bench", "all_reduce", "-e", "64", "-f", "8", "-n", "3", "--no-raw", "--provider", "tcp"];
    let output =
        Ssh::new().run(&[&["--hosts", "chatty1,h2", "-n", "4", "--"], &bench[..]].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        text(&output.stdout).contains("on 4 ranks") && !text(&output.stdout).contains("Welcome"),
        "{output:?}"
    );
}

#[test]
fn what_ranks_get_and_what_they_write_is_bytes() {
    let script = "printf '%s\\0%s\\377' \"$1\" \"$ODD\" | od -An -tx1 | tr -d ' \\n'; echo; printf 'a\\000b\\n'; pwd; echo $HOME >&2";
    let run = Ssh::new();
    let odd = OsStr::from_bytes(b"it's \xff\n$x");
    let mut command = run.run(&["--hosts", "h1", "-n", "1", "--no-prefix", "--", "sh", "-c", script, "sh"]);
    let directory = fs::canonicalize(std::env::temp_dir()).unwrap();
    let output =
        command.arg(odd).env("ODD", odd).env("HOME", "/nowhere").current_dir(&directory).output().unwrap();
    let hex: String = [odd.as_bytes(), b"\0", odd.as_bytes(), b"\xff"]
        .concat()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(text(&output.stdout), format!("{hex}\na\0b\n{}\n", directory.display()), "{output:?}");
}

#[test]
fn the_first_failure_ends_all_hosts_and_gives_the_status() {
    for (how, status, word) in [
        ("exit 7", 7, "rank 1 on h2 ended with status 7"),
        ("exit 255", 255, "rank 1 on h2 ended with status 255"),
        ("kill -SEGV $$", 139, "rank 1 on h2 was killed by signal 11 (SIGSEGV)"),
    ] {
        let script = format!("echo $RANK $$; [ $RANK = 1 ] && {{ sleep 0.3; {how}; }}; exec sleep 1000");
        let ssh = Ssh::new();
        let (launcher, _output, pids) =
            ssh.start(3, &["--hosts", "h1,h2,h3", "-n", "3", "--no-prefix", "--", "sh", "-c", &script]);
        let output = launcher.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let said = text(&output.stderr);
        assert!(
            said.contains(word) && said.contains("ending the others") && said.lines().count() == 1,
            "{said}"
        );
        gone(&pids);
    }
    let output = Ssh::new().run(&["--hosts", "h1,h2", "-n", "2", "no-such-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(text(&output.stderr).contains("on h1: there is no program no-such-program"), "{output:?}");
}

#[test]
fn signals_end_all_hosts() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let ssh = Ssh::new();
        let (launcher, _output, pids) =
            ssh.start(3, &["--hosts", "h1,h2", "-n", "3", "--", "sh", "-c", SLEEPS]);
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        let output = launcher.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{output:?}");
        gone(&pids);
    }
}

#[test]
fn ranks_end_if_the_launcher_is_killed_also_those_that_stay() {
    let ssh = Ssh::new();
    let stays = "trap '' TERM HUP INT; echo $$; while :; do sleep 1; done";
    let (mut launcher, _output, pids) =
        ssh.start(3, &["--hosts", "h1,h2", "-n", "3", "--", "sh", "-c", stays]);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    gone(&pids);
}

#[test]
fn a_host_that_is_lost_is_named_and_ends_the_job() {
    let ssh = Ssh::new();
    let (launcher, _output, pids) = ssh.start(2, &["--hosts", "h1,h2", "-n", "2", "--", "sh", "-c", SLEEPS]);
    // The process that replaces ssh has become the program of that host.
    let calls = fs::read_to_string(ssh.path()).unwrap();
    let call = calls.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).next().unwrap();
    kill_process(call, Signal::KILL).unwrap();
    let output = launcher.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("the connection to h") && said.contains("signal 9"), "{said}");
    gone(&pids);
}

#[test]
fn ranks_stop_and_go_on_with_the_launcher() {
    let ssh = Ssh::new();
    let (launcher, _output, pids) = ssh.start(2, &["--hosts", "h1,h2", "-n", "2", "--", "sh", "-c", SLEEPS]);
    let pid = Pid::from_child(&launcher);
    kill_process(pid, Signal::TSTP).unwrap();
    until(&[&pids[..], &[pid]].concat(), "stopped", |state| state == Some('T'));
    kill_process(pid, Signal::CONT).unwrap();
    until(&pids, "running", |state| matches!(state, Some('S' | 'R')));
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(launcher.wait_with_output().unwrap().status.code(), Some(143));
    gone(&pids);
}

/// The error of a host, and words of the line that reports it.
const WRONG: &[(&str, &[&str])] = &[
    ("unknown1", &["host unknown1: ", "Could not resolve", "/etc/hosts"]),
    ("refused1", &["host refused1: ", "Permission denied", "ssh-copy-id refused1"]),
    ("bare1", &["host bare1: ", "no unisono can be started", env!("CARGO_BIN_EXE_unisono")]),
    ("old1", &["host old1: ", "0.0.1", "install the same"]),
];

#[test]
fn a_host_that_cannot_take_part_is_named_with_what_to_do() {
    for (host, words) in WRONG {
        let ssh = Ssh::new();
        let output: Output =
            ssh.run(&["--hosts", &format!("h1,{host}"), "-n", "2", "echo", "begun"]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{output:?}");
        assert!(said.lines().count() == 1 && words.iter().all(|word| said.contains(word)), "{said}");
        let calls = fs::read_to_string(ssh.path()).unwrap();
        gone(&calls.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect::<Vec<_>>());
    }
    // The launcher names all wrong hosts, and a silent host does not delay the others for long.
    let begun = Instant::now();
    let output = Ssh::new().run(&["--hosts", "unknown1,mute1,refused1", "-n", "3", "true"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains("unknown1") && said.contains("refused1") && begun.elapsed() < Duration::from_secs(30),
        "{said}"
    );
    let mut path = Ssh::new().run(&["--hosts", "h1", "-n", "1", "true"]);
    let output = path.env("PATH", "/nowhere").output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("openssh-client"), "{output:?}");
}

#[test]
fn a_host_that_does_not_answer_can_be_interrupted() {
    let ssh = Ssh::new();
    let launcher = ssh.run(&["--hosts", "mute1,mute2", "-n", "2", "true"]).spawn().unwrap();
    let pid = Pid::from_child(&launcher);
    let wanted = [Signal::INT, Signal::TERM].map(|signal| 1_u64 << (signal.as_raw() - 1));
    let blocks = || {
        let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap()
    };
    let begun = Instant::now();
    while wanted.iter().any(|bit| blocks() & bit == 0) {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(pid, Signal::INT).unwrap();
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.code() == Some(130) && output.status.signal().is_none(), "{output:?}");
}

#[test]
fn wrong_hosts_are_refused_before_any_is_called() {
    for (arguments, status, word) in [
        (&["--hosts", "a,a", "true"][..], 1, "write a:2"),
        (&["--hosts", "a:1,b:1", "-n", "3", "true"], 1, "room for 2"),
        (&["--hosts", "a:0", "true"], 2, "1 to 65536"),
        (&["--hosts", "a,,b", "true"], 2, "names of hosts"),
        (&["--hosts", "-oProxyCommand=x", "true"], 2, "unexpected argument"),
        (&["--hosts=-oProxyCommand=x", "true"], 2, "names of hosts"),
    ] {
        let ssh = Ssh::new();
        let output = ssh.run(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(text(&output.stderr).contains(word) && !ssh.path().exists(), "{output:?}");
    }
}
