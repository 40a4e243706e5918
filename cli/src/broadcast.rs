//! `unisono broadcast`: copies a file, or some of its tensors, from one rank to a directory of every rank.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use unisono::ProcessGroup;
use unisono_files::{Delivered, Error, Options, PIECE, Progress};

use crate::{Result, progress::Bar};

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  srun --ntasks-per-node=1 unisono broadcast model.safetensors --to /local/models
  mpirun -n 16 unisono broadcast model.safetensors --to /local --tensors 'embed.*,lm_head.weight'
  unisono run -n 2 sh -c 'unisono broadcast FILE --to copy.$RANK'      two copies on this machine";

/// A transfer gets a progress bar after this time.
const AFTER: Duration = Duration::from_secs(1);
/// The time between two updates of the bar.
const EVERY: Duration = Duration::from_millis(100);

/// Copies a file of one rank to all ranks, each to its own directory.
///
/// The program is one rank of the job that its environment describes (srun, mpirun, torchrun, unisono run). Only the root must
/// have the file. If ranks share a directory, one of them writes. Parts of the file that exist there, for instance from an
/// interrupted transfer, are checked and not sent again. The file gets its name when it is complete and on the disks of all
/// ranks. If the transfer fails for one rank, all ranks end with status 1, and rank 0 prints the reason.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Broadcast {
    /// The file, on the root
    file: PathBuf,
    /// The directory to write to; it is created if it does not exist, and may differ between ranks
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Copy only these tensors of a .safetensors file: names separated by commas, with the wildcards * and ?
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    tensors: Vec<String>,
    /// The rank that has the file
    #[arg(short, long, value_name = "RANK", default_value_t = 0)]
    root: usize,
    /// The size of a piece, the unit of sending, checking and resuming [default: 4M]
    #[arg(long, value_name = "BYTES", value_parser = unisono::config::parse_size)]
    piece: Option<usize>,
    /// The provider: tcp, shm, verbs or an exact name of libfabric's (as UNISONO_PROVIDER)
    #[arg(long, value_parser = crate::meant::parse_provider)]
    provider: Option<String>,
    /// Also write the result to this file, as one line of JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Broadcast {
    /// Runs one rank. An error that this returns concerns this rank alone.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let group = ProcessGroup::from_env_with(|config| {
            config.provider = self.provider.clone().or_else(|| config.provider.take());
        })?;
        let reports = group.rank() == 0;
        let template = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let bar = Bar::new(template, reports, AFTER, EVERY);
        let mut update = |Progress { done, whole }| bar.draw((done, whole), String::new);
        let options = Options {
            tensors: &self.tensors,
            piece: self.piece.map_or(PIECE, |piece| piece as u64),
            progress: Some(&mut update),
        };
        let delivered = unisono_files::broadcast(&group, &self.file, &self.to, self.root, options);
        bar.end();
        let done = match delivered {
            // All ranks have the same error of a file; one prints it.
            Err(error @ Error::File { .. }) => {
                if reports {
                    crate::complain!("unisono broadcast: {error}");
                }
                ExitCode::FAILURE
            }
            Err(error) => return Err(error.into()),
            Ok(delivered) => {
                let reported = if reports { self.report(&delivered, &group) } else { Ok(()) };
                // If rank 0 cannot report, no rank ends with status 0.
                reported.inspect_err(|error| drop(group.abort(&error.to_string())))?;
                ExitCode::SUCCESS
            }
        };
        // A launcher ends the job when the first rank fails: leave together, after rank 0 has printed the reason.
        group.leave()?;
        Ok(done)
    }

    fn report(&self, delivered: &Delivered, group: &ProcessGroup) -> Result<()> {
        let Delivered { file, bytes, sent, writers, moving, syncing, .. } = delivered;
        let name = Path::new(file.file_name().unwrap_or_default()).display();
        let [moving, syncing] = [moving, syncing].map(Duration::as_secs_f64);
        let rate = *sent as f64 / moving / 1e9;
        let limits = group.limits();
        let (ranks, provider) = (group.size(), &limits.provider);
        let done = match (sent, writers) {
            (0, 0) => "it was there already; nothing was sent or written".to_owned(),
            (0, _) => format!(
                "nothing was left to send, written by {writers} of {ranks} ranks, synced to disk in {:.3} s",
                moving + syncing
            ),
            _ => format!(
                "{sent} B sent in {moving:.3} s ({rate:.2} GB/s), written by {writers} of {ranks} ranks over {provider}, \
                 synced to disk {syncing:.3} s later"
            ),
        };
        writeln!(io::stdout(), "{name}: {bytes} B, {done}")?;
        let Some(path) = &self.json else { return Ok(()) };
        let line = json!({
            "file": name.to_string(),
            "bytes": bytes,
            "sent": sent,
            "ranks": group.size(),
            "writers": writers,
            "moving_s": moving,
            "syncing_s": syncing,
            "GBps": rate,
            "provider": limits.provider,
            "library": limits.version,
        });
        let written = File::create(path).and_then(|mut file| writeln!(file, "{line}"));
        written.map_err(|error| format!("--json {}: {error}", path.display()).into())
    }
}
