//! `unisono broadcast` from the command line: alone and as ranks, whole files and some tensors, and errors.

use std::{
    fs,
    os::unix::{
        fs::{FileExt, MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// Runs it as this many ranks over tcp, each with these arguments as a shell reads them; if 0, without a launcher as a world of one.
fn broadcast(ranks: u32, directory: &Path, words: &str) -> Output {
    let unisono = env!("CARGO_BIN_EXE_unisono");
    let mut command = match ranks {
        0 => Command::new("sh"),
        _ => {
            let mut run = Command::new(unisono);
            run.args(["run", "-n", &ranks.to_string(), "--provider", "tcp", "--timeout", "60", "--", "sh"]);
            run
        }
    };
    command.arg("-c").arg(format!("exec \"$UNISONO\" broadcast {words}"));
    if ranks == 0 {
        command.env("UNISONO_RANK", "0").env("UNISONO_WORLD_SIZE", "1");
    }
    command.env("UNISONO", unisono).current_dir(directory).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A .safetensors file of bytes: each tensor is filled with its number.
fn checkpoint(path: &Path, tensors: &[(&str, usize)]) {
    let mut end = 0;
    let header = tensors.iter().map(|&(name, len)| {
        let start = end;
        end += len;
        let about = serde_json::json!({"dtype": "U8", "shape": [len], "data_offsets": [start, end]});
        (name.to_owned(), about)
    });
    let header = Value::Object(header.collect()).to_string();
    let data = (1_u8..).zip(tensors).flat_map(|(number, &(_, len))| vec![number; len]);
    let bytes = (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes()).chain(data);
    fs::write(path, bytes.collect::<Vec<_>>()).unwrap();
}

#[test]
fn ranks_get_a_file_and_then_have_it() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let bytes: Vec<u8> = (0..300_001_u32).map(|at| u8::try_from(at % 253).unwrap()).collect();
    fs::write(here.join("model"), &bytes).unwrap();
    for (sent, writers) in [(300_001, 3), (0, 0)] {
        let output = broadcast(3, here, "model --to new/$RANK --piece 64K --json $RANK.json");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text(&output.stderr), "");
        let said = text(&output.stdout);
        let done = if sent > 0 { "300001 B sent in " } else { "it was there already" };
        assert!(said.starts_with(&format!("[0] model: 300001 B, {done}")), "{said}");
        assert_eq!(said.contains("synced"), sent > 0, "{said}");
        assert_eq!(said.lines().count(), 1);
        let line: Value = serde_json::from_slice(&fs::read(here.join("0.json")).unwrap()).unwrap();
        assert_eq!([&line["bytes"], &line["sent"], &line["ranks"]], [300_001, sent, 3]);
        assert_eq!(line["writers"], writers);
        assert!(!here.join("1.json").exists());
        for rank in 0..3 {
            let to = here.join(format!("new/{rank}"));
            assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
            assert_eq!(fs::read_dir(to).unwrap().count(), 1);
        }
    }
}

#[test]
fn some_tensors_are_copied() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    checkpoint(&here.join("m.safetensors"), &[("a.w", 70_000), ("b.w", 5), ("b.x", 80_000), ("c", 3)]);
    let output = broadcast(2, here, "m.safetensors --to to.$RANK --tensors 'b.*,c' --piece 32K --root 1");
    assert!(output.status.success(), "{output:?}");
    for rank in 0..2 {
        let file = fs::read(here.join(format!("to.{rank}/m.safetensors"))).unwrap();
        let len = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
        let header: Value = serde_json::from_slice(&file[8..8 + len]).unwrap();
        assert_eq!(header.as_object().unwrap().len(), 3, "{header}");
        let data = [vec![2; 5], vec![3; 80_000], vec![4; 3]].concat();
        assert!(file[8 + len..] == data);
        assert_eq!(header["c"]["data_offsets"], serde_json::json!([80_005, 80_008]));
    }
    let output = broadcast(2, here, "m.safetensors --to to.$RANK --tensors 'b.*,d' --root 1");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("m.safetensors on rank 1: no tensor is called \"d\"; of 4 there are a.w"),
        "{said}"
    );
    // In the file's directory, a part would replace the whole file.
    let output = broadcast(0, here, "m.safetensors --to . --tensors c");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("another directory"), "{output:?}");
}

#[test]
fn alone_it_copies() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::write(here.join("-a b"), "words").unwrap();
    for _ in 0..2 {
        let output = broadcast(0, here, "--to to -- '-a b'");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read(here.join("to/-a b")).unwrap(), b"words");
    }
}

