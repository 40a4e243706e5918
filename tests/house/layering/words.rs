//! Words that the project no longer uses: each stood for something that the field has a word for, or for more than
//! one thing. They may stand in no code, comment, string or paper.

/// Words and phrases, also in the plural, as a part of a name, and in any case.
const WORDS: &[(&str, &str)] = &[
    ("circle", "communicator"),
    ("letter", "control message"),
    ("knock", "mismatch probe"),
    ("knocked", "mismatch probe"),
    ("grant", "clear to send"),
    ("granted", "cleared to send"),
    ("announced", "request to send"),
    ("announcement", "request to send"),
    ("whoever leads", "the driver"),
    ("who leads", "the driver"),
    ("desk", "submission queue"),
    ("wish", "request, option"),
    ("wishes", "options"),
    ("ticket", "completion"),
    ("breath", "skew delay"),
    ("breathe", "skew delay"),
    ("alarm", "failure latch"),
    ("culprit", "stalled operation"),
    ("farewell", "shutdown"),
    ("parting", "shutdown"),
    ("overseer", "supervisor"),
    ("stir", "say what it does"),
    ("hand on", "forward"),
    ("handed on", "forwarded"),
    ("handing on", "forwarding"),
    ("take aside", "receive unexpected"),
    ("taken aside", "received unexpected"),
    ("lent", "borrowed"),
    ("memory transport", "in-process transport"),
    ("parcel", "blob"),
    ("mail", "p2p objects and tensors"),
];
/// Phrases in which such a word means something else.
const MEANT: &[&str] = &["capital letter", "for granted"];
/// Types, which mean other things in other places; their names in lower case are plain English.
const TYPES: &[(&str, &str)] = &[
    ("Card", "JoinInfo"),
    ("Channel", "CommId"),
    ("Course", "a schedule"),
    ("Held", "Completion"),
    ("Lead", "the driver lock"),
    ("Node", "Runtime; a node is a host"),
    ("Rest", "a completion action"),
    ("Stand", "Position"),
    ("Turn", "Sequence"),
    ("World", "Topology, or what it is"),
];

/// The words found in a text: the line, the word or phrase, and what to write instead.
type Found = Vec<(usize, &'static str, &'static str)>;

/// The old words in a text.
pub(crate) fn old_words(text: &str) -> Found {
    let mut found = phrases(text, WORDS);
    for (index, line) in text.lines().enumerate() {
        for name in line.split(|c: char| !c.is_alphanumeric()) {
            let types = TYPES.iter().filter(|(old, _)| name == *old);
            found.extend(types.map(|(old, new)| (index + 1, *old, *new)));
        }
    }
    found
}

/// The places of these words and phrases in a text, except [those with another meaning](MEANT).
pub(crate) fn phrases(text: &str, wanted: &'static [(&'static str, &'static str)]) -> Found {
    let mut parts: Vec<(String, usize)> = Vec::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for name in line.split(|c: char| !c.is_alphanumeric()) {
            // `CamelCase` is two words.
            let mut lower = true;
            for c in name.chars() {
                if parts.is_empty() || c.is_uppercase() && lower {
                    parts.push((String::new(), index + 1));
                }
                lower = !c.is_uppercase();
                parts.last_mut().unwrap().0.extend(c.to_lowercase());
            }
            parts.push((String::new(), index + 1));
        }
    }
    parts.retain(|(part, _)| !part.is_empty());
    let ends = |end: usize, phrase: &[&str]| {
        let mut words = phrase.iter().rev();
        let mut parts = parts[..end].iter().rev();
        words.all(|word| {
            parts
                .next()
                .is_some_and(|(part, _)| part.strip_suffix('s').unwrap_or(part) == *word || part == word)
        })
    };
    let words: Vec<(Vec<_>, _, _)> =
        wanted.iter().map(|(old, new)| (old.split(' ').collect(), *old, *new)).collect();
    let meant: Vec<Vec<_>> = MEANT.iter().map(|phrase| phrase.split(' ').collect()).collect();
    for end in 1..=parts.len() {
        if let Some((_, old, new)) = words.iter().find(|(phrase, ..)| ends(end, phrase))
            && !meant.iter().any(|phrase| ends(end, phrase))
        {
            found.push((parts[end - 1].1, *old, *new));
        }
    }
    found
}

#[test]
fn old_words_are_found() {
    for (text, old) in [
        ("a circle", "circle"),
        ("Circles", "circle"),
        ("in_circles(3)", "circle"),
        ("CircleId", "circle"),
        ("TheCircle", "circle"),
        ("//! hand\n//! on", "hand on"),
        ("hands_on", "hand on"),
        ("\"letter\"", "letter"),
        ("Node::new", "Node"),
        ("[`World`]", "World"),
    ] {
        let found = old_words(&format!("x\n{text}"));
        assert!(found.len() == 1 && found[0].1 == old && found[0].0 >= 2, "{text}: {found:?}");
    }
    for text in [
        "a node, the rest of a world",
        "silent, talent",
        "Capital letters",
        "NodeId",
        "taken for granted",
        "mailbox",
    ] {
        assert_eq!(old_words(text), [], "{text}");
    }
}
