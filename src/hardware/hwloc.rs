//! Reads the hardware by hwloc: of this host, of one that was recorded, or of one that a text describes.

use std::{cmp::Reverse, env, io, path::Path};

use hwlocality::{
    Topology,
    bitmap::BitmapRef,
    cpu::cpuset::CpuSet,
    object::{
        TopologyObject,
        attributes::ObjectAttributes,
        types::{OSDeviceType, ObjectType},
    },
    topology::builder::{BuildFlags, TopologyBuilder, TypeFilter},
};

use super::{Cache, Device, Hardware, MOST, NumaNode, Processors};
use crate::outside;

/// Where the system describes processors. Without it hwloc has nothing to read, and says so on stderr.
const SYSTEM: &str = "/sys/devices/system/cpu";
/// The deepest nesting in XML that is read: hwloc's own parser takes some stack for each level, and topologies have a dozen.
const DEEPEST: usize = 100;
/// The largest XML that is read, in bytes: a host of 1,000 processors takes some MiB.
const LARGEST: u64 = 64 << 20;
const CACHES: [ObjectType; 5] =
    [ObjectType::L5Cache, ObjectType::L4Cache, ObjectType::L3Cache, ObjectType::L2Cache, ObjectType::L1Cache];

/// The version of the hwloc that is loaded, major and minor; `None` where the library is built without it.
#[must_use]
pub fn hwloc_version() -> Option<(usize, usize)> {
    let version = hwlocality::hwloc_api_version();
    Some((version >> 16, version >> 8 & 0xff))
}

impl Hardware {
    /// This host's, or the one that hwloc's variables describe (`HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`). Takes some 20 ms.
    ///
    /// ```
    /// let hardware = unisono::hardware::Hardware::here().unwrap();
    /// assert!(!hardware.cores.is_empty() && hardware.processors().len() >= hardware.cores.len());
    /// ```
    ///
    /// Without /sys, or without the feature `hwloc`, it is one node of the processors that this process may use.
    ///
    /// # Errors
    /// If the system says nothing of its processors.
    pub fn here() -> io::Result<Self> {
        if !Path::new(SYSTEM).exists() {
            return Self::undescribed();
        }
        let mut found = Self::load(Ok(Topology::builder()))?;
        if let Ok(allowed) = Processors::allowed() {
            let own = allowed.and(&found.processors());
            if !own.is_empty() {
                found.allowed = own;
            }
        }
        Ok(found)
    }

    /// This host's, whatever hwloc's variables say, and why they leave its cores unknown: as long as they do not claim to describe this host
    /// (`HWLOC_THISSYSTEM=1`), they describe another. Each processor then counts as a core.
    pub(crate) fn own() -> io::Result<(Self, Option<String>)> {
        match doubt(&|name| env::var(name).ok()) {
            Some(doubt) => Ok((Self::undescribed()?, Some(doubt))),
            None => Ok((Self::here()?, None)),
        }
    }

    /// The hardware in XML that hwloc has written (`lstopo --of xml`). hwloc ends the process on some files that were changed by hand:
    /// it is for files that are trusted, or for a separate process, as `unisono doctor` has.
    ///
    /// # Errors
    /// If hwloc does not read it, or the library is built without the feature `hwloc`.
    pub fn from_xml(text: &str) -> io::Result<Self> {
        if nesting(text) > DEEPEST {
            return Err(invalid(format!("its elements are nested more than {DEEPEST} deep")));
        }
        Self::load(Topology::builder().from_xml(text).map_err(|error| error.to_string()))
    }

    /// The hardware that a text describes as hwloc's synthetic topologies do: `pack:2 [numa] l3:2 core:4 pu:2`.
    ///
    /// # Errors
    /// As of [`from_xml`](Self::from_xml).
    pub fn from_synthetic(text: &str) -> io::Result<Self> {
        Self::load(Topology::builder().from_synthetic(text).map_err(|error| error.to_string()))
    }