#[test]
fn what_goes_wrong_is_told_once_and_fails_all() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::write(here.join("model"), "words").unwrap();
    fs::write(here.join("to.1"), "no directory").unwrap();
    for (words, said) in [
        ("none --to to", "unisono broadcast: none on rank 0: opening it: No such file or directory"),
        ("model --to to.$RANK", "unisono broadcast: to.1 on rank 1: making the directory: "),
        (". --to to", ". on rank 0: is not a regular file"),
        ("/dev/zero --to to", "/dev/zero on rank 0: is not a regular file"),
        (
            "/proc/self/status --to to",
            "/proc/self/status on rank 0: the system says that it has 0 bytes, and reading it gives more: it is made while \
             it is read, as files of /proc and /sys are; copy it to a file first",
        ),
        (
            "/proc/self/status --to to --tensors a",
            "/proc/self/status on rank 0: the system says that it has 0 bytes",
        ),
        (
            "model --to to --piece 1G",
            "pieces of 1073741824 bytes were asked for; there may be from 1 to 268435456",
        ),
        ("model --to to --root 2", "broadcast: the root is rank 2; there are ranks 0 to 1"),
    ] {
        let output = broadcast(2, here, words);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        let message = text(&output.stderr);
        assert!(message.contains(said), "{words}: {message}");
        assert_eq!(text(&output.stdout), "");
    }
    assert!(!here.join("to.0/model").exists() && !here.join("to/model").exists());
    let output = broadcast(0, here, "model");
    assert_eq!(output.status.code(), Some(2));
    let help = broadcast(0, here, "--help");
    assert!(text(&help.stdout).contains("srun --ntasks-per-node=1 unisono broadcast"), "{help:?}");
}

/// True if this is root; if not, prints what is skipped.
fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: {what}: only root can be other users");
    }
    root
}

#[test]
fn what_another_user_laid_there_is_not_adopted() {
    if !is_root("what_another_user_laid_there_is_not_adopted") {
        return;
    }
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::write(here.join("model"), vec![7; 100_000]).unwrap();
    let to = here.join("to");
    fs::create_dir(&to).unwrap();
    for path in [here, &to] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).unwrap();
    }
    // Another user has left files under the names of the partial file and the journal, and keeps one open.
    let laid = "umask 0; exec 3> .model.unisono-part; : > .model.unisono-journal; ln -s /etc/passwd model";
    let status = Command::new("sh").args(["-c", laid]).uid(NOBODY).gid(NOBODY).current_dir(&to).status();
    assert!(status.unwrap().success());
    let output = broadcast(2, here, "model --to to");
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("not written by unisono, and left unchanged"), "{output:?}");
    let about = fs::symlink_metadata(to.join("model")).unwrap();
    assert!(about.is_file() && about.uid() == 0 && about.len() == 100_000, "{about:?}");
    let partial = fs::metadata(to.join(".model.unisono-part")).unwrap();
    assert_eq!((partial.uid(), partial.len()), (NOBODY, 0));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3, "what is left of root's");
}

#[test]
fn a_disk_has_to_hold_what_is_in_no_hole() {
    let mounts = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"])
        .output();
    if !mounts.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: a_disk_has_to_hold_what_is_in_no_hole: a disk of 1 MiB cannot be mounted here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::create_dir(here.join("to")).unwrap();
    let file = fs::File::create(here.join("model")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[7; 100_000], 500_000_000).unwrap();
    file.sync_all().unwrap();
    if file.metadata().unwrap().blocks() * 512 >= 1 << 30 {
        println!("SKIPPED: a_disk_has_to_hold_what_is_in_no_hole: this file system has no holes");
        return;
    }
    let unisono = env!("CARGO_BIN_EXE_unisono");
    let script = format!(
        "mount -t tmpfs -o size=1m none to && {unisono} broadcast model --to to --piece 64K && cmp model to/model && du -k to/model"
    );
    let run = || {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).env("UNISONO_RANK", "0").env("UNISONO_WORLD_SIZE", "1");
        command.current_dir(here).stdin(Stdio::null()).output().unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    let sent = said.split_once("1073741824 B, ").and_then(|(_, rest)| rest.split_once(' ')).unwrap().0;
    // The file system decides the granularity of holes.
    assert!((100_000..300_000).contains(&sent.parse().unwrap()), "{said}");
    let room: u32 = said.lines().last().unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(room < 400, "{said}");
    // More than the free space: the program finds out before it writes.
    file.write_all_at(&vec![7; 2 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let output = run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("there is no room for"), "{output:?}");
}
