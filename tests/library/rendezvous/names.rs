//! A host whose name becomes known only while ranks wait, like a new pod: in mount namespaces with separate hosts files.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::ports;

/// A name that no name server knows.
const NAME: &str = "late-name.unisono.invalid";

/// A rank in a mount namespace whose /etc/hosts is this file.
fn start(hosts: &Path, rank: usize, port: u16) -> Child {
    let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
    Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(hosts)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "rendezvous::death::a_separate_rank", "--ignored", "--nocapture"])
        .env("UNISONO_TEST_RANK", format!("tcp://{NAME}:{port} {rank} 2 join"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_name_that_becomes_known_late_holds_up_no_rank_for_longer() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: a name that becomes known late: only root can have a mount namespace");
        return;
    }
    // In a chroot, for instance.
    let tried = Command::new("unshare").args(["--mount", "true"]).output().unwrap();
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr);
        println!("SKIPPED: a name that becomes known late: no mount namespace: {}", why.trim());
        return;
    }
    // At first, the ranks' hosts files have no entry for the name, or the address of another host (RFC 5737). Later, on the ranks that
    // learn it, they have the right address.
    let elsewhere = "192.0.2.1 late-name.unisono.invalid\n";
    thread::scope(|scope| {
        for (first, learn) in [("", &[1][..]), ("", &[0, 1]), (elsewhere, &[0, 1])] {
            scope.spawn(|| meet(first, learn));
        }
    });
}

fn meet(first: &str, learn: &[usize]) {
    let (_held, port) = ports::held().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let known = "127.0.0.1 localhost\n";
    let hosts = [0, 1].map(|rank| {
        let path = directory.path().join(format!("hosts-{rank}"));
        fs::write(&path, format!("{known}{first}")).unwrap();
        path
    });
    let mut ranks = [0, 1].map(|rank| start(&hosts[rank], rank, port));
    let joined = |rank: &mut Child| {
        let lines = BufReader::new(rank.stdout.take().unwrap()).lines();
        lines.map_while(Result::ok).any(|line| line.contains("joined "))
    };
    // Rank 0 serves without a name, and rank 1 waits for the name.
    assert!(joined(&mut ranks[0]), "{first:?}");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(ranks[1].try_wait().unwrap(), None, "{first:?}");
    for &rank in learn {
        fs::write(&hosts[rank], format!("127.0.0.1 localhost {NAME}\n")).unwrap();
    }
    assert!(joined(&mut ranks[1]), "{first:?}");
    for rank in &mut ranks {
        // It ends when its input does.
        drop(rank.stdin.take());
        rank.wait().unwrap();
    }
}
