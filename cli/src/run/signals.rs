//! The signals that end a job.

use std::{fs, io, thread};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};

/// Calls `tell` with each signal that asks this process to end, from a thread of its own. A signal that was
/// ignored when the process began (SIGHUP under nohup) stays ignored.
pub(super) fn watch(tell: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let wanted =
        [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(wanted)?;
    thread::Builder::new().name("signals".into()).spawn(move || signals.forever().for_each(tell))?;
    Ok(())
}

/// The mask of ignored signals in the text of `/proc/self/status`; bit 0 is signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask_of_ignored_signals() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t01\n"), 0x1001);
        assert_eq!(ignored(""), 0);
        assert_eq!(ignored("SigIgn:\tzz\n"), 0);
    }
}
