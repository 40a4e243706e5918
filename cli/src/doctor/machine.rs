//! The machine's processors and caches, and how much of them this process may use.

use std::time::Duration;

use serde::Serialize;
use unisono::hardware::{Hardware, Processors};

use super::{files::Files, picture, report::Section, topology::GivenTopology};
use crate::{cgroup, words::some};

/// The machine's processors, and how many of them this process may use.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// The description of the hardware, if it is not this machine's.
    pub(super) topology: Option<GivenTopology>,
    /// The hardware, or why it is unknown.
    pub(super) hardware: Result<Hardware, String>,
    /// How many hardware threads its control group has.
    pub(super) cpuset: Option<usize>,
    /// How many of them it may use at once: fewer if its control group's time is limited.
    pub(super) usable: Option<usize>,
    /// The limit of its control group's time, in processors; `None` if there is none.
    pub(super) quota: Option<f64>,
    /// The ranks that run here.
    pub(super) ranks: RanksHere,
}

/// The ranks of this machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RanksHere {
    /// Their number, if it is known.
    pub(super) count: Option<usize>,
    /// True if this process is one of them, whose binding may differ from that of the others.
    pub(super) launched: bool,
    /// How long their waits spin, if it is configured.
    pub(super) spin: Option<Duration>,
}

impl Machine {
    /// This machine.
    pub(super) fn gather(files: &Files, ranks: RanksHere) -> Self {
        Self {
            topology: None,
            hardware: Hardware::here().map_err(|error| error.to_string()),
            cpuset: cpuset(files),
            usable: std::thread::available_parallelism().ok().map(usize::from),
            quota: quota(files),
            ranks,
        }
    }

    /// The machine that a topology describes, or what is wrong with that.
    pub(super) fn described(
        hardware: Result<Hardware, String>,
        topology: GivenTopology,
        ranks: RanksHere,
    ) -> Self {
        Self { topology: Some(topology), hardware, cpuset: None, usable: None, quota: None, ranks }
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("machine");
        match &self.topology {
            Some(GivenTopology::Recorded(file)) => {
                section.note(format!("not this machine, but what is recorded in {}", file.display()));
            }
            Some(GivenTopology::Synthetic(_)) => {
                section.note("not this machine, but what HWLOC_SYNTHETIC describes".to_owned());
            }
            None => {}
        }
        if let Some(model) = self.hardware.as_ref().ok().and_then(|hardware| hardware.model.clone()) {
            section.note(model);
        }
        match (&self.hardware, &self.topology) {
            (Ok(hardware), _) => draw(hardware, &mut section),
            (Err(problem), Some(GivenTopology::Synthetic(_))) => section.problem(
                problem.clone(),
                "write it as `pack:2 [numa] l3:2 core:4 pu:2` (hwloc's synthetic topologies), or unset it",
            ),
            (Err(problem), Some(GivenTopology::Recorded(_))) => section.problem(
                problem.clone(),
                "record it again with `lstopo --of xml FILE` of hwloc 2, or unset HWLOC_XMLFILE",
            ),
            (Err(problem), None) => section.warn(
                format!("the system does not describe its processors: {problem}"),
                "let containers see /sys",
            ),
        }
        if self.topology.is_none() {
            let threads = self.hardware.as_ref().map_or(0, |hardware| hardware.processors().len());
            if !self.judge_limits(threads, &mut section) {
                return section;
            }
        }
        self.judge_ranks(&mut section);
        section
    }

    /// Judges how many of the hardware threads this process may use. Returns true if that says something about the other ranks.
    fn judge_limits(&self, threads: usize, section: &mut Section) -> bool {
        let cpuset = self.cpuset.unwrap_or(threads);
        let mut why = Vec::new();
        if let Some(quota) = self.quota {
            why.push(format!("its control group's limit is the time of {quota:.1} processors"));
        }
        if cpuset < threads {
            why.push(format!("its control group has {cpuset} of them"));
        }
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        let bound = self.hardware.as_ref().ok().map(|hardware| hardware.allowed.len());
        if let Some(bound) = bound.filter(|&bound| self.ranks.launched && bound < cpuset) {
            // The other ranks may be bound to other threads, so whether ranks share threads is unknown.
            section.note(format!("this rank is bound to {bound} of the {threads} hardware threads{why}"));
            return false;
        }
        if let Some(usable) = self.usable.filter(|&usable| usable < threads) {
            section.warn(
                format!("this process may use {usable} of the {threads} hardware threads{why}"),
                "if that is not wanted: widen the binding (`taskset -p $$`, srun --cpu-bind) or the container's limit \
                 (docker --cpus, --cpuset-cpus)",
            );
        }
        true
    }

