//! Conversions from and to the tensors of safetensors files.

use std::borrow::Cow;

use ::safetensors::{Dtype as Theirs, View, tensor::TensorView as TheirView};

use super::{error::TensorError, owned::Tensor, view::TensorView};
use crate::dtype::Dtype;

/// Borrows the bytes, which may have any address.
///
/// Fails with [`TensorError::ForeignDtype`] if the elements are of none of the twelve types.
impl<'a> TryFrom<TheirView<'a>> for TensorView<'a> {
    type Error = TensorError;

    fn try_from(theirs: TheirView<'a>) -> Result<Self, TensorError> {
        Self::from_bytes(dtype(theirs.dtype())?, theirs.data(), theirs.shape())
    }
}

impl View for &Tensor {
    fn dtype(&self) -> Theirs {
        theirs(Tensor::dtype(self))
    }

    fn shape(&self) -> &[usize] {
        Tensor::shape(self)
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes())
    }

    fn data_len(&self) -> usize {
        self.bytes().len()
    }
}

/// A contiguous view is borrowed; others are packed.
impl View for TensorView<'_> {
    fn dtype(&self) -> Theirs {
        theirs(TensorView::dtype(self))
    }

    fn shape(&self) -> &[usize] {
        TensorView::shape(self)
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().map_or_else(
            |_| {
                let mut packed = vec![0; self.data_len()];
                self.write(&mut packed);
                Cow::Owned(packed)
            },
            Cow::Borrowed,
        )
    }

    fn data_len(&self) -> usize {
        self.len() * TensorView::dtype(self).size()
    }
}

/// The type of safetensors for a type of this library.
const fn theirs(dtype: Dtype) -> Theirs {
    match dtype {
        Dtype::F16 => Theirs::F16,
        Dtype::BF16 => Theirs::BF16,
        Dtype::F32 => Theirs::F32,
        Dtype::F64 => Theirs::F64,
        Dtype::I8 => Theirs::I8,
        Dtype::I16 => Theirs::I16,
        Dtype::I32 => Theirs::I32,
        Dtype::I64 => Theirs::I64,
        Dtype::U8 => Theirs::U8,
        Dtype::U16 => Theirs::U16,
        Dtype::U32 => Theirs::U32,
        Dtype::U64 => Theirs::U64,
    }
}

/// The type of this library for a type of safetensors, if there is one.
fn dtype(given: Theirs) -> Result<Dtype, TensorError> {
    let ours = Dtype::ALL.into_iter().find(|&dtype| theirs(dtype) == given);
    ours.ok_or_else(|| TensorError::ForeignDtype { name: given.to_string() })
}
