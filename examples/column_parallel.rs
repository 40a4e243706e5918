//! A layer too large for one rank: every rank holds some columns of the weight and computes these columns of the
//! output, and all ranks get all of it.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/column_parallel
//! [0] rank 0 of 4: [32, 300] x [300, 251] gave columns 0..251 of [32, 1002]
//! [0] rank 0 of 4: to the last bit what one rank computes
//! [1] rank 1 of 4: [32, 300] x [300, 251] gave columns 251..502 of [32, 1002]
//! [2] rank 2 of 4: [32, 300] x [300, 250] gave columns 502..752 of [32, 1002]
//! [3] rank 3 of 4: [32, 300] x [300, 250] gave columns 752..1002 of [32, 1002]
//! ```

use unisono::{ProcessGroup, Tensor, tensor::Parts};
use unisono_schedule::partition;

const BATCH: usize = 32;
const INPUTS: usize = 300;
const OUTPUTS: usize = 1002;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // Every rank has the input, and keeps its columns of the weight; the whole is made for the sake of the check.
    let input = Tensor::from_vec(numbers(1, BATCH * INPUTS), &[BATCH, INPUTS])?;
    let weight = Tensor::from_vec(numbers(2, INPUTS * OUTPUTS), &[INPUTS, OUTPUTS])?;
    let mine = weight.view().tensor_split(1, ranks)?[rank].pack()?;

    // Its columns of the output, and all ranks' side by side.
    let output = product(&input, &mine)?;
    let whole = group.all_gather_tensor(output.view(), Parts::Split(1))?;

    let range = partition::block(OUTPUTS, ranks, rank);
    let (left, right) = (input.shape(), mine.shape());
    println!("rank {rank} of {ranks}: {left:?} x {right:?} gave columns {range:?} of {:?}", whole.shape());
    assert!(whole.bytes() == product(&input, &weight)?.bytes());
    if rank == 0 {
        println!("rank {rank} of {ranks}: to the last bit what one rank computes");
    }
    Ok(())
}

/// The product of two matrices. Each element is summed in the order of the inner dimension, and so it does not
/// matter to its bits which other columns are computed beside it.
fn product(left: &Tensor, right: &Tensor) -> unisono::Result<Tensor> {
    let (rows, inner, width) = (left.shape()[0], left.shape()[1], right.shape()[1]);
    let (left, right) = (left.as_slice::<f32>()?, right.as_slice::<f32>()?);
    let mut output = vec![0.0; rows * width];
    for (row, sums) in output.chunks_exact_mut(width).enumerate() {
        for (k, factor) in left[row * inner..(row + 1) * inner].iter().enumerate() {
            for (sum, element) in sums.iter_mut().zip(&right[k * width..]) {
                *sum += factor * element;
            }
        }
    }
    Ok(Tensor::from_vec(output, &[rows, width])?)
}

/// Numbers from -1 to 1, the same on every rank.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
