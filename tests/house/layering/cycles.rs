//! Finds cycles among the files of a crate: files that need each other, so that no file can be read first.
//!
//! A file needs another if it names something of it, by a `use` or a path. Not counted are tests, a `mod.rs` that
//! declares its children or re-exports their names, and the names that a file uses of the modules around it: a `mod.rs` may define
//! the nouns that its children share.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    module, only_tests,
    source::{Path, paths, tokens, without_tests},
};

/// Files that need each other, and for each arrow between two of them the names that make it.
pub(crate) struct Cycle {
    pub(crate) files: Vec<String>,
    pub(crate) arrows: Vec<String>,
}

impl Cycle {
    /// The folder that all its files are in: the room that must be put in order.
    pub(crate) fn room(&self) -> &str {
        let (first, last) = (&self.files[0], &self.files[self.files.len() - 1]);
        let same = first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count();
        first[..same].rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

type Module = Vec<String>;

struct Crate<'a> {
    files: BTreeMap<Module, &'a str>,
    /// The names under which a module imports something.
    imports: HashMap<(Module, String), Module>,
}

/// The cycles of one crate, whose files these are: their paths and texts. `root` is the folder of its `lib.rs`.
pub(crate) fn cycles(root: &str, files: &[(String, String)]) -> Vec<Cycle> {
    let mut all = Crate { files: BTreeMap::new(), imports: HashMap::new() };
    let mut read = Vec::new();
    for (file, text) in files {
        let Some(inside) = file.strip_prefix(root).filter(|inside| !only_tests(inside)) else { continue };
        let module: Module = module(inside).into_iter().map(Into::into).collect();
        all.files.insert(module.clone(), file);
        let tokens = without_tests(&tokens(text));
        let paths = paths(&tokens);
        read.push((module, file, tokens, paths));
    }
    for (module, _, _, paths) in &read {
        for path in paths {
            if let (Some(name), Some(target)) = (&path.import, all.absolute(module, path)) {
                all.imports.insert((within(module, path), name.clone()), target);
            }
        }
    }
    let mut arrows: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for (module, file, tokens, paths) in &read {
        for path in paths {
            let Some(target) = all.absolute(module, path).and_then(|path| all.file(path)) else { continue };
            let only_given_on = path.public && {
                let name = path.import.as_deref().unwrap_or_default();
                tokens.iter().filter(|token| token.text == name).count() == 1
            };
            if target != *file && !only_given_on && !all.encloses(target, module) {
                let name = path.names.last().map_or("", String::as_str);
                arrows.entry(file).or_default().entry(target).or_default().insert(name);
            }
        }
    }
    components(&arrows)
}

/// The module that a path stands in.
fn within(module: &[String], path: &Path) -> Module {
    [module, &path.inside].concat()
}

impl<'a> Crate<'a> {
    /// The item of a path, from the crate's root; `None` if the item is in another crate.
    fn absolute(&self, module: &[String], path: &Path) -> Option<Module> {
        let mut from = within(module, path);
        let mut names = path.names.iter().peekable();
        let first = names.peek()?.as_str();
        if !["crate", "self", "super"].contains(&first) {
            let child = [from.as_slice(), &[first.to_owned()]].concat();
            return self.files.contains_key(&child).then(|| [from.as_slice(), &path.names].concat());
        }
        while let Some(step) = names.next_if(|name| ["crate", "self", "super"].contains(&name.as_str())) {
            match step.as_str() {
                "crate" => from.clear(),
                "super" => drop(from.pop()),
                _ => {}
            }
        }
        from.extend(names.cloned());
        Some(from)
    }

    /// True if `file` is a module around this one.
    fn encloses(&self, file: &str, module: &[String]) -> bool {
        (0..module.len()).any(|known| self.files.get(&module[..known]) == Some(&file))
    }

    /// The file that defines this name.
    fn file(&self, mut name: Module) -> Option<&'a str> {
        // Chains of imports end, except perhaps in a broken crate.
        for _ in 0..16 {
            let mut known = 0;
            while known < name.len() && self.files.contains_key(&name[..=known]) {
                known += 1;
            }
            let import =
                name.get(known).and_then(|next| self.imports.get(&(name[..known].to_vec(), next.clone())));
            match import {
                Some(target) => name = [target.as_slice(), &name[known + 1..]].concat(),
                None => return self.files.get(&name[..known]).copied(),
            }
        }
        None
    }
}