    fn load(builder: Result<TopologyBuilder, String>) -> io::Result<Self> {
        let load = |mut builder: TopologyBuilder| -> Result<Topology, Box<dyn std::error::Error>> {
            // This component would run on each processor in turn, to ask for what the system has said already. On other architectures it
            // does not exist, and leaving it out fails.
            if cfg!(target_arch = "x86_64") {
                builder = builder.without_component("x86")?;
            }
            let builder = builder.with_io_type_filter(TypeFilter::KeepImportant)?;
            Ok(builder.with_flags(BuildFlags::INCLUDE_DISALLOWED)?.build()?)
        };
        let topology = builder.and_then(|builder| load(builder).map_err(|error| error.to_string()));
        let topology = topology.map_err(invalid)?;
        let found = Self::of(&topology);
        if found.cores.is_empty() {
            return Err(invalid("it has no processor".to_owned()));
        }
        Ok(found)
    }

    fn of(topology: &Topology) -> Self {
        let sets = |kind| topology.objects_with_type(kind).filter_map(processors);
        let mut found = Self { packages: sets(ObjectType::Package).collect(), ..Self::default() };
        found.cores = sets(ObjectType::Core).filter(|core| !core.is_empty()).collect();
        let with_core = found.processors();
        let alone = sets(ObjectType::PU).filter(|it| !it.is_empty() && !with_core.include(it));
        found.cores.extend(alone);
        found.nodes = topology.objects_with_type(ObjectType::NUMANode).filter_map(node).collect();
        found.nodes.sort_by_key(|node| node.number);
        found.caches =
            CACHES.into_iter().flat_map(|kind| topology.objects_with_type(kind)).filter_map(cache).collect();
        found.caches.sort_by_key(|cache| (Reverse(cache.level), cache.processors.clone()));
        found.devices = topology.os_devices().filter_map(device).collect();
        found.devices.sort_by(|one, other| (!one.rdma, &one.name).cmp(&(!other.rdma, &other.name)));
        found.allowed = numbers(topology.allowed_cpuset()).and(&found.processors());
        let above = topology.objects_with_type(ObjectType::Package).chain([topology.root_object()]);
        found.model = above.filter_map(|object| object.info("CPUModel")).map(text).next();
        found
    }
}

/// Why hwloc's variables do not describe this host. As for hwloc, a file counts before a description.
fn doubt(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(|value| (name, value));
    let (name, value) = set("HWLOC_XMLFILE").or_else(|| set("HWLOC_SYNTHETIC"))?;
    if set("HWLOC_THISSYSTEM").is_none_or(|(_, claims)| claims.trim() == "0") {
        return Some(format!(
            "{name}={value} describes another host; unset it, or set HWLOC_THISSYSTEM=1 too if it describes this one"
        ));
    }
    // hwloc would silently use the system's description instead.
    let read = match name {
        "HWLOC_XMLFILE" => {
            outside::read_text(Path::new(&value), LARGEST).and_then(|text| Hardware::from_xml(&text))
        }
        _ => Hardware::from_synthetic(&value),
    };
    read.err().map(|error| format!("{name}={value}: {error}; correct it or unset it"))
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("hwloc: {problem}"))
}

fn text(text: &std::ffi::CStr) -> String {
    text.to_string_lossy().into_owned()
}

/// A set of hwloc's, which may have no end.
fn numbers(set: BitmapRef<'_, CpuSet>) -> Processors {
    set.iter_set().map(usize::from).take_while(|&processor| processor < MOST).collect()
}

fn processors(object: &TopologyObject) -> Option<Processors> {
    object.cpuset().map(numbers)
}

fn node(object: &TopologyObject) -> Option<NumaNode> {
    let Some(ObjectAttributes::NUMANode(about)) = object.attributes() else { return None };
    let memory = about.local_memory().map(u64::from);
    Some(NumaNode { number: object.os_index()?, processors: processors(object)?, memory })
}

fn cache(object: &TopologyObject) -> Option<Cache> {
    let Some(ObjectAttributes::Cache(about)) = object.attributes() else { return None };
    let level = u32::try_from(about.depth()).ok()?;
    Some(Cache { level, processors: processors(object)?, size: about.size().map(u64::from) })
}

