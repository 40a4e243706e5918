//! One step of training with the optimizer's state sharded: every rank sums its shard's gradients, updates
//! that shard of the parameters, and gets the others' shards. The parameters lie in a registered buffer.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/reduce_scatter_all_gather
//! [0] rank 0 of 4: parameters are now -0.25
//! [1] rank 1 of 4: parameters are now -0.25
//! [2] rank 2 of 4: parameters are now -0.25
//! [3] rank 3 of 4: parameters are now -0.25
//! ```

use unisono::{ProcessGroup, ReduceOp};

const SHARD: usize = 100_000;
const RATE: f32 = 0.5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let own = rank * SHARD..(rank + 1) * SHARD;

    let mut parameters = group.buffer::<f32>(ranks * SHARD)?;
    parameters.fill(1.0);
    // As if each rank had seen other data: the average is (ranks + 1) / 2 everywhere.
    let gradients = vec![(rank + 1) as f32; ranks * SHARD];

    let mut gradient = vec![0.0; SHARD];
    group.reduce_scatter((&gradients, &mut gradient), ReduceOp::Avg)?;
    for (parameter, gradient) in parameters[own].iter_mut().zip(&gradient) {
        *parameter -= RATE * gradient;
    }
    group.all_gather(&mut parameters)?;

    println!("rank {rank} of {ranks}: parameters are now {}", parameters[0]);
    let wanted = 1.0 - RATE * (ranks + 1) as f32 / 2.0;
    assert!(parameters.iter().all(|&parameter| parameter == wanted));
    Ok(())
}
