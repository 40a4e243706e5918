//! Opens an endpoint by the name of its provider.

use crate::{
    Error, Transport,
    ofi::{Ofi, Options},
    shm,
};

/// An endpoint of the provider that the options name: [`shm`], or one of libfabric's.
///
/// # Errors
/// As [`shm::Endpoint::open`] and [`Ofi::open`].
pub fn open(options: &Options) -> Result<Box<dyn Transport>, Error> {
    if options.provider.as_deref() == Some("shm") {
        return Ok(Box::new(shm::Endpoint::open()?));
    }
    Ok(Box::new(Ofi::open(options)?))
}
