//! `unisono tune` from the command line: UNISONO_TUNING reads the file that it writes.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

fn unisono(arguments: &[&str], tuning: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(arguments).stdin(Stdio::null()).env("UNISONO_TIMEOUT", "60");
    command.env_remove("UNISONO_TUNING").envs(tuning.map(|path| ("UNISONO_TUNING", path)));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The algorithms that a bench of these sizes reports.
fn algorithms(collective: &str, tuning: &Path, sizes: [&str; 2]) -> Vec<String> {
    let bench = [
        "bench",
        collective,
        "--ranks",
        "2",
        "--provider",
        "tcp",
        "-n",
        "2",
        "-w",
        "0",
        "-f",
        "1024",
        "--detail",
        "--out-of-place",
    ];
    let output = unisono(&[&bench[..], &["-b", sizes[0], "-e", sizes[1]]].concat(), Some(tuning));
    assert!(output.status.success(), "{output:?}");
    let rows = text(&output.stdout).lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().nth(2).unwrap().to_owned()).collect()
}

#[test]
fn what_it_writes_is_what_programs_take() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table");
    let name = file.to_str().unwrap();
    let tune = ["tune", "--ranks", "2", "--provider", "tcp", "--collective", "all_reduce,barrier,all_gather"];
    let sizes = ["-b", "8", "-e", "128K", "-f", "128", "--output", name];
    let output = unisono(&[&tune[..], &sizes].concat(), None);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    let rows = text(&output.stdout).lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(rows, 3 + 1 + 3, "{output:?}");

    let written = fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = written.lines().collect();
    assert_eq!(lines[0], "unisono tuning 1");
    let version = env!("CARGO_PKG_VERSION");
    assert!(lines[1].starts_with(&format!("# measured by unisono {version} on 2 ranks over ")), "{written}");
    assert!(lines[1].contains("libfabric "), "{written}");
    for collective in ["all_reduce", "barrier", "all_gather"] {
        let rows: Vec<_> = lines.iter().filter(|line| line.starts_with(&format!("{collective} "))).collect();
        let any = format!("{collective} ranks 2 bytes any ");
        assert!(rows.last().is_some_and(|row| row.starts_with(&any)), "{written}");
        assert!(rows.iter().filter(|row| row.starts_with(&any)).count() == 1, "{written}");
    }
    // Programs use the file unchanged. The fastest algorithm on this machine is unknown, so the test also writes its own choice.
    assert_eq!(algorithms("all_reduce", &file, ["8", "8K"]).len(), 2);
    fs::write(
        &file,
        "unisono tuning 1\n# ours\nall_reduce ranks 2 bytes 1K tree chunk 64 lanes 1\n\
         all_reduce ranks 2 bytes any rabenseifner chunk 4K lanes 2\n",
    )
    .unwrap();
    assert_eq!(algorithms("all_reduce", &file, ["8", "8K"]), ["tree", "rabenseifner"]);
    // An old file does not prevent tuning again, even if its contents are invalid.
    fs::write(&file, "nonsense").unwrap();
    let output = unisono(&["bench", "barrier", "--ranks", "2", "--provider", "tcp", "-n", "1"], Some(&file));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let again = ["tune", "--ranks", "2", "--provider", "tcp", "--collective", "barrier", "-o", name];
    let output = unisono(&again, Some(&file));
    assert!(output.status.success(), "{output:?}");
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("\nbarrier ranks 2 bytes any "), "{written}");
}