/// The strongly connected components of two files or more.
fn components(arrows: &BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>>) -> Vec<Cycle> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows
        .keys()
        .map(|&from| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(file) = next.pop() {
                next.extend(
                    arrows.get(file).into_iter().flat_map(BTreeMap::keys).filter(|&&to| seen.insert(to)),
                );
            }
            (from, seen)
        })
        .collect();
    let mut found: BTreeMap<Vec<&str>, Cycle> = BTreeMap::new();
    for (&file, targets) in reached.iter().filter(|(file, targets)| targets.contains(*file)) {
        let with = targets.iter().filter(|&to| reached.get(to).is_some_and(|back| back.contains(file)));
        let files: Vec<&str> = with.copied().collect();
        found.entry(files.clone()).or_insert_with(|| Cycle {
            arrows: files
                .iter()
                .flat_map(|from| arrows[from].iter().map(move |(to, names)| (from, to, names)))
                .filter(|(_, to, _)| files.contains(to))
                .map(|(from, to, names)| {
                    format!("{from} needs {to}: {}", names.iter().copied().collect::<Vec<_>>().join(", "))
                })
                .collect(),
            files: files.iter().map(|&file| file.to_owned()).collect(),
        });
    }
    found.into_values().collect()
}

/// A crate of these files, for the tests: names below `src/`, without `.rs`.
fn planted(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: Vec<_> =
        files.iter().map(|(name, text)| (format!("src/{name}.rs"), (*text).to_owned())).collect();
    cycles("src/", &files).into_iter().map(|cycle| cycle.files).collect()
}

#[test]
fn planted_cycles_are_found() {
    let two = [["src/a/b.rs", "src/a/c.rs"]];
    // By `super`, by `crate`, by a path in a function, by one in a macro call.
    for text in [
        "use super::c::X;",
        "use crate::a::c;",
        "fn f() { super::c::g() }",
        "fn f() { p!(\"{}\", super::c::g()) }",
    ] {
        assert_eq!(
            planted(&[("a/mod", "mod b; mod c;"), ("a/b", text), ("a/c", "use super::b::*;")]),
            two,
            "{text}"
        );
    }
    // Through the parent's re-export, under another name, and through the root's.
    for (root, parent, text) in [
        ("mod a;", "mod b; mod c; pub(crate) use c::X;", "use super::X;"),
        ("mod a;", "mod b; mod c; pub use self::c::{X as Y, Z};", "use super::Y;"),
        ("mod a; pub use a::X;", "mod b; mod c; pub use c::X;", "use crate::X;"),
        ("mod a;", "mod b; mod c; use c::X;", "mod m { use super::super::X; }"),
    ] {
        let files = [("lib", root), ("a/mod", parent), ("a/b", text), ("a/c", "use super::b::W;")];
        let found = planted(&files);
        assert!(found.iter().any(|files| files.ends_with(&two[0].map(Into::into))), "{text}: {found:?}");
    }
    // Through a parent that uses a child and does not only re-export its names.
    for parent in
        ["mod b; use b::X; struct S(X);", "mod b; fn f() { b::g() }", "mod b; pub use b::X; fn f(x: X) {}"]
    {
        let found = planted(&[
            ("lib", "mod a; mod d;"),
            ("a/mod", parent),
            ("a/b", "use crate::d;"),
            ("d", "use crate::a::S;"),
        ]);
        assert_eq!(found, [["src/a/b.rs", "src/a/mod.rs", "src/d.rs"]], "{parent}");
    }
    // Three, and another two.
    let found = planted(&[
        ("lib", "mod a; mod b; mod c; mod d; mod e;"),
        ("a", "use crate::b::W;"),
        ("b", "use crate::{c::X, d::Y};"),
        ("c", "use super::a;"),
        ("d", "use crate::e;"),
        ("e", "use crate::d::{self, X};"),
    ]);
    assert_eq!(found, [vec!["src/a.rs", "src/b.rs", "src/c.rs"], vec!["src/d.rs", "src/e.rs"]]);
}

#[test]
fn what_is_no_cycle_is_not_found() {
    for (parent, b, c) in [
        // A parent that declares and re-exports; children of which only one uses the other.
        ("mod b; mod c; pub use b::X;", "use super::c::Y;", "struct Y;"),
        ("mod b; mod c; pub use b::X;", "use super::c::Y;", "use super::S;"),
        // Names that the parent defines.
        ("mod b; mod c; use b::X; pub struct S(X);", "use super::S;", "use super::{S, b};"),
        ("mod b; mod c; use b::X;", "pub(in super::c) struct X;", "use super::b;"),
        // Tests, comments, literals, other crates' modules of the same name.
        ("mod b; mod c;", "use super::c::Y;", "#[cfg(test)] mod tests { use super::super::b; }"),
        ("mod b; mod c;", "use super::c::Y;", "/// [`super::b`]\nfn f() { g(\"super::b\") } // super::b"),
        ("mod b; mod c;", "use super::c::Y;", "use std::b::X; fn f() { y.b::<X>(); c::b::g() }"),
    ] {
        let found = planted(&[
            ("lib", "mod a;"),
            ("a/mod", parent),
            ("a/b", b),
            ("a/c", c),
            ("a/tests", "use super::{b, c};"),
        ]);
        assert!(found.is_empty(), "{parent} {b} {c}: {found:?}");
    }
}
