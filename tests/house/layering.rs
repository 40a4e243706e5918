//! Holds the house together: which room may import which, where C may be spoken and the environment read, how
//! long a file may be. The rules are the tables below; every violation is reported at once.

use std::{
    collections::HashMap,
    fmt, fs,
    path::{Path, PathBuf},
};

mod counted;
mod cycles;
mod plain;
mod source;
mod words;

use source::{Token, is, paths, tokens, without_tests};

/// The rooms of `src/` and those each may import besides itself; arrows point down only.
const LIBRARY: &[(&str, &[&str])] = &[
    ("dtype", &[]),
    ("reduce", &["dtype"]),
    ("outside", &[]),
    ("hardware", &["outside"]),
    ("error", &["object", "tensor"]),
    ("position", &["error"]),
    ("buffer", &["dtype", "reduce", "error", "tensor"]),
    ("config", &["dtype", "error", "reduce"]),
    ("launch", &["config", "error", "outside"]),
    ("rendezvous", &["config", "error", "launch", "outside", "position"]),
    ("call", &["dtype", "position", "reduce"]),
    ("engine", &["reduce", "dtype", "buffer", "call", "error", "position"]),
    ("work", &["buffer", "dtype", "error", "engine"]),
    ("signals", &["error", "rendezvous"]),
    ("object", &[]),
    ("tensor", &["dtype"]),
    (
        "runtime",
        &[
            "buffer",
            "call",
            "config",
            "engine",
            "error",
            "hardware",
            "outside",
            "rendezvous",
            "signals",
            "work",
        ],
    ),
    (
        "group",
        &[
            "buffer",
            "call",
            "config",
            "dtype",
            "engine",
            "error",
            "object",
            "outside",
            "reduce",
            "rendezvous",
            "runtime",
            "signals",
            "tensor",
            "work",
        ],
    ),
    ("program", &["group", "runtime"]),
    ("fuzz", ALL),
];
/// The rooms of `transport/src/`: the ways to move bytes know the trait and its nouns, not one another,
/// but for one that is made of two.
const TRANSPORT: &[(&str, &[&str])] = &[
    ("log", &[]),
    ("fork", &[]),
    ("eventfd", &[]),
    ("file", &[]),
    ("guarded", &[]),
    ("region", &["file"]),
    ("activity", &[]),
    ("check", &["region"]),
    ("local", &["region"]),
    ("inproc", &["region", "check", "activity", "local", "eventfd"]),
    ("sim", &["region", "check", "activity", "local"]),
    ("ofi", &["region", "check", "activity", "eventfd", "fork"]),
    ("shm", &["region", "check", "activity", "local", "eventfd", "file", "fork"]),
    ("mux", &["region", "check", "activity", "shm"]),
    ("fuzz", &["shm"]),
];
/// The rooms of `files/src/`: one rank's part knows nothing of what ranks agree on.
const FILES: &[(&str, &[&str])] = &[
    ("checksum", &[]),
    ("error", &[]),
    ("options", &[]),
    ("plan", &["checksum", "error"]),
    ("local", &["checksum", "error", "plan"]),
    ("handover", &["error", "local", "options", "plan"]),
    ("fuzz", &["local", "plan"]),
];
/// The rooms of `python/src/`, the native part of the Python package.
const PYTHON: &[(&str, &[&str])] = &[
    ("program", &[]),
    ("errors", &[]),
    ("buffer", &[]),
    ("view", &[]),
    ("finisher", &["view"]),
    ("marks", &[]),
    ("value", &["errors", "marks"]),
    ("operands", &["view"]),
    ("plain", &["finisher", "operands"]),
    ("work", &["errors", "finisher", "operands"]),
    ("group", &["buffer", "errors", "finisher", "operands", "plain", "work"]),
    ("log", &["finisher"]),
    ("join", &["errors", "group", "log", "operands", "work"]),
    ("objects", &["group", "value", "work"]),
    ("tensors", &["buffer", "errors", "group", "operands", "work"]),
    ("files", &["group", "work"]),
];
const ALL: &[&str] = &["*"];
/// The rooms of `src/` that may name the transport.
const USES_TRANSPORT: &[&str] =
    &["engine", "buffer", "runtime", "group", "error", "config", "work", "rendezvous"];
