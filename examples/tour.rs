//! Some collectives on one vector, one after the other: the example of the README.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/tour
//! [0] rank 0 of 4: 0 became 1.5 on average, and 6 in all
//! [1] rank 1 of 4: 1 became 1.5 on average, and 6 in all
//! [2] rank 2 of 4: 2 became 1.5 on average, and 6 in all
//! [3] rank 3 of 4: 3 became 1.5 on average, and 6 in all
//! ```

use unisono::{ProcessGroup, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Who this process is, from `unisono run`, torchrun, srun or mpirun.
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // Any slice of f16, bf16, f32, f64 or an integer; every rank gets the average of all.
    let mut gradients = vec![rank as f32; 1_000_000];
    group.all_reduce(&mut gradients, ReduceOp::Avg)?;
    let average = gradients[0];

    // Each rank keeps the sum of its own share, and later gets the others'.
    let mut share = vec![0.0; gradients.len() / ranks];
    let whole = share.len() * ranks;
    group.reduce_scatter(&gradients[..whole], &mut share, ReduceOp::Sum)?;
    group.all_gather(&share, &mut gradients[..whole])?;

    // What rank 0 knows, everybody knows.
    group.broadcast(&mut gradients, 0)?;
    println!("rank {rank} of {ranks}: {rank} became {average} on average, and {} in all", gradients[0]);
    assert_eq!(average, (ranks - 1) as f32 / 2.0);
    assert!(gradients[..whole].iter().all(|&sum| sum == average * ranks as f32));
    Ok(())
}
