//! The output of `unisono run`: progress bars, slow lines, last lines, and the end of a rank that used too much memory.

use std::{fs, io::Read, path::Path, process::Command, time::Duration};

use super::{script, sorted, text, unisono};

/// A program that prints these by `printf`, with pauses between them.
fn slowly(pieces: &[&str]) -> String {
    pieces.iter().map(|piece| format!("printf '{piece}'; sleep 0.4; ")).collect()
}

/// In an earlier version, all output came at the end of the line.
#[test]
fn progress_bars_and_prompts_are_seen_while_they_are_written() {
    let script = slowly(&["\\r1 of 3", "\\r2 of 3", "\\r3 of 3", "\\nGo on? ", "yes"]);
    for (options, wanted) in [
        (&["-n", "1"][..], "[0] 1 of 3\r[0] 2 of 3\r[0] 3 of 3\n[0] Go on? yes\n"),
        (&["-n", "1", "--no-prefix"], "\r1 of 3\r2 of 3\r3 of 3\nGo on? yes"),
    ] {
        let mut run = unisono(&[options, &["sh", "-c", &script]].concat()).spawn().unwrap();
        let mut output = run.stdout.take().unwrap();
        let (mut all, mut pieces) = (Vec::new(), 0);
        let mut buffer = [0; 4096];
        loop {
            let count = output.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            pieces += 1;
            all.extend_from_slice(&buffer[..count]);
        }
        assert!(run.wait().unwrap().success());
        assert_eq!(text(&all), wanted);
        // A busy machine may join some of them.
        assert!(pieces >= 3, "{pieces} pieces: {:?}", text(&all));
    }
}

#[test]
fn slow_lines_of_several_ranks_stay_whole() {
    let char = "l=$(printf \"\\\\$(printf %03o $((97 + RANK)))\"); ";
    let line = "for i in 1 2 3; do printf $l$l; sleep 0.$((3 + RANK)); printf \"$l\\n\"; done";
    let output = script(3, &format!("{char}{line}"));
    assert!(output.status.success());
    let lines = sorted(&output.stdout);
    for (rank, char) in ["a", "b", "c"].into_iter().enumerate() {
        let whole = format!("[{rank}] {}", char.repeat(3));
        assert_eq!(lines.iter().filter(|line| **line == whole).count(), 3, "{lines:?}");
        // The interrupted output is a part of a line of one rank.
        let part = format!("[{rank}] {}", char.repeat(2));
        assert!(
            lines.iter().all(|line| !line.starts_with(&part) || *line == part || *line == whole),
            "{lines:?}"
        );
    }
}

/// In an earlier version, SIGTERM came while the others printed their failures.
#[test]
fn what_ranks_say_when_another_has_failed_is_not_torn() {
    let failing = "[ $RANK = 0 ] && exit 3; for word in rank $RANK says why it fails, too; do \
                   printf \"$word \" >&2; sleep 0.01; done; echo >&2; sleep 60";
    let output = script(3, failing);
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    for rank in 1..3 {
        let whole = format!("[{rank}] rank {rank} says why it fails, too ");
        assert!(said.lines().any(|line| line == whole), "{said}");
    }
    assert!(
        said.lines().any(|line| line == "unisono run: rank 0 ended with status 3; ending the others"),
        "{said}"
    );
}

/// A directory for a new control group with a limit of 64 MiB; the reason if there can be none.
fn small_group(name: &str) -> Result<std::path::PathBuf, String> {
    let here = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let old = here.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path.to_owned()));
    let (root, limit) = match &old {
        Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
        None => ("/sys/fs/cgroup".to_owned(), "memory.max"),
    };
    let group = Path::new(&root).join(name);
    fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
    let limited = fs::write(group.join(limit), "67108864");
    limited.map(|()| group.clone()).map_err(|error| {
        let _ = fs::remove_dir(&group);
        format!("{}: {error}", group.join(limit).display())
    })
}

#[test]
fn a_rank_that_was_killed_for_memory_is_told_so() {
    let group = match small_group(&format!("unisono-run-{}", std::process::id())) {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED: no control group with a limit on memory can be made: {why}"),
    };
    // It looks for the end of a line.
    let eats = "[ $RANK = 1 ] && exec tail /dev/zero; sleep 60";
    let inside = format!("echo $$ > {}/cgroup.procs; exec \"$0\" run -n 2 sh -c '{eats}'", group.display());
    let unisono = env!("CARGO_BIN_EXE_unisono");
    let output = Command::new("sh").args(["-c", &inside, unisono]).output().unwrap();
    let said = text(&output.stderr);
    for _ in 0..100 {
        if fs::remove_dir(&group).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!output.status.success());
    assert!(
        said.contains(
            "out of memory: since the job began, the kernel has killed 1 process of this control group"
        ),
        "{said}"
    );
    assert!(said.contains("64 MiB"), "{said}");
}

#[test]
fn what_is_mistyped_is_not_taken_for_a_command_of_the_program_s_own() {
    for typed in ["run-on-rank", "doctor-ran", "measure-rnk", "guar", "rnu"] {
        let output = Command::new(env!("CARGO_BIN_EXE_unisono")).arg(typed).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        // Look after the first line, which repeats the command.
        for own in ["run-one-rank", "run-guard", "doctor-one-rank", "measure-one-rank"] {
            assert!(!said.contains(own), "{said}");
        }
    }
}
