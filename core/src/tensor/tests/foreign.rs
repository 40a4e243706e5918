//! Conversions from and to other crates' tensors, there and back.

#[cfg(feature = "ndarray")]
mod arrays {
    use ndarray::{
        Array2, Array3, ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Axis, IxDyn, ShapeBuilder, s,
    };
    use proptest::prelude::*;

    use crate::{
        dtype::Dtype,
        tensor::{
            Tensor, TensorError, TensorView, TensorViewMut,
            tests::{Model, changes, data, shape, tensor},
        },
    };

    proptest! {
        #[test]
        fn views_become_arrays(shape in shape(5, 0..5), changes in changes()) {
            let elements = data::<u32>(shape.iter().product());
            let (mut model, mut view) = (Model::new(&shape), TensorView::new(&elements, &shape).unwrap());
            for change in &changes {
                view = model.change(view, &elements, change);
            }
            let array = ArrayViewD::<u32>::try_from(&view).unwrap();
            prop_assert_eq!(array.shape(), view.shape());
            let wanted: Vec<_> = model.places().into_iter().map(|place| elements[place]).collect();
            prop_assert_eq!(array.iter().copied().collect::<Vec<_>>(), &*wanted);
            let places: Vec<_> = array.iter().map(std::ptr::from_ref).collect();
            let shown: Vec<_> = model.places().into_iter().map(|place| &raw const elements[place]).collect();
            prop_assert_eq!(places, shown);
            match TensorView::try_from(array.view()) {
                Ok(again) => prop_assert_eq!(again.pack().unwrap().into_vec::<u32>().unwrap(), wanted),
                Err(refused) => {
                    let gaps = matches!(refused, TensorError::Gaps { .. });
                    prop_assert!(gaps && view.layout().reach().len() > view.len());
                }
            }
            let mut written = vec![0; elements.len()];
            ArrayViewMutD::<u32>::try_from(model.view_mut(&mut written)).unwrap().assign(&array);
            prop_assert!(model.places().into_iter().all(|place| written[place] == elements[place]));
        }
    }

    #[test]
    fn arrays_of_any_order_become_views() {
        let mut array = Array3::from_shape_vec((2, 3, 4), (0..24).collect::<Vec<i64>>()).unwrap();
        let check = |array: ArrayView<'_, i64, IxDyn>| {
            let view = TensorView::try_from(array.view()).unwrap();
            assert_eq!(view.shape(), array.shape());
            let packed = view.pack().unwrap().into_vec::<i64>().unwrap();
            assert_eq!(packed, array.iter().copied().collect::<Vec<_>>());
        };
        check(array.view().into_dyn());
        check(array.view().reversed_axes().into_dyn());
        check(array.slice(s![.., ..;-1, ..]).into_dyn());
        check(array.slice(s![..;-1, ..;-1, ..;-1]).permuted_axes([1, 2, 0]).into_dyn());
        check(array.slice(s![1, 1.., ..]).into_dyn());
        check(array.slice(s![.., 1..1, ..]).into_dyn());
        check(array.index_axis(Axis(0), 1).broadcast((5, 3, 4)).unwrap().into_dyn());
        check(ArrayView::from_shape(IxDyn(&[]), &[3]).unwrap());
        let columns = array.slice(s![.., .., 1..3]);
        assert!(matches!(TensorView::try_from(columns), Err(TensorError::Gaps { .. })));
        assert_eq!(Tensor::try_from(columns.to_owned()).unwrap().shape(), [2, 3, 2]);

