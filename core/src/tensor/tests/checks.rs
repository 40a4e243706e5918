//! Errors, the methods of tensors, and shapes with few or no elements.

use super::{data, shifted, tensor, typed};
use crate::{
    Error,
    dtype::{Dtype, Scalar},
    tensor::{Tensor, TensorError, TensorView, TensorViewMut},
};

const HALF: usize = usize::MAX / 2 + 1;

#[test]
fn shapes_that_overflow_are_refused() {
    let absurd: &[&[usize]] = &[
        &[usize::MAX],
        &[HALF],
        &[HALF, 2],
        &[HALF, HALF, 0],
        &[0, usize::MAX],
        &[1 << 32, 1 << 32],
        &[1 << 60, 8],
    ];
    for dtype in Dtype::ALL {
        for &shape in absurd {
            let too_large = TensorError::TooLarge { shape: shape.to_vec(), dtype };
            assert_eq!(Tensor::zeros(dtype, shape).err(), Some(too_large.clone()));
            assert_eq!(TensorView::from_bytes(dtype, &[], shape).err(), Some(too_large.clone()));
            assert_eq!(TensorViewMut::from_bytes(dtype, &mut [], shape).err(), Some(too_large.clone()));
            typed!(dtype, T => {
                assert_eq!(Tensor::from_vec::<T>(Vec::new(), shape).err(), Some(too_large.clone()));
                assert_eq!(TensorView::new::<T>(&[], shape).err(), Some(too_large.clone()));
                let strides = vec![0; shape.len()];
                let view = TensorView::with_strides(&data::<T>(1), 0, shape, &strides).err();
                assert_eq!(view, Some(too_large.clone()));
            });
            let empty = Tensor::zeros(dtype, &[0]).unwrap();
            assert_eq!(empty.view().reshape(shape).err(), Some(too_large.clone()));
            assert_eq!(empty.reshape(shape).err(), Some(too_large));
        }
    }
    let most = isize::MAX.cast_unsigned();
    assert_eq!(Tensor::zeros(Dtype::U8, &[most]).err(), Some(TensorError::Memory { bytes: most }));
    let repeated = TensorView::with_strides(&[1_u8], 0, &[most], &[0]).unwrap();
    assert_eq!(repeated.pack().err(), Some(TensorError::Memory { bytes: most }));
}

#[test]
fn strides_that_overflow_are_refused() {
    let elements = data::<u16>(10);
    let absurd: &[(usize, &[usize], &[isize])] = &[
        (0, &[2], &[isize::MAX]),
        (0, &[2], &[isize::MIN]),
        (9, &[2], &[isize::MIN]),
        (0, &[3], &[isize::MAX]),
        (usize::MAX, &[1], &[1]),
        (usize::MAX, &[], &[]),
        (10, &[], &[]),
        (usize::MAX, &[2], &[1]),
        (HALF, &[3], &[isize::MIN / 2]),
        (0, &[2, 2, 2], &[isize::MAX, isize::MAX, 2]),
        (0, &[2, 2], &[isize::MAX, isize::MIN]),
        (0, &[11], &[1]),
        (0, &[2], &[-1]),
    ];
    for &(offset, shape, strides) in absurd {
        let refused = TensorView::with_strides(&elements, offset, shape, strides);
        assert!(matches!(refused, Err(TensorError::Outside { .. })), "{offset} {shape:?} {strides:?}");
    }
    // Where no step is made, a stride may be any.
    let one = TensorView::with_strides(&elements, 9, &[1, 1], &[isize::MAX, isize::MIN]).unwrap();
    assert_eq!(one.as_slice::<u16>().unwrap(), &elements[9..]);
    assert_eq!(one.narrow(0, 1, 0).unwrap().pack().unwrap().len(), 0);
    let none = TensorView::with_strides(&elements, usize::MAX, &[3, 0], &[isize::MAX, isize::MIN]).unwrap();
    assert_eq!(none.as_slice::<u16>().unwrap(), [0_u16; 0]);
    assert_eq!(none.narrow(0, 1, 2).unwrap().shape(), [2, 0]);
    let refused = TensorView::with_strides(&elements, 0, &[1], &[1, 1]);
    assert_eq!(refused.err(), Some(TensorError::Strides { strides: 2, rank: 1 }));
}

#[test]
fn overlapping_mutable_views_are_refused() {
    let mut elements = data::<f32>(12);
    let overlapping: &[(&[usize], &[isize])] =
        &[(&[2], &[0]), (&[3, 4], &[1, 1]), (&[4, 3], &[2, 1]), (&[2, 2], &[3, -3]), (&[2, 3], &[2, 1])];
    for &(shape, strides) in overlapping {
        let refused = TensorViewMut::with_strides(&mut elements, 3, shape, strides);
        let wanted = TensorError::Overlap { shape: shape.to_vec(), strides: strides.to_vec() };
        assert_eq!(refused.err(), Some(wanted));
    }
    for (shape, strides) in [(&[1, 3, 0], &[0, 0, 0]), (&[1, 3, 1], &[0, -1, 0]), (&[2, 2, 2], &[1, 4, 2])] {
        TensorViewMut::with_strides(&mut elements, 2, shape, strides).unwrap();
    }
}

