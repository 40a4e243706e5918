//! Every rank has counted what it saw, and rank 0 alone gets the sums: in place, so that the others keep their own.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/reduce
//! [0] rank 0 of 4: [1, 10, 100] became [10, 100, 1000]
//! [1] rank 1 of 4: [2, 20, 200] became [2, 20, 200]
//! [2] rank 2 of 4: [3, 30, 300] became [3, 30, 300]
//! [3] rank 3 of 4: [4, 40, 400] became [4, 40, 400]
//! ```

use unisono::{ProcessGroup, ReduceOp};

const ROOT: usize = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let mine = [1, 10, 100].map(|unit| unit * (rank as u64 + 1));

    let mut counts = mine;
    group.reduce(&mut counts, ReduceOp::Sum, ROOT)?;

    println!("rank {rank} of {ranks}: {mine:?} became {counts:?}");
    let sum = (ranks * (ranks + 1) / 2) as u64;
    assert_eq!(counts, if rank == ROOT { [sum, 10 * sum, 100 * sum] } else { mine });
    Ok(())
}
