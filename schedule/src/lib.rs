//! Schedules of collectives as data: what one rank does in one collective, step by step. A crate without I/O, threads or clocks.
//!
//! An algorithm yields steps, lane by lane and on demand. It knows no tags, credits, addresses or message
//! numbers: messages from one rank to another on one lane form a **flow**, first in first out, and the
//! engine owns its numbering, its slots and its credit. A lane runs its steps strictly in order; lanes are
//! independent of each other, which is where pipelining comes from: chunk `c` goes to lane `c mod lanes`,
//! so that one chunk is reduced while the next is on the wire.
//!
//! A message lands in a slot of its receiver ([`Step::Put`]), where it can be reduced and sent on; or, in a schedule
//! that is [`Schedule::direct`], at once where it belongs in the receiver's output ([`Step::Write`]), which saves
//! copying it there. Where the receiver's memory cannot be written by others, the engine sends writes through slots
//! too and copies.
//!
//! Rules every algorithm keeps, and [`check`] proves:
//! - Which messages lane 0 sends and takes first does not depend on the count: a collective of 0 elements
//!   sends them empty. Messages in slots carry the operation's header, so that ranks that disagree find out
//!   instead of waiting for each other.
//! - A message has at most [`Schedule::max_message`] elements; only writes of a job that allows it ([`Job::long`]) may have
//!   more.
//! - On every flow a [`Step::Put`] is taken before the first [`Step::Write`] is awaited, unless the job is long and that
//!   is the only write, on lane 0. No write is empty, and each source of a direct schedule writes at least once.
//!
//! [`algorithm`]s yield schedules, [`check`] proves them, [`cost`] and [`price`] say what they cost on a fabric, and
//! [`select`] says which algorithm does a call.

pub mod algorithm;
pub mod check;
pub mod cost;
mod job;
pub mod partition;
pub mod price;
mod recorded;
pub mod select;
mod step;
mod topology;
pub mod windows;

pub use job::{Collective, Job, Uneven};
pub use recorded::{CallSchedule, Recorded};
pub use step::{Place, Rank, SLICE, Schedule, Span, Step, Traffic};
pub use topology::Topology;
