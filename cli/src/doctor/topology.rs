//! Cores, NUMA nodes and caches, by hwloc.

#[cfg(feature = "hwloc")]
use hwlocality::{
    Topology,
    object::{attributes::ObjectAttributes, types::ObjectType},
    topology::builder::{BuildFlags, TopologyBuilder},
};
use serde::Serialize;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct NumaNode {
    /// Its number.
    pub(super) number: Option<usize>,
    /// Its cores.
    pub(super) cores: usize,
    /// Its memory in bytes.
    pub(super) memory: Option<u64>,
}

/// Caches of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cache {
    /// For instance `L2` or `L1d`.
    pub(super) name: String,
    /// The size of each in bytes.
    pub(super) size: Option<u64>,
    /// How many there are.
    pub(super) count: usize,
}

/// The machine's topology, by hwloc.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Layout {
    /// Packages (sockets).
    pub(super) packages: usize,
    /// Cores.
    pub(super) cores: usize,
    /// Hardware threads.
    pub(super) threads: usize,
    /// How many of these the control group may use.
    pub(super) allowed: usize,
    /// NUMA nodes.
    pub(super) nodes: Vec<NumaNode>,
    /// Data caches, the largest first.
    pub(super) caches: Vec<Cache>,
}

impl Layout {
    /// Reads this machine's topology.
    ///
    /// # Errors
    /// hwloc's, or that the program was built without hwloc.
    #[cfg(feature = "hwloc")]
    pub(super) fn read() -> Result<Self, String> {
        whole(Topology::builder()).map(|topology| layout(&topology))
    }

    /// Says that the program was built without hwloc.
    #[cfg(not(feature = "hwloc"))]
    pub(super) fn read() -> Result<Self, String> {
        Err("cores, NUMA nodes and caches are not shown: this program was built without hwloc".to_owned())
    }
}

/// hwloc's topology of the whole machine, including what this process's control group may not use.
#[cfg(feature = "hwloc")]
fn whole(builder: TopologyBuilder) -> Result<Topology, String> {
    let builder = builder.with_flags(BuildFlags::INCLUDE_DISALLOWED);
    builder.map_err(|error| error.to_string())?.build().map_err(|error| error.to_string())
}

/// Reads hwloc's topology.
#[cfg(feature = "hwloc")]
fn layout(topology: &Topology) -> Layout {
    let count = |kind| topology.objects_with_type(kind).count();
    let allowed = topology.allowed_cpuset();
    let threads = topology.objects_with_type(ObjectType::PU);
    let allowed = threads.filter(|thread| thread.is_inside_cpuset(&*allowed)).count();
    let nodes = topology.objects_with_type(ObjectType::NUMANode).map(|node| NumaNode {
        number: node.os_index(),
        cores: topology
            .objects_with_type(ObjectType::Core)
            .filter(|core| match (core.cpuset(), node.cpuset()) {
                (Some(core), Some(node)) => node.includes(core),
                _ => false,
            })
            .count(),
        memory: match node.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map(Into::into),
            _ => None,
        },
    });
    let kinds = [
        (ObjectType::L5Cache, "L5"),
        (ObjectType::L4Cache, "L4"),
        (ObjectType::L3Cache, "L3"),
        (ObjectType::L2Cache, "L2"),
        (ObjectType::L1Cache, "L1d"),
    ];
    let mut caches: Vec<Cache> = Vec::new();
    for (kind, name) in kinds {
        for object in topology.objects_with_type(kind) {
            let size = match object.attributes() {
                Some(ObjectAttributes::Cache(cache)) => cache.size().map(Into::into),
                _ => None,
            };
            // Machines with two kinds of cores have caches of two sizes.
            match caches.iter_mut().find(|cache| cache.name == name && cache.size == size) {
                Some(cache) => cache.count += 1,
                None => caches.push(Cache { name: name.into(), size, count: 1 }),
            }
        }
    }
    Layout {
        packages: count(ObjectType::Package),
        cores: count(ObjectType::Core),
        threads: count(ObjectType::PU),
        allowed,
        nodes: nodes.collect(),
        caches,
    }
}

#[cfg(all(test, feature = "hwloc"))]
mod tests {
    use hwlocality::topology::export::xml::XMLExportFlags;

    use super::*;

    #[test]
    fn a_described_machine_is_read_whole() {
        let description = "pack:2 [numa(memory=1073741824)] l3:2(size=33554432) l2:4 core:1 pu:2";
        let topology = Topology::builder().from_synthetic(description).unwrap().build().unwrap();
        let layout = layout(&topology);
        assert_eq!((layout.packages, layout.cores, layout.threads, layout.allowed), (2, 16, 32, 32));
        let node = |number| NumaNode { number: Some(number), cores: 8, memory: Some(1 << 30) };
        assert_eq!(layout.nodes, [node(0), node(1)]);
        assert_eq!(layout.caches[0], Cache { name: "L3".into(), size: Some(32 << 20), count: 4 });
        assert_eq!((layout.caches[1].name.as_str(), layout.caches[1].count), ("L2", 16));
    }

    #[test]
    fn what_the_control_group_does_not_have_is_there_all_the_same() {
        let topology = Topology::builder().from_synthetic("core:4 pu:2").unwrap().build().unwrap();
        let xml = topology.export_xml(XMLExportFlags::empty()).unwrap().to_string();
        let (all, three) = ("allowed_cpuset=\"0x000000ff\"", "allowed_cpuset=\"0x00000007\"");
        assert!(xml.contains(all), "{xml}");
        let topology = whole(Topology::builder().from_xml(&xml.replace(all, three)).unwrap()).unwrap();
        let layout = layout(&topology);
        assert_eq!((layout.cores, layout.threads, layout.allowed), (4, 8, 3));
    }

    #[test]
    fn this_machine_has_a_sane_layout() {
        let layout = Layout::read().unwrap();
        assert!(layout.cores > 0 && layout.threads >= layout.cores && !layout.nodes.is_empty(), "{layout:?}");
        assert!(layout.allowed > 0 && layout.threads >= layout.allowed, "{layout:?}");
    }
}
