//! Collectives: one operation of a communicator after the other, each a schedule that its lanes run.

mod begin;
mod lane;
mod run;
mod send;
mod slice;
mod turn;

pub(crate) use self::{
    lane::{Lane, Traced},
    run::{Pass, Run},
    turn::Called,
};