/// What is made of pure functions: a crate and some rooms of `src/`; and what these may not name.
const PURE: &[&str] = &["schedule/src/", "src/dtype", "src/object/", "src/position/", "src/tensor/"];
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::thread", "std::env", "std::process", "std::io", "Instant", "SystemTime"];
/// Where `unsafe` may stand: where memory is touched that puts read and write, by code that says why that is at rest. The trait
/// declares it; each user of a transport has one file for it.
const UNSAFE: &[&str] = &[
    "python/src/buffer.rs",
    "python/src/operands.rs",
    "transport/src/lib.rs",
    "transport/src/ofi/",
    "transport/src/fork.rs",
    "transport/src/guarded.rs",
    "transport/src/region.rs",
    "transport/src/local.rs",
    "transport/src/inproc.rs",
    "transport/src/mux/mod.rs",
    "transport/src/mux/tests.rs",
    "transport/src/shm/fuzz.rs",
    "transport/src/shm/incoming.rs",
    "transport/src/shm/memory.rs",
    "transport/src/shm/mod.rs",
    "transport/src/shm/outgoing.rs",
    "transport/src/shm/ring.rs",
    "transport/src/shm/segment.rs",
    "transport/src/shm/socket.rs",
    "transport/src/shm/tests.rs",
    "transport/src/shm/tests/keys.rs",
    "transport/src/sim/",
    "transport/tests/conformance/kit.rs",
    "transport/benches/put.rs",
    "src/buffer/",
    "src/signals.rs",
    "src/rendezvous/pmi.rs",
    "tests/processes/erased.rs",
    "tests/processes/forking.rs",
    "src/engine/access.rs",
    "tests/processes/strangers.rs",
    "tests/hosts/forgetful.rs",
    "cli/src/bench/put_pair.rs",
];
/// Where the environment may be read: settings in one place, launchers' variables in one, hwloc's in one, libfabric's in one and where a
/// job sets one of them, `RUST_LOG` in one, PATH in one, all names that are set in one (doctor looks for typing mistakes); and what is not
/// part of the library or the program.
const ENVIRONMENT: &[&str] = &[
    "src/launch/environment.rs",
    "src/hardware/hwloc.rs",
    "transport/src/ofi/variables.rs",
    "transport/src/log.rs",
    "cli/src/run/job.rs",
    "cli/src/run/program.rs",
    "cli/src/doctor/environment.rs",
    "src/group/tests/disagree.rs",
    "build.rs",
    "transport/build.rs",
    "transport/libfabric-sys/build.rs",
    "cli/build.rs",
    "python/build.rs",
    "tests/",
    "transport/tests/",
    "cli/tests/",
    "benches/",
    "transport/benches/",
    "examples/",
];
const READS: &[&str] = &["env :: var", "env :: var_os", "env :: vars", "env :: vars_os"];
/// Where events are made: everywhere else by the macros of that file, without which they are lost where the program has no subscriber.
const EVENTS: &[&str] = &["transport/src/log.rs", "python/src/log.rs"];
const MAKES: &[&str] = &[
    "tracing :: error !",
    "tracing :: warn !",
    "tracing :: info !",
    "tracing :: debug !",
    "tracing :: trace !",
];
/// The room that every room may import.
const EVERYBODYS: &str = "log";
/// No file is longer, tests included.
const LINES: usize = 600;

