//! Every rank contributes its numbers, and every rank gets their sums.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/all_reduce
//! [0] rank 0 of 4: 1 became 10
//! [1] rank 1 of 4: 2 became 10
//! [2] rank 2 of 4: 3 became 10
//! [3] rank 3 of 4: 4 became 10
//! ```

use unisono::{ProcessGroup, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Rank and size come from `unisono run`, torchrun, srun or mpirun.
    let group = ProcessGroup::from_env()?;
    let mine = (group.rank() + 1) as f32;

    let mut gradients = vec![mine; 1_000_000];
    group.all_reduce(&mut gradients, ReduceOp::Sum)?;

    let ranks = group.size();
    println!("rank {} of {ranks}: {mine} became {}", group.rank(), gradients[0]);
    let sum = (ranks * (ranks + 1) / 2) as f32;
    assert!(gradients.iter().all(|&gradient| gradient == sum));
    Ok(())
}
