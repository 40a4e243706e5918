//! Tensors against a naive oracle that walks every multi-index and shares no code with them.

use proptest::prelude::*;

use super::{Tensor, TensorError, TensorView, TensorViewMut};
use crate::dtype::{Dtype, Scalar};

mod checks;
#[cfg(any(feature = "ndarray", feature = "safetensors"))]
mod foreign;
mod parts;
mod show;

/// Runs a generic expression for the Rust type of a dtype.
macro_rules! typed {
    ($dtype:expr, $t:ident => $body:expr) => {{
        macro_rules! as_type {
            ($rust:ty) => {{
                type $t = $rust;
                $body
            }};
        }
        match $dtype {
            Dtype::F16 => as_type!(half::f16),
            Dtype::BF16 => as_type!(half::bf16),
            Dtype::F32 => as_type!(f32),
            Dtype::F64 => as_type!(f64),
            Dtype::I8 => as_type!(i8),
            Dtype::I16 => as_type!(i16),
            Dtype::I32 => as_type!(i32),
            Dtype::I64 => as_type!(i64),
            Dtype::U8 => as_type!(u8),
            Dtype::U16 => as_type!(u16),
            Dtype::U32 => as_type!(u32),
            Dtype::U64 => as_type!(u64),
        }
    }};
}
use typed;

/// Elements whose bytes differ from their neighbours'.
fn data<T: Scalar>(len: usize) -> Vec<T> {
    let mut elements = bytemuck::zeroed_vec::<T>(len);
    let mut state = 1_u32;
    for byte in bytemuck::cast_slice_mut::<T, u8>(&mut elements) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = state.to_be_bytes()[0];
    }
    elements
}

/// A tensor of such elements.
fn tensor(dtype: Dtype, shape: &[usize]) -> Tensor {
    typed!(dtype, T => Tensor::from_vec(data::<T>(shape.iter().product()), shape).unwrap())
}

/// A change of a layout, from which views of row-major elements are made.
#[derive(Clone, Debug)]
enum Change {
    /// Exchanges two dimensions.
    Transpose(usize, usize),
    /// Rotates the dimensions by this many places.
    Rotate(usize),
    /// Narrows a dimension.
    Narrow(usize, usize, usize),
    /// Reverses a dimension.
    Reverse(usize),
    /// Takes every n-th element of a dimension.
    Step(usize, usize),
}

/// Shape, strides and first element, computed by their definitions.
#[derive(Clone, Debug)]
struct Model {
    shape: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
}

