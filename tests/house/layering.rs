//! Checks the rules of the code: which room may import which, where C may be called and the environment read, how
//! long a file may be. The rules are the tables of `layering/rooms.rs`; every violation is reported at once.

use std::{
    collections::HashMap,
    fmt, fs,
    path::{Path, PathBuf},
};

mod counted;
mod cycles;
mod plain;
mod rooms;
mod source;
mod words;

use rooms::{
    ALL, CRATES, ENVIRONMENT, EVENTS, EVERYBODYS, IMPURE, LINES, MAKES, NO_TRANSPORT, PURE, READS, Rooms,
    UNSAFE,
};
use source::{Token, is, paths, tokens, without_tests};

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
    let roots: Vec<_> = CRATES
        .iter()
        .map(|(root, rooms)| (*root, *rooms, reexports(text(&format!("{root}lib.rs")))))
        .collect();
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
                tell(*line, "the environment is read outside rendezvous/src/launch/environment.rs".into());
            }
        }
        let tokens = without_tests(&tokens);
        for (at, Token { text, line }) in tokens.iter().enumerate() {
            if text == "tracing" && MAKES.iter().any(|make| is(&tokens, at, make)) && !within(file, EVENTS) {
                tell(*line, "an event is made by `tracing` itself and not by `log`".into());
            }
        }
        for (root, rooms, reexports) in &roots {
            if let Some(inside) = file.strip_prefix(root) {
                arrows(inside, &tokens, rooms, reexports, &mut tell);
            }
        }
        if within(file, NO_TRANSPORT) {
            let named = paths(&tokens).into_iter().filter(|path| path.names[0] == "unisono_transport");
            named.for_each(|path| tell(path.line, "this room may not import the transport".into()));
        }
        purity(file, &tokens, &mut tell);
    }
    found
}

/// True if a file is one of these, or in one of these folders.
fn within(file: &str, places: &[&str]) -> bool {
    places.iter().any(|place| file == *place || place.ends_with('/') && file.starts_with(place))
}

/// The names that `use room::Name` gives in `lib.rs`, each with its room, or with its crate.
fn reexports(text: &str) -> HashMap<String, String> {
    let uses = paths(&tokens(text)).into_iter();
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
    table: Rooms,
    reexports: &HashMap<String, String>,
    tell: &mut impl FnMut(usize, String),
) {
    if only_tests(inside) {
        return;
    }
    let module = module(inside);
    let Some(room) = module.first().copied() else { return };
    let Some((_, allowed)) = table.iter().find(|(name, _)| *name == room) else {
        tell(
            1,
            format!("the room `{room}` has no row in tests/house/layering.rs that says what it may import"),
        );
        return;
    };
    for path in paths(tokens) {
        let (names, line) = (&path.names, path.line);
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
        // Every room may use the crates below.
        if target.starts_with("unisono_") {
            continue;
        }
        let known = table.iter().any(|(name, _)| *name == target);
        if target == room || *allowed == ALL || allowed.contains(&target) {
            continue;
        }
        // Every room may use what the root itself defines, such as the transport's trait.
        if known || target == "*" || target.starts_with(char::is_lowercase) {
            tell(line, format!("`{room}` may not import `{target}`"));
        }
    }
}

/// Reports names that a pure room may not use: I/O, threads, clocks.
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

/// All files below `directory` whose names have this ending, except build outputs and hidden files.
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