/// Something that a rule forbids.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// What is wrong with these files, given as paths from the repository's root and their texts.
fn check(files: &[(String, String)]) -> Vec<Violation> {
    let text = |wanted: &str| files.iter().find(|(file, _)| file == wanted).map_or("", |(_, text)| text);
    let library = reexports(text("src/lib.rs"));
    let transport = reexports(text("transport/src/lib.rs"));
    let files_crate = reexports(text("files/src/lib.rs"));
    let python = reexports(text("python/src/lib.rs"));
    let mut found = Vec::new();
    for (file, text) in files {
        let mut tell = |line, what| found.push(Violation { file: file.clone(), line, what });
        if !text.starts_with("//!") {
            tell(1, "does not open with a `//!` that says what the file is for".into());
        }
        let count = text.lines().count();
        if count > LINES {
            tell(LINES + 1, format!("has {count} lines, {LINES} are allowed"));
        }
        let tokens = tokens(text);
        for (at, Token { text, line }) in tokens.iter().enumerate() {
            if text == "unsafe" && !within(file, UNSAFE) {
                tell(*line, "`unsafe` outside its rooms".into());
            }
            if is(&tokens, at, "libc :: syscall") {
                tell(
                    *line,
                    "a system call by hand: rustix and hwloc have types for what the system writes".into(),
                );
            }
            if text == "env" && READS.iter().any(|read| is(&tokens, at, read)) && !within(file, ENVIRONMENT) {
                tell(*line, "the environment is read outside src/launch/environment.rs".into());
            }
        }
        let tokens = without_tests(&tokens);
        for (at, Token { text, line }) in tokens.iter().enumerate() {
            if text == "tracing" && MAKES.iter().any(|make| is(&tokens, at, make)) && !within(file, EVENTS) {
                tell(*line, "an event is made by `tracing` itself and not by `log`".into());
            }
        }
        if let Some(inside) = file.strip_prefix("src/") {
            arrows(inside, &tokens, LIBRARY, &library, &mut tell);
        } else if let Some(inside) = file.strip_prefix("transport/src/") {
            arrows(inside, &tokens, TRANSPORT, &transport, &mut tell);
        } else if let Some(inside) = file.strip_prefix("files/src/") {
            arrows(inside, &tokens, FILES, &files_crate, &mut tell);
        } else if let Some(inside) = file.strip_prefix("python/src/") {
            arrows(inside, &tokens, PYTHON, &python, &mut tell);
        }
        purity(file, &tokens, &mut tell);
    }
    found
}

/// True if a file is one of these, or in one of these folders.
fn within(file: &str, places: &[&str]) -> bool {
    places.iter().any(|place| file == *place || place.ends_with('/') && file.starts_with(place))
}

/// The names that `pub use room::Name` gives in `lib.rs`, each with its room.
fn reexports(text: &str) -> HashMap<String, String> {
    let uses = paths(&tokens(text)).into_iter().filter(|path| path.public);
    uses.filter_map(|path| Some((path.import?, path.names.first()?.clone()))).collect()
}

/// The module that a file below `src/` is: `engine/lane.rs` is `engine lane`, `lib.rs` the root.
fn module(inside: &str) -> Vec<&str> {
    let mut parts: Vec<_> = inside.trim_end_matches(".rs").split('/').collect();
    if matches!(parts.last(), Some(&("mod" | "lib"))) {
        parts.pop();
    }
    parts
}

/// True if a file holds nothing but tests.
fn only_tests(inside: &str) -> bool {
    module(inside).iter().any(|part| *part == "tests" || part.ends_with("_tests"))
}

