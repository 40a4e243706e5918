//! Checks the papers: how long they are, that links between them and the files they name exist, that the index of decisions is
//! complete, that the book has every page, and that every place which docs/tour.md names exists.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The most words of a paper, as `wc -w` counts them.
const WORDS: &[(&str, usize)] = &[("README.md", 1300), ("ARCHITECTURE.md", 3000)];
const DECISION_WORDS: usize = 300;
/// Folders of the repository: a word in backticks that begins with one names a file or folder there.
const FOLDERS: &[&str] = &[
    "src/",
    "core/",
    "engine/",
    "rendezvous/",
    "transport/",
    "schedule/",
    "checker/",
    "files/",
    "cli/",
    "python/",
    "tests/",
    "docs/",
    "examples/",
    "benches/",
    "ci/",
    "fuzz/",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(paper: &Path) -> String {
    fs::read_to_string(root().join(paper)).unwrap_or_else(|error| panic!("{}: {error}", paper.display()))
}

/// The markdown files in a folder, from the root.
fn markdown(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.filter(|name| Path::new(name).extension().is_some_and(|it| it == "md"));
    let mut papers: Vec<_> = names.map(|name| Path::new(folder).join(name)).collect();
    papers.sort();
    papers
}

/// All papers.
fn papers() -> Vec<PathBuf> {
    ["", "docs", "docs/decisions", "deploy", "examples", "python"]
        .iter()
        .flat_map(|folder| markdown(folder))
        .collect()
}

/// The texts between `open` and `close` on one line.
fn between<'t>(text: &'t str, open: &'t str, close: char) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| {
        let (inside, _) = rest.split_once(close)?;
        (!inside.contains('\n')).then_some(inside)
    })
}

/// The prose and tables of a paper, without the code between lines of three backticks.
fn prose(text: &str) -> String {
    let mut code = false;
    let kept = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    kept.map(|line| format!("{line}\n")).collect()
}

/// The anchors of a paper's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
        kept.map(|it| if it == ' ' { '-' } else { it }).collect()
    };
    headings.map(anchor).collect()
}

/// The texts in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The links of a paper to files of the repository: the text of the link, the file, and the heading, which may be empty.
fn links<'t>(paper: &Path, text: &'t str) -> Vec<(&'t str, PathBuf, &'t str)> {
    let inside =
        between(text, "](", ')').filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
    let target = |link: &'t str| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => paper.to_owned(),
            file => paper.parent().unwrap_or_else(|| Path::new("")).join(file),
        };
        (link, root().join(target), anchor)
    };
    inside.map(target).collect()
}

/// The broken links of a paper, with the reasons.
fn broken_links(paper: &Path, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (link, path, anchor) in links(paper, &prose(text)) {
        if !path.exists() {
            broken.push(format!("{}: {link} leads nowhere", paper.display()));
        } else if !anchor.is_empty()
            && !anchors(&fs::read_to_string(&path).unwrap()).contains(&anchor.to_owned())
        {
            broken.push(format!("{}: {link}: there is no such heading", paper.display()));
        }
    }
    broken
}

/// The files of this repository that a paper names in backticks and that are not there.
fn missing_files(paper: &Path, text: &str) -> Vec<String> {
    let text = prose(text);
    let named = quoted(&text).filter_map(|word| {
        let path = word.split(|it: char| it.is_whitespace() || it == ':').next()?;
        let names = FOLDERS.iter().any(|folder| path.starts_with(folder));
        (names && !path.contains(['*', '{', '<'])).then_some(path)
    });
    let missing = named.filter(|path| !root().join(path).exists());
    missing.map(|path| format!("{}: {path} is not there", paper.display())).collect()
}

/// The files that drawings name as `room: file, file` and that no folder of that room has, in this list of all files.
fn undrawn(paper: &str, files: &[String]) -> Vec<String> {
    let mut code = false;
    let mut found = Vec::new();
    for line in paper.lines() {
        code ^= line.starts_with("```");
        for (before, after) in line.match_indices(": ").map(|(at, _)| (&line[..at], &line[at + 2..])) {
            let room = before.rsplit(' ').next().unwrap_or_default();
            let named =
                after.split(", ").map_while(|name| name.split(' ').next().filter(|it| it.ends_with(".rs")));
            for name in named.filter(|_| code) {
                let ends = [format!("/{room}/{name}"), format!("/{room}/src/{name}")];
                let is_there = |file: &String| ends.iter().any(|end| format!("/{file}").ends_with(end));
                if !files.iter().any(is_there) {
                    found.push(format!("{room}: {name}"));
                }
            }
        }
    }
    found
}

#[test]
fn files_that_drawings_name_are_there() {
    let files: Vec<_> = super::layering::repository(".rs").into_iter().map(|(file, _)| file).collect();
    let undrawn = undrawn(&read(Path::new("ARCHITECTURE.md")), &files);
    assert!(undrawn.is_empty(), "no room has {undrawn:?}");
}

