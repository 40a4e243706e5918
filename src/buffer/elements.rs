//! Operands of calls: slices, and the types that borrow or own one.

use super::registered::Buffer;
use crate::dtype::Element;

#[expect(unnameable_types, reason = "that is what seals it")]
mod sealed {
    /// Limits [`super::Elements`] to memory that this library knows.
    pub trait Sealed {}
}

/// Elements that a call reads. Sealed: slices, arrays, `Vec`, `Box<[T]>`, [`Buffer`] and, with the feature `ndarray`, arrays of ndarray.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operand of a call",
    label = "neither a slice nor what has one",
    note = "operands are slices, arrays, `Vec`, `Box<[T]>` and `Buffer` of elements; other values travel as objects or tensors"
)]
pub trait Elements: sealed::Sealed {
    /// The type of the elements.
    type Element: Element;

    /// The elements; `None` if they are not contiguous, in the order of their indices.
    fn elements(&self) -> Option<&[Self::Element]>;
}

/// Elements that a call writes.
#[diagnostic::on_unimplemented(
    message = "a call cannot write to `{Self}`",
    label = "neither a mutable slice nor what has one",
    note = "operands are slices, arrays, `Vec`, `Box<[T]>` and `Buffer` of elements; other values travel as objects or tensors"
)]
pub trait ElementsMut: Elements {
    /// The elements; `None` if they are not contiguous, in the order of their indices.
    fn elements_mut(&mut self) -> Option<&mut [Self::Element]>;
}

/// An owner of elements that an asynchronous call can keep: the elements do not move when their owner moves.
#[diagnostic::on_unimplemented(
    message = "an asynchronous call cannot keep a `{Self}`",
    label = "no owner of elements",
    note = "pass a `Vec`, a `Box<[T]>` or a `Buffer` of elements by value: the call keeps it and returns it when it has ended"
)]
pub trait Owned: ElementsMut + Send + 'static {}

macro_rules! slices {
    ($(($($generics:tt)*) $memory:ty),* $(,)?) => {$(
        impl<$($generics)*> sealed::Sealed for $memory {}
        impl<$($generics)*> Elements for $memory {
            type Element = T;

            fn elements(&self) -> Option<&[T]> {
                Some(self)
            }
        }
    )*};
}

macro_rules! mutable_slices {
    ($(($($generics:tt)*) $memory:ty),* $(,)?) => {
        slices!($(($($generics)*) $memory),*);
        $(impl<$($generics)*> ElementsMut for $memory {
            fn elements_mut(&mut self) -> Option<&mut [T]> {
                Some(self)
            }
        })*
    };
}

slices!((T: Element) &[T]);
mutable_slices!(
    (T: Element) [T],
    (T: Element, const N: usize) [T; N],
    (T: Element) &mut [T],
    (T: Element) Vec<T>,
    (T: Element) Box<[T]>,
    (T: Element) Buffer<T>,
);

impl<T: Element> Owned for Vec<T> {}
impl<T: Element> Owned for Box<[T]> {}
impl<T: Element> Owned for Buffer<T> {}

#[cfg(feature = "ndarray")]
mod arrays {
    use ndarray::{Array, ArrayBase, Data, DataMut, Dimension};

    use super::{Element, Elements, ElementsMut, Owned, sealed};

    impl<T: Element, S: Data<Elem = T>, D: Dimension> sealed::Sealed for ArrayBase<S, D> {}
    impl<T: Element, S: Data<Elem = T>, D: Dimension> Elements for ArrayBase<S, D> {
        type Element = T;

        fn elements(&self) -> Option<&[T]> {
            self.as_slice()
        }
    }

    impl<T: Element, S: DataMut<Elem = T>, D: Dimension> ElementsMut for ArrayBase<S, D> {
        fn elements_mut(&mut self) -> Option<&mut [T]> {
            self.as_slice_mut()
        }
    }

    impl<T: Element, D: Dimension + Send + 'static> Owned for Array<T, D> {}
}
