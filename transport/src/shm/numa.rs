//! Places the pages of shared memory on the NUMA node of the rank whose memory it is.
//!
//! The system takes a page from the node of the thread that touches it first, or allocates it (fallocate). So rings and boards, which
//! have all their pages from the beginning, lie on the node of the endpoint that makes them. The pages of a region are taken when they
//! are touched, maybe by a put of a peer on another node: so its memfd gets a policy, which holds for all processes that map it. hwloc
//! sets it; without the feature `hwloc` these pages lie where they are touched.

use super::segment::Segment;

/// The pages of a memory that are not there yet will be on this thread's node, or where its policy says (numactl), as far as there is
/// room. Where the system has one node, or does not let this process choose (a container without CAP_SYS_NICE), they lie where
/// they are touched.
pub(super) fn keep_here(segment: &Segment) {
    #[cfg(feature = "hwloc")]
    if let Some(nodes) = &*nodes::NODES
        && let Err(reason) = nodes.bind(segment)
    {
        crate::log::debug!(
            %reason,
            "memory that is shared lies on the node of the thread that touches it first"
        );
    }
    #[cfg(not(feature = "hwloc"))]
    let _ = segment;
}

#[cfg(feature = "hwloc")]
mod nodes {
    use std::{error::Error, fs, sync::LazyLock};

    use hwlocality::{
        Topology,
        bitmap::BitmapIndex,
        cpu::binding::CpuBindingFlags,
        memory::{
            binding::{MemoryBindingFlags, MemoryBindingPolicy},
            nodeset::NodeSet,
        },
        object::types::ObjectType,
        topology::builder::{TopologyBuilder, TypeFilter},
    };

    use super::Segment;

    /// The nodes of this host, where it has several: most hosts have one, and loading a topology takes milliseconds.
    pub(super) static NODES: LazyLock<Option<Nodes>> = LazyLock::new(|| {
        let online = fs::read_to_string("/sys/devices/system/node/online");
        if !online.is_ok_and(|nodes| nodes.contains([',', '-'])) {
            return None;
        }
        Nodes::load()
            .inspect_err(|reason| {
                crate::log::warn!(
                    %reason,
                    "shared memory is not bound to NUMA nodes, which hwloc does not describe"
                );
            })
            .ok()
    });

    pub(super) struct Nodes(Topology);

    impl Nodes {
        pub(super) fn load() -> Result<Self, Box<dyn Error>> {
            let nodes = Self::of(Topology::builder())?;
            // hwloc's environment variables may describe another host.
            let other = || "HWLOC_XMLFILE or HWLOC_SYNTHETIC describes another host".into();
            if nodes.0.is_this_system() { Ok(nodes) } else { Err(other()) }
        }

        /// Nodes and processors, which take a fraction of the time that all objects take, and the groups by which hwloc keeps the
        /// processors of each node apart.
        pub(super) fn of(mut builder: TopologyBuilder) -> Result<Self, Box<dyn Error>> {
            // Elsewhere there is no such component, and leaving it out fails.
            if cfg!(target_arch = "x86_64") {
                builder = builder.without_component("x86")?;
            }
            let builder = builder.with_common_type_filter(TypeFilter::KeepNone)?;
            Ok(Self(builder.with_type_filter(ObjectType::Group, TypeFilter::KeepStructure)?.build()?))
        }

        pub(super) fn bind(&self, segment: &Segment) -> Result<(), Box<dyn Error>> {
            let (nodes, policy) = match self.0.memory_binding::<NodeSet>(MemoryBindingFlags::THREAD)? {
                (_, None | Some(MemoryBindingPolicy::FirstTouch)) => {
                    (self.here()?, MemoryBindingPolicy::Bind)
                }
                (nodes, Some(policy)) => (nodes, policy),
            };
            // The flag STRICT is not set: if the node is full, another one serves.
            Ok(self.0.bind_memory_area(segment.words(), &nodes, policy, MemoryBindingFlags::empty())?)
        }

        /// The node of the processor that this thread runs on.
        fn here(&self) -> Result<NodeSet, Box<dyn Error>> {
            let location = self.0.last_cpu_location(CpuBindingFlags::THREAD)?;
            let node = location.first_set().and_then(|processor| self.of_processor(processor.into()));
            Ok(NodeSet::from_iter([node.ok_or("this processor has no node")?]))
        }

        /// The node of a processor. It may have several: memory of another kind has a higher number.
        pub(super) fn of_processor(&self, processor: usize) -> Option<BitmapIndex> {
            self.0.pu_with_os_index(processor)?.nodeset()?.first_set()
        }
    }
}

#[cfg(test)]
#[cfg(feature = "hwloc")]
mod tests {
    use std::{fs, sync::atomic::Ordering};

    use hwlocality::Topology;

    use super::{
        super::segment::{self, Access},
        nodes::Nodes,
        *,
    };

    /// What /proc/self/numa_maps says of the mapping at this address.
    fn mapping_of(segment: &Segment) -> Option<String> {
        let maps = fs::read_to_string("/proc/self/numa_maps").ok()?;
        let address = format!("{:08x} ", segment.base().addr());
        maps.lines().find(|line| line.starts_with(&address)).map(str::to_owned)
    }

    #[test]
    fn each_processor_has_its_own_node() {
        for (text, nodes) in [
            ("pack:2 [numa] core:2 pu:2", [0, 0, 0, 0, 1, 1, 1, 1]),
            ("pack:1 [numa] core:4 pu:2", [0; 8]),
            ("pack:2 die:2 [numa] pu:2", [0, 0, 1, 1, 2, 2, 3, 3]),
            ("pack:2 [numa(indexes=0,2)] [numa(indexes=1,3)] pu:4", [0, 0, 0, 0, 2, 2, 2, 2]),
        ] {
            let nodes_of = Nodes::of(Topology::builder().from_synthetic(text).unwrap()).unwrap();
            let found = (0..8).map(|processor| nodes_of.of_processor(processor).map(usize::from));
            assert!(found.clone().eq(nodes.map(Some)), "{text}: {:?}", found.collect::<Vec<_>>());
        }
    }

    /// Peers' threads run on this node, whether or not there are others: the test sees only that the file has the policy.
    #[test]
    fn pages_that_a_peer_touches_first_obey_their_owner() {
        let (file, ours) = segment::create_for_region(4 << 12, Access::ReadWrite).unwrap();
        let theirs = Segment::of_peer(&file, 0, ours.len(), Access::ReadWrite).unwrap();
        if let Err(reason) = Nodes::load().unwrap().bind(&ours) {
            println!("SKIPPED: whose node pages are on: this process may not choose nodes: {reason}");
            return;
        }
        theirs.words()[0].store(1, Ordering::Relaxed);
        let Some(line) = mapping_of(&theirs) else {
            println!("SKIPPED: whose node pages are on: the system does not tell where pages are");
            return;
        };
        // `prefer:0`, or `prefer (many):0` of newer systems.
        let node = line.split_once(" prefer").and_then(|(_, rest)| rest.split_once(':'));
        let node = node.map(|(_, rest)| rest.split(' ').next().unwrap_or_default());
        let node = node.unwrap_or_else(|| panic!("no node is preferred: {line}"));
        assert!(line.contains(&format!(" N{node}=1")), "the page is elsewhere: {line}");
    }
}
