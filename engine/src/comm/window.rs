//! Windows of this rank, which peers write to, and the sending ends of flows into windows of peers.

use unisono_transport::{Region, RemoteRegion};

use super::flow::OutgoingFlow;
use crate::wire::WindowClass;

/// The sending end of a flow, and the window that it leads to.
#[derive(Debug)]
pub(crate) struct WindowSender {
    pub flow: OutgoingFlow,
    /// The number of the flow at this rank, which credits for it name.
    pub reply: usize,
    pub region: RemoteRegion,
    pub slot_bytes: usize,
    /// The writes straight into the receiver's output.
    pub writes: OutgoingFlow,
    /// The number of credits that have arrived by control messages; the low 32 bits.
    pub credits: u32,
}

impl WindowSender {
    /// At most this many bytes are in flight.
    pub(crate) fn bytes(&self) -> usize {
        self.flow.bytes() + self.writes.bytes()
    }
}

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    Open,
    /// The peer was asked to close it.
    Closing,
    /// The window has neither memory nor numbers of flows.
    Closed,
}

/// A window of this rank, which one peer writes to.
#[derive(Debug)]
pub(crate) struct WindowMemory {
    /// The number of its first lane's flow. The other lanes have the next numbers.
    pub(crate) number: usize,
    /// The number of lanes.
    pub(crate) lanes: usize,
    pub(crate) region: Region,
    /// The bytes of elements in a slot.
    pub(crate) slot_bytes: usize,
    pub(crate) class: WindowClass,
    /// The index of its first lane's flow in [`Flows::receivers`](super::flows::Flows::receivers).
    pub(crate) first_flow: usize,
    pub(crate) state: WindowState,
    /// True if an operation waits for it to open.
    pub(crate) wanted: bool,
    /// When an operation last needed it, by the port's clock.
    pub(crate) used: u64,
    /// The number of credits that were put since it opened; the low 32 bits.
    pub(crate) credits: u32,
}

impl WindowMemory {
    /// The indices of its flows.
    pub(super) fn flows(&self) -> std::ops::Range<usize> {
        self.first_flow..self.first_flow + self.lanes
    }
}
