//! A job on several hosts: the launcher starts this program there by ssh, tells it over its standard input what to run, and forwards
//! what the ranks write. A host ends its ranks when that input ends, whatever the reason.

pub(crate) mod agent;
pub(super) mod assign;
pub(super) mod launcher;
mod ssh;
