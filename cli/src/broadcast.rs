//! `unisono broadcast`: a file, or some of its tensors, from one rank to a directory of every rank.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::builder::NonEmptyStringValueParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use unisono::{Config, ProcessGroup};
use unisono_files::{Delivered, Error, Options, PIECE, Progress};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What people begin with.
const EXAMPLES: &str = "\
Examples:
  srun --ntasks-per-node=1 unisono broadcast model.safetensors --to /local/models
  mpirun -n 16 unisono broadcast model.safetensors --to /local --tensors 'embed.*,lm_head.weight'
  unisono run -n 2 sh -c 'unisono broadcast FILE --to copy.$RANK'      two copies on this machine";

/// Shorter transfers need no bar.
const AFTER: Duration = Duration::from_secs(1);
/// How often it is drawn.
const EVERY: Duration = Duration::from_millis(100);

/// Hands a file of one rank to all, each of which finds it in a directory of its own.
///
/// It is one rank of the group that its environment describes (srun, mpirun, torchrun, unisono run); one rank alone copies.
/// Only the root need have the file, and one rank of those that share a directory writes. What an earlier attempt has left
/// behind, or is there already, is checked and not sent again. The file takes its name when it is whole and on the
/// disks of all ranks; if it cannot be handed to one of them, all end with status 1, and rank 0 says why.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Broadcast {
    /// The file, at the root
    file: PathBuf,
    /// The directory for it, made where there is none; ranks may name different ones
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Of a .safetensors file only these tensors: names after commas, in which * and ? stand for others
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    tensors: Vec<String>,
    /// The rank that has the file
    #[arg(short, long, value_name = "RANK", default_value_t = 0)]
    root: usize,
    /// Bytes of a piece, the unit in which it is sent, checked and resumed [default: 4M]
    #[arg(long, value_name = "BYTES", value_parser = unisono::config::parse_size)]
    piece: Option<usize>,
    /// The libfabric provider: tcp, shm, verbs or an exact name (as UNISONO_PROVIDER)
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    provider: Option<String>,
    /// Write what came of it to this file too, as a JSON object on a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Broadcast {
    pub(crate) fn run(self) -> ExitCode {
        crate::status("broadcast", self.hand_over())
    }

    /// Is one rank. An error is this rank's to tell.
    fn hand_over(&self) -> Result<ExitCode> {
        let mut config = Config::from_env()?;
        if let Some(provider) = &self.provider {
            config.provider = Some(provider.clone());
        }
        let group = ProcessGroup::join(config)?;
        let reports = group.rank() == 0;
        let bar = Bar::new(reports);
        let mut tell = |progress| bar.tell(progress);
        let options = Options {
            tensors: &self.tensors,
            piece: self.piece.map_or(PIECE, |piece| piece as u64),
            progress: Some(&mut tell),
        };
        let delivered = unisono_files::broadcast(&group, &self.file, &self.to, self.root, options);
        bar.end();
        let done = match delivered {
            // All know the same of a file, and one tells.
            Err(error @ Error::File { .. }) => {
                if reports {
                    crate::complain!("unisono broadcast: {error}");
                }
                ExitCode::FAILURE
            }
            Err(error) => return Err(error.into()),
            Ok(delivered) => {
                let reported = if reports { self.report(&delivered, &group) } else { Ok(()) };
                // So that no rank ends well where rank 0 cannot say so.
                reported.inspect_err(|error| drop(group.abort(&error.to_string())))?;
                ExitCode::SUCCESS
            }
        };
        // A launcher ends all at the first that fails: not before rank 0 has told.
        group.leave()?;
        Ok(done)
    }

    fn report(&self, delivered: &Delivered, group: &ProcessGroup) -> Result<()> {
        let Delivered { file, bytes, sent, writers, moving, syncing, .. } = delivered;
        let name = Path::new(file.file_name().unwrap_or_default()).display();
        let [moving, syncing] = [moving, syncing].map(Duration::as_secs_f64);
        let rate = *sent as f64 / moving / 1e9;
        let limits = group.limits();
        writeln!(
            io::stdout(),
            "{name}: {bytes} B, {sent} B sent in {moving:.3} s ({rate:.2} GB/s), written by {writers} of {} ranks over {}, \
             on their disks {syncing:.3} s later",
            group.size(),
            limits.provider,
        )?;
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
            "libfabric": limits.version,
        });
        let written = File::create(path).and_then(|mut file| writeln!(file, "{line}"));
        written.map_err(|error| format!("--json {}: {error}", path.display()).into())
    }
}

/// What a person who waits gets to see, on a terminal.
struct Bar {
    bar: ProgressBar,
    wanted: bool,
    next: std::cell::Cell<Instant>,
}

impl Bar {
    /// `wanted` on the one rank that reports.
    fn new(wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let words = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(words) {
            bar.set_style(style);
        }
        let next = std::cell::Cell::new(Instant::now() + AFTER);
        Self { bar, wanted: wanted && io::stderr().is_terminal(), next }
    }

    fn tell(&self, Progress { done, whole }: Progress) {
        if !self.wanted || Instant::now() < self.next.get() {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.set_length(whole);
        }
        self.bar.set_position(done);
        self.next.set(Instant::now() + EVERY);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