#[test]
fn lengths_must_be_exact() {
    for given in [5, 7] {
        let wrong =
            |given, wanted, unit| Some(TensorError::Length { given, wanted, unit, shape: vec![2, 3] });
        let elements = wrong(given, 6, "elements");
        assert_eq!(Tensor::from_vec(data::<i16>(given), &[2, 3]).err(), elements);
        assert_eq!(TensorView::new(&data::<i16>(given), &[2, 3]).err(), elements);
        assert_eq!(TensorViewMut::new(&mut data::<i16>(given), &[2, 3]).err(), elements);
        let (bytes, mut tensor) = (wrong(given, 12, "bytes"), tensor(Dtype::I16, &[2, 3]));
        assert_eq!(TensorView::from_bytes(Dtype::I16, &vec![0; given], &[2, 3]).err(), bytes);
        assert_eq!(tensor.view().pack_into(&mut vec![0; given]).err(), bytes);
        assert_eq!(tensor.view_mut().unpack_from(&vec![0; given]).err(), bytes);
    }
}

#[test]
fn other_dtypes_and_shapes_are_refused() {
    let mut floats = tensor(Dtype::F32, &[2, 3]);
    // The same size and alignment do not make the same type.
    let wrong = TensorError::Dtype { holds: Dtype::F32, wanted: Dtype::I32 };
    assert_eq!(floats.as_slice::<i32>(), Err(wrong.clone()));
    assert_eq!(floats.as_mut_slice::<i32>(), Err(wrong.clone()));
    assert_eq!(floats.view().as_slice::<i32>(), Err(wrong.clone()));
    assert_eq!(floats.view_mut().into_slice::<i32>(), Err(wrong.clone()));
    assert_eq!(floats.clone().into_vec::<i32>(), Err(wrong.clone()));
    assert!(matches!(Error::from(wrong), Error::Tensor(TensorError::Dtype { .. })));
    let integers = tensor(Dtype::I32, &[2, 3]);
    let wrong = TensorError::Dtype { holds: Dtype::I32, wanted: Dtype::F32 };
    assert_eq!(floats.view_mut().copy_from(&integers.view()), Err(wrong));
    let turned = tensor(Dtype::F32, &[3, 2]);
    let refused = floats.view_mut().copy_from(&turned.view());
    assert!(matches!(refused, Err(TensorError::Shape { call: "copy_from", .. })), "{refused:?}");
    assert_eq!(
        floats.view().reshape(&[7]).err(),
        Some(TensorError::Reshape { from: vec![2, 3], to: vec![7] })
    );
    let across = floats.view().transpose(0, 1).unwrap();
    assert!(matches!(across.reshape(&[6]), Err(TensorError::NotContiguous { .. })));
    assert!(matches!(across.bytes(), Err(TensorError::NotContiguous { .. })));
    let refused = floats.view_mut().transpose(0, 1).unwrap().into_slice::<f32>();
    assert!(matches!(refused, Err(TensorError::NotContiguous { .. })));
    assert!(matches!(floats.reshape(&[2, 2]), Err(TensorError::Reshape { .. })));
}

#[test]
fn dimensions_are_checked() {
    let whole = tensor(Dtype::U8, &[2, 3]);
    let view = whole.view();
    let orders: [&[usize]; 5] = [&[0], &[0, 0], &[0, 2], &[0, 1, 2], &[usize::MAX, 0]];
    for given in orders {
        let wanted = TensorError::Permutation { given: given.to_vec(), rank: 2 };
        assert_eq!(view.permute(given).err(), Some(wanted));
    }
    assert_eq!(view.transpose(0, 2).err(), Some(TensorError::Dimension { dim: 2, rank: 2 }));
    assert_eq!(view.narrow(2, 0, 0).err(), Some(TensorError::Dimension { dim: 2, rank: 2 }));
    for (start, len) in [(4, 0), (0, 4), (3, 1), (2, usize::MAX), (usize::MAX, 2), (usize::MAX, 0)] {
        let wanted = TensorError::Narrow { dim: 1, start, len, size: 3 };
        assert_eq!(view.narrow(1, start, len).err(), Some(wanted));
    }
}

#[test]
fn vectors_become_tensors_and_again_vectors_without_a_copy() {
    fn check<T: Scalar>() {
        let vec = data::<T>(6);
        let (place, bytes) = (vec.as_ptr(), bytemuck::cast_slice::<T, u8>(&vec).to_vec());
        let mut tensor = Tensor::from_vec(vec, &[2, 3]).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape(), tensor.len()), (T::DTYPE, &[2, 3][..], 6));
        assert_eq!(tensor.bytes(), bytes);
        assert_eq!(tensor.as_slice::<T>().unwrap().as_ptr(), place);
        tensor.as_mut_slice::<T>().unwrap()[0] = T::zeroed();
        tensor.view_mut().into_bytes().unwrap()[size_of::<T>()..].fill(0);
        assert_eq!(tensor.bytes_mut(), vec![0; bytes.len()]);
        let tensor = tensor.reshape(&[3, 1, 2]).unwrap();
        assert_eq!(tensor, Tensor::zeros(T::DTYPE, &[3, 1, 2]).unwrap());
        let vec = tensor.into_vec::<T>().unwrap();
        assert_eq!(vec.as_ptr(), place);
    }
    for dtype in Dtype::ALL {
        typed!(dtype, T => check::<T>());
    }
}

