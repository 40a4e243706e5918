//! Operands in several slices, which are used one after the other as one: nothing is copied together first.

use unisono_schedule::{Collective, Rank};

use super::{
    mode::Blocking,
    operands::{Blocks, Operands, sealed},
};
use crate::{
    buffer::Foreign,
    dtype::Element,
    error::{Error, Result},
    group::{ProcessGroup, erased::Request},
    reduce::ReduceOp,
};

fn call<T: Element>(
    group: &ProcessGroup,
    slices: &mut [&mut [T]],
    collective: Collective,
    op: ReduceOp,
    root: Rank,
) -> Result<()> {
    if collective.has_blocks() {
        let problem = "an operand of several slices has no blocks: all_reduce and reduce take it";
        return Err(Error::Argument { call: collective.name(), problem: problem.to_owned() });
    }
    let operand = Foreign::each(slices);
    let request = Request { op, root, ..Request::new(collective, T::DTYPE) };
    group.handle.collective(&request, &operand, &operand)
}

macro_rules! slices {
    ($(($($generics:tt)*) $list:ty),* $(,)?) => {$(
        impl<$($generics)*> sealed::Sealed<Blocking> for &mut $list {}
        impl<$($generics)*> Operands<Blocking> for &mut $list {}
        impl<$($generics)*> Blocks<Blocking> for &mut $list {
            type Returns = ();
            type Block = ();

            fn call(self, group: &ProcessGroup, collective: Collective, op: ReduceOp, root: Rank) -> Result<()> {
                call(group, self, collective, op, root)
            }

            fn block(self, group: &ProcessGroup, collective: Collective, op: ReduceOp, root: Rank) -> Result<()> {
                call(group, self, collective, op, root)
            }
        }
    )*};
}

slices!(
    (T: Element) [&mut [T]],
    (T: Element, const N: usize) [&mut [T]; N],
    (T: Element) Vec<&mut [T]>,
);
