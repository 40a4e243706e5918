//! What tests see of the engine, where debug assertions are on: the steps that operations have finished, and counts.

use unisono_schedule::Step;

use crate::{comm::Core, endpoint::Traced, progress::Engine};

#[cfg(debug_assertions)]
impl Core<'_> {
    /// Keeps a step that a lane has finished.
    pub(crate) fn trace(&mut self, lane: usize, step: Option<Step>) {
        if let (Some(trace), Some(step)) = (&mut self.port.trace, step) {
            trace.push(Traced { lane, step, in_flight: self.comm.collectives.under_way });
        }
    }
}

#[cfg(debug_assertions)]
impl Engine {
    /// Starts to keep the steps of operations, and returns those that were kept so far.
    pub fn keep_trace(&mut self) -> Vec<Traced> {
        self.net.port.trace.replace(Vec::new()).unwrap_or_default()
    }

    /// How often a communicator that this rank is leaving was looked at.
    pub fn looks(&self) -> usize {
        self.net.leaving.looks
    }

    /// The number of communicators, and of those of them that this rank is leaving and will look at.
    pub fn communicators(&self) -> (usize, usize) {
        (self.net.comms.iter().flatten().count(), self.net.leaving.len())
    }
}
