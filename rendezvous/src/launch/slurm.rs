//! Slurm's notations for lists of hosts and of tasks per node.

use std::collections::HashSet;

use unisono_core::error::Result;
use unisono_schedule::Rank;

use super::variables::{Lookup, number, wrong};

/// The most hosts of a list that are used.
const MAX_HOSTS: usize = 100_000;

/// The hosts on which task 0 of the step may run, or, with `of_job`, rank 0 of a job that another launcher started in the Slurm job; the
/// likeliest first. Empty if Slurm does not say.
///
/// Slurm sorts the list of a step's hosts. Task 0 is on the first, unless the user chose the order (`-m arbitrary`) or the step has several
/// components, each with a separate list.
pub(super) fn hosts(variable: Lookup<'_>, of_job: bool) -> Result<Vec<String>> {
    let mut hosts: Vec<String> = Vec::new();
    let several = components(variable)?;
    let components = (0..several.unwrap_or(0).min(128)).flat_map(|i| {
        [format!("SLURM_JOB_NODELIST_HET_GROUP_{i}"), format!("SLURM_JOB_NODELIST_PACK_GROUP_{i}")]
    });
    let of_step = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let lists = of_step.into_iter().skip(usize::from(of_job)).find(|name| variable(name).is_some());
    let mut known = HashSet::new();
    for name in components.chain(lists.map(str::to_owned)) {
        let Some(list) = variable(&name) else { continue };
        let wanted = "wanted a list of hosts such as node[01-03,7],other";
        let all = all(&list).ok_or_else(|| wrong(variable, &name, wanted.into()))?;
        hosts.extend(all.into_iter().filter(|host| known.insert(host.clone())));
    }
    let sorted = variable("SLURM_DISTRIBUTION").is_some_and(|way| !way.trim().starts_with("arbitrary"));
    if !of_job && several.is_none() && sorted {
        hosts.truncate(1);
    }
    Ok(hosts)
}

/// True if srun itself has set the variables of MPICH (`srun --mpi=pmi2`). MPICH's launcher sets `local_rank` as well.
pub(super) fn is_step(variable: Lookup<'_>, local_rank: &str, ranks: usize) -> bool {
    variable(local_rank).is_none() && variable("SLURM_STEP_NUM_TASKS") == Some(ranks.to_string())
}

/// The number of components, if the job has several.
fn components(variable: Lookup<'_>) -> Result<Option<usize>> {
    let het = number(variable, "SLURM_HET_SIZE")?;
    Ok(het
        .map_or_else(|| number(variable, "SLURM_PACK_SIZE"), |size| Ok(Some(size)))?
        .filter(|&size| size > 1))
}

/// The names of a list such as `rack[1-2]n[01-03,7],other`: `rack1n01`, `rack1n02`, and so on.
fn all(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let (mut names, mut rest) = (vec![String::new()], list.trim());
    loop {
        let end = rest.find([',', '[', ']']).unwrap_or(rest.len());
        let text = rest.get(..end)?;
        names.iter_mut().for_each(|name| name.push_str(text));
        let mut after = rest.get(end..)?.chars();
        match after.next() {
            Some('[') => {
                let (inside, after) = rest.get(end + 1..)?.split_once(']')?;
                let numbers = numbers(inside)?;
                if names.len().checked_mul(numbers.len())? > MAX_HOSTS {
                    return None;
                }
                let with = |name: &String| {
                    numbers.iter().map(|number| format!("{name}{number}")).collect::<Vec<_>>()
                };
                names = names.iter().flat_map(with).collect();
                rest = after;
            }
            Some(']') => return None,
            next => {
                if names.iter().any(String::is_empty) || hosts.len() + names.len() > MAX_HOSTS {
                    return None;
                }
                hosts.append(&mut names);
                if next.is_none() {
                    return Some(hosts);
                }
                (names, rest) = (vec![String::new()], after.as_str());
            }
        }
    }
}

/// The numbers of a list such as `01-03,7`, as they are written: `01`, `02`, `03`, `7`.
fn numbers(list: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (first, last) = (number(from)?, number(to)?);
        if last.checked_sub(first)? >= MAX_HOSTS as u64 || all.len() > MAX_HOSTS {
            return None;
        }
        all.extend((first..=last).map(|number| format!("{number:0width$}", width = from.len())));
    }
    Some(all)
}

/// The task's number on this host, and the number of tasks of the step there.
///
/// `SLURM_GTIDS` lists the tasks that this host's daemon has started. In a step of several components `SLURM_NODEID` counts by component,
/// but `SLURM_STEP_TASKS_PER_NODE` covers all of them, sorted, so `SLURM_NODEID` is no index into it.
pub(super) fn local(variable: Lookup<'_>, task: Rank) -> Result<(Option<usize>, Option<usize>)> {
    if let Some(list) = variable("SLURM_GTIDS") {
        let here =
            list.trim().split(',').map(|number| number.trim().parse().ok()).collect::<Option<Vec<Rank>>>();
        if let Some(here) = here
            && let Some(place) = here.iter().position(|&other| other == task)
        {
            return Ok((Some(place), Some(here.len())));
        }
    }
    if components(variable)?.is_some() {
        return Ok((None, None));
    }
    Ok((number(variable, "SLURM_LOCALID")?, local_ranks(variable)?))
}

/// The number of tasks of the step on this host, in a step of one component.
fn local_ranks(variable: Lookup<'_>) -> Result<Option<usize>> {
    let name = "SLURM_STEP_TASKS_PER_NODE";
    let (Some(list), Some(node)) = (variable(name), number(variable, "SLURM_NODEID")?) else {
        return Ok(None);
    };
    let wanted = format!("wanted tasks per node such as 2(x3),1, with an entry for node {node}");
    at(&list, node).map(Some).ok_or_else(|| wrong(variable, name, wanted))
}

/// Entry `node` of a list such as `2(x3),1`.
fn at(list: &str, mut node: usize) -> Option<usize> {
    for part in list.trim().split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < times {
            return tasks.parse().ok();
        }
        node -= times;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_of_a_list() {
        for (list, hosts) in [
            ("node01", "node01"),
            ("a,b", "a b"),
            ("node[01-03,7],other", "node01 node02 node03 node7 other"),
            ("node[7,09-10]-ib,other", "node7-ib node09-ib node10-ib other"),
            ("rack[1-2]n[010-011].local", "rack1n010.local rack1n011.local rack2n010.local rack2n011.local"),
            ("n[099-101]", "n099 n100 n101"),
        ] {
            assert_eq!(all(list).unwrap_or_default().join(" "), hosts, "{list}");
        }
        let huge =
            ["n[0-99999999999]", "n[0-999][0-999]", "n[0-18446744073709551615]", "n[99999999999999999999]"];
        for list in ["", ",a", "a,", "node[", "node[]", "node[a-b]", "node]", "node[1", "n[3-1]", "n[+1]"]
            .into_iter()
            .chain(huge)
        {
            assert_eq!(all(list), None, "{list}");
        }
    }

    #[test]
    fn tasks_per_node() {
        let all = |list| (0..5).map_while(|node| at(list, node)).collect::<Vec<_>>();
        assert_eq!(all("2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(all("4"), [4]);
        assert_eq!(all("1,x"), [1]);
        assert_eq!(at("2(x", 0), None);
    }
}
