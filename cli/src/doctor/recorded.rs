//! Reads a recorded topology: the XML of hwloc 2, as `lstopo --of xml` writes it. hwloc itself is not needed.

use std::{cmp::Reverse, path::Path};

use roxmltree::{Document, ParsingOptions};
use unisono::hardware::{Cache, Device, Hardware, NumaNode, Processors};

use super::files;

/// The numbers of hwloc for OS devices that are network interfaces and RDMA devices.
const NETWORK: &str = "2";
const RDMA: &str = "3";
/// The number of caches that hold instructions only.
const INSTRUCTIONS: &str = "2";
/// The most XML nodes that a file may have: ten times as many as a host of 512 processors takes.
const NODES: u32 = 100_000;
/// The highest number of a processor that is believed.
const LAST: usize = (1 << 16) - 1;

type Element<'a, 'input> = roxmltree::Node<'a, 'input>;

/// The topology in a file, and the name of its processors.
///
/// # Errors
/// A sentence that begins with the file's path and says what is wrong, and where.
pub(super) fn read(path: &Path) -> Result<(Hardware, Option<String>), String> {
    let text = files::read(path).map_err(|error| error.to_string());
    let read = text.and_then(|text| parse(&text));
    read.map_err(|problem| format!("{}: {problem}", path.display()))
}

fn parse(text: &str) -> Result<(Hardware, Option<String>), String> {
    // hwloc's files name a DTD, which is not looked for.
    let options = ParsingOptions { allow_dtd: true, nodes_limit: NODES, ..ParsingOptions::default() };
    let document =
        Document::parse_with_options(text, options).map_err(|error| format!("not XML: {error}"))?;
    let root = document.root_element();
    if root.tag_name().name() != "topology" {
        return Err(format!("a <{}>, and a <topology> is wanted", root.tag_name().name()));
    }
    match root.attribute("version") {
        Some(version) if version.starts_with("2.") => {}
        version => {
            let version = version.map_or_else(|| "1".to_owned(), |version| format!("{version:?}"));
            return Err(format!(
                "of version {version} of hwloc's format, and 2.0 is wanted (lstopo of hwloc 2)"
            ));
        }
    }
    let mut found = Hardware::default();
    let objects = || root.descendants().filter(|node| node.has_tag_name("object"));
    for object in objects() {
        add(object, &mut found)?;
    }
    let processors = objects().filter(|object| object.attribute("type") == Some("PU"));
    let processors: Processors = processors
        .map(|object| set(object, "cpuset"))
        .collect::<Result<Vec<_>, _>>()?
        .iter()
        .flat_map(Processors::iter)
        .collect();
    if processors.is_empty() {
        return Err("it has no processor (no object of type PU)".to_owned());
    }
    let with_core = found.processors();
    found
        .cores
        .extend(processors.iter().filter(|&it| !with_core.contains(it)).map(|it| [it].into_iter().collect()));
    found.caches.sort_by_key(|cache| (Reverse(cache.level), cache.processors.clone()));
    found.nodes.sort_by_key(|node| node.number);
    let devices = objects().filter_map(|object| device(object, &found.nodes)).collect();
    found.devices = devices;
    let machine = objects().find(|object| object.has_attribute("allowed_cpuset"));
    found.allowed = match machine {
        Some(machine) => set(machine, "allowed_cpuset")?.and(&processors),
        None => processors,
    };
    let model = root
        .descendants()
        .find(|info| info.has_tag_name("info") && info.attribute("name") == Some("CPUModel"));
    Ok((found, model.and_then(|info| info.attribute("value")).map(str::to_owned)))
}

/// Adds a socket, a NUMA node, a cache or a core.
fn add(object: Element<'_, '_>, found: &mut Hardware) -> Result<(), String> {
    let kind = object.attribute("type").ok_or_else(|| lacks(object, "type"))?;
    let number = |name: &str| object.attribute(name).and_then(|number| number.parse::<u64>().ok());
    match kind {
        "Package" => drop(found.packages.insert(set(object, "cpuset")?)),
        "Core" => drop(found.cores.insert(set(object, "cpuset")?)),
        "NUMANode" => found.nodes.push(NumaNode {
            number: number("os_index")
                .and_then(|it| usize::try_from(it).ok())
                .ok_or_else(|| lacks(object, "os_index"))?,
            processors: set(object, "cpuset")?,
            memory: number("local_memory"),
        }),
        _ if kind.ends_with("Cache")
            && kind.starts_with('L')
            && object.attribute("cache_type") != Some(INSTRUCTIONS) =>
        {
            let level = number("depth").and_then(|level| u32::try_from(level).ok());
            let level = level.ok_or_else(|| lacks(object, "depth"))?;
            found.caches.push(Cache {
                level,
                processors: set(object, "cpuset")?,
                size: number("cache_size"),
            });
        }
        _ => {}
    }
    Ok(())
}

/// The network device that an object is, if it is one. It hangs below the objects that it is near to.
fn device(object: Element<'_, '_>, nodes: &[NumaNode]) -> Option<Device> {
    let kind = object.attribute("osdev_type").filter(|kind| [NETWORK, RDMA].contains(kind))?;
    let near = object.ancestors().find_map(|above| set(above, "cpuset").ok());
    let mut nodes =
        nodes.iter().filter(|node| near.as_ref().is_some_and(|near| !near.and(&node.processors).is_empty()));
    let (first, second) = (nodes.next(), nodes.next());
    let node = first.filter(|_| second.is_none()).map(|node| node.number);
    Some(Device { name: object.attribute("name")?.to_owned(), rdma: kind == RDMA, node })
}

/// The processors in an attribute: words of 32 bits, the highest first, such as `0x0000ffff,,0xff000000`.
fn set(object: Element<'_, '_>, name: &str) -> Result<Processors, String> {
    let text = object.attribute(name).ok_or_else(|| lacks(object, name))?;
    let wrong =
        || format!("{} has {name}={text:?}, which is no set of processors such as 0x000000ff", place(object));
    let mut all = Vec::new();
    for (at, word) in text.split(',').rev().enumerate() {
        let bits = match word.trim().trim_start_matches("0x") {
            "" => 0,
            digits => u32::from_str_radix(digits, 16).map_err(|_| wrong())?,
        };
        all.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| at * 32 + bit));
    }
    if all.last().is_some_and(|&last| last > LAST) {
        return Err(wrong());
    }
    Ok(all.into_iter().collect())
}

fn lacks(object: Element<'_, '_>, name: &str) -> String {
    format!("{} has no valid {name}", place(object))
}

/// An object in words: `the object PU in line 7`.
fn place(object: Element<'_, '_>) -> String {
    let line = object.document().text_pos_at(object.range().start).row;
    match object.attribute("type") {
        Some(kind) => format!("the object {kind} in line {line}"),
        None => format!("an object in line {line}"),
    }
}
