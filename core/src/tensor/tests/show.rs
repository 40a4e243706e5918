//! Printed tensors, against lists nested by the definition.

use proptest::prelude::*;

use super::{Model, changes, data, dtype, shape, shifted, tensor, typed};
use crate::{
    dtype::{Dtype, Scalar},
    tensor::{Tensor, TensorView},
};

/// Lists of these elements, nested by the shape; of more than a thousand, only the ends.
fn nest(shape: &[usize], long: bool, elements: &mut dyn FnMut(&[usize]) -> String) -> String {
    let Some((&len, inner)) = shape.split_first() else { return elements(&[]) };
    let mut parts = Vec::new();
    for at in 0..len {
        if !long || len <= 6 || !(3..len - 3).contains(&at) {
            parts.push(nest(inner, long, &mut |rest| elements(&[&[at], rest].concat())));
        } else if at == 3 {
            parts.push("...".to_owned());
        }
    }
    format!("[{}]", parts.join(", "))
}

fn prints<T: Scalar + std::fmt::Display>(shape: &[usize], changes: &[super::Change]) {
    let elements = data::<T>(shape.iter().product());
    let (mut model, mut view) = (Model::new(shape), TensorView::new(&elements, shape).unwrap());
    for change in changes {
        view = model.change(view, &elements, change);
    }
    let places = model.places();
    // What lies in a dimension of length 0 is not told.
    let printed = model.shape.iter().take_while(|len| **len > 0).product::<usize>();
    let wanted = nest(&model.shape, printed > 1000, &mut |index| {
        let at = index.iter().zip(&model.shape).fold(0, |at, (index, len)| at * len + index);
        format!("{:.1}", elements[places[at]])
    });
    assert_eq!(format!("{view:.1}"), wanted);
    assert_eq!(format!("{:.1}", view.pack().unwrap()), wanted);
    let bytes: &[u8] = bytemuck::cast_slice(&elements);
    let words = shifted(bytes);
    let there = &bytemuck::cast_slice::<u64, u8>(&words)[1..=bytes.len()];
    assert_eq!(format!("{:.1}", TensorView::of(T::DTYPE, there, view.layout().clone())), wanted);
}

proptest! {
    #[test]
    fn views_are_printed_as_nested_lists(dtype in dtype(), shape in shape(5, 0..5), changes in changes()) {
        typed!(dtype, T => prints::<T>(&shape, &changes));
    }

    #[test]
    fn long_dimensions_are_printed_in_part(shape in shape(40, 1..4)) {
        prints::<u16>(&shape, &[]);
    }
}

#[test]
fn numbers_look_as_they_do_elsewhere() {
    let numbers = vec![1.0_f32, -0.5, f32::NAN, 1e9, f32::INFINITY, 0.1];
    let floats = Tensor::from_vec(numbers, &[2, 3]).unwrap();
    assert_eq!(floats.to_string(), "[[1, -0.5, NaN], [1000000000, inf, 0.1]]");
    assert_eq!(Tensor::from_vec(vec![7_u8], &[]).unwrap().to_string(), "7");
    let many = Tensor::from_vec((0..1001).collect::<Vec<i64>>(), &[1, 1001]).unwrap();
    assert_eq!(many.to_string(), "[[0, 1, 2, ..., 998, 999, 1000]]");
    assert_eq!(many.view().narrow(1, 1, 1000).unwrap().to_string().split(", ").count(), 1000);
}

#[test]
fn what_has_no_elements_is_printed_too() {
    let printed = |shape: &[usize]| tensor(Dtype::BF16, shape).to_string();
    assert_eq!([&*printed(&[0]), &*printed(&[0, 3]), &*printed(&[2, 0, 3])], ["[]", "[]", "[[], []]"]);
    assert_eq!(printed(&[2000, 0]), "[[], [], [], ..., [], [], []]");
    // As deep as anybody likes, and as long.
    let deep = tensor(Dtype::U8, &vec![1; 100_000]);
    assert_eq!(deep.to_string().len(), 200_000 + tensor(Dtype::U8, &[]).to_string().len());
    let long = TensorView::new::<u8>(&[], &[1 << 40, 0]).unwrap();
    assert_eq!(long.to_string(), printed(&[2000, 0]));
}

#[test]
fn of_many_dimensions_the_first_elements_are_printed() {
    // Five long dimensions are told in part, and all of that.
    let five = TensorView::with_strides(&[7_u8], 0, &[9; 5], &[0; 5]).unwrap().to_string();
    assert_eq!((five.matches('7').count(), five.contains("...]")), (6_usize.pow(5), false));
    let mut ones = vec![1; 100_000];
    ones[0] = 1000;
    let shapes = [&[2; 40][..], &[2; 60], &[9; 18], &ones[..]];
    for (shape, wanted) in shapes.into_iter().zip(["7", "", "7", "7"]) {
        let strides = vec![0; shape.len()];
        let empty = [shape, &[0]].concat();
        let view = match wanted {
            "" => TensorView::new::<u8>(&[], &empty),
            _ => TensorView::with_strides(&[7_u8], 0, shape, &strides),
        };
        let printed = view.unwrap().to_string();
        let count = |what: char| printed.matches(what).count();
        assert_eq!(count('['), count(']'));
        assert!(printed.ends_with(']') && printed.contains(", ...]"), "{:?}", &shape[..2]);
        assert!(printed.contains(wanted) && count('7') <= 10_000);
        assert!(printed.len() <= 4 * shape.len() + 80_000, "{}", printed.len());
    }
}
