//! Fits a fabric to this machine: measures short runs of a few ranks, and solves for the parameters with which the cost
//! model reproduces them.

use std::{
    io::{self, Write},
    process::{Stdio, id},
    thread::available_parallelism,
};

use unisono::dtype::Dtype;
use unisono_schedule::{
    Collective, Kind,
    cost::{Fabric, Path},
    price::{Effort, price},
};

use super::{
    Case, Result,
    measure_rank::{self, Measurements, Raw},
};
use crate::{bench::rows::median, invocation, words};

/// With more cores than this, ranks that share cores are not measured, because it would take too many processes.
const MOST_CORES: usize = 16;
/// If the bandwidth of each of both directions at once is less than this part of one alone, the processors move the bytes.
const SLOWED: f64 = 0.9;

/// Measures on this machine with `ranks` ranks, of which `at_once` can run at once. Returns what rank 0 found.
pub(super) fn run(
    ranks: usize,
    at_once: usize,
    provider: Option<&str>,
    arguments: &[String],
) -> Result<Measurements> {
    let mut command = invocation::command();
    // The launcher, and with it the ranks, ends with this process.
    command.args([crate::run::rank::NAME, &id().to_string(), "--"]).args(invocation::words());
    command.args(["run", "-n", &ranks.to_string(), "--"]).args(invocation::words());
    command.arg(measure_rank::NAME).args(arguments);
    command.arg(format!("--at-once={at_once}")).args(provider.map(|name| format!("--provider={name}")));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output
        .map_err(|error| format!("cannot start this program again by {}: {error}", invocation::shown()))?;
    if !output.status.success() {
        return Err(format!("the measurement with {ranks} ranks ended with {}", output.status).into());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find_map(|line| line.strip_prefix("[0] ").filter(|line| line.starts_with('{')));
    Ok(serde_json::from_str(line.ok_or("the measurement printed no result")?)?)
}

/// The algorithm to whose time the cost of a context switch is fitted, and how often it is measured.
const FITTED: &str = "recursive_doubling";
const CROWDED_RUNS: usize = 3;

/// The fabric that describes this machine, with all ranks on it.
pub(super) fn fabric(provider: Option<&str>) -> Result<Fabric> {
    let cores = available_parallelism().map_or(1, Into::into);
    let small = [Collective::AllReduce.name(), "--bytes=8"].map(str::to_owned);
    let pair = run(2, cores.min(2), provider, &[&small[..], &["--raw".to_owned()]].concat())?;
    let raw = pair.raw.ok_or("the measurement printed no result for raw puts")?;
    // A message as the engine sends it, with header and credit.
    let hop = pair.of(8).find(|(it, _)| it.name == "direct").map_or(raw.one_way, |it| it.1);
    let fabric = fit(&raw, hop, cores);
    let crowd = 2 * cores;
    if !(2..=MOST_CORES).contains(&cores) {
        return Ok(fabric);
    }
    // The median, because short runs of ranks that share cores are easily disturbed.
    let mut times = Vec::new();
    for _ in 0..CROWDED_RUNS {
        let found = run(crowd, cores, provider, &small)?;
        times.extend(found.of(8).find(|(it, _)| it.name == FITTED).map(|it| it.1));
    }
    Ok(if times.is_empty() { fabric } else { fit_switch(fabric, crowd, median(times)) })
}

/// Fits a fabric to puts between two ranks with a core each, and to the time of a small message between them (s).
fn fit(raw: &Raw, hop: f64, cores: usize) -> Fabric {
    let hop = hop.max(raw.one_way);
    // The time that the engine adds to a put is processor time.
    let overhead = raw.put.min(raw.one_way / 2.0) + (hop - raw.one_way) / 2.0;
    // Without pinned pages no NIC reads memory, even if one direction alone is no faster than each of both at once.
    let moved = raw.cheap_registration || raw.both < SLOWED * raw.bandwidth;
    let per_byte = if moved { 0.5 / raw.both } else { 0.0 };
    Fabric {
        name: "this machine",
        summary: "as it was measured just now",
        kind: if moved { Kind::Sockets } else { Kind::Rdma },
        between: Path {
            latency: (hop - 2.0 * overhead).max(0.0),
            send_overhead: overhead,
            receive_overhead: overhead,
            // If processors copy the bytes, the port is their memory.
            bandwidth: if moved { raw.bandwidth.max(raw.copy) } else { raw.bandwidth },
            send_per_byte: per_byte,
            receive_per_byte: per_byte,
        },
        ports: usize::MAX,
        reduction: raw.reduction,
        copy: raw.copy,
        cheap_registration: raw.cheap_registration,
        ranks_per_host: usize::MAX,
        cores,
        // Nothing else was measured.
        ..Fabric::TCP
    }
}

/// Fits the time of a context switch, so that a small all_reduce among ranks that share cores takes `wanted` seconds.
fn fit_switch(fabric: Fabric, ranks: usize, wanted: f64) -> Fabric {
    let case = Case::new(Collective::AllReduce, ranks, 8, Dtype::F32).on(&fabric);
    let Some((algorithm, plan)) = case.plans().find(|(it, _)| it.name == FITTED) else { return fabric };
    let job = case.job(plan, &case.choice(algorithm));
    let (mut low, mut high) = (0.0, 1e-3);
    for _ in 0..30 {
        let switch = f64::midpoint(low, high);
        let predicted = price(plan, &job, case.dtype.size(), &Fabric { switch, ..fabric }, Effort::EXACT);
        if predicted.is_ok_and(|cost| cost.seconds < wanted) { low = switch } else { high = switch }
    }
    Fabric { switch: high, ..fabric }
}

/// Prints the fitted parameters.
pub(super) fn print(fabric: &Fabric) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let rate = |bytes: f64| format!("{:.2} GB/s", bytes / 1e9);
    writeln!(out, "measured here (docs/cost.md says how):")?;
    for (name, value) in [
        ("latency", words::time(fabric.between.latency)),
        ("overhead of a put at each end", words::time(fabric.between.send_overhead)),
        ("bandwidth of a port", rate(fabric.between.bandwidth)),
        ("processor time for a byte at each end", format!("{:.3} ns", fabric.between.send_per_byte * 1e9)),
        ("reduction", rate(fabric.reduction)),
        ("copy", rate(fabric.copy)),
        ("cores", fabric.cores.to_string()),
        ("switch between ranks on a core", words::time(fabric.switch)),
    ] {
        writeln!(out, "  {name:<46} {value:>12}")?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: Raw = Raw {
        one_way: 5e-6,
        put: 1e-6,
        bandwidth: 6e9,
        both: 3e9,
        reduction: 13e9,
        copy: 12e9,
        cheap_registration: true,
    };

    #[test]
    fn a_fit_repeats_what_was_measured() {
        let fabric = fit(&RAW, 8e-6, 2);
        assert!(
            (fabric.between.latency + fabric.between.send_overhead + fabric.between.receive_overhead - 8e-6)
                .abs()
                < 1e-12
        );
        assert!((fabric.between.latency - 3e-6).abs() < 1e-12);
        // Each of two ranks sends and receives a byte in a third of a nanosecond.
        assert!(
            (fabric.between.send_per_byte + fabric.between.receive_per_byte - 1.0 / RAW.both).abs() < 1e-15
        );
        // A NIC that is as fast in both directions at once moves the bytes by itself.
        assert!(fit(&Raw { both: 5.9e9, ..RAW }, 5e-6, 2).between.send_per_byte > 0.0);
        let nic = fit(&Raw { both: 5.9e9, cheap_registration: false, ..RAW }, 5e-6, 2);
        assert!(nic.between.send_per_byte == 0.0 && nic.between.bandwidth == RAW.bandwidth);
        // Whatever is measured, nothing comes out negative.
        assert!(fit(&Raw { put: 9e-6, ..RAW }, 1e-6, 2).between.latency >= 0.0);

        let fitted = fit_switch(fabric, 4, 150e-6);
        let case = Case::new(Collective::AllReduce, 4, 8, Dtype::F32);
        let (algorithm, plan) = case.plans().find(|(it, _)| it.name == FITTED).unwrap();
        let job = case.job(plan, &case.choice(algorithm));
        let cost = price(plan, &job, 4, &fitted, Effort::EXACT).unwrap();
        assert!((cost.seconds / 150e-6 - 1.0).abs() < 0.01, "{cost:?}");
    }
}
