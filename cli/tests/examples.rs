//! Every example as its first lines say to start it: by `unisono run` with four ranks.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What each example prints on rank `RANK` of 4.
const OUTPUTS: [(&str, &str); 3] = [
    ("all_reduce", "rank RANK of 4: NEXT became 10"),
    ("broadcast", "rank RANK of 4: 12 layers"),
    ("reduce_scatter_all_gather", "rank RANK of 4: parameters are now -0.25"),
];

/// The workspace's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Where cargo put the programs of this build: this test is in `deps` of it.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned()
}

/// Builds the examples as this test was built, which costs nothing where cargo has done so already.
fn build() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "unisono", "--examples"]).current_dir(root());
    command.arg("--target-dir").arg(built().parent().unwrap());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn examples_print_what_they_should() {
    build();
    for (name, line) in OUTPUTS {
        let output = Command::new(env!("CARGO_BIN_EXE_unisono"))
            .args(["run", "-n", "4", "--provider", "tcp", "--timeout", "60"])
            .arg(built().join("examples").join(name))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<_> = said.lines().collect();
        lines.sort_unstable();
        let wanted = |rank: usize| {
            let line = line.replace("RANK", &rank.to_string()).replace("NEXT", &(rank + 1).to_string());
            format!("[{rank}] {line}")
        };
        assert_eq!(lines, [0, 1, 2, 3].map(wanted), "{name}");
    }
}

#[test]
fn every_example_is_known_here() {
    let mut names: Vec<_> = fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort_unstable();
    assert_eq!(names, OUTPUTS.map(|(name, _)| name));
}
