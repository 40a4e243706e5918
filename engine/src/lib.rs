//! The engine runs schedules and messages over a transport: lanes, flows, credit, waiting. It knows no algorithm.
//!
//! This crate is for the crate `unisono` and not for programs: an operation works on the memory of its [`Operand`]s by address, and
//! the caller keeps that memory as [`Borrowed`] says. Its items may change with every version.
//!
//! One thread at a time drives all active operations (`progress.rs`). Everything between ranks is a put: messages into slots of
//! windows, and control messages (windows, credit, handshakes) into mailboxes. All communicators of a process share one endpoint
//! (`endpoint`); each has its own windows and mailbox (`comm`).

mod access;
mod call;
mod collective;
mod comm;
mod completion;
mod endpoint;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(any(test, fuzzing))]
mod fuzz_tests;
mod handshake;
mod leave;
mod memory;
mod messages;
#[cfg(test)]
#[path = "../../transport/tests/observed/mod.rs"]
mod observed;
mod p2p;
mod position;
mod progress;
#[cfg(test)]
#[path = "../../tests/random/mod.rs"]
mod random;
mod request;
mod settings;
#[cfg(test)]
#[path = "../../transport/tests/sim/mod.rs"]
mod sim;
mod stop;
mod supervisor;
#[cfg(test)]
mod tests;
mod turn;
mod wait;
mod wire;

pub use self::{
    call::{Cargo, Form, MessageKind, Signature},
    comm::PendingHandshake,
    completion::{
        Completion, CompletionAction, CompletionResult, Done, Next, Outcome, Receipts, ReceivedMessage,
        ReturnedMemory, WorkRequest,
    },
    endpoint::{Contact, Contacts, Traced},
    memory::{
        Aside, Borrowed, Bytes, Fresh, Operand, Overlap, Pieces, Registry, SpanError, Stretch, borrow_raw,
    },
    progress::{CommIds, DrivenEngine, Engine, WORLD},
    request::{CallPlan, Inbound, Operation, Outbound, OutputAccess, Pairs, Place, RequestKind, ShownPlan},
    settings::{Bounds, Settings},
    stop::{Broken, Halt, StalledOperation, Stop},
    supervisor::{SubmissionEntry, Supervisor, WaitingCall},
    turn::{Called, MakeCompletion},
    wait::Patience,
    wire::{CommId, MAX_MEMBERS, MAX_RANKS, VERSION},
};

#[doc(hidden)]
pub use comm::layout::LEN as SHARED_SLOTS_BYTES;
