//! `unisono simulate-join`: what it takes that many ranks join.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Instant,
};

use unisono::ProcessGroup;

use super::Result;
use crate::words;

/// Rehearses how many ranks join, and prints messages, bytes, seconds and the memory of a rank.
///
/// The ranks are imagined, one after the other in this process. They tell each other what ranks of a cluster would, by the code that
/// real ranks run; nothing is sent.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  unisono simulate-join --ranks 10000 --ranks-per-host 64")]
pub(crate) struct SimulateJoin {
    /// The number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: u32,
    /// The number of ranks of a host
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: u32,
}

impl SimulateJoin {
    pub(crate) fn run(self) -> ExitCode {
        crate::status("simulate-join", self.print())
    }

    fn print(&self) -> Result<()> {
        let (ranks, per_host) = (self.ranks as usize, self.ranks_per_host as usize);
        let begun = Instant::now();
        let cost = ProcessGroup::simulate_join(ranks, per_host)?;
        let took = begun.elapsed().as_secs_f64();
        let each = |count: u64| format!("{:.1} a rank", count as f64 / ranks as f64);
        let mut out = io::stdout().lock();
        writeln!(out, "{} on {}", words::some(ranks, "rank"), words::some(ranks.div_ceil(per_host), "host"))?;
        let mut row = |what: &str, count: u64| writeln!(out, "{what:<38}{count:>14}  {}", each(count));
        row("the roster, bytes", cost.roster_bytes as u64)?;
        row("requests to the store", cost.requests)?;
        row("their bytes", cost.requests_bytes)?;
        row("bytes of the store's replies", cost.replies_bytes)?;
        row("messages that spread the roster", cost.messages)?;
        row("their bytes", cost.messages_bytes)?;
        row("most bytes of them by one rank", cost.most_bytes)?;
        row("a rank's memory: the roster", cost.roster_memory as u64)?;
        row("a rank's memory: links and members", cost.engine_memory as u64)?;
        row("a rank's memory: registered", cost.registered_memory as u64)?;
        writeln!(out, "most cards that a rank fetches        {:>14}", cost.most_fetched)?;
        let (made, read) = (cost.made.as_secs_f64(), cost.read.as_secs_f64());
        writeln!(
            out,
            "seconds: to make the roster {made:.4}, to read it {read:.4}, for all of this {took:.2}"
        )?;
        Ok(())
    }
}
