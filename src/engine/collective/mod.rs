//! Collectives: one operation of a communicator after the other, each a schedule that its lanes run.

mod begin;
mod lane;
mod run;
mod send;
mod slice;
mod turn;

pub use self::lane::Traced;
pub(crate) use self::{
    lane::Lane,
    run::{Pass, Run},
    turn::Called,
};
