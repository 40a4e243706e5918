//! A host's hardware in words: `2 sockets × 4 caches (L3 32 MiB) × 8 cores`, and what is near which NUMA node.

use std::collections::BTreeSet;

use unisono::hardware::{Cache, Device, Hardware, NumaNode, Processors};

use crate::words::{size64, some};

/// The most ranges of processors that are written.
const RANGES: usize = 4;

/// What a part of the hardware is that has no parts inside it.
const CORE: &str = "core";

/// A part of the hardware, and the parts inside it.
struct Part {
    noun: &'static str,
    /// A note about it: the level and the size of a cache.
    note: Option<String>,
    processors: Processors,
    inside: Vec<Self>,
}

/// Cores and hardware threads, and how sockets, NUMA nodes and shared caches divide them.
pub(super) fn layout(hardware: &Hardware) -> String {
    let (cores, threads) = (hardware.cores.len(), hardware.processors().len());
    let threads =
        if threads == cores { String::new() } else { format!(", {}", some(threads, "hardware thread")) };
    format!("{}{threads}: {}", some(cores, "core"), words(&tree(hardware)).join(" + "))
}

/// A NUMA node, and the devices near it. Where it is the only one, its processors are all.
pub(super) fn node(node: &NumaNode, hardware: &Hardware) -> String {
    let cores = hardware.cores.iter().filter(|core| node.processors.include(core)).count();
    let only = hardware.nodes.len() == 1;
    let mut words = format!("NUMA node {}: ", node.number);
    match (node.processors.is_empty(), only) {
        (true, _) => words += "no cores",
        (false, true) => words += &some(cores, "core"),
        (false, false) => {
            words += &format!("{} (processors {})", some(cores, "core"), ranges(&node.processors))
        }
    }
    words += &node
        .memory
        .map_or_else(|| ", no memory known".into(), |bytes| format!(", {} of memory", size64(bytes)));
    let near = devices(hardware, |device| device.node == Some(node.number) || device.node.is_none() && only);
    if near.is_empty() { words } else { format!("{words}; near it: {near}") }
}

/// The devices of which it is not known which of several NUMA nodes they are near; empty if there is none.
pub(super) fn strays(hardware: &Hardware) -> String {
    let known = |number| hardware.nodes.iter().any(|node| node.number == number);
    devices(hardware, |device| hardware.nodes.len() != 1 && !device.node.is_some_and(known))
}

/// Caches of one level and size together: `L3 2 × 32 MiB, L2 16 × 1 MiB`.
pub(super) fn caches(hardware: &Hardware) -> String {
    // Hosts with two kinds of cores have caches of two sizes.
    let mut kinds: Vec<(&Cache, usize)> = Vec::new();
    for cache in &hardware.caches {
        match kinds.iter_mut().find(|(kind, _)| (kind.level, kind.size) == (cache.level, cache.size)) {
            Some((_, count)) => *count += 1,
            None => kinds.push((cache, 1)),
        }
    }
    let words = |(cache, count): (&Cache, usize)| {
        let data = if cache.level == 1 { "d" } else { "" };
        format!("L{}{data} {count} × {}", cache.level, cache.size.map_or_else(|| "?".into(), size64))
    };
    kinds.into_iter().map(words).collect::<Vec<_>>().join(", ")
}

/// Where a process that may use `hardware.allowed` runs: `all 16 processors`, or `processors 0-3 (NUMA node 0, last-level cache 1 of 4)`.
pub(super) fn place(hardware: &Hardware) -> String {
    let (all, allowed) = (hardware.processors(), &hardware.allowed);
    if *allowed == all {
        return format!("all {} processors", all.len());
    }
    let nodes: Vec<_> = hardware.nodes.iter().map(|node| (node.number, node.processors.clone())).collect();
    let groups: Vec<_> =
        hardware.cache_groups().into_iter().zip(1..).map(|(group, at)| (at, group)).collect();
    let mut inside = Vec::new();
    inside.extend(only(&nodes, allowed).map(|number| format!("NUMA node {number}")));
    inside.extend(only(&groups, allowed).map(|at| format!("last-level cache {at} of {}", groups.len())));
    let inside = if inside.is_empty() { String::new() } else { format!(" ({})", inside.join(", ")) };
    let noun = if allowed.len() == 1 { "processor" } else { "processors" };
    format!("{noun} {}{inside}", ranges(allowed))
}

