//! The hardware of a host as the system describes it: sockets, NUMA nodes, caches, cores, network devices, and which processors this
//! process may use. It is read from the files of `/sys`, or made by whoever has read another description.

mod processors;
mod sysfs;

use std::collections::BTreeSet;

use serde::Serialize;

pub use self::processors::Processors;

/// A host's hardware. Sets of processors are in the order of their first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hardware {
    /// The processors of each socket.
    pub packages: BTreeSet<Processors>,
    /// The NUMA nodes, by their numbers.
    pub nodes: Vec<NumaNode>,
    /// The caches that hold data, those of the highest level first.
    pub caches: Vec<Cache>,
    /// The processors of each core: its hardware threads.
    pub cores: BTreeSet<Processors>,
    /// Network devices: those that do RDMA, and interfaces with hardware of their own.
    pub devices: Vec<Device>,
    /// The processors that this process may use.
    pub allowed: Processors,
}

/// A NUMA node: memory, and the processors that are near it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Its number.
    pub number: usize,
    /// Its processors; none if it has only memory.
    pub processors: Processors,
    /// Its memory in bytes, if it is known.
    pub memory: Option<u64>,
}

/// A cache that holds data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Its level: 3 for an L3.
    pub level: u32,
    /// The processors that share it.
    pub processors: Processors,
    /// Its size in bytes, if it is known.
    pub size: Option<u64>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name, for instance `mlx5_0` or `eth0`.
    pub name: String,
    /// Whether it does RDMA.
    pub rdma: bool,
    /// The number of the NUMA node that is nearest to it, if that is known.
    pub node: Option<usize>,
}

impl Hardware {
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
