//! Compares the positions of all ranks through the directory. One rank at a time collects them, for all ranks that have asked for
//! a comparison meanwhile.

use std::{
    fs, io,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use super::{super::GATHER, round::Round};
use crate::{
    error::Failure,
    position::{Position, judge},
};

/// The file that the collecting rank holds.
const TURN: &str = "comparing";

/// The file that holds the number of comparisons made.
const DONE: &str = "compared";

/// This rank's part in comparisons.
#[derive(Default)]
pub(super) struct Comparison {
    /// The number of comparisons after which this rank's request is met.
    wanted: Option<u64>,
    open: Option<Open>,
    asked: u64,
}

/// A comparison that this rank makes.
struct Open {
    ask: String,
    until: Instant,
    positions: Vec<Option<Position>>,
}

impl Comparison {
    /// Whether this rank is collecting answers.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the next step. Returns the failure that follows from the positions, if they were compared and one follows.
    pub(super) fn go_on(&mut self, round: &Round, doubts: &AtomicBool) -> io::Result<Option<Failure>> {
        if doubts.swap(false, Ordering::Relaxed) {
            // A comparison in progress may have begun before this rank was blocked.
            let under_way = u64::from(round.read(TURN)?.is_some());
            self.wanted = Some(done(round)? + under_way + 1);
        }
        if let (None, Some(wanted)) = (&self.open, self.wanted) {
            if done(round)? >= wanted {
                self.wanted = None;
            } else if round.claim(TURN)? {
                self.asked += 1;
                let ask = format!("{}-compares-{}", round.rank, self.asked);
                round.write(&format!("asks/{ask}"), b"")?;
                self.wanted = None;
                self.open =
                    Some(Open { ask, until: Instant::now() + GATHER, positions: vec![None; round.ranks] });
            }
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        if round.gather(&open.ask, &mut open.positions)? && Instant::now() < open.until {
            return Ok(None);
        }
        let Some(Open { ask, positions, .. }) = self.open.take() else { return Ok(None) };
        round.forget(&ask)?;
        round.write(DONE, (done(round)? + 1).to_string().as_bytes())?;
        fs::remove_file(round.path.join(TURN))?;
        Ok(judge(&positions))
    }
}

fn done(round: &Round) -> io::Result<u64> {
    let text = round.read(DONE)?.and_then(|text| String::from_utf8(text).ok());
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or_default())
}
