//! Operands in several slices, which are used one after the other as one: nothing is copied together first.

use super::{
    mode::Blocking,
    operands::{Blocks, Operands, sealed},
};
use crate::{
    dtype::Element,
    error::Result,
    group::{ProcessGroup, collective::check::CollectiveCall},
};

macro_rules! slices {
    ($(($($generics:tt)*) $list:ty),* $(,)?) => {$(
        impl<$($generics)*> sealed::Sealed<Blocking> for &mut $list {}
        impl<$($generics)*> Operands<Blocking> for &mut $list {}
        impl<$($generics)*> Blocks<Blocking> for &mut $list {
            type Returns = ();
            type Block = ();

            fn call(self, group: &ProcessGroup, call: CollectiveCall) -> Result<()> {
                group.handle.in_pieces(call, self)
            }

            fn block(self, group: &ProcessGroup, call: CollectiveCall) -> Result<()> {
                group.handle.in_pieces(call, self)
            }
        }
    )*};
}

slices!(
    (T: Element) [&mut [T]],
    (T: Element, const N: usize) [&mut [T]; N],
    (T: Element) Vec<&mut [T]>,
);