/// Reports the imports of a room that its row does not allow.
fn arrows(
    inside: &str,
    tokens: &[Token],
    table: &[(&str, &[&str])],
    reexports: &HashMap<String, String>,
    tell: &mut impl FnMut(usize, String),
) {
    let module = module(inside);
    let Some(room) = module.first().copied() else { return };
    let Some((_, allowed)) = table.iter().find(|(name, _)| *name == room) else {
        tell(
            1,
            format!("the room `{room}` has no row in tests/house/layering.rs that says what it may import"),
        );
        return;
    };
    if only_tests(inside) {
        return;
    }
    for path in paths(tokens) {
        let (names, line) = (&path.names, path.line);
        if table == LIBRARY && names[0] == "unisono_transport" && !USES_TRANSPORT.contains(&room) {
            tell(line, format!("`{room}` may not import the transport"));
        }
        if names[0] != "crate" && names[0] != "super" {
            continue;
        }
        let mut from: Vec<_> = module.iter().copied().chain(path.inside.iter().map(String::as_str)).collect();
        let mut names = names.iter().map(String::as_str).peekable();
        while let Some(step) = names.next_if(|name| ["crate", "super", "self"].contains(name)) {
            match step {
                "crate" => from.clear(),
                "super" => drop(from.pop()),
                _ => {}
            }
        }
        let Some(target) = from.first().copied().or_else(|| names.next()) else { continue };
        if target == EVERYBODYS {
            continue;
        }
        let target = reexports.get(target).map_or(target, String::as_str);
        let known = table.iter().any(|(name, _)| *name == target);
        if target == room || *allowed == ALL || allowed.contains(&target) {
            continue;
        }
        // What the root itself defines, the transport's trait and nouns, is everybody's.
        if known || target == "*" || target.starts_with(char::is_lowercase) {
            tell(line, format!("`{room}` may not import `{target}`"));
        }
    }
}

/// Reports what a pure room may not know: I/O, threads, clocks.
fn purity(file: &str, tokens: &[Token], tell: &mut impl FnMut(usize, String)) {
    let Some(room) = PURE.iter().find(|room| file.starts_with(*room)) else { return };
    if only_tests(file) {
        return;
    }
    let mut seen = |line, name: &str| tell(line, format!("{room} is pure and may not know `{name}`"));
    for path in paths(tokens) {
        let name = path.names.iter().take(2).map(String::as_str).collect::<Vec<_>>().join("::");
        if IMPURE.contains(&name.as_str()) {
            seen(path.line, &name);
        }
    }
    for token in tokens.iter().filter(|token| IMPURE.contains(&token.text.as_str())) {
        seen(token.line, &token.text);
    }
}

/// All files below `directory` whose names end so, except what was built and what is hidden.
fn sources(directory: &Path, root: &Path, ending: &str, files: &mut Vec<(String, String)>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && !path.join("CACHEDIR.TAG").exists() {
                sources(&path, root, ending, files);
            }
        } else if name.ends_with(ending) {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            files.push((path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), text));
        }
    }
}

/// All files of the repository whose names end so: paths from its root, and texts.
pub(crate) fn repository(ending: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(root, root, ending, &mut files);
    files
}

/// All its Rust files.
fn rust() -> Vec<(String, String)> {
    let files = repository(".rs");
    for wanted in [
        "src/lib.rs",
        "schedule/src/lib.rs",
        "transport/src/lib.rs",
        "cli/src/lib.rs",
        "python/src/lib.rs",
        "tests/house/layering.rs",
    ] {
        assert!(files.iter().any(|(file, _)| file == wanted), "{wanted} was not read");
    }
    files
}

#[test]
fn rooms_import_only_what_they_may() {
    let found = check(&rust());
    let report: Vec<_> = found.iter().map(Violation::to_string).collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), report.join("\n"));
}

#[test]
fn each_row_has_its_room() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (source, table) in
        [("src", LIBRARY), ("transport/src", TRANSPORT), ("files/src", FILES), ("python/src", PYTHON)]
    {
        for (room, may) in table {
            for name in [*room].iter().chain(*may).filter(|name| **name != "*") {
                let room = root.join(source).join(name);
                assert!(
                    room.is_dir() || room.with_extension("rs").is_file(),
                    "{source} has no room `{name}`"
                );
            }
        }
    }
    for place in UNSAFE.iter().chain(ENVIRONMENT) {
        assert!(root.join(place).exists(), "there is no {place}");
    }
}

