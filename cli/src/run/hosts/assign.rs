//! Reads the hosts in `--hosts`, and decides how many ranks each gets.

use std::str::FromStr;

/// A host as the command line has it: as ssh takes it, and the number of ranks, if it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct HostSpec {
    pub(super) name: String,
    ranks: Option<u32>,
}

impl FromStr for HostSpec {
    type Err = String;

    /// Reads `NAME`, `USER@NAME`, `NAME:RANKS`, an address of IPv6, or that in brackets with `:RANKS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, ranks) = match text.rsplit_once(':') {
            Some((name, ranks)) if !name.contains(':') || name.ends_with(']') => (name, Some(ranks)),
            _ => (text, None),
        };
        let name = match name.split_once('[') {
            Some((user, address)) => {
                format!("{user}{}", address.strip_suffix(']').ok_or("wanted ] behind the address")?)
            }
            None => name.to_owned(),
        };
        let ranks = ranks.map(|ranks| ranks.parse::<u32>().ok().filter(|ranks| (1..=65536).contains(ranks)));
        let odd = |c: char| c.is_whitespace() || c.is_control();
        match ranks {
            _ if name.is_empty() || name.starts_with('-') || name.contains(odd) => {
                Err("wanted names of hosts, with commas between them: a,b or a:4,b:4".into())
            }
            Some(None) => Err("wanted a number of ranks from 1 to 65536 behind the colon".into()),
            Some(Some(ranks)) => Ok(Self { name, ranks: Some(ranks) }),
            None => Ok(Self { name, ranks: None }),
        }
    }
}

/// How many ranks each host gets; `None`: one for each of its cores. Of `total` ranks, hosts without a number get what the others leave,
/// as even as possible, and the first one more.
pub(super) fn assign(hosts: &[HostSpec], total: Option<u32>) -> Result<Vec<Option<u32>>, String> {
    if let Some((at, host)) =
        hosts.iter().enumerate().find(|(at, host)| hosts[..*at].iter().any(|it| it.name == host.name))
    {
        let times = 1 + hosts[..at].iter().filter(|it| it.name == host.name).count();
        return Err(format!("--hosts names {0} {times} times; write {0}:{times}", host.name));
    }
    let Some(total) = total else { return Ok(hosts.iter().map(|host| host.ranks).collect()) };
    let free = hosts.iter().filter(|host| host.ranks.is_none()).count();
    let given = hosts.iter().filter_map(|host| host.ranks).map(u64::from).sum::<u64>();
    if free == 0 && given < u64::from(total) {
        return Err(format!(
            "-n {total}: --hosts has room for {given}; give hosts more, or leave their numbers out"
        ));
    }
    let mut left = total;
    let mut all = Vec::new();
    for host in hosts {
        let take = host.ranks.map(|ranks| ranks.min(left));
        left -= take.unwrap_or(0);
        all.push(take);
    }
    let (mut free, mut left) = (u32::try_from(free).unwrap_or(u32::MAX), left);
    for ranks in all.iter_mut().filter(|ranks| ranks.is_none()) {
        let take = left.div_ceil(free);
        *ranks = Some(take);
        (free, left) = (free - 1, left - take);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(text: &str) -> Vec<HostSpec> {
        text.split(',').map(|host| host.parse().unwrap()).collect()
    }

    #[test]
    fn hosts_are_read() {
        for (text, name, ranks) in [
            ("node1", "node1", None),
            ("node1:4", "node1", Some(4)),
            ("me@node1:2", "me@node1", Some(2)),
            ("10.0.0.1:8", "10.0.0.1", Some(8)),
            ("fd98::1", "fd98::1", None),
            ("[fd98::1]", "fd98::1", None),
            ("[fd98::1]:3", "fd98::1", Some(3)),
            ("me@[fd98::1]:3", "me@fd98::1", Some(3)),
        ] {
            assert_eq!(text.parse(), Ok(HostSpec { name: name.into(), ranks }), "{text}");
        }
        for text in ["", ":4", "a:", "a:0", "a:x", "a:65537", "-oProxyCommand=x", "a b", "a:-1"] {
            assert!(text.parse::<HostSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_are_given_to_hosts() {
        let of = |hosts, total| assign(&asked(hosts), total);
        assert_eq!(of("a,b", None), Ok(vec![None, None]));
        assert_eq!(of("a:2,b", None), Ok(vec![Some(2), None]));
        assert_eq!(of("a,b", Some(5)), Ok(vec![Some(3), Some(2)]));
        assert_eq!(of("a:4,b:4", Some(5)), Ok(vec![Some(4), Some(1)]));
        assert_eq!(of("a:1,b,c", Some(6)), Ok(vec![Some(1), Some(3), Some(2)]));
        assert_eq!(of("a,b,c", Some(2)), Ok(vec![Some(1), Some(1), Some(0)]));
        assert!(of("a:1,b:1", Some(3)).unwrap_err().contains("room for 2"));
        assert!(of("a,b,a", None).unwrap_err().contains("a:2"));
    }

    proptest! {
        #[test]
        fn all_ranks_have_a_host(given in prop::collection::vec(prop::option::of(1_u32..9), 1..6), total in 1_u32..40) {
            let hosts: Vec<_> =
                given.iter().enumerate().map(|(at, &ranks)| HostSpec { name: at.to_string(), ranks }).collect();
            if let Ok(all) = assign(&hosts, Some(total)) {
                prop_assert_eq!(all.iter().map(|ranks| ranks.unwrap()).sum::<u32>(), total);
            } else {
                prop_assert!(given.iter().map(|ranks| ranks.unwrap()).sum::<u32>() < total);
            }
        }
    }
}
