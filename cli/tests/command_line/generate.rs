//! `unisono completions` and `unisono man`: shells accept the scripts, and every subcommand has its page.

use std::{
    fs,
    process::{Command, Output},
};

fn unisono(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unisono")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The subcommands that `--help` lists, except `help` itself.
fn subcommands() -> Vec<String> {
    let help = text(&unisono(&["--help"]).stdout);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    listed
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn scripts_know_all_subcommands_and_no_hidden_one() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = unisono(&["completions", shell]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let script = text(&output.stdout);
        for name in subcommands().iter().map(String::as_str).chain(["--ranks"]) {
            let name = if shell == "fish" { name.trim_start_matches('-') } else { name };
            assert!(script.contains(name), "{shell}: {name}");
        }
        assert!(!script.contains("guard"), "{shell}");
        let file = directory.path().join(shell);
        fs::write(&file, script).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => println!("SKIPPED: completions of {shell}: it cannot be run: {error}"),
        }
    }
    // The completions that bash offers, by its way to ask for them.
    let ask = "source ./bash; COMP_WORDS=(unisono bench all_reduce --rank); COMP_CWORD=3
        _unisono unisono --rank all_reduce; echo \"${COMPREPLY[@]}\"";
    match Command::new("bash").current_dir(directory.path()).args(["--norc", "-c", ask]).output() {
        Ok(output) => assert_eq!(text(&output.stdout), "--ranks\n", "{output:?}"),
        Err(error) => println!("SKIPPED: what bash offers: it cannot be run: {error}"),
    }
}

#[test]
fn each_subcommand_has_its_page() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man/man1");
    let output = unisono(&["man", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let mut wanted: Vec<_> = subcommands().iter().map(|name| format!("unisono-{name}.1")).collect();
    assert!(wanted.contains(&"unisono-bench.1".to_owned()), "{wanted:?}");
    wanted.push("unisono.1".into());
    wanted.sort();
    let mut written: Vec<_> = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| text(entry.unwrap().file_name().as_encoded_bytes()))
        .collect();
    written.sort();
    assert_eq!(written, wanted);
    let page = fs::read_to_string(pages.join("unisono-bench.1")).unwrap();
    for part in [".TH", "NAME", "SYNOPSIS", "OPTIONS", "\\-\\-ranks", "mpirun"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    fs::write(directory.path().join("file"), "").unwrap();
    let output = unisono(&["man", directory.path().join("file").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("unisono man: /"), "{output:?}");
}
