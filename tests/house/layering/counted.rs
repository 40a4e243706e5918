//! Counts that may only fall. Each bound is the present count: a change that lowers a count also lowers its bound.

use std::collections::HashMap;

use super::{
    repository,
    source::{Token, is, tokens, without_tests},
};

/// The number of names of types, public or visible in all of their crate, that stand for two things or more.
const NAMES: usize = 19;

/// The lines that a function may have.
const LINES: usize = 70;

/// The number of public methods of `ProcessGroup`.
const METHODS: usize = 60;

/// Product code: file by file, its tokens without tests.
fn product() -> impl Iterator<Item = (String, Vec<Token>)> {
    let is_product = |file: &str| {
        let crates = [
            "",
            "core/",
            "engine/",
            "rendezvous/",
            "schedule/",
            "checker/",
            "transport/",
            "files/",
            "cli/",
            "python/",
        ];
        crates.iter().any(|krate| file.strip_prefix(krate).is_some_and(|inside| inside.starts_with("src/")))
            && !file.contains("/tests/")
            && !file.ends_with("tests.rs")
    };
    let files = repository(".rs").into_iter().filter(move |(file, _)| is_product(file));
    files.map(|(file, text)| (file, without_tests(&tokens(&text))))
}

/// The index behind the visibility `pub` or `pub(…)` at `at`; `None` if there is none.
fn after_pub(tokens: &[Token], at: usize) -> Option<usize> {
    is(tokens, at, "pub").then_some(())?;
    if !is(tokens, at + 1, "(") {
        return Some(at + 1);
    }
    let close = tokens[at..].iter().position(|token| token.text == ")")?;
    Some(at + close + 1)
}

/// The types that these tokens define for others.
fn types(tokens: &[Token]) -> Vec<String> {
    let kinds = ["struct", "enum", "trait", "type", "union"];
    let name = |at| {
        let kind = after_pub(tokens, at)?;
        let known = kinds.iter().any(|word| is(tokens, kind, word));
        known.then(|| tokens.get(kind + 1).map(|token| token.text.clone())).flatten()
    };
    (0..tokens.len()).filter_map(name).collect()
}

/// The functions with more than `LINES` lines, and their numbers of lines.
fn long_functions(tokens: &[Token]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if !is(tokens, at, "fn") {
            continue;
        }
        let Some(body) = tokens[at..].iter().position(|token| matches!(token.text.as_str(), "{" | ";"))
        else {
            continue;
        };
        let (mut depth, mut end) = (0_usize, at + body);
        while let Some(token) = tokens.get(end) {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            end += 1;
        }
        let lines = tokens.get(end).map_or(0, |token| token.line + 1 - tokens[at].line);
        if lines > LINES {
            found.push((tokens[at + 1].text.clone(), lines));
        }
    }
    found
}

/// The public methods of the implementations of `ProcessGroup`.
fn methods(tokens: &[Token]) -> usize {
    let (mut count, mut inside, mut depth) = (0, None, 0_usize);
    for at in 0..tokens.len() {
        match tokens[at].text.as_str() {
            "impl" if depth == 0 => {
                let open = tokens[at..].iter().position(|token| token.text == "{").unwrap_or_default();
                let head = &tokens[at..at + open];
                let of = head.iter().any(|token| token.text == "ProcessGroup");
                inside = Some(of && !head.iter().any(|token| token.text == "for"));
            }
            "{" => depth += 1,
            "}" => depth -= 1,
            "fn" if depth == 1 && inside == Some(true) && at > 0 && is(tokens, at - 1, "pub") => count += 1,
            _ => {}
        }
    }
    count
}

#[test]
fn counts_do_not_rise() {
    let (mut names, mut long, mut of_group) = (HashMap::<String, Vec<String>>::new(), Vec::new(), 0);
    for (file, tokens) in product() {
        for name in types(&tokens).into_iter().filter(|name| name != "Sealed") {
            names.entry(name).or_default().push(file.clone());
        }
        long.extend(long_functions(&tokens).into_iter().map(|(name, lines)| (lines, name, file.clone())));
        of_group += methods(&tokens);
    }
    let mut twice: Vec<_> = names.into_iter().filter(|(_, files)| files.len() > 1).collect();
    twice.sort();
    long.sort();
    let lower = "lower the bound in tests/house/layering/counted.rs";
    assert!(twice.len() <= NAMES, "{} names of types stand for two things or more: {twice:#?}", twice.len());
    assert!(twice.len() == NAMES, "{} names of types stand for two things or more: {lower}", twice.len());
    assert!(long.is_empty(), "functions have more than {LINES} lines: {long:#?}");
    assert!(of_group <= METHODS, "`ProcessGroup` has {of_group} public methods");
    assert!(of_group == METHODS, "`ProcessGroup` has {of_group} public methods: {lower}");
}

#[test]
fn planted_counts_are_right() {
    let text =
        "pub struct A; pub(crate) enum B { C } struct D; pub type E = u8; mod m { pub(super) trait F {} }";
    assert_eq!(types(&tokens(text)), ["A", "B", "E", "F"]);
    let text = "impl ProcessGroup { pub fn a() { fn b() {} } pub(crate) fn c() {} } impl<M> ProcessGroup<M> { pub fn d() {} } \
                impl Drop for ProcessGroup { fn drop() {} } impl Other { pub fn e() {} }";
    assert_eq!(methods(&tokens(text)), 2);
    let text = format!("fn a() {{ {} }} fn b();", "\n".repeat(LINES));
    assert_eq!(long_functions(&tokens(&text)), [("a".to_owned(), LINES + 1)]);
    assert_eq!(long_functions(&tokens(&format!("fn a() {{ {} }}", "\n".repeat(LINES - 1)))), []);
}