#[test]
fn planted_drawings_are_undrawn() {
    let files = ["engine/src/comm/put.rs", "src/group/erased.rs"].map(str::to_owned);
    let paper = "```\n | engine: comm/put.rs, comm/no.rs   group: erased.rs\n```\nengine: prose.rs\n";
    assert_eq!(undrawn(paper, &files), ["engine: comm/no.rs"]);
}

#[test]
fn papers_are_short() {
    for (paper, most) in WORDS {
        let words = read(Path::new(paper)).split_whitespace().count();
        assert!(words <= *most, "{paper} has {words} words, {most} are allowed");
    }
    for paper in decisions() {
        let words = read(&paper).split_whitespace().count();
        assert!(
            words <= DECISION_WORDS,
            "{} has {words} words, {DECISION_WORDS} are allowed",
            paper.display()
        );
    }
}

#[test]
fn links_lead_somewhere() {
    let broken: Vec<_> = papers().iter().flat_map(|paper| broken_links(paper, &read(paper))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn files_that_papers_name_are_there() {
    let missing: Vec<_> = papers().iter().flat_map(|paper| missing_files(paper, &read(paper))).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn planted_links_and_files_are_missed() {
    let text = "[a](ARCHITECTURE.md#the-words) [b](nowhere.md) [c](README.md#no-such-heading) `src/lib.rs` `src/no.rs: x`\n\
                ```\n[d](nowhere.md) `src/no.rs`\n```\n";
    let broken = broken_links(Path::new("README.md"), text);
    assert!(
        broken.len() == 2 && broken[0].contains("nowhere.md") && broken[1].contains("no-such-heading"),
        "{broken:?}"
    );
    assert_eq!(missing_files(Path::new("README.md"), text), ["README.md: src/no.rs is not there"]);
}

/// The decisions, in the order of their numbers.
fn decisions() -> Vec<PathBuf> {
    let mut papers = markdown("docs/decisions");
    papers.retain(|paper| !["README.md", "ledger.md"].iter().any(|name| paper.ends_with(name)));
    papers
}

#[test]
fn the_index_of_decisions_is_complete() {
    let index = read(Path::new("docs/decisions/README.md"));
    let listed: Vec<_> = index.lines().filter(|line| line.starts_with("- ")).map(str::to_owned).collect();
    let wanted = decisions().into_iter().map(|paper| {
        let text = read(&paper);
        let name = paper.file_name().unwrap().to_string_lossy().into_owned();
        let title = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
        let (number, title) = title.split_once(". ").unwrap_or_default();
        assert!(number.len() == 3 && name.starts_with(&format!("{number}-")), "{name} begins with {title:?}");
        assert!(text.contains("\n**Choice.** "), "{name} does not say what was chosen");
        format!("- [{number}]({name}) {title}")
    });
    assert_eq!(listed, wanted.collect::<Vec<_>>(), "docs/decisions/README.md");
}

/// The papers that are chapters of the book: those that the summary names, and the decisions, which `ci/book.sh` adds.
fn chapters() -> Vec<PathBuf> {
    let (summary, text) = (Path::new("docs/SUMMARY.md"), read(Path::new("docs/SUMMARY.md")));
    let named = links(summary, &text).into_iter().map(|(_, path, _)| path);
    named.chain(decisions().iter().map(|paper| root().join(paper))).map(canonical).collect()
}

fn canonical(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

/// The links of a chapter that lead to a file but to no page of the book: a paper that is no chapter, or a file that `ci/book.sh` does
/// not copy.
fn leads_out(chapters: &[PathBuf], paper: &Path, text: &str) -> Vec<String> {
    let script = read(Path::new("ci/book.sh"));
    let copied = script.lines().find_map(|line| line.strip_prefix("cp -r --parents ")).unwrap();
    let copied: Vec<_> = copied.split(' ').map(|name| root().join(name.trim_end_matches('*'))).collect();
    let within = |path: &Path| {
        let name = path.to_string_lossy();
        copied.iter().any(|it| path.starts_with(it) || name.starts_with(&*it.to_string_lossy()))
    };
    let text = prose(text);
    let out = links(paper, &text).into_iter().filter(|(_, path, _)| {
        let path = canonical(path.clone());
        let chapter = path.extension().is_some_and(|it| it == "md");
        if chapter { !chapters.contains(&path) } else { !within(&path) }
    });
    out.map(|(link, ..)| format!("{}: {link} is not in the book", paper.display())).collect()
}

#[test]
fn the_book_has_every_page() {
    let chapters = chapters();
    let mut missing: Vec<_> = [markdown("docs"), markdown("docs/decisions")].concat();
    missing.retain(|page| !chapters.contains(&canonical(root().join(page))));
    assert!(missing.is_empty(), "docs/SUMMARY.md does not name {missing:?}");
    let out: Vec<_> = chapters
        .iter()
        .flat_map(|chapter| leads_out(&chapters, chapter, &fs::read_to_string(chapter).unwrap()))
        .collect();
    assert!(out.is_empty(), "{}", out.join("\n"));
}

#[test]
fn planted_links_lead_out_of_the_book() {
    let text =
        "[a](tour.md) [b](../python/README.md) [c](../src/lib.rs) [d](../LICENSE-MIT) [e](picture.svg)";
    let out = leads_out(&chapters(), Path::new("docs/bench.md"), text);
    assert!(
        out.len() == 2 && out[0].contains("python/README.md") && out[1].contains("src/lib.rs"),
        "{out:?}"
    );
}

/// The words of a text, one space before and after each.
fn spaced(text: &str) -> String {
    let words: Vec<_> = words(text).into_iter().map(str::to_lowercase).collect();
    format!(" {} ", words.join(" "))
}

/// The headings that quote messages of which no three words, or two long ones, stand together in the sources.
fn unsaid<'t>(paper: &'t str, sources: &str) -> Vec<&'t str> {
    let said = |quote: &str| {
        let quote = spaced(quote);
        let words: Vec<_> = quote.split_whitespace().collect();
        let mut runs = words.windows(3).map(|run| run.join(" "));
        let mut pairs = words.windows(2).map(|run| run.join(" ")).filter(|pair| pair.len() >= 16);
        runs.any(|run| sources.contains(&format!(" {run} ")))
            || pairs.any(|pair| sources.contains(&format!(" {pair} ")))
    };
    let headings = paper.lines().filter(|line| line.starts_with("### "));
    let quotes = |line: &'t str| line.split('"').skip(1).step_by(2);
    headings.filter(|line| line.contains('"') && !quotes(line).any(said)).collect()
}

#[test]
fn messages_of_the_troubleshooting_are_those_of_the_sources() {
    let mut sources = super::layering::repository(".rs");
    sources.extend(super::layering::repository(".py"));
    sources.retain(|(file, _)| !file.contains("tests/"));
    let sources: String = sources.iter().map(|(_, text)| spaced(text)).collect();
    let paper = read(Path::new("docs/troubleshooting.md"));
    let unsaid = unsaid(&paper, &sources);
    assert!(unsaid.is_empty(), "no source says this any more:\n{}", unsaid.join("\n"));
}

#[test]
fn planted_messages_are_unsaid() {
    let sources = spaced("rank {rank} died; cannot serve the store: {error}");
    let paper = "### \"cannot serve the store: no\"\n### \"cannot begin the store\"\n### It is slow\n";
    assert_eq!(unsaid(paper, &sources), ["### \"cannot begin the store\""]);
}

/// The names and keywords of a line of code, which may follow each other.
fn words(line: &str) -> Vec<&str> {
    line.split(|it: char| !it.is_alphanumeric() && it != '_').filter(|word| !word.is_empty()).collect()
}

/// The error of a place `file:identifier` of the tour: the file must define the last name of the identifier, and contain the
/// names before it.
fn astray(place: &str) -> Option<String> {
    let (file, identifier) = place.split_once(':')?;
    let Ok(text) = fs::read_to_string(root().join(file)) else {
        return Some(format!("{place}: there is no such file"));
    };
    let names: Vec<_> = identifier.split("::").collect();
    let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type"];
    let defines = |name: &str| {
        text.lines().any(|line| words(line).windows(2).any(|two| kinds.contains(&two[0]) && two[1] == name))
    };
    let occurs = |name: &str| text.lines().any(|line| words(line).contains(&name));
    let (last, before) = names.split_last()?;
    if !defines(last) {
        return Some(format!("{place}: {last} is not defined there"));
    }
    let name = before.iter().find(|name| !occurs(name))?;
    Some(format!("{place}: there is no {name} there"))
}

#[test]
fn places_of_the_tour_are_there() {
    let tour = read(Path::new("docs/tour.md"));
    let places: Vec<_> = quoted(&tour).filter(|word| word.contains(".rs:")).collect();
    assert!(places.len() > 20, "{places:?}");
    let astray: Vec<_> = places.iter().filter_map(|place| astray(place)).collect();
    assert!(astray.is_empty(), "docs/tour.md leads astray:\n{}", astray.join("\n"));
}

#[test]
fn planted_places_are_astray() {
    assert_eq!(astray("src/work.rs:Work::wait"), None);
    for (place, wanted) in [
        ("src/work.rs:Work::no_such", "no_such is not defined"),
        ("src/work.rs:NoSuch::wait", "there is no NoSuch"),
        ("src/no_such.rs:wait", "no such file"),
        // The file uses it, and another defines it.
        ("src/work.rs:Error", "Error is not defined"),
    ] {
        assert!(astray(place).is_some_and(|what| what.contains(wanted)), "{place}");
    }
}
