//! Memory that was allocated outside of this library, with the owner that keeps it alive.
#![allow(unsafe_code)]

use std::fmt;

use unisono_engine::{Aside, Operand, Pieces, SpanError, borrow_raw};

/// Memory that was allocated outside of this library, as an operand of an erased call ([`Erased`](crate::group::Erased)), and its owner: a
/// value of any type that keeps the memory alive.
///
/// The memory may be one piece, several that are used one after the other as one operand, or none. An asynchronous call keeps the
/// owner until nothing accesses the memory any more, also if the group fails or the [`Work`](crate::Work) is dropped. Then its
/// result returns the `Foreign`; if no caller takes it, a thread of this library drops the owner, while it holds no lock and drives
/// no operation.
///
/// ```
/// # use unisono::{Config, Foreign, ProcessGroup, Request, dtype::Dtype, schedule::Collective};
/// # use unisono_transport::inproc::Hub;
/// # fn main() -> unisono::Result<()> {
/// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
/// let mut data = vec![1.0_f32; 1000];
/// let (base, bytes) = (data.as_mut_ptr().cast(), size_of_val(&data[..]));
/// // SAFETY: `data` is not touched until the operation has ended, and the vector's elements stay where they are until it is dropped.
/// let (input, output) = unsafe { (Foreign::new(base, bytes, ()), Foreign::new(base, bytes, data)) };
/// let request = Request::new(Collective::AllReduce, Dtype::F32);
/// let work = group.erased().begin_collective(&request, input, output)?;
/// work.wait_done()?;
/// let (_input, output) = work.wait()?;
/// assert_eq!(output.bytes(), 4000);
/// # Ok(()) }
/// ```
pub struct Foreign {
    operand: Operand,
    /// Dropped after every region of `operand` that the engine has made.
    #[expect(dead_code, reason = "kept for its drop")]
    owner: Option<Box<dyn Send>>,
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Default for Foreign {
    fn default() -> Self {
        Self::none()
    }
}

impl Foreign {
    /// An operand that is not given.
    #[must_use]
    pub fn none() -> Self {
        Self { operand: Operand::none(), owner: None }
    }

    /// `bytes` bytes from `base` on.
    ///
    /// A call that takes it checks that the address is a multiple of the size of its elements, and that it is not null unless
    /// there are no bytes.
    ///
    /// # Safety
    /// Until `owner` is dropped, and until the call has returned if it blocks, the memory must be valid for reads, and for writes if it
    /// is an output or, with [`ReduceOp::PreMulSum`](crate::ReduceOp::PreMulSum), an input that contains the output. While an operation
    /// works on it, nothing else may write to it, or read it if it is an output; other operands of the same operation may overlap it as
    /// [`Erased::collective`](crate::group::Erased::collective) says.
    #[must_use]
    pub unsafe fn new(base: *mut u8, bytes: usize, owner: impl Send + 'static) -> Self {
        // SAFETY: by the caller's promise, which holds as long as the owner lives. A call keeps this value until the engine has dropped
        // every clone of the region.
        let region = unsafe { borrow_raw(base, bytes) };
        Self { operand: region.into(), owner: Some(Box::new(owner)) }
    }

    /// Several pieces, used one after the other as one operand: of each the address and the number of bytes, which may be 0.
    ///
    /// # Safety
    /// As [`new`](Self::new), for each piece.
    #[must_use]
    pub unsafe fn pieces(
        pieces: impl IntoIterator<Item = (*mut u8, usize)>,
        owner: impl Send + 'static,
    ) -> Self {
        let mut pieces = pieces.into_iter().filter(|(_, bytes)| *bytes > 0);
        let operand = match (pieces.next(), pieces.next()) {
            (None, _) => Operand::none(),
            // SAFETY: as in `new`.
            (Some((base, bytes)), None) => unsafe { borrow_raw(base, bytes) }.into(),
            (first, second) => Operand::several(Pieces::of(first.into_iter().chain(second).chain(pieces))),
        };
        Self { operand, owner: Some(Box::new(owner)) }
    }

    /// The bytes of all its pieces.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.operand.len()
    }

    /// The same bytes in its own memory, which keeps the owner too.
    pub(crate) fn copied(self) -> Result<Self, SpanError> {
        let mut copy = Aside::new();
        let region = self.operand.copied_to(&mut copy)?;
        Ok(Self { operand: region.into(), owner: Some(Box::new((copy, self))) })
    }

    /// The memory, which must not be accessed after this value is dropped.
    pub(crate) fn operand(&self) -> &Operand {
        &self.operand
    }
}
