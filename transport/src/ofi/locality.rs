//! Orders several NICs for a process: near ones first, and processes of one host begin with different ones.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::{info::Info, kernel_file};

/// Puts the NICs first that are nearest to the cores on which this process may run, rotated by this process's number on its host.
/// Otherwise it keeps the order. It also returns the number of these NICs.
pub(super) fn sort(nics: Vec<Info>, process: usize) -> (Vec<Info>, usize) {
    let processors = sched_getaffinity(None).ok();
    arrange(nics, process, |nic| match (&processors, nic.bus()) {
        (Some(processors), Some(bus)) => near(&bus, processors),
        // A NIC whose place is unknown counts as near.
        _ => true,
    })
}

fn arrange<T>(nics: Vec<T>, process: usize, near: impl Fn(&T) -> bool) -> (Vec<T>, usize) {
    let (near, far): (Vec<_>, Vec<_>) = nics.into_iter().partition(near);
    let (mut nics, rest) = if near.is_empty() { (far, near) } else { (near, far) };
    let count = nics.len();
    if let Some(first) = process.checked_rem(count) {
        nics.rotate_left(first);
    }
    nics.extend(rest);
    (nics, count)
}

/// True if this process may run on a core near the device at this address of the PCI bus. If that is unknown: yes.
fn near(bus: &str, processors: &CpuSet) -> bool {
    let list = Path::new("/sys/bus/pci/devices").join(bus).join("local_cpulist");
    kernel_file::read(list).ok().and_then(|list| holds(&list, |one| processors.is_set(one))).unwrap_or(true)
}

/// True if a list of processors such as `0-3,8` contains one of these; `None` if it is not such a list.
fn holds(list: &str, these: impl Fn(usize) -> bool) -> Option<bool> {
    let mut any = false;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        any |= (first..=last.min(CpuSet::MAX_CPU - 1)).any(&these);
    }
    Some(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_take_near_nics_by_their_number() {
        let first = |nics: &[(char, bool)], process| {
            let (nics, count) = arrange(nics.to_vec(), process, |(_, near)| *near);
            (count, nics.into_iter().map(|(name, _)| name).collect::<String>())
        };
        let all = [('a', true), ('b', true), ('c', true)];
        assert_eq!([0, 1, 2, 3].map(|process| first(&all, process).1), ["abc", "bca", "cab", "abc"]);
        let two = [('a', false), ('b', true), ('c', false), ('d', true)];
        assert_eq!([0, 1, 2].map(|process| first(&two, process).1), ["bdac", "dbac", "bdac"]);
        assert_eq!((first(&all, 0).0, first(&two, 0).0), (3, 2));
        assert_eq!(
            first(&[('a', false), ('b', false)], 1),
            (2, "ba".into()),
            "none is near, so all are as near"
        );
        assert_eq!(first(&[], 7), (0, String::new()));
    }

    #[test]
    fn lists_of_processors_are_read_or_left() {
        let holds = |list| holds(list, |one| [3, 9].contains(&one));
        for list in ["0-3", "3", "0-1,9\n", "8-10,32-40"] {
            assert_eq!(holds(list), Some(true), "{list}");
        }
        assert_eq!([holds("0-2,4-8"), holds("10-18446744073709551615")], [Some(false); 2]);
        assert_eq!([holds(""), holds("\n"), holds("0-"), holds("x")], [None; 4]);
    }
}
