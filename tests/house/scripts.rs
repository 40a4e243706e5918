//! The scripts of `ci/`: they find build outputs in every target directory, and report what did not run in one form, which `.ci/run` judges.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    if text.starts_with("#!") {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn copy(file: &str, to: &Path) {
    write(&to.join(file), &fs::read_to_string(root().join(file)).unwrap());
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A workspace with this one's Makefile and scripts, whose program `unisono` prints its path and its arguments.
fn workspace(at: &Path) {
    for file in ["Makefile", "ci/built.sh", "ci/target.sh"] {
        copy(file, at);
    }
    write(&at.join("ci/setup.sh"), "#!/bin/sh\n");
    write(
        &at.join("Cargo.toml"),
        "[package]\nname = \"unisono-cli\"\nedition = \"2021\"\n[[bin]]\nname = \"unisono\"\npath = \"main.rs\"\n[workspace]\n[profile.demo]\ninherits = \"release\"\n",
    );
    write(
        &at.join("main.rs"),
        "fn main() { let all: Vec<_> = std::env::args().collect(); println!(\"{}\", all.join(\" \")); }\n",
    );
}

/// A command whose cargo takes its directory from nothing but the workspace and these variables.
fn command(program: &str, at: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_TARGET", "MAKEFLAGS", "MAKELEVEL"]
    {
        command.env_remove(name);
    }
    command.current_dir(at).envs(variables.iter().copied());
    command
}

#[test]
fn what_cargo_has_built_is_found_wherever_it_builds() {
    let configured = "[build]\ntarget-dir = \"a folder/of builds\"\n";
    // The file that sets the directory, the variables, and the directory below the workspace.
    let cases = [
        ("", [("UNUSED", "")], "target"),
        ("", [("CARGO_TARGET_DIR", "with a space")], "with a space"),
        ("", [("CARGO_BUILD_TARGET_DIR", "elsewhere/it's")], "elsewhere/it's"),
        (configured, [("UNUSED", "")], "a folder/of builds"),
        (configured, [("CARGO_TARGET_DIR", "before")], "before"),
    ];
    for (config, variables, wanted) in cases {
        let here = tempfile::tempdir().unwrap();
        // The path of the workspace has a space, too.
        let at = here.path().canonicalize().unwrap().join("a workspace");
        workspace(&at);
        write(&at.join(".cargo/config.toml"), config);
        let wanted = at.join(wanted);
        let output_of = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{variables:?}, {config}: {}", said(&output));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(PathBuf::from(output_of(&mut command("ci/target.sh", &at, &variables))), wanted);
        let built = output_of(command("ci/built.sh", &at, &variables).args(["unisono", "-p", "unisono-cli"]));
        assert_eq!(PathBuf::from(&built), wanted.join("debug/unisono"));
        // The last line of `make demo` runs it.
        let shown = output_of(command("make", &at, &variables).arg("demo"));
        let call = format!("{} bench all_reduce --ranks 4 ", wanted.join("demo/unisono").display());
        assert!(shown.lines().last().is_some_and(|last| last.starts_with(&call)), "{shown}");
    }
}

/// The result and output of `.ci/run` if every goal prints these lines.
fn judged(lines: &str) -> (bool, String) {
    let here = tempfile::tempdir().unwrap();
    for file in [".ci/run", ".ci/skipped", "Makefile"] {
        copy(file, here.path());
    }
    write(&here.path().join("said"), lines);
    write(&here.path().join("programs/make"), "#!/bin/sh\ncat said\n");
    let programs = format!("{}:{}", here.path().join("programs").display(), std::env::var("PATH").unwrap());
    let run = here.path().join(".ci/run");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(run).current_dir(here.path()).env("PATH", programs).output().unwrap();
    (output.status.success(), said(&output))
}

#[test]
fn what_did_not_run_fails_unless_it_is_allowed() {
    let passed = "test result: ok. 3 passed; 0 failed; 0 ignored\n";
    let allowed = "SKIPPED: hosts: `make test-hosts` runs them\n    SKIPPED: completions of zsh: it cannot be run: no such file\n";
    let (well, message) = judged(&format!("{passed}{allowed}"));
    // Each goal prints all of it.
    let goals = message.matches(passed).count();
    let all = 3 * goals;
    assert!(well && goals > 8 && message.ends_with(&format!("\n{all} passed, 0 failed\n")), "{message}");
    for unexpected in [
        "SKIPPED: test-slurm: only root can make namespaces",
        "  SKIPPED: what nobody knows: no reason",
        "SKIPPED [1] test_arrays.py:7: numpy is missing",
    ] {
        let (well, message) = judged(&format!("{passed}{allowed}{unexpected}\n"));
        assert!(
            !well
                && message.contains("UNEXPECTED SKIPPED")
                && message.contains(&format!("\n{all} passed, 1 failed\n")),
            "{message}"
        );
    }
}

/// The source files below a folder.
fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "__pycache__" {
                sources(&path, all);
            }
        } else if [".rs", ".sh", ".py"].iter().any(|end| name.ends_with(end)) {
            all.push(path);
        }
    }
}

/// True if a text that is printed begins with `SKIPPED`, and is not `SKIPPED: what: why`.
fn is_astray(line: &str) -> bool {
    let Some(text) = line.split_once("\"SKIPPED").map(|(_, text)| text) else { return false };
    // A text that a program searches for, or that continues elsewhere, is not printed.
    if !["println!(", "echo ", "print("].iter().any(|print| line.contains(print))
        && !line.trim_start().starts_with("\"SKIPPED")
    {
        return false;
    }
    let Some(text) = text.strip_prefix(": ") else { return true };
    // A program searches for lines with this text.
    if text.starts_with('"') {
        return false;
    }
    let parts = text.split_once(": ");
    parts.is_none_or(|(what, why)| what.trim().is_empty() || why.trim().is_empty())
}

#[test]
fn what_did_not_run_is_told_in_one_form() {
    for (line, astray) in [
        ("println!(\"SKIPPED: a door: there is none\");", false),
        ("skip() { echo \"SKIPPED: $1: $2\"; }", false),
        ("echo \"SKIPPED: no root\"", true),
        ("println!(\"SKIPPED a door: nobody\");", true),
        ("    \"SKIPPED: {name} cannot run\"", true),
        ("print(line for line in told if line.startswith(\"SKIPPED: \"))", false),
    ] {
        assert_eq!(is_astray(line), astray, "{line}");
    }
    let (mut all, mut astray) = (Vec::new(), Vec::new());
    sources(root(), &mut all);
    assert!(all.len() > 300, "{} files", all.len());
    for path in all.iter().filter(|path| !path.ends_with(file!())) {
        for (number, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
            if is_astray(line) {
                astray.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(astray.is_empty(), "these are not `SKIPPED: what: why`:\n{}", astray.join("\n"));
}