/// No file of a crate needs one that needs it, however far around.
#[test]
fn no_files_need_one_another() {
    let files = rust();
    let roots = files
        .iter()
        .filter_map(|(file, _)| file.strip_suffix("lib.rs").or_else(|| file.strip_suffix("main.rs")));
    let mut report = String::new();
    for root in roots.filter(|root| root.ends_with("src/")) {
        for cycle in cycles::cycles(root, &files) {
            report += &format!("\n{} files of {} need one another:", cycle.files.len(), cycle.room());
            cycle.arrows.iter().for_each(|arrow| report += &format!("\n    {arrow}"));
        }
    }
    assert!(
        report.is_empty(),
        "{report}\nTo break a cycle, move what both ends need into a file below them, hand it in as an argument, or join \
         two files that are one subject."
    );
}

/// What [`check`] says of one file, and of the two `lib.rs` that it needs.
fn told(file: &str, text: &str) -> Vec<(usize, String)> {
    let files = [
        (
            "src/lib.rs".into(),
            "//! x\npub use error::{Error, Result};\npub use group::ProcessGroup;\n".into(),
        ),
        ("transport/src/lib.rs".into(), "//! x\npub use region::{Memory, Region};\n".into()),
        (file.to_owned(), format!("//! x\n{text}")),
    ];
    check(&files).into_iter().map(|violation| (violation.line, violation.what)).collect()
}

#[test]
fn no_old_word_stands() {
    let mut report = String::new();
    for (file, text) in [".rs", ".md", ".sh", ".py"].map(repository).concat() {
        // The words stand in the list itself.
        if file.starts_with("tests/house/layering") {
            continue;
        }
        let found = [words::old_words(&file), words::old_words(&text)].concat();
        for (line, old, new) in found {
            report += &format!("\n{file}:{line}: `{old}`: {new}");
        }
    }
    assert!(report.is_empty(), "old words:{report}");
}

#[test]
fn sentences_are_plain() {
    let mut report = String::new();
    for (file, text) in [".rs", ".md", ".sh", ".py"].map(repository).concat() {
        // The phrases stand in the list itself.
        if !file.starts_with("tests/house/layering") {
            let found = plain::stumbles(&file, &text);
            found.iter().for_each(|(line, what)| report += &format!("\n{file}:{line}: {what}"));
        }
    }
    assert!(report.is_empty(), "write plainly:{report}");
}

#[test]
fn planted_arrows_are_found() {
    let planted = [
        ("src/tensor/ring.rs", "use crate::engine::Engine;", "`tensor` may not import `engine`"),
        ("src/tensor/ring.rs", "use super::super::engine;", "`tensor` may not import `engine`"),
        ("src/tensor/mod.rs", "use super::{dtype, group::X};", "`tensor` may not import `group`"),
        ("src/tensor/ring.rs", "fn f() { crate::group::g(); }", "`tensor` may not import `group`"),
        ("src/tensor/ring.rs", "use unisono_transport::Put;", "`tensor` may not import the transport"),
        ("src/engine/lane.rs", "use crate::{dtype, launch as a};", "`engine` may not import `launch`"),
        ("src/engine/lane.rs", "use crate::ProcessGroup;", "`engine` may not import `group`"),
        ("src/engine/mod.rs", "use crate::*;", "`engine` may not import `*`"),
        ("src/reduce.rs", "use crate::{\n dtype::{A, B},\n buffer::C };", "`reduce` may not import `buffer`"),
        (
            "schedule/src/check.rs",
            "use std::{mem, thread};",
            "schedule/src/ is pure and may not know `std::thread`",
        ),
        (
            "schedule/src/cost.rs",
            "use std::time::Instant;",
            "schedule/src/ is pure and may not know `Instant`",
        ),
        ("transport/src/inproc.rs", "use crate::{ofi, Memory};", "`inproc` may not import `ofi`"),
        ("transport/src/ofi/post.rs", "use super::super::sim::Sim;", "`ofi` may not import `sim`"),
        ("files/src/local/own.rs", "use crate::handover::agree;", "`local` may not import `handover`"),
        ("python/src/program.rs", "use crate::group::Group;", "`program` may not import `group`"),
        (
            "src/hall.rs",
            "",
            "the room `hall` has no row in tests/house/layering.rs that says what it may import",
        ),
    ];
    for (file, text, wanted) in planted {
        let found = told(file, text);
        assert!(found.len() == 1 && found[0].1 == wanted, "{file}: {text}: {found:?}");
    }
    assert_eq!(told("src/reduce.rs", "use crate::{\n dtype::{A, B},\n buffer::C };")[0].0, 4);
}

