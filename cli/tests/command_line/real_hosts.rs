//! `unisono run --hosts` between hosts with sshd, made of namespaces. `make test-hosts` runs it. It needs root, Linux' namespaces,
//! iproute2 and OpenSSH, and is SKIPPED with the reason if one is missing.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// The hosts `login`, `h1` and `h2`; dropping it ends all their processes.
struct Network {
    directory: tempfile::TempDir,
    holder: Child,
    inside: String,
}

impl Network {
    fn new() -> Result<Self, String> {
        if !rustix::process::getuid().is_root() {
            return Err("only root can make network namespaces".into());
        }
        if !Path::new("/usr/sbin/sshd").exists() {
            return Err("there is no sshd (Debian: openssh-server)".into());
        }
        let directory = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command_line/run/hosts.sh");
        let mut holder = Command::new("unshare")
            .args([
                "-m",
                "-n",
                "-u",
                "-i",
                "-p",
                "--mount-proc",
                "--fork",
                "--kill-child",
                "--propagation",
                "private",
            ])
            .args(["timeout", "--foreground", "300", "sh", script])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare does not start: {error}"))?;
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        if ready.trim() != "ready" {
            let mut said = String::new();
            holder.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            holder.wait().unwrap();
            return Err(format!("no hosts can be made here: {}", said.trim()));
        }
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", holder.id())).unwrap();
        let inside = children.split_whitespace().next().unwrap().to_owned();
        Ok(Self { directory, holder, inside })
    }

