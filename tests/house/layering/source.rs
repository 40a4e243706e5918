//! Reads Rust source as far as the rules of `layering.rs` need it: its tokens, without comments, literals and
//! tests, and the paths among them. A lexer suffices, and unlike a parser it also sees into macro calls.

use proc_macro2::{Spacing, TokenStream, TokenTree};

/// An identifier, a punctuation mark (`::` is one), a bracket, or `""` for any literal.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
}

/// The tokens of a file, without comments and the contents of literals.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut out = Vec::new();
    flatten(stream, &mut out);
    out
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    let mut joint = false;
    for tree in stream {
        let line = tree.span().start().line;
        let was_joint = std::mem::take(&mut joint);
        let text = match tree {
            TokenTree::Group(group) => {
                use proc_macro2::Delimiter::{Brace, Bracket, Parenthesis};
                let (open, close) = match group.delimiter() {
                    Brace => ("{", "}"),
                    Bracket => ("[", "]"),
                    Parenthesis => ("(", ")"),
                    proc_macro2::Delimiter::None => ("", ""),
                };
                out.push(Token { text: open.into(), line });
                let end = group.span_close().end().line;
                flatten(group.stream(), out);
                out.push(Token { text: close.into(), line: end });
                continue;
            }
            TokenTree::Punct(mark) => {
                joint = mark.as_char() == ':' && mark.spacing() == Spacing::Joint;
                if was_joint && mark.as_char() == ':' {
                    joint = false;
                    if let Some(last) = out.last_mut() {
                        last.text = "::".into();
                    }
                    continue;
                }
                mark.to_string()
            }
            TokenTree::Ident(name) => name.to_string(),
            TokenTree::Literal(_) => "\"\"".into(),
        };
        out.push(Token { text, line });
    }
}

/// True if the tokens from `at` on are these, separated by spaces.
pub(crate) fn is(tokens: &[Token], at: usize, wanted: &str) -> bool {
    wanted.split(' ').enumerate().all(|(index, text)| text_at(tokens, at + index) == text)
}

fn text_at(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| &token.text)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first == '_' || first.is_alphabetic()) || text.starts_with("r#")
}

/// Removes each item that is built only for tests.
pub(crate) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const MARKS: [&str; 2] = ["# [ cfg ( test ) ]", "# [ cfg ( any ( test , fuzzing ) ) ]"];
    let mut out = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let Some(mark) = MARKS.iter().find(|mark| is(tokens, at, mark)) else {
            out.push(tokens[at].clone());
            at += 1;
            continue;
        };
        at += mark.split(' ').count();
        let mut depth = 0_usize;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(token.text.as_str(), "}" | ";") {
                break;
            }
        }
    }
    out
}

/// A path of names, in a `use` or elsewhere.
pub(crate) struct Path {
    /// The modules around it within the file.
    pub(crate) inside: Vec<String>,
    pub(crate) names: Vec<String>,
    /// The name that a `use` gives to the last part in this module; `None` if this path is not in a `use`.
    pub(crate) import: Option<String>,
    /// True if it is in a `pub use` of any visibility.
    pub(crate) public: bool,
    pub(crate) line: usize,
}

/// All paths of two names or more, and all of a `use`.
pub(crate) fn paths(tokens: &[Token]) -> Vec<Path> {
    let mut out: Vec<Path> = Vec::new();
    let mut modules: Vec<(String, usize)> = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    while at < tokens.len() {
        let found = out.len();
        match tokens[at].text.as_str() {
            "{" => {
                depth += 1;
                if at >= 2 && tokens[at - 2].text == "mod" {
                    modules.push((tokens[at - 1].text.clone(), depth));
                }
            }
            "}" => {
                modules.pop_if(|(_, open)| *open == depth);
                depth = depth.saturating_sub(1);
            }
            // Not the `use<'a>` of a type.
            "use" if text_at(tokens, at + 1) != "<" => {
                let public = is_public(&tokens[..at]);
                at = tree(tokens, at + 1, &[], true, &mut out);
                out[found..].iter_mut().for_each(|path| path.public = public);
            }
            // Not the `pub(in path)` of an item.
            "in" if at > 0 && tokens[at - 1].text == "(" => {
                at = tree(tokens, at + 1, &[], false, &mut Vec::new())
            }
            name if is_name(name) && text_at(tokens, at + 1) == "::" => {
                at = tree(tokens, at, &[], false, &mut out);
            }
            _ => {}
        }
        for path in &mut out[found..] {
            path.inside = modules.iter().map(|(name, _)| name.clone()).collect();
        }
        at += 1;
    }
    out
}

/// True if these tokens end in `pub` or `pub(..)`.
fn is_public(before: &[Token]) -> bool {
    let open = before
        .iter()
        .rposition(|token| token.text == "(")
        .filter(|_| text_at(before, before.len() - 1) == ")");
    before[..open.unwrap_or(before.len())].last().is_some_and(|token| token.text == "pub")
}

/// Reads the path, or with `import` the tree of a `use`, from `at` on; returns the index of its last token.
fn tree(tokens: &[Token], mut at: usize, prefix: &[String], import: bool, out: &mut Vec<Path>) -> usize {
    let mut names = prefix.to_vec();
    if text_at(tokens, at) == "::" {
        at += 1;
    }
    let line = tokens.get(at).map_or(0, |token| token.line);
    loop {
        let name = text_at(tokens, at);
        if import && name == "{" {
            at += 1;
            while !matches!(text_at(tokens, at), "}" | "") {
                if text_at(tokens, at) != "," {
                    at = tree(tokens, at, &names, true, out);
                }
                at += 1;
            }
            return at;
        }
        if !is_name(name) && (!import || name != "*") {
            // `path::<T>`
            at -= 1;
            break;
        }
        names.push(name.into());
        if text_at(tokens, at + 1) != "::" {
            break;
        }
        at += 2;
    }
    names.pop_if(|last| last == "self" && !prefix.is_empty());
    let alias = import && text_at(tokens, at + 1) == "as";
    let import = import.then(|| {
        if alias { text_at(tokens, at + 2).into() } else { names.last().cloned().unwrap_or_default() }
    });
    out.push(Path { inside: Vec::new(), names, import, public: false, line });
    if alias { at + 2 } else { at }
}
