//! Cores, NUMA nodes and caches, by hwloc; and how much of them this process may use.

use std::time::Duration;

use hwlocality::{
    Topology,
    object::{attributes::ObjectAttributes, types::ObjectType},
    topology::builder::{BuildFlags, TopologyBuilder},
};
use serde::Serialize;

use super::{files::Files, report::Section};
use crate::words::{size64, some};

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

/// The machine's processors, and how many of them this process may use.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// The processor's name.
    pub(super) model: Option<String>,
    /// The topology, or hwloc's error.
    pub(super) layout: Result<Layout, String>,
    /// How many hardware threads this process may run on.
    pub(super) bound: Option<usize>,
    /// How many of them it may use at once: fewer if its control group's time is limited.
    pub(super) usable: Option<usize>,
    /// The limit of its control group's time, in processors; `None` if there is none.
    pub(super) quota: Option<f64>,
    /// The ranks that run here.
    pub(super) ranks: Ranks,
}

/// The ranks of this machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ranks {
    /// Their number, if it is known.
    pub(super) count: Option<usize>,
    /// Whether this process is one of them, whose binding may differ from that of the others.
    pub(super) launched: bool,
    /// How long their waits spin, if it is configured.
    pub(super) spin: Option<Duration>,
}

impl Machine {
    pub(super) fn gather(files: &Files, ranks: Ranks) -> Self {
        Self {
            model: files.text("/proc/cpuinfo").and_then(|text| model(&text)),
            layout: whole(Topology::builder()).map(|topology| layout(&topology)),
            bound: rustix::thread::sched_getaffinity(None)
                .ok()
                .and_then(|processors| usize::try_from(processors.count()).ok()),
            usable: std::thread::available_parallelism().ok().map(usize::from),
            quota: quota(files),
            ranks,
        }
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("machine");
        if let Some(model) = &self.model {
            section.note(model.clone());
        }
        match &self.layout {
            Ok(layout) => {
                section.ok(format!(
                    "{} in {}, {}",
                    some(layout.cores, "core"),
                    some(layout.packages, "package"),
                    some(layout.threads, "hardware thread")
                ));
                for node in &layout.nodes {
                    let number = node.number.map_or_else(|| "?".into(), |number| number.to_string());
                    let memory = node.memory.map_or_else(|| "unknown".into(), size64);
                    section.note(format!(
                        "NUMA node {number}: {}, {memory} of memory",
                        some(node.cores, "core")
                    ));
                }
                let cache = |cache: &Cache| {
                    format!(
                        "{} {} x {}",
                        cache.name,
                        cache.count,
                        cache.size.map_or_else(|| "?".into(), size64)
                    )
                };
                let caches: Vec<_> = layout.caches.iter().map(cache).collect();
                if !caches.is_empty() {
                    section.note(format!("caches: {}", caches.join(", ")));
                }
            }
            Err(error) => section.warn(
                format!("hwloc cannot read the topology of the machine: {error}"),
                "try `lstopo`; unset HWLOC_XMLFILE and HWLOC_SYNTHETIC if they are set",
            ),
        }
        let (threads, allowed) =
            self.layout.as_ref().map_or((0, 0), |layout| (layout.threads, layout.allowed));
        let mut why = Vec::new();
        if let Some(quota) = self.quota {
            why.push(format!("its control group's limit is the time of {quota:.1} processors"));
        }
        if allowed < threads {
            why.push(format!("its control group has {allowed} of them"));
        }
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        if let Some(bound) = self.bound.filter(|&bound| self.ranks.launched && bound < allowed) {
            // The other ranks may be bound to other threads, so whether ranks share threads is unknown.
            section.note(format!("this rank is bound to {bound} of the {threads} hardware threads{why}"));
            return section;
        }
        if let Some(usable) = self.usable.filter(|&usable| usable < threads) {
            section.warn(
                format!("this process may use {usable} of the {threads} hardware threads{why}"),
                "if that is not wanted: widen the binding (`taskset -p $$`, srun --cpu-bind) or the container's limit \
                 (docker --cpus, --cpuset-cpus)",
            );
        }
        self.judge_ranks(&mut section);
        section
    }

