//! The memory that collectives of a communicator need besides their operands. It is kept for the next one.

use unisono_transport::{Error, Region, Transport};

/// The most bytes of the memory for inputs that are put aside that are kept for the next operation: fresh memory costs twice as much
/// as the copy into it.
const KEPT_ASIDE: usize = 64 << 20;

/// Memory for the schedules of a communicator.
#[derive(Default)]
pub(crate) struct Workspace {
    /// Scratch memory: the most that any schedule has needed so far.
    pub scratch: Option<Region>,
    /// Memory for inputs that are put aside.
    aside: Option<Region>,
}

impl Workspace {
    /// Provides scratch memory of at least this many bytes. Only between operations, while no put reads from it.
    pub(crate) fn provide_scratch(
        &mut self,
        transport: &mut dyn Transport,
        bytes: usize,
    ) -> Result<(), Error> {
        if self.scratch.as_ref().map_or(0, |scratch| scratch.len()) < bytes {
            self.scratch = None;
            self.scratch = Some(transport.allocate(bytes.next_power_of_two())?);
        }
        Ok(())
    }

    /// Memory of at least this many bytes for the input of an operation that is put aside. Only between operations, as above.
    pub(crate) fn provide_aside(
        &mut self,
        transport: &mut dyn Transport,
        bytes: usize,
    ) -> Result<Region, Error> {
        let fits = |aside: &Region| aside.len() >= bytes;
        let aside = match self.aside.take().filter(fits) {
            Some(aside) => aside,
            None => transport.allocate(bytes)?,
        };
        // A larger region is freed with the operation.
        self.aside = Some(aside.clone()).filter(|aside| aside.len() <= KEPT_ASIDE);
        Ok(aside)
    }

    /// The bytes of it.
    pub(super) fn memory(&self) -> usize {
        [&self.scratch, &self.aside].into_iter().flatten().map(|region| region.len()).sum()
    }
}
