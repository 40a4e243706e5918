//! Sums travel while this rank computes: all_reduces are begun, go on by themselves, and are waited for later.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/overlap
//! [0] rank 0 of 4: layer 0 sums to 10, layer 1 to 20, layer 2 to 30
//! [1] rank 1 of 4: layer 0 sums to 10, layer 1 to 20, layer 2 to 30
//! [2] rank 2 of 4: layer 0 sums to 10, layer 1 to 20, layer 2 to 30
//! [3] rank 3 of 4: layer 0 sums to 10, layer 1 to 20, layer 2 to 30
//! ```

use unisono::{ProcessGroup, ReduceOp};

/// Numbers in each layer's gradient.
const COUNT: usize = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // The gradient of each layer is on its way as soon as it is there, while that of the next is computed. The group
    // owns it meanwhile.
    let mut works = Vec::new();
    for layer in 0..3 {
        works.push(group.begin().all_reduce(gradient(rank, layer), ReduceOp::Sum)?);
    }

    let mut sums = Vec::new();
    for work in works {
        let summed = work.wait()?;
        assert!(summed.iter().all(|&it| it == summed[0]));
        sums.push(summed[0]);
    }
    println!(
        "rank {rank} of {ranks}: layer 0 sums to {}, layer 1 to {}, layer 2 to {}",
        sums[0], sums[1], sums[2]
    );
    let all = (ranks * (ranks + 1) / 2) as f32;
    assert_eq!(sums, [all, 2.0 * all, 3.0 * all]);
    Ok(())
}

/// Something that takes a while.
fn gradient(rank: usize, layer: usize) -> Vec<f32> {
    vec![((rank + 1) * (layer + 1)) as f32; COUNT]
}
