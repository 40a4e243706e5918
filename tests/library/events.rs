//! Warnings and errors go to standard error until a program sets a subscriber of `tracing`, and then to its subscriber. Each
//! case is a separate process, this test by the name of its test `program`.

use std::{
    env, io,
    process::{Command, Stdio},
    thread,
};

use tracing_subscriber::fmt;
use unisono::{Config, ProcessGroup};

/// The variable that makes a process a program, with what it does.
const WHAT: &str = "EVENTS_WHAT";

/// Its warning.
const WARNING: &str = "UNISONO_PROVIDRE is set, but this version has no such variable";

/// The lines of standard output and standard error of a program.
fn program_that(what: &str, rust_log: Option<&str>) -> [String; 2] {
    let mut program = Command::new(env::current_exe().unwrap());
    program.args(["--exact", "events::program", "--nocapture", "--test-threads", "1"]).stdin(Stdio::null());
    program
        .envs([(WHAT, what), ("UNISONO_RANK", "0"), ("UNISONO_WORLD_SIZE", "1")])
        .env("UNISONO_PROVIDRE", "tcp")
        .env_remove("RUST_LOG");
    program.envs(rust_log.map(|value| ("RUST_LOG", value)));
    let output = program.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
}

/// Causes a warning.
fn warn() {
    drop(Config::from_env());
}

#[test]
fn program() {
    let Ok(what) = env::var(WHAT) else { return };
    let lines = || fmt().with_ansi(false).with_writer(io::stdout);
    match what.as_str() {
        "has none" => warn(),
        "has one" => {
            lines().init();
            warn();
        }
        "sets one later" => {
            warn();
            // It panics if there is another.
            lines().init();
            warn();
        }
        "has one in a thread" => {
            warn();
            tracing::subscriber::with_default(lines().finish(), warn);
            thread::spawn(warn).join().unwrap();
        }
        "joins" => {
            let group = ProcessGroup::join(Config { rank: 0, ranks: 1, ..Config::default() }).unwrap();
            group.abort("enough");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn warnings_go_to_standard_error_until_there_is_a_subscriber() {
    for (what, out, errors) in
        [("has none", 0, 1), ("has one", 1, 0), ("sets one later", 1, 1), ("has one in a thread", 1, 2)]
    {
        let [stdout, stderr] = program_that(what, None);
        let count = |text: &str| text.matches(WARNING).count();
        assert_eq!((count(&stdout), count(&stderr)), (out, errors), "{what}: {stdout}{stderr}");
        if errors > 0 {
            assert_eq!(stderr.lines().next(), Some(&*format!("WARN unisono: {WARNING}")));
        }
    }
}

#[test]
fn rust_log_holds_where_there_is_no_subscriber() {
    for (asked, warns) in [("warn", true), ("error", false), ("off", false), ("other=debug", true)] {
        let [_, stderr] = program_that("has none", Some(asked));
        assert_eq!(stderr.contains(WARNING), warns, "RUST_LOG={asked}: {stderr}");
        assert!(warns || stderr.is_empty(), "RUST_LOG={asked}: {stderr}");
    }
}

#[test]
fn what_a_call_returns_is_a_line_only_if_it_is_asked_for() {
    let failed = "ERROR unisono: the group has failed: rank 0 aborted the group: enough";
    for (asked, says, chooses) in
        [(None, false, false), (Some("error"), true, false), (Some("debug"), true, true)]
    {
        let [_, stderr] = program_that("joins", asked);
        assert_eq!(stderr.contains(failed), says, "RUST_LOG={asked:?}: {stderr}");
        assert_eq!(stderr.contains("INFO unisono: "), chooses, "RUST_LOG={asked:?}: {stderr}");
    }
}
