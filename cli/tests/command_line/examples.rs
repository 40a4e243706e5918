//! Runs every example by the command in its first lines, and checks that it prints their output. The README shows one of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use serde_json::Value;

/// The packages that have examples, and their folders.
const PACKAGES: [(&str, &str); 2] = [("unisono", "examples"), ("unisono-files", "files/examples")];

/// An example, as its first lines describe it.
struct Example {
    name: String,
    /// The path of its file or folder from the workspace's root.
    path: String,
    /// The text of its file, or of its folder's `main.rs`.
    source: String,
    /// The arguments of `unisono`, with the program as `target/debug/examples/NAME`.
    command: Vec<String>,
    /// The expected output, in the order of ranks.
    prints: Vec<String>,
}

/// The workspace's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The folder with the programs of this build (this test is in its `deps`), after building the examples in the same profile, which
/// takes no time if they are built.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let built = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--workspace", "--examples"]).current_dir(root());
    command.args(["--profile", if cfg!(debug_assertions) { "test" } else { "release" }]);
    command.arg("--target-dir").arg(built.parent().unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    built
});

/// Cargo's metadata of the packages.
static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let metadata: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
});

/// The arguments with which cargo builds an example, including the features that it requires.
fn build(package: &str, example: &str) -> String {
    let known = KNOWN.iter().find(|it| it["name"] == package).unwrap();
    let mut targets = known["targets"].as_array().unwrap().iter();
    let target = targets.find(|target| target["kind"][0] == "example" && target["name"] == example);
    let features = target.unwrap().get("required-features").and_then(Value::as_array);
    let features: Vec<_> = features.into_iter().flatten().map(|feature| feature.as_str().unwrap()).collect();
    let package = if package == "unisono" { String::new() } else { format!(" -p {package}") };
    let features =
        if features.is_empty() { String::new() } else { format!(" --features {}", features.join(",")) };
    format!("cargo build{package} --examples{features}")
}

/// All examples: files, and folders with a `main.rs`.
fn examples() -> Vec<Example> {
    let mut all = Vec::new();
    for (package, folder) in PACKAGES {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let main = if path.is_dir() { path.join("main.rs") } else { path.clone() };
            if main.extension().is_some_and(|extension| extension == "rs") && main.exists() {
                all.push(Example::read(package, &path, fs::read_to_string(main).unwrap()));
            }
        }
    }
    all
}

impl Example {
    fn read(package: &str, path: &Path, source: String) -> Self {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let path = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let transcript = transcript(&source);
        let lines: Vec<_> = transcript.lines().collect();
        let Some((command, prints)) = lines.split_first() else {
            panic!("the first lines of example {name} do not show in ```text what it prints");
        };
        let build = build(package, &name);
        let Some(command) = command.strip_prefix(&format!("$ {build} && unisono ")) else {
            panic!("example {name} is started by {command:?}, and built by {build:?}");
        };
        let command = command.split(' ').map(str::to_owned).collect();
        let prints = prints.iter().map(|&line| line.to_owned()).collect();
        Self { name, path, source, command, prints }
    }

    /// Starts it and returns its output, in the order of ranks; files that it writes go to the directory.
    fn run(&self, command: &[String], directory: &Path) -> Vec<String> {
        let program = format!("target/debug/examples/{}", self.name);
        assert!(command.contains(&program), "example {} is started by {command:?}", self.name);
        let words = command.iter().map(|word| match *word == program {
            true => BUILT.join("examples").join(&self.name).into_os_string(),
            false => word.into(),
        });
        let output = Command::new(env!("CARGO_BIN_EXE_unisono"))
            .args(words)
            .envs([("UNISONO_PROVIDER", "tcp"), ("UNISONO_TIMEOUT", "60")])
            .current_dir(directory)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {output:?}", self.name);
        let mut lines: Vec<_> =
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        // Those of one rank keep their order.
        lines.sort_by_key(|line| line.split(']').next().map(str::to_owned));
        lines
    }
}

/// The first block of text among the first lines of a file, without the marks of a comment.
fn transcript(source: &str) -> String {
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let text = comment.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
    block(&text, "```text\n").to_owned()
}

/// The contents of the first block that opens so.
fn block<'t>(text: &'t str, opening: &str) -> &'t str {
    text.split_once(opening).and_then(|(_, rest)| rest.split_once("```")).map_or("", |(block, _)| block)
}

#[test]
fn examples_print_what_they_say() {
    for example in examples() {
        let directory = tempfile::tempdir().unwrap();
        let printed = example.run(&example.command, directory.path());
        assert_eq!(printed, example.prints, "{}", example.name);
    }
}

#[test]
fn the_readme_shows_one_of_them() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let shown = block(&readme, "```rust,no_run\n");
    let code = |example: &Example| example.source.split_once("\n\n").is_some_and(|(_, code)| code == shown);
    let Some(example) = examples().into_iter().find(code) else {
        panic!("no file in examples/ has the code that README.md shows");
    };
    assert!(
        readme.contains(&transcript(&example.source)),
        "README.md does not show what {} prints",
        example.name
    );
}

#[test]
fn their_readme_lists_them_all() {
    let readme = fs::read_to_string(root().join("examples/README.md")).unwrap();
    for Example { name, path, .. } in examples() {
        let link = path.strip_prefix("examples/").map_or_else(|| format!("../{path}"), str::to_owned);
        assert!(readme.contains(&format!("| [{name}]({link}) |")), "examples/README.md does not list {name}");
    }
}

#[test]
fn training_is_the_same_with_any_number_of_ranks() {
    let example = examples().into_iter().find(|example| example.name == "train").unwrap();
    let trained = ["1", "3", "4"].map(|ranks| {
        let directory = tempfile::tempdir().unwrap();
        let command = example.command.iter().map(|word| if word == "4" { ranks } else { word }.to_owned());
        let printed = example.run(&command.collect::<Vec<_>>(), directory.path());
        let read = |name| fs::read_to_string(directory.path().join(name)).unwrap();
        (printed, read("loss.txt"), read("loss.svg"))
    });
    let (printed, losses, picture) = &trained[0];

    let numbers: Vec<f64> = losses.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers[numbers.len() - 1] < numbers[0] / 10.0, "{numbers:?}");
    let share = printed
        .iter()
        .find_map(|line| line.strip_prefix("[0] ")?.split_once(" % of ")?.0.parse::<f64>().ok());
    assert!(share.is_some_and(|share| share > 90.0), "{printed:?}");
    well_formed(picture);
    let curves =
        picture.split("points=\"").filter_map(|rest| Some(rest.split_once('"')?.0.split_whitespace()));
    assert!(curves.map(Iterator::count).any(|points| points == numbers.len()), "{picture}");

    for (other_printed, other_losses, other_picture) in &trained[1..] {
        assert_eq!((other_printed, other_losses), (printed, losses));
        assert!(other_picture == picture, "the pictures differ");
    }
}

/// Checks that every element of a picture is closed, in the reverse order of opening, and that all are in one `svg`.
fn well_formed(picture: &str) {
    let mut open = Vec::new();
    let mut rest = picture.trim();
    assert!(rest.starts_with("<svg ") && rest.ends_with("</svg>"), "{picture}");
    while let Some((text, after)) = rest.split_once('<') {
        assert!(!text.contains('>'), "{text:?} in {picture}");
        let (tag, after) = after.split_once('>').unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag:?} in {picture}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "in {picture}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
        rest = after;
        assert!(!open.is_empty() || rest.is_empty(), "{rest:?} follows {picture}");
    }
    assert_eq!(rest, "");
}