impl Model {
    fn new(shape: &[usize]) -> Self {
        let stride = |dim: usize| shape[dim + 1..].iter().map(|&len| len.max(1)).product::<usize>();
        let strides = (0..shape.len()).map(|dim| stride(dim).cast_signed()).collect();
        Self { shape: shape.to_vec(), strides, offset: 0 }
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The index of every element, in row-major order.
    fn places(&self) -> Vec<usize> {
        let mut places = Vec::new();
        for mut number in 0..self.len() {
            let mut place = self.offset.cast_signed();
            for (&len, &stride) in self.shape.iter().zip(&self.strides).rev() {
                place += (number % len).cast_signed() * stride;
                number /= len;
            }
            places.push(usize::try_from(place).unwrap());
        }
        places
    }

    /// Applies a change, and the same to a view of these elements.
    fn change<'a, T: Scalar>(
        &mut self,
        view: TensorView<'a>,
        elements: &'a [T],
        change: &Change,
    ) -> TensorView<'a> {
        let rank = self.shape.len();
        if rank == 0 {
            return view;
        }
        match *change {
            Change::Transpose(a, b) => {
                let (a, b) = (a % rank, b % rank);
                self.shape.swap(a, b);
                self.strides.swap(a, b);
                view.transpose(a, b).unwrap()
            }
            Change::Rotate(by) => {
                let order: Vec<_> = (0..rank).map(|dim| (dim + by) % rank).collect();
                self.shape = order.iter().map(|&dim| self.shape[dim]).collect();
                self.strides = order.iter().map(|&dim| self.strides[dim]).collect();
                view.permute(&order).unwrap()
            }
            Change::Narrow(dim, start, len) => {
                let dim = dim % rank;
                let start = start % (self.shape[dim] + 1);
                let len = len % (self.shape[dim] - start + 1);
                self.shape[dim] = len;
                if self.len() > 0 {
                    self.offset = self.offset.strict_add_signed(start.cast_signed() * self.strides[dim]);
                }
                view.narrow(dim, start, len).unwrap()
            }
            Change::Reverse(dim) => {
                let dim = dim % rank;
                if self.len() > 0 {
                    let last = (self.shape[dim] - 1).cast_signed() * self.strides[dim];
                    self.offset = self.offset.strict_add_signed(last);
                }
                self.strides[dim] = -self.strides[dim];
                TensorView::with_strides(elements, self.offset, &self.shape, &self.strides).unwrap()
            }
            Change::Step(dim, by) => {
                let (dim, by) = (dim % rank, by % 3 + 1);
                self.shape[dim] = self.shape[dim].div_ceil(by);
                self.strides[dim] *= by.cast_signed();
                TensorView::with_strides(elements, self.offset, &self.shape, &self.strides).unwrap()
            }
        }
    }

    /// A mutable view of these elements.
    fn view_mut<'a, T: Scalar>(&self, elements: &'a mut [T]) -> TensorViewMut<'a> {
        TensorViewMut::with_strides(elements, self.offset, &self.shape, &self.strides).unwrap()
    }

    /// The bytes of its elements, in row-major order.
    fn gather(&self, bytes: &[u8], size: usize) -> Vec<u8> {
        self.places().iter().flat_map(|&place| bytes[place * size..][..size].to_vec()).collect()
    }

    /// Writes such bytes to its elements.
    fn scatter(&self, bytes: &mut [u8], size: usize, packed: &[u8]) {
        for (&place, element) in self.places().iter().zip(packed.chunks_exact(size)) {
            bytes[place * size..][..size].copy_from_slice(element);
        }
    }
}

fn dtype() -> impl Strategy<Value = Dtype> {
    proptest::sample::select(Dtype::ALL.to_vec())
}

fn shape(longest: usize, ranks: std::ops::Range<usize>) -> impl Strategy<Value = Vec<usize>> {
    // Rarely 0, so that most have elements.
    proptest::collection::vec(prop_oneof![1 => Just(0), 30 => 1..=longest], ranks)
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let number = || 0_usize..100;
    let change = prop_oneof![
        3 => (number(), number()).prop_map(|(a, b)| Change::Transpose(a, b)),
        2 => number().prop_map(Change::Rotate),
        2 => (number(), number(), number()).prop_map(|(dim, start, len)| Change::Narrow(dim, start, len)),
        2 => number().prop_map(Change::Reverse),
        1 => (number(), number()).prop_map(|(dim, by)| Change::Step(dim, by)),
    ];
    proptest::collection::vec(change, 0..6)
}

/// The same bytes, one byte further, so that only types of one byte are aligned.
fn shifted(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0_u64; bytes.len() / 8 + 2];
    bytemuck::cast_slice_mut::<u64, u8>(&mut words)[1..=bytes.len()].copy_from_slice(bytes);
    words
}