        let turned = array.view_mut().reversed_axes();
        let packed: Vec<_> = (0..24_i64).rev().collect();
        let mut view = TensorViewMut::try_from(turned).unwrap();
        view.unpack_from(bytemuck::cast_slice(&packed)).unwrap();
        assert_eq!(array.t().iter().copied().collect::<Vec<_>>(), packed);
        let gaps = TensorViewMut::try_from(array.slice_mut(s![.., ..;2, ..]));
        assert!(matches!(gaps, Err(TensorError::Gaps { .. })));
    }

    #[test]
    fn no_elements_at_any_address_become_arrays() {
        let mut bytes = [0; 0];
        let view = TensorView::from_bytes(Dtype::F64, &bytes, &[0, 3]).unwrap();
        assert_eq!(ArrayViewD::<f64>::try_from(&view).unwrap().shape(), [0, 3]);
        let view = TensorViewMut::from_bytes(Dtype::F64, &mut bytes, &[3, 0]).unwrap();
        assert_eq!(ArrayViewMutD::<f64>::try_from(view).unwrap().shape(), [3, 0]);
    }

    #[test]
    fn tensors_and_arrays_own_the_same_memory() {
        let vec = data::<f64>(6);
        let place = vec.as_ptr();
        let array = ArrayD::<f64>::try_from(Tensor::from_vec(vec, &[2, 3]).unwrap()).unwrap();
        assert_eq!((array.as_ptr(), array.shape()), (place, &[2, 3][..]));
        let tensor_again = Tensor::try_from(array.clone()).unwrap();
        assert_eq!(tensor_again.as_slice::<f64>().unwrap(), array.as_slice().unwrap());
        let tensor_again = Tensor::try_from(array).unwrap();
        assert_eq!(tensor_again.as_slice::<f64>().unwrap().as_ptr(), place);
        let wrong = ArrayD::<f32>::try_from(tensor_again);
        assert_eq!(wrong, Err(TensorError::Dtype { holds: Dtype::F64, wanted: Dtype::F32 }));
        let integers = tensor(Dtype::I32, &[2]);
        assert!(matches!(ArrayViewD::<u32>::try_from(&integers.view()), Err(TensorError::Dtype { .. })));
    }

    #[test]
    fn arrays_that_are_cut_or_turned_become_tensors() {
        let whole = Array2::from_shape_vec((3, 4), (0..12_u16).collect()).unwrap();
        let mut cut = whole.clone();
        cut.slice_collapse(s![1..2, ..]);
        let fortran = Array2::from_shape_vec((3, 4).f(), (0..12_u16).collect()).unwrap();
        for array in [cut, whole.clone().reversed_axes(), whole.slice_move(s![..;-1, ..;2]), fortran] {
            let wanted: Vec<_> = array.iter().copied().collect();
            let shape = array.shape().to_vec();
            let tensor = Tensor::try_from(array).unwrap();
            assert_eq!((tensor.shape(), tensor.as_slice::<u16>().unwrap()), (&*shape, &*wanted));
        }
    }
}

#[cfg(feature = "safetensors")]
mod files {
    use safetensors::{Dtype as Theirs, SafeTensors, serialize, tensor::TensorView as TheirView};

    use crate::{
        dtype::Dtype,
        tensor::{TensorError, TensorView, tests::tensor},
    };

    #[test]
    fn every_dtype_goes_through_a_file() {
        let tensors: Vec<_> = Dtype::ALL
            .into_iter()
            .map(|dtype| (dtype.name(), tensor(dtype, &[3, dtype.size() - 1])))
            .collect();
        let file = serialize(tensors.iter().map(|(name, tensor)| (*name, tensor)), None).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        for (name, tensor) in &tensors {
            let view = TensorView::try_from(read.tensor(name).unwrap()).unwrap();
            assert_eq!((view.dtype(), view.shape()), (tensor.dtype(), tensor.shape()));
            assert_eq!(view.bytes().unwrap(), tensor.bytes());
        }
    }

    #[test]
    fn no_elements_behind_odd_bytes_are_read() {
        let header = concat!(
            r#"{"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"#,
            r#""none":{"dtype":"F64","shape":[0,3],"data_offsets":[1,1]}}"#
        );
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length, header.as_bytes(), &[7]].concat();
        let read = SafeTensors::deserialize(&file).unwrap();
        let view = TensorView::try_from(read.tensor("none").unwrap()).unwrap();
        assert_eq!((view.shape(), view.as_slice::<f64>().unwrap()), (&[0, 3][..], &[][..]));
    }

    #[test]
    fn views_are_packed_into_a_file() {
        let whole = tensor(Dtype::F32, &[3, 4]);
        let turned = whole.view().transpose(0, 1).unwrap();
        let part = whole.view().narrow(0, 1, 2).unwrap();
        let file = serialize([("turned", turned.clone()), ("part", part.clone())], None).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        for (name, view) in [("turned", turned), ("part", part)] {
            let there = TensorView::try_from(read.tensor(name).unwrap()).unwrap();
            assert_eq!(there.shape(), view.shape());
            assert_eq!(there.bytes().unwrap(), view.pack().unwrap().bytes());
        }
    }

    #[test]
    fn other_types_are_refused_by_name() {
        for (theirs, name) in [(Theirs::BOOL, "BOOL"), (Theirs::F8_E4M3, "F8_E4M3")] {
            let view = TheirView::new(theirs, vec![2], &[0, 1]).unwrap();
            let refused = TensorView::try_from(view);
            assert_eq!(refused.err(), Some(TensorError::ForeignDtype { name: name.into() }));
        }
    }
}
