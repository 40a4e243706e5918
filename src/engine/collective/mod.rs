//! Collectives: the operations of a communicator run one after the other, each as a schedule of steps on lanes.

mod begin;
mod by_slots;
mod in_place;
mod lane;
mod one_shot;
mod round;
mod run;
mod send;
mod slice;
mod turn;

pub(crate) use self::{
    lane::Lane,
    run::{Pass, Run},
    turn::Called,
};
