//! Slurm's notations for lists of hosts and of tasks per node.

use super::variables::{number, wrong};
use crate::error::Result;

/// The first host of the step, which runs task 0; or, with `of_job`, of the job.
pub(super) fn first_host(variable: &impl Fn(&str) -> Option<String>, of_job: bool) -> Result<Option<String>> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    for name in names.into_iter().skip(usize::from(of_job)) {
        if let Some(list) = variable(name) {
            let wanted = "wanted a list of hosts such as node[01-03,7],other";
            return first(&list).map(Some).ok_or_else(|| wrong(variable, name, wanted.into()));
        }
    }
    Ok(None)
}

/// The first name of a list such as `rack[1-2]n[01-03,7],other`: `rack1n01`.
fn first(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list.trim());
    loop {
        let end = rest.find([',', '[', ']']).unwrap_or(rest.len());
        name.push_str(rest.get(..end)?);
        match rest.get(end..)?.chars().next() {
            Some('[') => {
                let (inside, after) = rest.get(end + 1..)?.split_once(']')?;
                let number = inside.split([',', '-']).next()?;
                if number.is_empty() || !number.chars().all(|c| c.is_ascii_digit()) {
                    return None;
                }
                name.push_str(number);
                rest = after;
            }
            Some(']') => return None,
            _ => return (!name.is_empty()).then_some(name),
        }
    }
}

/// The number of tasks of the step on this host.
pub(super) fn local_ranks(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<usize>> {
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
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("node01", "node01"),
            ("a,b", "a"),
            ("node[01-03,7],other", "node01"),
            ("node[7,01-03]-ib,other", "node7-ib"),
            ("rack[1-2]n[010-012].local", "rack1n010.local"),
        ] {
            assert_eq!(first(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", ",a", "node[", "node[]", "node[a-b]", "node]", "node[1"] {
            assert_eq!(first(list), None, "{list}");
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
