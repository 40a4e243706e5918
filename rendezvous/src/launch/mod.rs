//! Detects this process's rank, the world size, the job and the store, from the variables of torchrun, Slurm, Open MPI, MPICH, Intel
//! MPI, PALS, Flux, LeaderWorkerSet and this library. A launcher is one row of the table in `families.rs`, a rule in `nearest.rs` about
//! which launchers may start it, and, if it says where the store is, one arm in `rendezvous.rs`.

mod detect;
mod environment;
mod families;
mod nearest;
mod partial;
mod rendezvous;
mod secret;
mod slurm;
mod variables;

#[doc(hidden)]
pub use self::secret::{holds, private_directory};
pub use self::{
    detect::{Launch, detect},
    families::{is_set, variables},
    rendezvous::{RendezvousPoint, host_in},
    secret::token,
};