#[test]
fn scalars_and_empty_tensors_are_tensors() {
    let mut scalar = Tensor::from_vec(vec![7_i64], &[]).unwrap();
    assert_eq!((scalar.len(), scalar.is_empty(), scalar.view().strides()), (1, false, &[][..]));
    assert_eq!(scalar.view().permute(&[]).unwrap().pack().unwrap(), scalar);
    scalar.view_mut().unpack_from(&9_i64.to_ne_bytes()).unwrap();
    assert_eq!(scalar.as_slice::<i64>().unwrap(), [9]);
    for shape in [&[0][..], &[0, 3], &[3, 0, 2], &[0, 0]] {
        let mut empty = Tensor::zeros(Dtype::BF16, shape).unwrap();
        assert!(empty.is_empty() && empty.view().is_contiguous() && empty.bytes().is_empty());
        assert_eq!(empty.view().pack().unwrap(), empty);
        empty.view_mut().unpack_from(&[]).unwrap();
        assert_eq!(empty.clone().reshape(&[5, 0]).unwrap().shape(), [5, 0]);
    }
}

#[test]
fn bytes_at_odd_addresses_are_never_reinterpreted() {
    for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.size() > 1) {
        let whole = tensor(dtype, &[3, 4]);
        let mut words = shifted(whole.bytes());
        let odd = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[1..=whole.bytes().len()];
        let view = TensorView::from_bytes(dtype, odd, &[3, 4]).unwrap();
        let misaligned = TensorError::Misaligned { dtype };
        typed!(dtype, T => assert_eq!(view.as_slice::<T>(), Err(misaligned.clone())));
        assert_eq!(view.bytes().unwrap(), whole.bytes());
        let turned = view.transpose(0, 1).unwrap().pack().unwrap();
        let mut view = TensorViewMut::from_bytes(dtype, odd, &[4, 3]).unwrap();
        view.copy_from(&turned.view()).unwrap();
        assert_eq!(view.view().bytes().unwrap(), turned.bytes());
        typed!(dtype, T => assert_eq!(view.reborrow().into_slice::<T>(), Err(misaligned)));
    }
}

/// An empty view is aligned at any address.
#[test]
fn no_elements_may_lie_at_any_address() {
    for (dtype, other) in Dtype::ALL.into_iter().zip(Dtype::ALL.into_iter().cycle().skip(1)) {
        let mut words = [0_u64; 2];
        let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
        let view = TensorView::from_bytes(dtype, &bytes[1..1], &[0, 3]).unwrap();
        let nowhere = TensorView::from_bytes(dtype, &[], &[2, 0]).unwrap();
        let turned = view.transpose(0, 1).unwrap();
        for view in [view, nowhere, turned] {
            typed!(dtype, T => assert!(view.as_slice::<T>().unwrap().is_empty()));
            let wrong = TensorError::Dtype { holds: dtype, wanted: other };
            typed!(other, T => assert_eq!(view.as_slice::<T>(), Err(wrong)));
        }
        let view = TensorViewMut::from_bytes(dtype, &mut bytes[1..1], &[0, 3]).unwrap();
        typed!(dtype, T => assert!(view.into_slice::<T>().unwrap().is_empty()));
        let view = TensorViewMut::from_bytes(dtype, &mut [], &[2, 0]).unwrap();
        typed!(dtype, T => assert!(view.into_slice::<T>().unwrap().is_empty()));
    }
}

#[test]
fn a_mutable_view_is_cut_like_another() {
    let mut whole = Tensor::zeros(Dtype::I32, &[2, 3, 2]).unwrap();
    let mut view = whole.view_mut();
    assert_eq!(
        (view.dtype(), view.len(), view.is_empty(), view.is_contiguous()),
        (Dtype::I32, 12, false, true)
    );
    let part = view.reborrow().narrow(1, 1, 1).unwrap().transpose(0, 2).unwrap();
    assert_eq!((part.shape(), part.strides()), (&[2, 1, 2][..], &[1, 2, 6][..]));
    let mut part = part.permute(&[2, 1, 0]).unwrap();
    part.unpack_from(bytemuck::cast_slice(&[1_i32, 2, 3, 4])).unwrap();
    view.reshape(&[4, 3]).unwrap().narrow(0, 3, 1).unwrap().into_slice::<i32>().unwrap()[2] = 9;
    assert_eq!(whole.into_vec::<i32>().unwrap(), [0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 9]);
}
