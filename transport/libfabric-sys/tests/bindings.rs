//! Holds the bindings that are checked in, which docs.rs documents, to those that the installed headers give.
#![allow(clippy::panic)]

use std::collections::BTreeSet;

use unisono_libfabric_sys as sys;

/// Where these came from: everything in them depends on the version, and numbers on the machine.
const CHECKED_IN: ((u64, u64), bool) = ((1, 17), cfg!(all(target_arch = "x86_64", target_os = "linux")));
const FILE: &str = "src/docs_rs.inc";

/// All functions, constants and types in bindings: `fn fi_close`, `const FI_READ`, `struct fi_info`.
fn items(bindings: &str) -> BTreeSet<String> {
    let item = |line: &str| {
        let (kind, rest) = line.trim().strip_prefix("pub ")?.split_once(' ')?;
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        ["fn", "const", "struct", "union", "type"].contains(&kind).then(|| format!("{kind} {name}"))
    };
    bindings.lines().filter_map(item).collect()
}

/// Bindings without what rustfmt, which bindgen uses where it is there, may change.
fn bare(bindings: &str) -> String {
    bindings.replace(|c: char| c.is_whitespace() || c == ',', "")
}

#[test]
fn bindings_that_are_checked_in_are_those_of_the_headers() {
    let (checked_in, generated) =
        (include_str!("../src/docs_rs.inc"), include_str!(env!("LIBFABRIC_BINDINGS")));
    let (version, here) = CHECKED_IN;
    if here && (sys::FI_MAJOR_VERSION, sys::FI_MINOR_VERSION) == version {
        assert!(
            bare(checked_in) == bare(generated),
            "{FILE} is not what the installed headers give: cp {} {}/{FILE}",
            env!("LIBFABRIC_BINDINGS"),
            env!("CARGO_MANIFEST_DIR")
        );
        return;
    }
    println!("SKIPPED: the whole text: {FILE} is of libfabric {version:?} on x86_64 Linux");
    // Newer headers have more error codes, and structures within structures.
    let called = |bindings| -> BTreeSet<String> {
        items(bindings).into_iter().filter(|item| item.starts_with("fn ")).collect()
    };
    assert_eq!(called(checked_in), called(generated), "functions in {FILE} and of the installed headers");
    let missing: Vec<_> =
        items(checked_in).into_iter().filter(|item| item.starts_with("const FI_")).collect();
    let there = items(generated);
    let missing: Vec<_> = missing.iter().filter(|item| !there.contains(*item)).collect();
    assert!(missing.is_empty(), "of the constants in {FILE} the installed headers lack {missing:?}");
}

#[test]
fn items_are_found_and_layout_is_not_looked_at() {
    let found = items(
        "unsafe extern \"C\" {\n    pub fn fi_close(x: u8);\n}\npub struct fi_info { pub caps: u64 }\n",
    );
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["fn fi_close", "struct fi_info"]);
    assert_eq!(bare("fn a( x: u8,\n y: u8,\n)"), bare("fn a(x: u8, y: u8)"));
}