/// Packs, unpacks and copies a changed view of these elements, and compares with the model.
fn packs_and_unpacks<T: Scalar>(shape: &[usize], changes: &[Change]) {
    let size = size_of::<T>();
    let elements = data::<T>(shape.iter().product());
    let bytes: &[u8] = bytemuck::cast_slice(&elements);
    let mut model = Model::new(shape);
    let mut view = TensorView::new(&elements, shape).unwrap();
    for change in changes {
        view = model.change(view, &elements, change);
    }
    assert_eq!((view.shape(), view.len()), (&*model.shape, model.len()));
    let wanted = model.gather(bytes, size);

    let packed = view.pack().unwrap();
    assert_eq!((packed.dtype(), packed.shape(), packed.bytes()), (T::DTYPE, &*model.shape, &*wanted));
    let contiguous = model.places().windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert_eq!(view.is_contiguous(), contiguous, "{model:?}");
    assert_eq!(view.bytes().ok(), contiguous.then_some(&*wanted));
    assert_eq!(
        view.as_slice::<T>().ok().map(bytemuck::cast_slice),
        contiguous.then_some(&*wanted),
        "{model:?}"
    );

    let words = shifted(bytes);
    let bytes_there = &bytemuck::cast_slice::<u64, u8>(&words)[1..=bytes.len()];
    let anywhere = TensorView::of(T::DTYPE, bytes_there, view.layout().clone());
    let mut out = vec![0; wanted.len() + 1];
    anywhere.pack_into(&mut out[1..]).unwrap();
    assert_eq!(out[1..], wanted);
    if size > 1 && contiguous && !wanted.is_empty() {
        let refused = anywhere.as_slice::<T>();
        assert_eq!(refused.err(), Some(TensorError::Misaligned { dtype: T::DTYPE }));
    }

    let mut written = vec![T::zeroed(); elements.len()];
    let mut scattered = vec![0; bytes.len()];
    model.scatter(&mut scattered, size, &wanted);
    model.view_mut(&mut written).unpack_from(&out[1..]).unwrap();
    assert_eq!(bytemuck::cast_slice::<T, u8>(&written), scattered);

    written.fill(T::zeroed());
    model.view_mut(&mut written).copy_from(&view).unwrap();
    assert_eq!(bytemuck::cast_slice::<T, u8>(&written), scattered);

    let rank = model.shape.len();
    let mut backward =
        Tensor::zeros(T::DTYPE, &model.shape.iter().rev().copied().collect::<Vec<_>>()).unwrap();
    let order: Vec<_> = (0..rank).rev().collect();
    backward.view_mut().permute(&order).unwrap().copy_from(&view).unwrap();
    assert_eq!(backward.view().permute(&order).unwrap().pack().unwrap().bytes(), wanted);
}

proptest! {
    #[test]
    fn views_pack_and_unpack(dtype in dtype(), shape in shape(5, 0..5), changes in changes()) {
        typed!(dtype, T => packs_and_unpacks::<T>(&shape, &changes));
    }

    #[test]
    fn large_planes_pack_and_unpack(dtype in dtype(), shape in shape(70, 2..4), changes in changes()) {
        typed!(dtype, T => packs_and_unpacks::<T>(&shape, &changes));
    }

    #[test]
    fn repeated_elements_pack(len in 0_usize..6, times in 0_usize..6) {
        let elements = data::<u16>(len);
        let view = TensorView::with_strides(&elements, 0, &[times, len, times], &[0, 1, 0]).unwrap();
        let wanted: Vec<_> =
            (0..times).flat_map(|_| elements.iter().flat_map(|&element| vec![element; times])).collect();
        let packed = view.pack().unwrap();
        prop_assert_eq!(packed.as_slice::<u16>().unwrap(), wanted);
    }

    #[test]
    fn a_mutable_view_reaches_no_element_twice(
        dims in proptest::collection::vec((1_usize..5, -12_isize..12), 0..4),
        offset in 0_usize..60,
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let mut elements = data::<u8>(120);
        if TensorViewMut::with_strides(&mut elements, offset, &shape, &strides).is_ok() {
            let mut places = Model { shape, strides, offset }.places();
            places.sort_unstable();
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn exactly_what_lies_inside_is_taken(
        dims in proptest::collection::vec((1_usize..5, -5_isize..5), 0..4),
        offset in 0_usize..30,
        len in 0_usize..30,
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let mut inside = true;
        for mut number in 0..shape.iter().product::<usize>() {
            let mut place = offset.cast_signed();
            for (&len, &stride) in shape.iter().zip(&strides) {
                place += (number % len).cast_signed() * stride;
                number /= len;
            }
            inside &= (0..len.cast_signed()).contains(&place);
        }
        let elements = data::<u32>(len);
        prop_assert_eq!(TensorView::with_strides(&elements, offset, &shape, &strides).is_ok(), inside);
    }
}
