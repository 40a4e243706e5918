//! Collectives: the operations of a communicator run one after the other, each as a schedule of steps on lanes.

mod agree;
mod begin;
mod lane;
mod quick;
mod rounds;
mod run;
mod send;
mod shown;
mod slice;
mod turn;

pub(crate) use self::{
    lane::Lane,
    run::{Pass, Run},
    turn::Called,
};
