//! One trial of the self-test: two ranks, started as by `unisono run`, form a group and reduce.

use std::{
    io::{self, Read},
    process::{Command, Stdio},
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use unisono::{ProcessGroup, ReduceOp};

use super::apart;
use crate::{
    bench::rows,
    invocation,
    words::{size, some},
};

/// The name of the subcommand.
pub(crate) const NAME: &str = "doctor-one-rank";

/// The number of ranks.
const RANKS: usize = 2;
/// Elements of the two vectors that are reduced: 8 B and 1 MiB.
const COUNTS: [usize; 2] = [2, 1 << 18];
/// How many calls of each are timed, after a tenth as many to warm up.
const CALLS: [u32; 2] = [200, 20];
/// How long the ranks may wait for each other, in seconds; the whole trial takes less than one.
const TIMEOUT: &str = "10";
/// How long the job may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What rank 0 reports of the group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reduced {
    /// The provider's name.
    pub(super) provider: String,
    /// True if registered memory is pinned, and so counts against the limit on locked memory.
    pub(super) pins: bool,
    /// True if sources must be registered.
    pub(super) staging: bool,
    /// True if a wait can sleep until a message arrives.
    pub(super) wakes: bool,
    /// True if each rank may read all memory of the other; `None` if they share no memory.
    pub(super) reads: Option<bool>,
    /// True if it goes through the kernel's sockets.
    pub(super) sockets: bool,
    /// The median time of an all_reduce of 8 B and of 1 MiB, in µs.
    pub(super) times_us: [f64; 2],
}

impl Reduced {
    pub(super) fn words(&self) -> String {
        let sizes = COUNTS.map(|count| size(count * size_of::<f32>()));
        let times =
            sizes.iter().zip(self.times_us).map(|(size, time)| format!("{size} in about {time:.0} us"));
        let times = times.collect::<Vec<_>>().join(", ");
        let sleeps = match self.wakes {
            true => "",
            false => "; waits must poll, because this provider cannot wake a thread that sleeps",
        };
        let reads = match self.reads {
            Some(false) => {
                "; they may not read each other's memory, so that moved elements of plain memory are copied once more \
                 (UNISONO_PEER_READS, or the system: seccomp, Yama, namespaces)"
            }
            Some(true) | None => "",
        };
        let (ranks, provider) = (some(RANKS, "rank"), &self.provider);
        format!("{ranks} form a group over {provider} and reduce correctly: {times}{sleeps}{reads}")
    }
}

/// Runs one of the two ranks.
pub(crate) fn run() -> crate::Result<()> {
    let group = ProcessGroup::from_env()?;
    let mut medians = [0.0; 2];
    for ((count, calls), median) in COUNTS.into_iter().zip(CALLS).zip(&mut medians) {
        let mut data = vec![0.0_f32; count];
        let mut times = Vec::new();
        for call in 0..calls + calls / 10 {
            // Different for each element, rank and call, and exact in f32.
            let value = |rank: usize, at: usize| ((at + rank * 7 + call as usize) % 1024) as f32;
            data.iter_mut().enumerate().for_each(|(at, element)| *element = value(group.rank(), at));
            group.barrier()?;
            let began = Instant::now();
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            if call >= calls / 10 {
                times.push(began.elapsed().as_secs_f64());
            }
            let sum = |at| (0..group.size()).map(|rank| value(rank, at)).sum::<f32>();
            if let Some((at, element)) = data.iter().enumerate().find(|&(at, element)| *element != sum(at)) {
                let wanted = sum(at);
                return Err(format!("element {at} of {count} is {element}, but the sum is {wanted}").into());
            }
        }
        *median = rows::median(times) * 1e6;
    }
    if group.rank() == 0 {
        let limits = group.limits().clone();
        let reduced = Reduced {
            provider: limits.provider,
            pins: !limits.cheap_registration,
            staging: limits.local_registration,
            wakes: limits.wakes,
            reads: limits.maps.then(|| group.usage().peer_reads),
            sockets: limits.sockets,
            times_us: medians,
        };
        println!("{}", serde_json::to_string(&reduced)?);
    }
    Ok(())
}

