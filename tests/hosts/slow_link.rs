//! Speed between hosts whose ports are limited: the default algorithm beside the others, the fastest first. It prints times and
//! asserts nothing about them.

use std::time::{Duration, Instant};

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, join,
    network::Hosts,
    rank::{self, Role, say},
    world::{End, TestJob},
    worlds::PORT,
};

pub(crate) const CASES: Table = &[
    ("all_reduce between 2 hosts of 2 ranks, 1 Gbit/s", |provider| bench(provider, 2, 2)),
    ("all_reduce between 2 hosts of 4 ranks, 1 Gbit/s", |provider| bench(provider, 2, 4)),
    ("all_reduce between 4 hosts of a rank, 1 Gbit/s", |provider| bench(provider, 4, 1)),
];

pub(crate) const ROLES: &[Role] = &[("measures-all-reduce", play_measures)];

/// The algorithms that are measured beside the default.
const ALGORITHMS: [&str; 7] =
    ["direct", "star", "recursive_doubling", "two_shot", "rabenseifner", "ring", "tree"];
/// Numbers of bytes, and the time for which an algorithm is measured with each.
const SIZES: [(usize, Duration); 4] = [
    (8, Duration::from_millis(50)),
    (64 << 10, Duration::from_millis(100)),
    (4 << 20, Duration::from_millis(300)),
    (16 << 20, Duration::from_millis(300)),
];

fn bench(provider: &str, hosts: usize, each: usize) -> Outcome {
    let all = Hosts::on_one_network(hosts)?;
    for host in 0..hosts {
        if let Err(error) = all.limit(&format!("host{host}"), "eth0", 1000) {
            return Ok(Verdict::Skipped(format!("no link can be limited here: {error}")));
        }
    }
    let mut world = TestJob::at(provider, hosts * each, &format!("tcp://10.77.0.1:{PORT}"));
    for rank in 0..hosts * each {
        all.run(&mut world, &format!("host{}", rank / each), rank, "measures-all-reduce", &[])?;
    }
    let ends = world.end_all()?;
    ends.iter().try_for_each(End::well)?;
    let table = ends.first().ok_or("no rank")?.said("table")?;
    Ok(Verdict::Measured(table.to_owned()))
}

/// Measures the default and each algorithm at each size. Prints the medians of the slowest rank.
fn play_measures(_: &str) -> rank::Outcome {
    let group = join()?;
    let mut messages = Vec::new();
    for (bytes, long) in SIZES {
        let mut data = vec![1.0_f32; bytes.div_ceil(4)];
        let collective = unisono::schedule::Collective::AllReduce;
        let chosen = group.choice(collective, data.len(), unisono::dtype::Dtype::F32)?.algorithm.name;
        let mut times = Vec::new();
        for name in ALGORITHMS {
            let handle = group.with_algorithms(name)?;
            let (begun, mut samples) = (Instant::now(), Vec::new());
            // The first call opens windows. All ranks go on until the slowest has finished.
            let mut more = [1.0_f32];
            while more[0] > 0.0 {
                data.fill(1.0);
                group.barrier()?;
                let call = Instant::now();
                handle.all_reduce(&mut data, ReduceOp::Max)?;
                samples.push(call.elapsed().as_secs_f32());
                more[0] = f32::from(u8::from(samples.len() < 2 || begun.elapsed() < long));
                group.all_reduce(&mut more, ReduceOp::Max)?;
            }
            let after_first = &mut samples[1..];
            after_first.sort_by(f32::total_cmp);
            let mut median = [after_first.get(after_first.len() / 2).copied().unwrap_or(f32::INFINITY)];
            group.all_reduce(&mut median, ReduceOp::Max)?;
            times.push((name, 1e6 * median[0]));
        }
        times.sort_by(|one, other| one.1.total_cmp(&other.1));
        let default = times.iter().find(|(name, _)| *name == chosen).map_or(f32::NAN, |(_, time)| *time);
        let all: Vec<_> = times.iter().map(|(name, time)| format!("{name} {time:.0}")).collect();
        messages.push(format!("{bytes} B: default {chosen} {default:.0} µs, of {}", all.join(", ")));
    }
    say("table", messages.join("; "));
    Ok(group.leave()?)
}