/// All files of the repository whose names have this ending: paths from its root, and texts.
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
    for (source, table) in CRATES {
        for (room, may) in *table {
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

/// The files of a crate have no cycles of any length.
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

/// The violations that [`check`] finds in one file, and in the two `lib.rs` that it needs.
fn told(file: &str, text: &str) -> Vec<(usize, String)> {
    let files = [
        ("src/lib.rs".into(), "//! x\npub use unisono_core::error;\npub use group::ProcessGroup;\n".into()),
        ("core/src/lib.rs".into(), "//! x\npub use error::{Error, Result};\n".into()),
        ("engine/src/lib.rs".into(), "//! x\npub use progress::Engine;\n".into()),
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
        ("core/src/tensor/ring.rs", "use crate::error::Error;", "`tensor` may not import `error`"),
        ("core/src/tensor/ring.rs", "use super::super::error;", "`tensor` may not import `error`"),
        ("core/src/tensor/mod.rs", "use super::{dtype, error::X};", "`tensor` may not import `error`"),
        ("core/src/tensor/ring.rs", "fn f() { crate::error::g(); }", "`tensor` may not import `error`"),
        ("core/src/tensor/ring.rs", "use unisono_transport::Put;", "this room may not import the transport"),
        ("src/runtime/lane.rs", "use crate::{hardware, group as a};", "`runtime` may not import `group`"),
        ("src/runtime/lane.rs", "use crate::ProcessGroup;", "`runtime` may not import `group`"),
        ("src/runtime/mod.rs", "use crate::*;", "`runtime` may not import `*`"),
        ("engine/src/p2p/lane.rs", "use crate::Engine;", "`p2p` may not import `progress`"),
        ("rendezvous/src/seal.rs", "use super::store::Store;", "`seal` may not import `store`"),
        (
            "core/src/reduce.rs",
            "use crate::{\n dtype::{A, B},\n error::C };",
            "`reduce` may not import `error`",
        ),
        (
            "schedule/src/price.rs",
            "use std::{mem, thread};",
            "schedule/src/ is pure and may not know `std::thread`",
        ),
        (
            "schedule/src/cost.rs",
            "use std::time::Instant;",
            "schedule/src/ is pure and may not know `Instant`",
        ),
        ("transport/src/inproc.rs", "use crate::{ofi, Memory};", "`inproc` may not import `ofi`"),
        ("transport/src/ofi/post.rs", "use super::super::shm::Endpoint;", "`ofi` may not import `shm`"),
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
    assert_eq!(told("core/src/reduce.rs", "use crate::{\n dtype::{A, B},\n error::C };")[0].0, 4);
}

#[test]
fn allowed_arrows_are_not() {
    let allowed = [
        ("core/src/tensor/ring.rs", "use crate::dtype::Dtype;\nuse super::tree;"),
        (
            "core/src/tensor/ring.rs",
            "// use crate::error;\n/* use crate::error; */ const A: &str = \"crate::error\";",
        ),
        ("core/src/tensor/ring.rs", "#[cfg(test)]\nmod tests {\n use crate::error::X;\n fn f() { {} }\n}"),
        ("core/src/tensor/tests.rs", "use crate::error::X;"),
        (
            "core/src/position/lane.rs",
            "use super::{flow::Flow, wire};\nuse crate::{Error, Result, error::Failure};",
        ),
        ("engine/src/p2p/lane.rs", "use unisono_transport::{Put, Transport};"),
        ("src/group/mod.rs", "use crate::{runtime, error, rendezvous::tcp};"),
        ("src/lib.rs", "pub mod engine;"),
        ("schedule/src/cost.rs", "use std::{fmt, time::Duration};"),
        ("transport/src/inproc.rs", "use crate::{Address, Error, Memory, Put, keys, region::Region};"),
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
        ("engine/src/lib.rs", "fn f() {\n unsafe { g() } }", 3),
        ("cli/src/run/job.rs", "let a = 'u'; let b = '\\''; unsafe impl<'a> A for B<'a> {}", 2),
        ("engine/src/lib.rs", "fn f() { std::env::var(\"X\"); }", 2),
        ("engine/src/lib.rs", "fn f() { tracing::warn!(\"late\"); }", 2),
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
        ("engine/src/lib.rs", "#![deny(unsafe_code)] // unsafe\nconst A: &str = r#\"unsafe \" \"#;"),
        ("src/buffer/raw.rs", "unsafe {}"),
        ("rendezvous/src/launch/environment.rs", "std::env::var(\"X\")"),
        ("transport/src/ofi/info.rs", "unsafe {}"),
        ("cli/src/main.rs", "std::env::args()"),
    ] {
        assert_eq!(told(file, text), [], "{file}: {text}");
    }
}