    /// Judges whether ranks share hardware threads, as ranks decide it when they join: by the threads that all of them together may use.
    fn judge_ranks(&self, section: &mut Section) {
        let known = self.hardware.as_ref().ok().map(|hardware| hardware.processors().len());
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

/// The picture of the hardware.
fn draw(hardware: &Hardware, section: &mut Section) {
    section.ok(picture::layout(hardware));
    hardware.nodes.iter().for_each(|node| section.note(picture::node(node, hardware)));
    let strays = picture::strays(hardware);
    if !strays.is_empty() {
        section.note(format!("at an unknown NUMA node: {strays}"));
    }
    let caches = picture::caches(hardware);
    if !caches.is_empty() {
        section.note(format!("caches: {caches}"));
    }
}

/// The lowest limit of the time of this process's control group and of all above it, in processors.
fn quota(files: &Files) -> Option<f64> {
    groups(files, "cpu").iter().filter_map(|group| limit(files, group)).min_by(f64::total_cmp)
}

/// The number of processors that this process's control group has: what the nearest one says of itself and of all above it.
fn cpuset(files: &Files) -> Option<usize> {
    let groups = groups(files, "cpuset");
    // The second name is that of version 1.
    let names = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
    let lists = groups.iter().flat_map(|group| names.map(|name| format!("{group}/{name}")));
    let sets = lists.filter_map(|list| Processors::parse(&files.text(&list)?));
    sets.map(|set| set.len()).find(|&count| count > 0)
}

/// The directories of this process's control group and of all above it, the nearest first, where this controller's files may be.
fn groups(files: &Files, controller: &str) -> Vec<String> {
    cgroup::groups(&|path| files.text(path), controller).unwrap_or_default().0
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

    use super::*;

    #[test]
    fn this_machine_has_sane_values() {
        let machine = Machine::gather(&Files::below("/"), RanksHere::default());
        let bound = machine.hardware.unwrap().allowed.len();
        assert!(bound > 0 && machine.usable <= Some(bound));
        assert!(machine.usable.is_some_and(|usable| usable > 0));
        assert!(machine.quota.is_none_or(|quota| quota > 0.0));
    }

    /// The limit that a tree with these files makes.
    fn quota_of(tree: &[(&str, &str)]) -> Option<f64> {
        below(tree, quota)
    }

    /// The control groups of both versions.
    const MOUNTS: &str = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                          2 1 0:2 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                          3 1 0:3 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

    /// What is read of a tree with these files.
    fn below<T>(tree: &[(&str, &str)], read: impl Fn(&Files) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in tree.iter().chain(&[("proc/self/mountinfo", MOUNTS)]) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        read(&Files::below(directory.path()))
    }

    #[test]
    fn the_nearest_control_group_says_which_processors_there_are() {
        let (root, own) = ("sys/fs/cgroup/cpuset.cpus.effective", "sys/fs/cgroup/job/cpuset.cpus.effective");
        let group = |path| ("proc/self/cgroup", path);
        assert_eq!(below(&[group("0::/job/step"), (root, "0-7"), (own, "2-3,6")], cpuset), Some(3));
        assert_eq!(below(&[group("0::/elsewhere"), (root, "0-7")], cpuset), Some(8), "in a container");
        let old = ("sys/fs/cgroup/cpuset/job/cpuset.effective_cpus", "0-1");
        assert_eq!(below(&[group("9:cpuset:/job\n1:cpu:/"), old], cpuset), Some(2));
        for text in ["", "many", "0-99999999999"] {
            assert_eq!(below(&[group("0::/"), (root, text)], cpuset), None, "{text}");
        }
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
    }
}
