//! Collectives: the operations of a communicator run one after the other, each as a schedule of steps on lanes.

mod agree;
mod begin;
mod lane;
mod location;
mod pass;
mod rounds;
mod run;
mod send;
mod shown;
mod slice;

pub(crate) use self::{lane::LaneProgress, pass::Pass, run::OperationRun, shown::ShownProgress};