    /// Whether ranks share hardware threads, as ranks decide it when they join: by the threads that all of them together may use.
    fn judge_ranks(&self, section: &mut Section) {
        let known = self.layout.as_ref().ok().map(|layout| layout.threads);
        let (Some(ranks), Some(threads)) = (self.ranks.count, self.usable.or(known)) else { return };
        let still = self.ranks.spin == Some(Duration::ZERO);
        if ranks <= threads {
            let words = format!("{} have a hardware thread each", some(ranks, "rank"));
            return if still {
                section.note(format!("{words}, but waits do not spin: UNISONO_SPIN is 0"));
            } else {
                section.ok(words);
            };
        }
        let shared = format!("{} would share {}", some(ranks, "rank"), some(threads, "hardware thread"));
        if self.ranks.spin.is_none() || still {
            section.warn(
                format!("{shared}: waits yield instead of spinning"),
                format!("it works, but every message waits for its receiver to be scheduled; start at most {threads} here"),
            );
        } else {
            section.warn(
                format!(
                    "{shared}, but waits spin because UNISONO_SPIN is set: they keep other ranks from running"
                ),
                format!("unset UNISONO_SPIN, or start at most {threads} here"),
            );
        }
    }
}

/// The processor's name in the text of `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// hwloc's topology of the whole machine, including what this process's control group may not use.
fn whole(builder: TopologyBuilder) -> Result<Topology, String> {
    let builder = builder.with_flags(BuildFlags::INCLUDE_DISALLOWED);
    builder.map_err(|error| error.to_string())?.build().map_err(|error| error.to_string())
}

/// Reads hwloc's topology.
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

/// The lowest limit of the time of this process's control group and of all above it, in processors.
fn quota(files: &Files) -> Option<f64> {
    let groups = files.text("/proc/self/cgroup")?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        // Version 2 has one tree without controllers' names; version 1 one tree for each set of them.
        let mount = if controllers.is_empty() {
            "/sys/fs/cgroup".to_owned()
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            format!("/sys/fs/cgroup/{controllers}")
        } else {
            continue;
        };
        let mut group = group.trim_end_matches('/');
        loop {
            let found = limit(files, &format!("{mount}{group}"));
            least = match (least, found) {
                (Some(least), Some(found)) => Some(least.min(found)),
                (least, found) => least.or(found),
            };
            let Some((parent, _)) = group.rsplit_once('/') else { break };
            group = parent;
        }
    }
    least
}

/// The limit of one control group, in processors.
fn limit(files: &Files, group: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = match files.text(&format!("{group}/cpu.max")) {
        // "max 100000" is no limit.
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        // -1 is no limit.
        None => (
            files.number(&format!("{group}/cpu.cfs_quota_us"))?,
            files.number(&format!("{group}/cpu.cfs_period_us"))?,
        ),
    };
    (quota > 0.0 && period > 0.0).then_some(quota / period).filter(|limit| limit.is_finite())
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn this_machine_has_sane_values() {
        let machine = Machine::gather(&Files::below("/"), Ranks::default());
        let layout = machine.layout.unwrap();
        assert!(layout.cores > 0 && layout.threads >= layout.cores && !layout.nodes.is_empty(), "{layout:?}");
        assert!(layout.allowed > 0 && layout.threads >= layout.allowed, "{layout:?}");
        assert!(machine.bound.is_some_and(|bound| bound > 0 && machine.usable <= Some(bound)));
        assert!(machine.usable.is_some_and(|usable| usable > 0));
        assert!(machine.quota.is_none_or(|quota| quota > 0.0));
    }

    /// A tree with these files, and the limit it makes.
    fn quota_of(tree: &[(&str, &str)]) -> Option<f64> {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in tree {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        quota(&Files::below(directory.path()))
    }

    #[test]
    fn the_narrowest_limit_of_the_control_groups_counts() {
        let group = ("proc/self/cgroup", "0::/job/step\n");
        let cpu = |max| ("sys/fs/cgroup/job/step/cpu.max", max);
        assert_eq!(quota_of(&[group, cpu("150000 100000\n")]), Some(1.5));
        let above = ("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
        assert_eq!(quota_of(&[group, cpu("150000 100000\n"), above]), Some(0.5));
        assert_eq!(quota_of(&[group, cpu("max 100000\n")]), None);
        let version_1 = [
            ("proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(quota_of(&version_1), Some(2.0));
    }

    #[test]
    fn odd_control_groups_are_unknown() {
        for text in ["", "nonsense", "::", "0::", "0::/../..", "1:cpu"] {
            assert_eq!(quota_of(&[("proc/self/cgroup", text)]), None, "{text}");
        }
        for max in ["", "max", "0 0", "1 0", "-1 100000", "inf 1", "a b", "1 2 3"] {
            let tree = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", max)];
            assert_eq!(quota_of(&tree), None, "{max}");
        }
        assert_eq!(model("processor: 0\nmodel name\n"), None);
        assert_eq!(model("model name\t: A chip\n").as_deref(), Some("A chip"));
    }
}