    /// A program on the host `login`.
    fn login(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.inside, "-m", "-n", "-u", "-i", "-p", "--", program]).env("HOME", "/root");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = self.login(env!("CARGO_BIN_EXE_unisono"));
        command.arg("run").args(arguments);
        command
    }

    fn sh(&self, script: &str) -> String {
        text(&self.login("sh").args(["-ec", script]).output().unwrap().stdout)
    }

    /// Waits until no process on any host runs `sleep NUMBER`.
    fn gone(&self, number: &str) {
        let begun = Instant::now();
        while self
            .sh(&format!("grep -zlx {number} /proc/[0-9]*/cmdline 2>/dev/null | grep -v self || :"))
            .lines()
            .any(|it| self.sh(&format!("tr '\\0' ' ' <{it} 2>/dev/null || :")).starts_with("sleep "))
        {
            assert!(begun.elapsed() < Duration::from_secs(20), "ranks still sleep {number}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a job whose ranks print that they have begun and sleep, and returns when all have begun.
    fn sleeping(&self, number: &str) -> (Child, BufReader<impl Read + use<>>) {
        let script = format!("echo begun; exec sleep {number}");
        let mut launcher =
            self.run(&["--hosts", "h1,h2", "-n", "4", "--", "sh", "-c", &script]).spawn().unwrap();
        let mut output = BufReader::new(launcher.stdout.take().unwrap());
        for _ in 0..4 {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert!(line.contains("begun"), "{line}");
        }
        (launcher, output)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Kills a process, by a word in its command line.
fn kill(hosts: &Network, word: &str) {
    let script = format!(
        "for at in /proc/[0-9]*; do [ $at = /proc/$$ ] || case $(tr '\\0' ' ' <$at/cmdline) in *{word}*) kill -KILL ${{at#/proc/}};; esac; done"
    );
    hosts.sh(&script);
}

#[test]
fn jobs_on_hosts_that_ssh_reaches() {
    if std::env::var_os("UNISONO_TEST_HOSTS").is_none() {
        println!("SKIPPED: real hosts: `make test-hosts` runs them");
        return;
    }
    let hosts = match Network::new() {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIPPED: real hosts: {why}"),
    };
    ranks_meet(&hosts);
    all_ranks_end(&hosts);
    problems_name_the_host(&hosts);
}

fn ranks_meet(hosts: &Network) {
    let script = "echo $(hostname) $LOCAL_RANK of $LOCAL_WORLD_SIZE, $UNISONO_STORE $MASTER_ADDR";
    let output = hosts.run(&["--hosts", "h1,h2", "-n", "3", "--", "sh", "-c", script]).output().unwrap();
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert!(output.status.success() && lines.len() == 3, "{output:?}");
    for (line, wanted) in lines.iter().zip(["[0] h1 0 of 2", "[1] h1 1 of 2", "[2] h2 0 of 1"]) {
        assert!(line.starts_with(wanted), "{line}");
        assert!(line.contains("tcp+served://10.98.7.254:") && line.ends_with(" 10.98.7.1"), "{line}");
    }
    let unisono = env!("CARGO_BIN_EXE_unisono");
    let bench = [unisono, "bench", "all_reduce", "-b", "8", "-e", "64K", "-f", "16", "-n", "3", "--no-raw"];
    for among in ["h1,h2", "login,h1,h2"] {
        let output =
            hosts.run(&[&["--hosts", among, "-n", "4", "--"], &bench[..]].concat()).output().unwrap();
        assert!(output.status.success() && text(&output.stdout).contains("on 4 ranks"), "{output:?}");
    }
}

fn all_ranks_end(hosts: &Network) {
    let output = |launcher: Child| -> Output { launcher.wait_with_output().unwrap() };
    // The launcher is killed, so no process closes connections in order.
    let (mut launcher, _lines) = hosts.sleeping("70001");
    kill(hosts, "--hosts");
    launcher.wait().unwrap();
    hosts.gone("70001");
    // A connection ends.
    let (launcher, _lines) = hosts.sleeping("70002");
    kill(hosts, "BatchMode=yes*h2");
    let ended = output(launcher);
    let said = text(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("the connection to h2 ended"), "{ended:?}");
    hosts.gone("70002");
    // A rank fails.
    let script = "[ $RANK = 3 ] && { sleep 0.2; exit 9; }; exec sleep 70003";
    let ended = hosts.run(&["--hosts", "h1,h2", "-n", "4", "--", "sh", "-c", script]).output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.code() == Some(9) && said.contains("rank 3 on h2 ended with status 9"), "{ended:?}");
    hosts.gone("70003");
}

fn problems_name_the_host(hosts: &Network) {
    for (host, words) in [
        ("no-such-host", ["Could not resolve", "correct the name"]),
        ("nobody", ["Permission denied", "ssh-copy-id nobody"]),
        ("stranger", ["Host key verification failed", "check the key"]),
        ("down", ["No route to host", "sshd runs"]),
    ] {
        let output = hosts.run(&["--hosts", &format!("h1,{host}"), "-n", "2", "true"]).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(&format!("host {host}: ")), "{output:?}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    // A program that is in another place there.
    let copy = hosts.directory.path().join("own");
    fs::copy(env!("CARGO_BIN_EXE_unisono"), &copy).unwrap();
    let hidden = format!(
        "nsenter -t $(cat {0}/pid2) -m -- mount --bind /dev/null {0}/own",
        hosts.directory.path().display()
    );
    hosts.sh(&hidden);
    let output = hosts
        .login(copy.to_str().unwrap())
        .args(["run", "--hosts", "h2", "-n", "1", "true"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("host h2: ") && said.contains("no unisono") && said.contains("/own"), "{output:?}");
    // A firewall that lets ssh through alone.
    let at = hosts.directory.path().display();
    let rules = "ip rule add pref 12 ipproto tcp sport 22 lookup main; ip rule add pref 13 to 10.98.7.254 ipproto tcp blackhole";
    hosts.sh(&format!("nsenter -t $(cat {at}/pid2) -n -- sh -ec '{rules}'"));
    let output = hosts.run(&["--hosts", "h1,h2", "-n", "2", "true"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("h2 reaches this host"), "{output:?}");
    assert!(said.contains("10.98.7.254:") && said.contains("firewall"), "{said}");
}
