//! `unisono doctor` from the command line, on this machine.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// The titles of all sections, in order.
const SECTIONS: [&str; 8] =
    ["versions", "environment", "machine", "interfaces", "providers", "self-test", "limits", "verdict"];

/// The doctor with these arguments and variables, and no others that it reports.
fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("doctor").args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["UNISONO_", "FI_", "MASTER_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn all_sections_are_there_in_narrow_lines() {
    let output = doctor(&[], &[]);
    let said = text(&output.stdout);
    let titles: Vec<_> = said.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert_eq!(titles, SECTIONS, "{said}");
    assert!(!said.contains('\x1b'), "colours in a pipe");
    for line in said.lines() {
        let words = line.split_whitespace().count();
        assert!(line.chars().count() <= 100 || words <= 2, "too wide: {line}");
    }
    // Every complaint comes with advice.
    let lines: Vec<_> = said.lines().collect();
    for (at, _) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with("  PROBLEM") || line.starts_with("  warn"))
    {
        let next = lines[at + 1..]
            .iter()
            .find(|line| line.starts_with("           =>") || !line.starts_with("    "));
        assert!(next.is_some_and(|line| line.contains("=>")), "no advice: {}", lines[at]);
    }
}

#[test]
fn the_status_says_whether_a_provider_works() {
    let output = doctor(&["--json", "-"], &[]);
    let found = json(&output);
    let works = found["works"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!works)), "{found}");
    let titles: Vec<_> = found["sections"].as_array().unwrap().iter().map(|it| it["title"].clone()).collect();
    assert_eq!(titles, SECTIONS);
    assert!(found["machine"]["layout"]["Ok"]["cores"].as_u64().unwrap() > 0);
    if !works {
        println!(
            "SKIPPED: no provider works here, so its latency cannot be looked at: {}",
            found["providers"]
        );
        return;
    }
    let reduced = &found["self_test"]["trials"][0]["success"];
    assert!(reduced["times_us"][1].as_f64().unwrap() > 0.0, "{found}");
}

#[test]
fn no_such_provider_is_a_problem_with_status_1() {
    let output = doctor(&["--provider", "no-such-provider"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("PROBLEM  no-such-provider: no provider fits"), "{said}");
    assert!(said.contains("PROBLEM  no provider works here"), "{said}");
    assert_eq!(text(&output.stderr), "");
    // Where another is to be had, it says so.
    if doctor(&[], &[]).status.success() {
        assert!(said.contains("=> without --provider and UNISONO_PROVIDER it would be "), "{said}");
        let said = text(&doctor(&[], &[("UNISONO_INTERFACE", "no-such-nic")]).stdout);
        assert!(said.contains("=> without --interface and UNISONO_INTERFACE it would be "), "{said}");
    }
    assert_eq!(doctor(&["--provider", ""], &[]).status.code(), Some(2));
}

#[test]
fn options_go_before_the_environment() {
    let asked = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = doctor(&[&["--json", "-"], arguments].concat(), variables);
        json(&output)["providers"]["provider"].as_str().map(str::to_owned)
    };
    let variables = [("UNISONO_PROVIDER", "shm")];
    assert_eq!(asked(&[], &variables).as_deref(), Some("shm"));
    assert_eq!(asked(&["--provider", "tcp"], &variables).as_deref(), Some("tcp"));
}

#[test]
fn the_environment_is_looked_through() {
    let variables = [
        ("UNISONO_PROVDER", "tcp"),
        ("UNISONO_LANES", "four"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("FI_PROVIDER", "tcp"),
    ];
    let said = text(&doctor(&["--ranks", "65536"], &variables).stdout);
    for wanted in [
        "warn     UNISONO_PROVDER is set, but there is no such variable",
        "=> perhaps UNISONO_PROVIDER was meant",
        "PROBLEM  UNISONO_LANES",
        "warn     FI_PROVIDER=tcp hides all other providers",
        "ok       the route to 127.0.0.1 starts at 127.0.0.1 on lo",
        "65536 ranks would share",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

#[test]
fn a_file_gets_the_same_as_one_object() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("doctor.json");
    let output = doctor(&["--provider", "shm", "--json", file.to_str().unwrap()], &[]);
    let found: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let said: String = text(&output.stdout).split_whitespace().collect();
    for line in found["sections"].as_array().unwrap().iter().flat_map(|it| it["lines"].as_array().unwrap()) {
        let line: String = line["text"].as_str().unwrap().split_whitespace().collect();
        assert!(said.contains(&line), "{line} is not in {said}");
    }
    let nowhere = directory.path().join("no/such/place");
    let output = doctor(&["--provider", "shm", "--json", nowhere.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write"), "{output:?}");
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [["--ranks", "0"], ["--ranks", "some"], ["--provder", "tcp"]] {
        assert_eq!(doctor(&arguments, &[]).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn few_file_descriptors_are_told_of_and_waited_for_no_longer_than_it_takes_to_see() {
    let program = env!("CARGO_BIN_EXE_unisono");
    let began = std::time::Instant::now();
    let mut shell = Command::new("sh");
    // With so few no group of two comes about.
    shell.args(["-c", &format!("ulimit -n 16; exec {program} doctor --provider tcp")]);
    let output = shell.env_remove("FI_PROVIDER").stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("this process may have 16 at most") && said.contains("ulimit -n"), "{said}");
    assert!(!said.contains("it hangs"), "{said}");
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
