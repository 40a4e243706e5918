//! Some collectives on one vector, one after the other: the example of the README.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/tour
//! [0] rank 0 of 4: the average is 1.5, the sum of averages 6
//! [1] rank 1 of 4: the average is 1.5, the sum of averages 6
//! [2] rank 2 of 4: the average is 1.5, the sum of averages 6
//! [3] rank 3 of 4: the average is 1.5, the sum of averages 6
//! ```

use unisono::{ProcessGroup, ReduceOp};

fn main() -> std::process::ExitCode {
    // Joins as launched, and alone without a launcher; errors reach all ranks.
    unisono::main(program)
}

fn program(group: &ProcessGroup) -> unisono::Result<()> {
    let (rank, ranks) = (group.rank(), group.size());

    // Any slice of f16, bf16, f32, f64, i8 to i64 or u8 to u64. Every rank gets the average over all ranks.
    let mut gradients = vec![rank as f32; 60_000 * ranks];
    group.all_reduce(&mut gradients, ReduceOp::Avg)?;
    let average = gradients[0];

    // Each rank gets its block's sums, and then the blocks of all ranks.
    let mut block = vec![0.0; 60_000];
    group.reduce_scatter((&gradients, &mut block), ReduceOp::Sum)?;
    group.all_gather((&block, &mut gradients))?;
    println!("rank {rank} of {ranks}: the average is {average}, the sum of averages {}", gradients[0]);
    assert!(gradients.iter().all(|&sum| sum == average * ranks as f32));
    Ok(())
}
