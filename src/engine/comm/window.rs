//! The windows through which ranks send: this rank's own memory, and the sending ends of flows into others' windows.

use super::flow::Outgoing;
use crate::engine::wire::Class;
use unisono_transport::{Region, RemoteRegion};

/// The sending end of a flow and where its window is.
#[derive(Debug)]
pub(crate) struct Sender {
    pub flow: Outgoing,
    /// The flow's number here, for its credits.
    pub reply: usize,
    pub region: RemoteRegion,
    pub slot_bytes: usize,
    /// What goes straight into the receiver's output.
    pub writes: Outgoing,
    /// How many credits have come by puts of their own; the low 32 bits.
    pub credits: u32,
}

impl Sender {
    /// No more bytes than these are on their way.
    pub(crate) fn bytes(&self) -> usize {
        self.flow.bytes() + self.writes.bytes()
    }
}

/// Whether peers may write to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    Open,
    /// The peer was asked to close it.
    Closing,
    /// Nor has it memory, or flows' numbers.
    Closed,
}

#[derive(Debug)]
pub(crate) struct WindowMemory {
    /// The number of its first lane's flow, and how many lanes there are.
    pub(crate) number: usize,
    pub(crate) lanes: usize,
    pub(crate) region: Region,
    pub(crate) slot_bytes: usize,
    pub(crate) class: Class,
    /// The flow of its first lane.
    pub(crate) first_flow: usize,
    pub(crate) state: WindowState,
    /// Whether an operation waits for it to be open.
    pub(crate) wanted: bool,
    /// When it was last needed, by the port's clock.
    pub(crate) used: u64,
    /// How many credits were put since it was opened; the low 32 bits.
    pub(crate) credits: u32,
}

impl WindowMemory {
    pub(super) fn flows(&self) -> std::ops::Range<usize> {
        self.first_flow..self.first_flow + self.lanes
    }
}