/// Runs the two ranks over a provider and an interface, given by name or address; other settings come from the environment.
pub(super) fn try_out(provider: Option<&str>, interface: Option<&str>) -> Result<Reduced, String> {
    let mut command = invocation::command();
    command.args(["run", "--no-prefix", "--timeout", TIMEOUT, "-n"]).arg(RANKS.to_string());
    command.args(provider.map(|provider| format!("--provider={provider}")));
    command.arg("--").args(invocation::words()).arg(NAME).env("UNISONO_JOIN_TIMEOUT", TIMEOUT);
    command.envs(interface.map(|interface| ("UNISONO_INTERFACE", interface)));
    judge(command, PATIENCE)
}

/// Runs the command and reads the line that rank 0 prints.
fn judge(mut command: Command, patience: Duration) -> Result<Reduced, String> {
    let ran = output(&mut command, patience);
    let (ended, said, complained) =
        ran.map_err(|error| format!("`unisono run` cannot be started: {error}"))?;
    let complaint = reason(&complained);
    if !ended {
        return Err(format!("it did not finish within {} s and was killed{complaint}", patience.as_secs()));
    }
    serde_json::from_str(said.trim()).map_err(|_| format!("it failed{complaint}"))
}

/// Runs a process, and kills it if it does not end in time. Returns whether it has ended, and what it wrote to its standard output and
/// error, up to 1 MiB each.
pub(super) fn output(command: &mut Command, patience: Duration) -> io::Result<(bool, String, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (said, complained) = (all(child.stdout.take()), all(child.stderr.take()));
    let deadline = Instant::now() + patience;
    let ended = loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Ok(Some(_)) => break true,
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
        }
    };
    // A process that it has started may keep them open.
    let rest = |stream: Receiver<_>| stream.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Ok((ended, rest(said), rest(complained)))
}

/// Sends all of a stream once it has ended, up to 1 MiB.
fn all(source: Option<impl Read + Send + 'static>) -> Receiver<String> {
    const MOST: u64 = 1 << 20;
    apart(move || {
        let mut bytes = Vec::new();
        if let Some(source) = source {
            let _ = source.take(MOST).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The first lines of the standard error, behind a colon.
fn reason(complaint: &str) -> String {
    let lines: Vec<_> = complaint.lines().map(str::trim).filter(|line| !line.is_empty()).take(3).collect();
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(script: &str, patience: Duration) -> Result<Reduced, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        judge(command, patience)
    }

    #[test]
    fn what_a_job_says_is_understood() {
        let long = Duration::from_secs(20);
        let reduced = Reduced {
            provider: "net".to_owned(),
            pins: false,
            staging: false,
            wakes: false,
            reads: Some(true),
            sockets: true,
            times_us: [1.5, 2e3],
        };
        let message = serde_json::to_string(&reduced).unwrap();
        assert_eq!(script(&format!("echo '{message}'"), long), Ok(reduced.clone()));
        assert_eq!(
            reduced.words(),
            "2 ranks form a group over net and reduce correctly: 8 B in about 2 us, 1 MiB in about 2000 us; waits must poll, \
             because this provider cannot wake a thread that sleeps"
        );
        let refused = Reduced { wakes: true, reads: Some(false), ..reduced }.words();
        assert!(refused.contains("2000 us; they may not read each other's memory, so"), "{refused}");
        let failed = script("echo one >&2; echo >&2; echo two >&2; exit 1", long);
        assert_eq!(failed, Err("it failed: one; two".into()));
        assert_eq!(script("echo nonsense", long), Err("it failed".into()));
        let hung = script("echo waiting >&2; exec sleep 60", Duration::from_secs(1));
        assert_eq!(hung, Err("it did not finish within 1 s and was killed: waiting".into()));
    }
}