#[test]
fn allowed_arrows_are_not() {
    let allowed = [
        ("src/tensor/ring.rs", "use crate::dtype::Dtype;\nuse super::tree;"),
        (
            "src/tensor/ring.rs",
            "// use crate::engine;\n/* use crate::group; */ const A: &str = \"crate::group\";",
        ),
        ("src/tensor/ring.rs", "#[cfg(test)]\nmod tests {\n use crate::engine::X;\n fn f() { {} }\n}"),
        ("src/tensor/tests.rs", "use crate::engine::X;"),
        ("src/engine/lane.rs", "use super::{flow::Flow, wire};\nuse crate::{Error, Result, error::Failure};"),
        ("src/engine/lane.rs", "use unisono_transport::{Put, Transport};"),
        ("src/group/mod.rs", "use crate::{runtime, engine, rendezvous::tcp};"),
        ("src/lib.rs", "pub mod engine;"),
        ("schedule/src/cost.rs", "use std::{fmt, time::Duration};"),
        ("transport/src/sim.rs", "use crate::{Address, Error, Memory, Put, check, region::Region};"),
        ("cli/src/main.rs", "use unisono::group; use unisono_transport::ofi;"),
    ];
    for (file, text) in allowed {
        assert_eq!(told(file, text), [], "{file}: {text}");
    }
}

#[test]
fn other_planted_violations_are_found() {
    let long = "x\n".repeat(LINES);
    let planted: &[(&str, &str, usize)] = &[
        ("src/engine/mod.rs", "fn f() {\n unsafe { g() } }", 3),
        ("cli/src/run/job.rs", "let a = 'u'; let b = '\\''; unsafe impl<'a> A for B<'a> {}", 2),
        ("src/engine/mod.rs", "fn f() { std::env::var(\"X\"); }", 2),
        ("src/engine/mod.rs", "fn f() { tracing::warn!(\"late\"); }", 2),
        ("cli/src/main.rs", "use std::env;\n\nfn f() { env::var_os(\"X\"); }", 4),
        ("transport/src/shm/mod.rs", "fn f() { unsafe { libc::syscall(libc::SYS_gettid) } }", 2),
        ("benches/a.rs", &long, 601),
    ];
    for (file, text, line) in planted {
        let found = told(file, text);
        assert!(found.len() == 1 && found[0].0 == *line, "{file}: {found:?}");
    }
    let files = [("examples/a.rs".to_owned(), "fn main() {}\n".to_owned())];
    assert_eq!(check(&files)[0].line, 1);
    for (file, text) in [
        ("src/engine/mod.rs", "#![deny(unsafe_code)] // unsafe\nconst A: &str = r#\"unsafe \" \"#;"),
        ("src/buffer/raw.rs", "unsafe {}"),
        ("src/launch/environment.rs", "std::env::var(\"X\")"),
        ("transport/src/ofi/info.rs", "unsafe {}"),
        ("cli/src/main.rs", "std::env::args()"),
    ] {
        assert_eq!(told(file, text), [], "{file}: {text}");
    }
}
