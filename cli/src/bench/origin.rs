//! The place and the time of a bench, and the ranks that take part.

use std::fs;

use serde::{Deserialize, Serialize};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};
use unisono::{ProcessGroup, hardware::Processors};
use unisono_transport::Limits;

use super::{
    Result,
    compute::processors,
    table::{self, Column},
};

/// A rank, and where it is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RankPlace {
    pub(super) host: String,
    pub(super) pid: u32,
    /// The processors on which it may run.
    pub(super) cores: Processors,
    /// A value that only this rank and those that share memory with it have.
    shares: Option<[u64; 2]>,
}

/// The places of the ranks, and the time.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) date: String,
    pub(super) processor: String,
    pub(super) places: Vec<RankPlace>,
    limits: Limits,
}

/// If there are more ranks, the table has only the first of each host.
const MOST_RANKS: usize = 64;

impl Origin {
    /// To be called by all ranks.
    pub(super) fn of(group: &ProcessGroup) -> Result<Self> {
        let (host, cores) = processors();
        let limits = group.limits();
        #[allow(clippy::cast_possible_truncation, reason = "two halves")]
        let own = RankPlace {
            host,
            pid: std::process::id(),
            cores,
            shares: limits.shares.map(|it| [(it >> 64) as u64, it as u64]),
        };
        let described = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = described.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Ok(Self {
            date: date(),
            processor: model
                .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned()),
            places: group.all_gather_object(&own)?,
            limits: limits.clone(),
        })
    }

    /// This rank's host and number of cores; only rank 0 calls this.
    pub(super) fn first(&self) -> (&str, usize) {
        self.places.first().map_or(("", 0), |place| (&place.host, place.cores.len()))
    }

    /// The number of hosts.
    pub(super) fn hosts(&self) -> usize {
        let names: std::collections::BTreeSet<_> = self.places.iter().map(|place| &place.host).collect();
        names.len()
    }

    /// The way in which rank 0 reaches a rank.
    fn way(&self, rank: usize) -> &str {
        let (Some(first), Some(other)) = (self.places.first(), self.places.get(rank)) else { return "" };
        let fabric = self.limits.provider.strip_prefix("shm,").unwrap_or(&self.limits.provider);
        match rank {
            0 => "-",
            _ if self.limits.one_host || first.shares.is_some() && first.shares == other.shares => "shm",
            _ => fabric,
        }
    }

    /// The lines that say where the ranks are.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let host = self.places.iter().map(|place| place.host.len()).max().unwrap_or(0).clamp(4, 40);
        let few = self.places.len() <= MOST_RANKS;
        let mut lines = Vec::new();
        let mut last = "";
        for (rank, place) in self.places.iter().enumerate() {
            if few || place.host != last {
                let columns = vec![
                    Column::new("rank", "", 8, 0, rank),
                    Column::new("host", "", host, 0, &place.host),
                    Column::new("pid", "", 8, 2, place.pid),
                    Column::new("cores", "", 16, 1, &place.cores),
                    Column::new("way", "", 12, 1, self.way(rank)),
                ];
                let columns = table::fitting(columns, width);
                if lines.is_empty() {
                    lines = table::head(&columns);
                }
                lines.push(format!("#{}", table::row(&columns).get(1..).unwrap_or_default()));
            }
            last = &place.host;
        }
        if !few {
            lines.push(format!("# of {} ranks, the first of each host's", self.places.len()));
        }
        lines
    }
}

/// The time, in UTC, in the form of ISO 8601, to the second.
fn date() -> String {
    let mut text = String::new();
    // It fails only for a clock that is set to long ago.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text.split_once('.').map_or_else(String::new, |(seconds, _)| format!("{seconds}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_as_people_write_them() {
        let date = date();
        let digits: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(digits, "0000-00-00T00:00:00Z", "{date}");
    }
}
