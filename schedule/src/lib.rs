//! Schedules of collectives as data: the steps that each rank takes. The crate has no I/O, threads or clocks.
//!
//! An [`algorithm`] makes the schedule of one rank for a [`Job`]. [`price`] predicts the time of schedules on a fabric ([`cost`]), and
//! [`select`] chooses the algorithm of a call. The crate `unisono-checker` proves schedules right.
//!
//! ```
//! use unisono_schedule::{
//!     Collective, Job,
//!     algorithm::find,
//!     cost::Fabric,
//!     price::{Effort, price},
//!     select::Chooser,
//! };
//!
//! // An all_reduce of 1 Mi elements among 8 ranks, in messages of at most 64 Ki elements on two lanes.
//! let job = Job { chunk: 64 << 10, lanes: 2, ..Job::new(Collective::AllReduce, 0, 8, 1 << 20) };
//! let plan = find("rabenseifner").and_then(|it| it.plan(job.collective)).ok_or("no such plan")?;
//!
//! // With elements of 4 bytes and 2 hosts of 4 ranks, it takes less than half of two_shot's time, and is what is chosen.
//! let fabric = Fabric { ranks_per_host: 4, ..Fabric::TCP_1G };
//! let two_shot = find("two_shot").and_then(|it| it.plan(job.collective)).ok_or("no such plan")?;
//! let (one, other) = (price(plan, &job, 4, &fabric, Effort::EXACT)?, price(two_shot, &job, 4, &fabric, Effort::EXACT)?);
//! assert!(one.seconds < 0.5 * other.seconds);
//! let choice = Chooser::on(&fabric, 8).choose(job.collective, 4 << 20, |_| true).ok_or("no choice")?;
//! assert_eq!(choice.algorithm.name, "rabenseifner");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Flows and lanes
//!
//! Steps have no tags, credits, addresses or message numbers. Messages from one rank to another on one lane form a
//! **flow**, first in, first out; the engine numbers them and manages their slots and credit. A **lane** takes its steps
//! strictly in order. Lanes do not wait for each other: chunk `c` is the work of lane `c mod lanes`, so that one chunk is
//! reduced while the next is on the wire.
//!
//! A message arrives in a slot of its receiver ([`Step::Put`]), where it can be reduced and forwarded. In a schedule that is
//! [`Schedule::direct`] it may also be written into the receiver's output ([`Step::Write`]), which saves a copy. If others
//! cannot write to that memory, the engine sends such a write through a slot and copies it.
//!
//! # Elements that are shown
//!
//! Ranks that share memory need no messages: a rank shows elements ([`Step::Show`]), and the others read them in its memory
//! ([`Step::View`]). Such a schedule has rounds. In each round a rank shows elements once, perhaps none, and reads what others show
//! in that round. No rank begins a round before all others have begun the one before; so two slots for each rank suffice, and beginning a
//! round says that all of the one before was read.
//!
//! # Invariants of every schedule
//!
//! - The first messages that lane 0 sends and takes do not depend on the count: a collective of 0 elements sends them empty.
//!   Messages in slots carry the operation's header, so that ranks that call different operations detect it and do not wait for
//!   each other.
//! - A message has at most [`Schedule::max_message`] elements; only writes of a job that allows it ([`Job::long`]) may have
//!   more.
//! - On every flow a [`Step::Put`] is taken before the first [`Step::Write`] is awaited, unless the job is long and this
//!   is the only write, on lane 0. No write is empty, and each source of a direct schedule writes at least once.

pub mod algorithm;
pub mod cost;
mod job;
pub mod partition;
pub mod price;
mod recorded;
pub mod select;
mod step;
mod topology;
pub mod windows;

pub use job::{Collective, Job, Showing, Uneven};
pub use recorded::{CallSchedule, Inside, Recorded};
pub use step::{Own, Place, Rank, SLICE, Schedule, Shown, Span, Step};
pub use topology::{Kind, Network, Spread, Topology};
