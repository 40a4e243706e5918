//! The engine runs schedules and messages over a transport: lanes, flows, credit, waiting. It knows no algorithm.
//!
//! One thread at a time drives all active operations (`progress.rs`). Everything between ranks is a put: messages into slots of
//! windows, and control messages (windows, credit, greetings) into mailboxes. All communicators of a process share one endpoint
//! (`endpoint`); each has its own windows and mailbox (`comm`).

mod access;
mod collective;
mod comm;
mod completion;
mod contact;
mod endpoint;
#[cfg(any(test, fuzzing))]
mod fuzz_tests;
mod greet;
mod leave;
mod p2p;
mod position;
mod progress;
mod request;
mod settings;
mod stop;
mod supervisor;
#[cfg(test)]
mod tests;
mod wait;
mod wire;

#[cfg(test)]
pub(crate) use self::tests::Traced;
pub(crate) use self::{
    collective::Called,
    comm::{Awaited, CommIds},
    completion::{Action, Completion, Done, End, Memory, Next, Outcome, Receipts},
    contact::{Contact, Contacts},
    progress::{Engine, WORLD},
    request::{Inbound, Operation, Outbound, Pairs, Place, Planned, ShownPlan, What},
    settings::{Bounds, Settings},
    stop::{Halt, StalledOperation, Stop},
    supervisor::{Call, PositionQuery, Request, Supervisor, Task},
    wait::Patience,
    wire::{CommId, MAX_MEMBERS, MAX_RANKS, VERSION},
};

#[cfg(test)]
pub(crate) use comm::layout::{LEN as SHARED_SLOTS_BYTES, SHARED_BYTES};

/// Fuzz targets: the decoding of arbitrary bytes from the wire, and an engine that gets them.
#[cfg(any(test, fuzzing))]
pub(crate) const FUZZ: [fn(&[u8]); 2] = [wire::fuzz, fuzz_tests::arrivals];