/// The network device that an object is, if it is one. It is near the node of what it hangs below, if that has one only.
fn device(object: &TopologyObject) -> Option<Device> {
    let Some(ObjectAttributes::OSDevice(about)) = object.attributes() else { return None };
    let rdma = match about.device_type() {
        OSDeviceType::Network => false,
        OSDeviceType::OpenFabrics => true,
        _ => return None,
    };
    let nodes = object.first_non_io_ancestor().and_then(TopologyObject::nodeset);
    let node = nodes.filter(|nodes| nodes.weight() == Some(1)).and_then(|nodes| nodes.first_set());
    Some(Device { name: text(object.name()?), rdma, node: node.map(usize::from) })
}

/// The nesting depth of the elements of an XML text.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for tag in text.split('<').skip(1) {
        if tag.starts_with('/') {
            depth = depth.saturating_sub(1);
        } else if !tag.starts_with(['!', '?']) {
            deepest = deepest.max(depth + 1);
            depth += usize::from(!tag.trim_end().ends_with("/>"));
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn synthetic(text: &str) -> Hardware {
        Hardware::from_synthetic(text).unwrap()
    }

    fn words_of<'a>(sets: impl IntoIterator<Item = &'a Processors>) -> Vec<String> {
        sets.into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_sockets_with_several_caches_and_threads() {
        let hardware = synthetic("pack:2 [numa(memory=1048576)] l3:2(size=33554432) core:2 pu:2");
        assert_eq!(words_of(&hardware.packages), ["0-7", "8-15"]);
        assert_eq!(hardware.cores.len(), 8);
        assert_eq!(words_of(&hardware.cores)[..2], ["0,1", "2,3"]);
        assert_eq!(hardware.allowed.to_string(), "0-15");
        assert_eq!(words_of(&hardware.cache_groups()), ["0-3", "4-7", "8-11", "12-15"]);
        assert!(hardware.caches.iter().all(|cache| (cache.level, cache.size) == (3, Some(32 << 20))));
        let nodes: Vec<_> =
            hardware.nodes.iter().map(|it| (it.number, it.processors.to_string(), it.memory)).collect();
        assert_eq!(nodes, [(0, "0-7".into(), Some(1 << 20)), (1, "8-15".into(), Some(1 << 20))]);
    }

    /// XML of hwloc: a machine with these attributes, and what is in it.
    fn machine(attributes: &str, inside: &str) -> String {
        format!(
            "<?xml version='1.0'?>\n<topology version='2.0'>\n<object type='Machine' os_index='0' {attributes}>\n{inside}\n\
             </object>\n</topology>\n"
        )
        .replace('\'', "\"")
    }

    fn sets(processors: u32, nodes: u32) -> String {
        let (cpus, nodes) = (format!("0x{processors:08x}"), format!("0x{nodes:08x}"));
        format!("cpuset='{cpus}' complete_cpuset='{cpus}' nodeset='{nodes}' complete_nodeset='{nodes}'")
    }

    fn node(number: u32, processors: u32, memory: u64) -> String {
        let sets = sets(processors, 1 << number);
        format!("<object type='NUMANode' os_index='{number}' {sets} local_memory='{memory}'/>")
    }

    fn pu(number: u32, nodes: u32) -> String {
        format!("<object type='PU' os_index='{number}' {}/>", sets(1 << number, nodes))
    }

    #[test]
    fn nodes_without_memory_and_without_processors() {
        let package = |number: u32, inside: &str| {
            let sets = sets(1 << number, 1 << number);
            format!("<object type='Package' os_index='{number}' {sets}>{inside}</object>")
        };
        let packages =
            [0, 1].map(|it| package(it, &(node(it, 1 << it, u64::from(it) << 30) + &pu(it, 1 << it))));
        let all = format!("{} allowed_cpuset='0x00000001' allowed_nodeset='0x00000007'", sets(3, 7));
        let text = machine(&all, &(node(2, 3, 4 << 30) + &packages.concat()));
        let hardware = Hardware::from_xml(&text).unwrap();
        let nodes: Vec<_> =
            hardware.nodes.iter().map(|it| (it.number, it.processors.to_string(), it.memory)).collect();
        // The last node has only memory: it is near all processors.
        assert_eq!(
            nodes,
            [
                (0, "0".to_owned(), None),
                (1, "1".to_owned(), Some(1 << 30)),
                (2, "0,1".to_owned(), Some(4 << 30))
            ]
        );
        assert_eq!(hardware.allowed.to_string(), "0", "a cpuset of one");
    }

    #[test]
    fn devices_are_near_the_node_that_they_hang_below() {
        let text = include_str!("../../cli/src/doctor/tests/epyc.xml");
        let hardware = Hardware::from_xml(text).unwrap();
        let device = |name: &str, rdma, node| Device { name: name.to_owned(), rdma, node };
        let wanted = [
            device("mlx5_0", true, Some(0)),
            device("mlx5_1", true, Some(1)),
            device("eth0", false, Some(0)),
        ];
        assert_eq!(hardware.devices, wanted);
        assert_eq!(hardware.model.as_deref(), Some("AMD EPYC 9124 16-Core Processor"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_topology_of_rows_is_counted_right(
            (sockets, caches, cores, threads) in (1_usize..5, 1_usize..4, 1_usize..5, 1_usize..3)
        ) {
            let hardware =
                synthetic(&format!("pack:{sockets} [numa] l3:{caches} core:{cores} pu:{threads}"));
            prop_assert_eq!(hardware.packages.len(), sockets);
            prop_assert_eq!(hardware.nodes.len(), sockets);
            prop_assert_eq!(hardware.cache_groups().len(), sockets * caches);
            prop_assert_eq!(hardware.cores.len(), sockets * caches * cores);
            prop_assert_eq!(hardware.processors().len(), sockets * caches * cores * threads);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,20}|(</?[a-z]{1,3}/?>){0,9}") {
            let _ = (Hardware::from_synthetic(&text), Hardware::from_xml(&text));
        }
    }

    #[test]
    fn what_describes_another_host_or_is_wrong_is_told() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/cli/src/doctor/tests/epyc.xml");
        let warning = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
            doubt(&value)
        };
        assert_eq!(warning(&[]), None);
        assert_eq!(warning(&[("HWLOC_XMLFILE", ""), ("HWLOC_THISSYSTEM", "1")]), None);
        for wrong in [file, "/nowhere.xml"] {
            let words = warning(&[("HWLOC_XMLFILE", wrong)]).unwrap();
            assert!(words.starts_with(&format!("HWLOC_XMLFILE={wrong} describes another host")), "{words}");
        }
        assert!(warning(&[("HWLOC_SYNTHETIC", "pu:2"), ("HWLOC_THISSYSTEM", "0")]).is_some());
        let claimed = |name, value| warning(&[(name, value), ("HWLOC_THISSYSTEM", "1")]);
        assert_eq!(claimed("HWLOC_XMLFILE", file), None);
        assert_eq!(claimed("HWLOC_SYNTHETIC", "pack:1 pu:2"), None);
        for (name, value) in [
            ("HWLOC_XMLFILE", "/nowhere.xml"),
            ("HWLOC_XMLFILE", "/dev/zero"),
            ("HWLOC_SYNTHETIC", "nonsense"),
        ] {
            let words = claimed(name, value).unwrap();
            assert!(
                words.starts_with(&format!("{name}={value}: ")) && words.ends_with("unset it"),
                "{words}"
            );
        }
    }

    #[test]
    fn nesting_is_counted() {
        for (text, depth) in
            [("", 0), ("<a/>", 1), ("<?x?><!D><a><b/><c></c></a>", 2), ("<a><a><a>", 3), ("</a></a><a>", 1)]
        {
            assert_eq!(nesting(text), depth, "{text}");
        }
    }

    #[test]
    fn this_host_has_a_sane_description() {
        let hardware = Hardware::here().unwrap();
        let all = hardware.processors();
        assert!(!hardware.allowed.is_empty() && all.include(&hardware.allowed), "{hardware:?}");
        assert!(hardware.packages.iter().all(|package| all.include(package)), "{hardware:?}");
        assert!(
            hardware.packages.len() <= hardware.cores.len() && !hardware.nodes.is_empty(),
            "{hardware:?}"
        );
        assert_eq!(hwloc_version().unwrap().0, 2);
        let undescribed = Hardware::undescribed().unwrap();
        assert_eq!((undescribed.nodes.len(), undescribed.cores.len()), (1, hardware.allowed.len()));
    }
}
