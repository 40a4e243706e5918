//! The hidden subcommand that runs one rank of a short measurement, to fit a fabric or to compare a prediction with. Rank 0
//! writes the result as a line of JSON.

use std::{
    hint::black_box,
    io::{self, Write},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono::{Config, ProcessGroup, ReduceOp, Reduction, dtype::Dtype, reduce::Kernel};
use unisono_schedule::{
    Collective,
    algorithm::{Algorithm, find},
    cost::Fabric,
};

use super::{Case, Result};
use crate::{
    bench::{
        progress::Progress,
        put_pair,
        rows::{self, quantile},
    },
    tune::measure::{self, Way},
};

/// The name of the subcommand.
pub(crate) const NAME: &str = "measure-one-rank";

/// One rank.
#[derive(clap::Args)]
pub(crate) struct OneRank {
    /// Which collective
    #[arg(value_parser = super::parse_collective)]
    collective: Collective,
    /// Sizes in bytes, of which every algorithm is measured
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    /// How many of the ranks can run at once, by which algorithms' chunks and lanes are chosen
    #[arg(long)]
    at_once: usize,
    /// Also measure raw puts and loops
    #[arg(long)]
    raw: bool,
    #[arg(long)]
    provider: Option<String>,
}

/// The results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measurements {
    /// The provider and the version of libfabric.
    pub(super) library: String,
    pub(super) raw: Option<Raw>,
    /// Size in bytes, algorithm and median time (s).
    pub(super) times: Vec<(usize, String, f64)>,
}

/// The times of puts between two ranks, and of loops that run on both at once.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Raw {
    /// Half a round trip of 8 bytes, the first decile (s).
    pub(super) one_way: f64,
    /// The time from one put of 8 bytes to the next, one way (s).
    pub(super) put: f64,
    /// The bandwidth of puts of 256 KiB (bytes/s): one way, and in each direction of both at once.
    pub(super) bandwidth: f64,
    pub(super) both: f64,
    /// Bytes of the result per second, of a sum of f32 and of a copy.
    pub(super) reduction: f64,
    pub(super) copy: f64,
    /// As [`Limits::cheap_registration`](unisono_transport::Limits::cheap_registration).
    pub(super) cheap_registration: bool,
}

impl OneRank {
    pub(crate) fn run(self) -> Result<()> {
        let usual = Config::default();
        let group = ProcessGroup::from_env_with(|config| {
            config.provider = self.provider.clone().or_else(|| config.provider.take());
            // The settings that the predictions assume.
            config.tuning = None;
            config.reduction = Reduction::Fastest;
            (config.chunk, config.lanes) = (usual.chunk, usual.lanes);
        })?;
        let found = self.find(&group).inspect_err(|error| drop(group.abort(&error.to_string())))?;
        if group.rank() == 0 {
            writeln!(io::stdout(), "{}", serde_json::to_string(&found)?)?;
        }
        Ok(())
    }

    fn find(&self, group: &ProcessGroup) -> Result<Measurements> {
        let limits = group.limits();
        let library = format!("{} ({})", limits.provider, limits.version);
        let raw = if self.raw { Some(raw(group)?) } else { None };
        let progress = Progress::new(0, false);
        let mut times = Vec::new();
        for &bytes in &self.bytes {
            let case = Case::new(self.collective, group.size(), bytes, Dtype::F32);
            // All ranks are on this machine.
            let case = case.on(&Fabric { cores: self.at_once, ..case.fabric });
            let ways = case.plans().map(|(algorithm, _)| Way::new(group, case.choice(algorithm)));
            let ways: Vec<Way> = ways.collect::<unisono::Result<_>>()?;
            let seconds = measure::seconds(group, &case, &ways, &progress)?;
            let timed = ways.iter().zip(seconds);
            times.extend(timed.map(|(way, time)| (bytes, way.choice.algorithm.name.to_owned(), time)));
        }
        Ok(Measurements { library, raw, times })
    }
}

impl Measurements {
    /// The algorithms of a size with their times (s).
    pub(super) fn of(&self, bytes: usize) -> impl Iterator<Item = (&'static Algorithm, f64)> {
        self.times.iter().filter(move |it| it.0 == bytes).filter_map(|it| Some((find(&it.1)?, it.2)))
    }
}

fn raw(group: &ProcessGroup) -> Result<Raw> {
    const LARGE: usize = 256 << 10;
    const LARGE_PUTS: u32 = 64;
    const SMALL_PUTS: u32 = 500;
    // Short runs, so that other programs do not disturb the best one.
    const RUNS: u32 = 24;
    let mut pair = put_pair::pair(group, LARGE)?.ok_or("raw puts need two ranks")?;
    pair.ping_pong(8, 500)?;
    let times = pair.ping_pong(8, 4000)?;
    let mut fastest = |bytes: usize, puts: u32, both: bool| -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            let seconds = pair.stream(bytes, put_pair::WINDOW, u64::from(puts), both)?;
            least = least.min(seconds / f64::from(puts));
        }
        Ok(least)
    };
    let put = fastest(8, SMALL_PUTS, false)?;
    let large = LARGE as f64;
    let bandwidth = large / fastest(LARGE, LARGE_PUTS, false)?;
    let both = large / fastest(LARGE, LARGE_PUTS, true)?;
    // The other side may still be waiting for the last acknowledgement to leave.
    pair.ping_pong(8, 1)?;
    group.barrier()?;
    let kernel = Kernel::new(Dtype::F32, ReduceOp::Sum)?;
    let (a, b, mut into) = (vec![1_u8; LARGE], vec![2_u8; LARGE], vec![0_u8; LARGE]);
    let reduction = large / median(|| kernel.combine(black_box(&a), black_box(&b), black_box(&mut into)))?;
    let copy = large
        / median(|| {
            black_box(&mut into).copy_from_slice(black_box(&a));
            Ok(())
        })?;
    group.barrier()?;
    let (one_way, cheap_registration) = (quantile(&times, 0.1), group.limits().cheap_registration);
    Ok(Raw { one_way, put, bandwidth, both, reduction, copy, cheap_registration })
}

/// The median time of a call, over some milliseconds (s).
fn median(mut call: impl FnMut() -> std::result::Result<(), unisono::reduce::KernelError>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..500 {
        let begun = Instant::now();
        call()?;
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok(rows::median(times).max(1e-9))
}
