//! Operands in several slices, which are used one after the other as one: nothing is copied together first.

use unisono_schedule::{Collective, Rank};

use super::{
    mode::Blocking,
    operands::{Blocks, Operands, sealed},
};
use crate::{dtype::Element, error::Result, group::ProcessGroup, reduce::ReduceOp};

macro_rules! slices {
    ($(($($generics:tt)*) $list:ty),* $(,)?) => {$(
        impl<$($generics)*> sealed::Sealed<Blocking> for &mut $list {}
        impl<$($generics)*> Operands<Blocking> for &mut $list {}
        impl<$($generics)*> Blocks<Blocking> for &mut $list {
            type Returns = ();
            type Block = ();

            fn call(self, group: &ProcessGroup, collective: Collective, op: ReduceOp, root: Rank) -> Result<()> {
                group.handle.in_pieces(collective, self, op, root)
            }

            fn block(self, group: &ProcessGroup, collective: Collective, op: ReduceOp, root: Rank) -> Result<()> {
                group.handle.in_pieces(collective, self, op, root)
            }
        }
    )*};
}

slices!(
    (T: Element) [&mut [T]],
    (T: Element, const N: usize) [&mut [T]; N],
    (T: Element) Vec<&mut [T]>,
);
