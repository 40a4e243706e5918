//! Reads Rust source as far as the rules of `layering.rs` need it: code without comments and literals, code
//! without its tests, and the paths that `crate::` and `super::` begin.

/// The code alone: comments, strings and characters become spaces, so that every byte that is left, and every
/// line, stays where it was.
pub(crate) fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => find(bytes, at, b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment(bytes, at),
            b'"' => string(bytes, at + 1),
            b'r' if !(at > 0 && word(bytes[at - 1]) && bytes[at - 1] != b'b') => raw_string(bytes, at),
            b'\'' => character(bytes, at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let found = bytes[from..].windows(what.len()).position(|window| window == what);
    found.map_or(bytes.len(), |offset| from + offset)
}

fn block_comment(bytes: &[u8], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if bytes[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at.min(bytes.len())
}

/// Where the string ends whose first byte after the quote is at `at`.
fn string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Where the raw string ends that begins at `from` with `r"` or `r#`; `from` if none does.
fn raw_string(bytes: &[u8], from: usize) -> usize {
    let hashes = bytes[from + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let quote = from + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return from;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    (find(bytes, quote + 1, &close) + close.len()).min(bytes.len())
}

/// Where the character literal ends that begins at `from`; `from` if it is a lifetime.
fn character(bytes: &[u8], from: usize) -> usize {
    match bytes.get(from + 1) {
        Some(b'\\') => (find(bytes, from + 3, b"'") + 1).min(bytes.len()),
        Some(first) => {
            let length = match first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            if bytes.get(from + 1 + length) == Some(&b'\'') { from + length + 2 } else { from }
        }
        None => from,
    }
}

fn word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// Takes the modules out that `#[cfg(test)]` stands before; `code` is what [`code`] gives.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    let mut at = 0;
    while let Some(offset) = code[at..].find("#[cfg(test)]") {
        let from = at + offset;
        let mut depth = 0_usize;
        let mut end = code.len();
        for (index, byte) in code.bytes().enumerate().skip(from + "#[cfg(test)]".len()) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(byte, b'}' | b';') {
                end = index + 1;
                break;
            }
        }
        for byte in &mut out[from..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where `name` stands in the code as a word of its own: byte offsets.
pub(crate) fn words<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(name).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        !(at > 0 && word(bytes[at - 1]) || bytes.get(at + name.len()).copied().is_some_and(word))
    })
}

/// The number of the line, from 1, that byte `at` is in.
pub(crate) fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The paths that the path or use tree beginning at byte `at` names, each with where its last word stands:
/// `a::{b, c::d}` gives `a b` and `a c d`.
pub(crate) fn paths(code: &str, at: usize) -> Vec<(usize, Vec<String>)> {
    let mut out = Vec::new();
    tree(code.as_bytes(), at, &[], &mut out);
    out
}

/// Reads one tree and returns where it ends.
fn tree(code: &[u8], mut at: usize, prefix: &[String], out: &mut Vec<(usize, Vec<String>)>) -> usize {
    let mut path = prefix.to_vec();
    let mut last = at;
    loop {
        at = space(code, at);
        if code.get(at) == Some(&b'{') {
            at += 1;
            loop {
                at = space(code, at);
                match code.get(at) {
                    None => return at,
                    Some(b'}') => return at + 1,
                    Some(b',') => at += 1,
                    Some(_) => {
                        let end = tree(code, at, &path, out);
                        // What is no path (`as name`, a broken file) is passed over.
                        at = end.max(at + 1);
                    }
                }
            }
        }
        let end = at + code[at..].iter().take_while(|&&byte| word(byte) || byte == b'*').count();
        if end == at {
            break;
        }
        last = at;
        path.push(String::from_utf8_lossy(&code[at..end]).into_owned());
        at = end;
        let next = space(code, at);
        if !code[next..].starts_with(b"::") {
            break;
        }
        at = next + 2;
    }
    if path.len() > prefix.len() {
        out.push((last, path));
    }
    // `as name`
    let next = space(code, at);
    if code[next..].starts_with(b"as ") {
        let name = space(code, next + 3);
        at = name + code[name..].iter().take_while(|&&byte| word(byte)).count();
    }
    at
}

fn space(code: &[u8], at: usize) -> usize {
    at + code[at.min(code.len())..].iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}
