//! The hardware of a host: sockets, NUMA nodes, caches, cores, network devices, and which processors this process may use. hwloc reads
//! it. Without the feature `hwloc` a host is one node of the processors that this process may use.

#[cfg(feature = "hwloc")]
mod hwloc;
mod processors;
#[cfg(not(feature = "hwloc"))]
mod undescribed;

use std::{collections::BTreeSet, io};

use serde::{Deserialize, Serialize};

#[cfg(feature = "hwloc")]
pub use self::hwloc::hwloc_version;
pub use self::processors::Processors;
#[cfg(not(feature = "hwloc"))]
pub use self::undescribed::hwloc_version;

/// The most processors of a host: larger numbers are ignored.
const MOST: usize = 1 << 16;

/// A host's hardware. Sets of processors are in the order of their first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// The processor's name, if it is known.
    pub model: Option<String>,
    /// The processors of each socket.
    pub packages: BTreeSet<Processors>,
    /// The NUMA nodes, by their numbers.
    pub nodes: Vec<NumaNode>,
    /// The caches that hold data, those of the highest level first.
    pub caches: Vec<Cache>,
    /// The processors of each core: its hardware threads.
    pub cores: BTreeSet<Processors>,
    /// Network devices: those that do RDMA, and interfaces with their own hardware.
    pub devices: Vec<Device>,
    /// The processors that this process may use.
    pub allowed: Processors,
}

/// A NUMA node: memory, and the processors that are near it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub number: usize,
    /// The processors near it. For a node that has only memory, those of the nodes nearest to it; none if these are not known.
    pub processors: Processors,
    /// Its memory in bytes; `None` if it has none, or that is not known.
    pub memory: Option<u64>,
}

/// A cache that holds data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Its level: 3 for an L3.
    pub level: u32,
    /// The processors that share it.
    pub processors: Processors,
    /// Its size in bytes, if it is known.
    pub size: Option<u64>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name, for instance `mlx5_0` or `eth0`.
    pub name: String,
    /// True if it does RDMA.
    pub rdma: bool,
    /// The number of the NUMA node that is nearest to it, if that is known.
    pub node: Option<usize>,
}

impl Hardware {
    /// The hardware as it is assumed without a description: a core for each processor that this process may use.
    fn undescribed() -> io::Result<Self> {
        let allowed = Processors::allowed()?;
        let cores = allowed.iter().map(|processor| [processor].into_iter().collect()).collect();
        let node = NumaNode { number: 0, processors: allowed.clone(), memory: None };
        Ok(Self { packages: [allowed.clone()].into(), nodes: vec![node], cores, allowed, ..Self::default() })
    }

    /// All processors.
    #[must_use]
    pub fn processors(&self) -> Processors {
        self.cores.iter().flat_map(Processors::iter).collect()
    }

    /// The processors that share a last-level cache: an L3, or an L2 where there is no L3.
    #[must_use]
    pub fn cache_groups(&self) -> Vec<Processors> {
        let mut groups: Vec<Processors> = Vec::new();
        for cache in self.caches.iter().filter(|cache| cache.level > 1) {
            if groups.iter().all(|group| group.and(&cache.processors).is_empty()) {
                groups.push(cache.processors.clone());
            }
        }
        groups.sort();
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(level: u32, processors: &str) -> Cache {
        Cache { level, processors: Processors::parse(processors).unwrap(), size: None }
    }

    #[test]
    fn cache_groups_are_those_of_the_last_level_that_a_processor_has() {
        // Some laptops have cores that have no share of the L3.
        let caches = [(3, "0-3"), (2, "0-1"), (2, "2-3"), (2, "4-7"), (1, "0-1"), (1, "8-9")];
        let caches = caches.into_iter().map(|(level, processors)| cache(level, processors)).collect();
        let hardware = Hardware { caches, ..Hardware::default() };
        let groups: Vec<_> = hardware.cache_groups().iter().map(ToString::to_string).collect();
        assert_eq!(groups, ["0-3", "4-7"]);
    }
}
