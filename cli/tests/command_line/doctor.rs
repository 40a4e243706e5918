//! `unisono doctor` from the command line, on this machine.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

/// The titles of all sections, in order.
const SECTIONS: [&str; 9] = [
    "versions",
    "environment",
    "machine",
    "interfaces",
    "shared memory",
    "providers",
    "self-test",
    "limits",
    "verdict",
];

/// Runs the doctor with these arguments and variables, and without others that it reports.
fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("doctor").args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["UNISONO_", "FI_", "MASTER_", "HWLOC_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs the doctor under a limit of the shell's `ulimit`, and returns its output, also as one line.
fn limited(limit: &str, provider: &str) -> (Output, String) {
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_unisono");
    shell.args(["-c", &format!("ulimit {limit}; exec {program} doctor --provider {provider}")]);
    let variables = ["FI_PROVIDER", "UNISONO_PROVIDER", "UNISONO_INTERFACE"];
    let shell = variables.iter().fold(&mut shell, |shell, name| shell.env_remove(name));
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    (output, said)
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
fn the_status_says_whether_anything_works() {
    let output = doctor(&["--json", "-"], &[]);
    let found = json(&output);
    let works = found["works"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!works)), "{found}");
    let titles: Vec<_> = found["sections"].as_array().unwrap().iter().map(|it| it["title"].clone()).collect();
    assert_eq!(titles, SECTIONS);
    assert!(!found["machine"]["hardware"]["Ok"]["cores"].as_array().unwrap().is_empty());
    if !works {
        println!("SKIPPED: the latency that doctor measures: nothing works here: {}", found["providers"]);
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
    assert!(said.contains("PROBLEM  nothing works here"), "{said}");
    assert_eq!(text(&output.stderr), "");
    // If another one is available, it says so.
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

#[cfg(feature = "hwloc")]
#[test]
fn a_recorded_topology_takes_the_place_of_this_machine() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/doctor/tests/epyc.xml");
    let arguments = ["--provider", "shm", "--ranks", "17"];
    let said = text(&doctor(&arguments, &[("HWLOC_XMLFILE", file)]).stdout);
    for wanted in [
        "2 sockets × 4 caches (L3 32 MiB) × 2 cores",
        "17 ranks would share 16 hardware threads",
        "\nranks\n  -        17 ranks on this host (",
        "ok       all ranks share memory; libfabric is not opened",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let said = text(&doctor(&arguments, &[("HWLOC_XMLFILE", "/no/such/file.xml")]).stdout);
    assert!(said.contains("PROBLEM  /no/such/file.xml: No such file"), "{said}");
    assert!(said.contains("unset HWLOC_XMLFILE"), "{said}");
}

#[cfg(feature = "hwloc")]
#[test]
fn a_described_topology_takes_its_place_too_and_what_is_wrong_with_one_is_told() {
    let arguments = ["--provider", "shm", "--ranks", "16"];
    let said = |variable| text(&doctor(&arguments, &[variable]).stdout);
    let wanted = "8 cores, 16 hardware threads: 2 sockets × 2 caches (L3 16 MiB) × 2 cores × 2 threads";
    let message = said(("HWLOC_SYNTHETIC", "pack:2 [numa] l3:2 core:2 pu:2"));
    assert!(
        message.contains(wanted) && message.contains("16 ranks have a hardware thread each"),
        "{message}"
    );
    let message = said(("HWLOC_SYNTHETIC", "pack:two"));
    assert!(message.contains("PROBLEM  HWLOC_SYNTHETIC=\"pack:two\": "), "{message}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("topology.xml");
    let whole =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doctor/tests/epyc.xml")).unwrap();
    let half = &whole[..whole.len() / 2];
    let refused = |message: &str| message.contains(&format!("PROBLEM  {}: ", file.display()));
    // hwloc 2.9 crashes where the machine has no complete set of processors; others may read it.
    let crashes = whole.replacen(" complete_cpuset=", " n=", 1);
    for (broken, must_refuse) in [("", true), ("words", true), (half, true), (&crashes, false)] {
        fs::write(&file, broken).unwrap();
        let output = doctor(&arguments, &[("HWLOC_XMLFILE", file.to_str().unwrap())]);
        let message = text(&output.stdout);
        assert!(refused(&message) || !must_refuse && message.contains("2 sockets"), "{message}");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{message}");
    }
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [["--ranks", "0"], ["--ranks", "some"], ["--provder", "tcp"]] {
        assert_eq!(doctor(&arguments, &[]).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn ranks_of_one_host_share_memory_and_a_provider_is_tried_by_its_name() {
    let output = doctor(&["--json", "-"], &[]);
    let found = json(&output);
    let trials = |found: &Value| -> Vec<(Value, Value)> {
        let trials = found["self_test"]["trials"].as_array().unwrap().iter();
        trials.map(|it| (it["request"].clone(), it["success"]["provider"].clone())).collect()
    };
    assert_eq!(found["shared_memory"]["opens"], json!({ "Ok": null }), "{found}");
    let both = trials(&found);
    assert_eq!(both[0], (json!("one_host"), json!("shm")), "{found}");
    for (request, provider) in &both[1..] {
        assert!(*request == "hosts" || request["named"].is_string(), "{found}");
        assert_ne!(*provider, "shm", "{found}");
    }
    // Only a name.
    let shm = json(&doctor(&["--provider", "shm", "--json", "-"], &[]));
    assert_eq!(trials(&shm), [(json!({ "named": "shm" }), json!("shm"))], "{shm}");
    assert_eq!(shm["providers"]["candidates"], json!([]), "{shm}");
    let tcp = json(&doctor(&["--provider", "tcp", "--json", "-"], &[]));
    assert_eq!(tcp["shared_memory"]["opens"], Value::Null, "{tcp}");
    assert!(trials(&tcp).iter().all(|(request, _)| *request == json!({ "named": "tcp" })), "{tcp}");
}

#[test]
fn limits_that_forbid_shared_memory_are_told_of() {
    // In blocks of 512 B: less than a ring needs.
    let (output, said) = limited("-f 64", "shm");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("an endpoint does not open") && said.contains("(ulimit -f)"), "{said}");
    assert!(said.contains("PROBLEM shm: there is no shared memory"), "{said}");
    // Less than some memory that ranks allocate.
    let (output, said) = limited("-f 1024", "shm");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said.contains("warn the limit on file sizes is 512 KiB"), "{said}");
    assert!(said.contains("2 ranks form a group over shm"), "{said}");
    let (output, said) = limited("-n 6", "shm");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("an endpoint does not open") && said.contains("(ulimit -n)"), "{said}");
}

#[test]
fn few_file_descriptors_are_told_of_and_waited_for_no_longer_than_it_takes_to_see() {
    let began = std::time::Instant::now();
    // With this few descriptors, a group of two cannot be made.
    let (_, said) = limited("-n 16", "tcp");
    assert!(said.contains("this process may have 16 at most") && said.contains("ulimit -n"), "{said}");
    assert!(!said.contains("it hangs"), "{said}");
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