/// The number of the only one of several sets that has some of these processors.
fn only(sets: &[(usize, Processors)], processors: &Processors) -> Option<usize> {
    let mut some = sets.iter().filter(|(_, set)| sets.len() > 1 && !set.and(processors).is_empty());
    let (first, second) = (some.next(), some.next());
    first.filter(|_| second.is_none()).map(|(number, _)| *number)
}

/// A list of processors, cut where it is long.
fn ranges(processors: &Processors) -> String {
    let first: Processors = processors.ranges().take(RANGES).flat_map(|(first, last)| first..=last).collect();
    match processors.ranges().nth(RANGES) {
        None => first.to_string(),
        Some(_) => format!("{first},... {} in all", processors.len()),
    }
}

fn devices(hardware: &Hardware, wanted: impl Fn(&Device) -> bool) -> String {
    let name = |it: &Device| format!("{}{}", it.name, if it.rdma { " (RDMA)" } else { "" });
    hardware.devices.iter().filter(|device| wanted(device)).map(name).collect::<Vec<_>>().join(", ")
}

/// The parts of the hardware that divide cores, each inside the smallest one that has all its processors.
fn tree(hardware: &Hardware) -> Vec<Part> {
    let all = hardware.processors();
    let part = |noun, processors: &Processors, note| Part {
        noun,
        note,
        processors: processors.clone(),
        inside: Vec::new(),
    };
    // Of parts with the same processors the outer ones come first.
    let mut parts: Vec<_> = hardware.packages.iter().map(|it| part("socket", it, None)).collect();
    // A NUMA node that is a socket has a separate line.
    let divides = |it: &Processors| !it.is_empty() && *it != all && !hardware.packages.contains(it);
    // Nodes with memory of two kinds have the same processors.
    let nodes: BTreeSet<_> =
        hardware.nodes.iter().map(|node| &node.processors).filter(|it| divides(it)).collect();
    parts.extend(nodes.into_iter().map(|it| part("NUMA node", it, None)));
    let shared = |cache: &&Cache| !hardware.cores.iter().any(|core| core.include(&cache.processors));
    parts.extend(hardware.caches.iter().filter(shared).map(|cache| {
        let size = cache.size.map_or_else(String::new, |size| format!(" {}", size64(size)));
        part("cache", &cache.processors, Some(format!("L{}{size}", cache.level)))
    }));
    parts.extend(hardware.cores.iter().map(|it| part(CORE, it, None)));
    parts.sort_by_key(|part| std::cmp::Reverse(part.processors.len()));
    let mut tree = Vec::new();
    parts.into_iter().for_each(|part| insert(&mut tree, part));
    tree
}

fn insert(parts: &mut Vec<Part>, new: Part) {
    match parts.iter_mut().find(|part| part.processors.include(&new.processors)) {
        Some(part) => insert(&mut part.inside, new),
        None => parts.push(new),
    }
}

/// Parts side by side, equal ones together.
fn words(parts: &[Part]) -> Vec<String> {
    let mut groups: Vec<(&str, String, usize)> = Vec::new();
    let mut parts: Vec<_> = parts.iter().collect();
    parts.sort_by_key(|part| &part.processors);
    for part in parts {
        let rest = rest(part);
        match groups.iter_mut().find(|(noun, other, _)| (*noun, other) == (part.noun, &rest)) {
            Some((.., count)) => *count += 1,
            None => groups.push((part.noun, rest, 1)),
        }
    }
    groups.iter().map(|(noun, rest, count)| format!("{}{rest}", some(*count, noun))).collect()
}

/// What follows the name of a part: notes, and what is inside it.
fn rest(part: &Part) -> String {
    let (mut notes, mut inner) = (Vec::from_iter(part.note.clone()), part);
    // Parts with the same processors are one part.
    while let [only] = &*inner.inside
        && only.noun != CORE
        && only.processors == part.processors
    {
        notes.extend(only.note.clone());
        inner = only;
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    let threads = part.processors.len();
    let inside = match &*inner.inside {
        [] if part.noun == CORE && threads > 1 => format!(" × {}", some(threads, "thread")),
        [] => String::new(),
        parts => match &*words(parts) {
            [one] => format!(" × {one}"),
            several => format!(" × ({})", several.join(" + ")),
        },
    };
    notes + &inside
}
