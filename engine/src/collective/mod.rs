//! Collectives: the operations of a communicator run one after the other, each as a schedule of steps on lanes.

mod agree;
mod begin;
mod lane;
mod location;
mod pass;
mod quick;
mod rounds;
mod run;
mod send;
mod shown;
mod slice;

pub(crate) use self::{lane::LaneProgress, pass::Pass, quick::Quick, run::OperationRun};
