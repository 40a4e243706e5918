//! Guesses what a user means by a word that is no name of this program: another spelling of one, its name elsewhere, or a typing
//! mistake.

/// Names here, and those that the same things have in other programs: in nccl-tests, OSU's benchmarks, MPI and torch. Only the
/// digits and alphabetic characters of a word count, in lower case, without what [`bare`] takes off.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("broadcast", &["bcast"]),
    ("reduce_scatter", &["reducescatterblock"]),
    ("all_to_all", &["alltoallbase", "alltoallsingle", "exchange"]),
    ("send_recv", &["latency", "latencymt", "bw", "bibw", "mbwmr", "multilat"]),
    ("send_recv", &["pingpong", "p2p", "pt2pt", "isendirecv"]),
    ("put", &["putlatency", "putbw", "putbibw", "writelat", "writebw", "rdma"]),
    ("product", &["mul"]),
    ("sum", &["add"]),
    ("min", &["minimum"]),
    ("max", &["maximum"]),
    ("recursive_doubling", &["recdoubling", "doubling"]),
    ("rabenseifner", &["halvingdoubling"]),
    ("verbs", &["ib", "infiniband", "roce", "ibverbs"]),
    ("tcp", &["ethernet", "socket"]),
    ("shm", &["sharedmemory"]),
    ("cxi", &["slingshot"]),
    ("opx", &["omnipath"]),
];

/// The name among these that the user most likely means.
pub(crate) fn meant<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let names: Vec<&str> = names.into_iter().collect();
    let written = squeezed(word);
    let spellings = [written.as_str(), bare(&written)];
    let spelt = |wanted: &str| names.iter().copied().find(|name| squeezed(name) == wanted);
    for spelling in spellings {
        // Variants with lengths or views, and those that begin and are waited for, are measured as the plain call.
        let plain = |word: &str| {
            let elsewhere = ELSEWHERE.iter().find(|(_, others)| others.contains(&word));
            spelt(word).or_else(|| elsewhere.and_then(|(ours, _)| spelt(&squeezed(ours))))
        };
        let shorter = |word: &str| {
            word.strip_suffix(['v', 'w']).and_then(plain).or_else(|| word.strip_prefix('i').and_then(plain))
        };
        let unstarted = spelling.strip_prefix('i').and_then(shorter);
        if let Some(name) = plain(spelling).or_else(|| shorter(spelling)).or(unstarted) {
            return Some(name);
        }
    }
    let distance = |name: &str| strsim::damerau_levenshtein(spellings[1], &squeezed(name));
    let (distance, name) = names.iter().map(|name| (distance(name), *name)).min_by_key(|(far, _)| *far)?;
    // A third of the name may be wrong, or one character.
    (distance <= (squeezed(name).len() / 3).max(1) && spellings[1].len() > distance).then_some(name)
}

/// `did you mean X? `, or nothing.
pub(crate) fn question<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    meant(word, names).map_or_else(String::new, |name| format!("did you mean {name}? "))
}

/// The names of libfabric's providers. There may be others: a name that is like none of these passes.
const PROVIDERS: [&str; 17] = [
    "tcp", "shm", "verbs", "efa", "cxi", "psm2", "psm3", "opx", "sockets", "udp", "net", "sm2", "ucx", "lnx",
    "gni", "usnic", "mrail",
];

/// Reads the names of providers, separated by commas, and refuses one that is likely meant to be another.
pub(crate) fn parse_provider(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("wanted the name of a provider, for instance tcp".into());
    }
    let known = |name: &str| PROVIDERS.iter().any(|known| known.eq_ignore_ascii_case(name));
    // A composed name (`verbs;ofi_rxm`) is libfabric's own.
    let odd =
        |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_- ".contains(c)) && !known(name);
    match text.split(',').filter(odd).find_map(|name| Some((name, meant(name, PROVIDERS)?))) {
        Some((name, meant)) => Err(format!("there is no provider {name:?}; did you mean {meant}?")),
        None => Ok(text.to_owned()),
    }
}

/// The alphabetic characters and digits of a word, in lower case.
fn squeezed(word: &str) -> String {
    word.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}

/// A squeezed word without the parts that name its library or its variant.
fn bare(word: &str) -> &str {
    let word = ["osu", "mpi", "nccl", "rccl", "gloo", "ib", "dist"]
        .iter()
        .find_map(|whose| word.strip_prefix(whose).filter(|rest| !rest.is_empty()))
        .unwrap_or(word);
    ["perf", "intotensor", "tensor", "coalesced", "async", "persistent"]
        .iter()
        .find_map(|what| word.strip_suffix(what).filter(|rest| !rest.is_empty()))
        .unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCHES: [&str; 11] = [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "barrier",
        "reduce",
        "gather",
        "scatter",
        "all_to_all",
        "send_recv",
        "put",
    ];

    #[test]
    fn names_of_other_programs_and_slips_are_recognised() {
        for (written, name) in [
            ("allreduce", "all_reduce"),
            ("all-reduce", "all_reduce"),
            ("AllReduce", "all_reduce"),
            ("ALL_REDUCE", "all_reduce"),
            ("all_reduce_perf", "all_reduce"),
            ("reduce_scatter_perf", "reduce_scatter"),
            ("sendrecv_perf", "send_recv"),
            ("alltoall_perf", "all_to_all"),
            ("osu_allreduce", "all_reduce"),
            ("osu_iallreduce", "all_reduce"),
            ("osu_ibcast", "broadcast"),
            ("osu_allgatherv", "all_gather"),
            ("osu_ialltoallw", "all_to_all"),
            ("osu_barrier", "barrier"),
            ("osu_mbw_mr", "send_recv"),
            ("osu_latency", "send_recv"),
            ("osu_put_bw", "put"),
            ("ib_write_bw", "put"),
            ("MPI_Reduce_scatter_block", "reduce_scatter"),
            ("ncclAllGather", "all_gather"),
            ("all_gather_into_tensor", "all_gather"),
            ("reduce_scatter_tensor", "reduce_scatter"),
            ("all_redcue", "all_reduce"),
            ("brodcast", "broadcast"),
            ("allgahter", "all_gather"),
        ] {
            assert_eq!(meant(written, BENCHES), Some(name), "{written}");
        }
        for written in ["", "_", "x", "--", "hello", "magic", "ü"] {
            assert_eq!(meant(written, BENCHES), None, "{written}");
        }
        assert!(BENCHES.iter().all(|name| meant(name, BENCHES) == Some(name)));
        assert_eq!(meant("fp32", ["f16", "f32"]), Some("f32"));
        assert_eq!(meant("bcast", ["f16", "f32"]), None, "a name that is not to be had here");
        assert_eq!(meant("Ring", ["tree", "ring"]), Some("ring"));
    }

    #[test]
    fn a_provider_that_is_nearly_one_is_refused_and_any_other_passes() {
        for (written, name) in
            [("tpc", "tcp"), ("TPC", "tcp"), ("infiniband", "verbs"), ("shm,tcpp", "tcp"), ("verb", "verbs")]
        {
            let problem = parse_provider(written).unwrap_err();
            assert!(problem.contains(&format!("did you mean {name}?")), "{written}: {problem}");
        }
        for passed in ["tcp", "TCP", "shm,tcp", "verbs;ofi_rxm", "tcp;ofi_rxm", "pigeon", "sm2", "net"] {
            assert_eq!(parse_provider(passed).as_deref(), Ok(passed));
        }
        assert!(parse_provider("").is_err());
    }
}