#[test]
fn what_is_smaller_than_the_smallest_is_done_as_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table");
    let tune = ["tune", "--ranks", "2", "--provider", "tcp", "--collective", "broadcast,barrier"];
    let sizes = ["-b", "1M", "-e", "1M", "--output", file.to_str().unwrap()];
    let output = unisono(&[&tune[..], &sizes].concat(), None);
    assert!(output.status.success(), "{output:?}");
    let rows = text(&output.stdout).lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(rows, 2, "what is not measured is not told: {output:?}");
    let written = fs::read_to_string(&file).unwrap();
    // In one small message, because nothing of 1 MiB was measured.
    let first = written.lines().find(|line| line.starts_with("broadcast ")).unwrap();
    assert!(first.ends_with(" chunk 32K lanes 1") && !first.contains(" any "), "{written}");
    assert_eq!(written.lines().filter(|line| line.starts_with("barrier ")).count(), 1, "{written}");
    let plain = directory.path().join("plain");
    fs::write(&plain, "unisono tuning 1\n").unwrap();
    assert_eq!(algorithms("broadcast", &file, ["8", "8K"]), algorithms("broadcast", &plain, ["8", "8K"]));
}

/// A process that tunes these collectives with two ranks, each for one size.
fn tuning(collectives: &str, output: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(["tune", "--ranks", "2", "--provider", "tcp", "-b", "8", "-e", "8"]);
    command.args(["--collective", collectives, "--output", output]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("UNISONO_TUNING");
    command
}

#[test]
fn what_was_measured_is_written_also_if_nobody_listens() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table");
    let mut child = tuning("barrier", file.to_str().unwrap()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("writing the results: Broken pipe"), "{output:?}");
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("\nbarrier ranks 2 bytes any "), "{written}");
}

#[test]
fn each_collective_is_written_when_it_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table");
    let mut child = tuning("barrier,all_reduce,broadcast", file.to_str().unwrap()).spawn().unwrap();
    let written = loop {
        // At first, the program only tests whether it can write the file.
        match fs::read_to_string(&file) {
            Ok(written) if !written.is_empty() => break written,
            _ => assert_eq!(child.try_wait().unwrap(), None),
        }
        thread::sleep(Duration::from_millis(5));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let rows: Vec<_> = written.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(
        matches!(rows[..], ["unisono tuning 1", row] if row.starts_with("barrier ranks 2 ")),
        "{written}"
    );
}

#[test]
fn standard_output_gets_the_table_once() {
    let output = tuning("barrier,all_reduce", "/dev/stdout").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    let (_, table) = said.split_once("unisono tuning 1\n").unwrap();
    assert!(table.contains("\nbarrier ranks 2 ") && table.contains("\nall_reduce ranks 2 "), "{said}");
    assert_eq!(said.matches("unisono tuning 1").count(), 1, "{said}");
}

#[test]
fn it_is_a_program_that_any_launcher_can_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table");
    let program = env!("CARGO_BIN_EXE_unisono");
    let run = ["run", "-n", "3", "--", program, "tune", "--provider", "tcp", "--collective", "broadcast"];
    let sizes = ["-b", "64", "-e", "64", "-o", file.to_str().unwrap()];
    let output = unisono(&[&run[..], &sizes].concat(), None);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).lines().all(|line| line.starts_with("[0] ")), "{output:?}");
    assert!(fs::read_to_string(&file).unwrap().contains("\nbroadcast ranks 3 bytes any "));
}

#[test]
fn what_is_wrong_is_told() {
    let wrong: [(&[&str], i32, &[&str]); 7] = [
        (&["--ranks", "2", "-o", "/nowhere/table"], 1, &["--output /nowhere/table", "No such file"]),
        (&["--ranks", "2", "-o", "/"], 1, &["--output /", "directory"]),
        (
            &["--ranks", "2", "-o", "x", "--collective", "all_things"],
            2,
            &["all_things", "there are all_reduce"],
        ),
        (&["--ranks", "2", "-o", "x", "-b", "4K", "-e", "8"], 1, &["-b 4096 is more than -e 8"]),
        (&["--ranks", "2", "-o", "x", "-d", "text"], 2, &["there is no such type"]),
        (&["--ranks", "1", "-o", "x"], 2, &["--ranks"]),
        (&["--ranks", "2"], 2, &["--output"]),
    ];
    for (arguments, status, words) in wrong {
        let output = unisono(&[&["tune"], arguments].concat(), None);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
    assert!(!Path::new("x").exists());
}
