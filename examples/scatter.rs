//! Rank 0 has work for all, and every rank gets its share: first equal shares, then shares whose lengths only rank 0
//! knows.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/scatter
//! [0] rank 0 of 4: an equal share is [0, 1, 2], an unequal one [0]
//! [1] rank 1 of 4: an equal share is [3, 4, 5], an unequal one [1, 2]
//! [2] rank 2 of 4: an equal share is [6, 7, 8], an unequal one [3, 4, 5]
//! [3] rank 3 of 4: an equal share is [9, 10, 11], an unequal one [6, 7, 8, 9]
//! ```

use unisono::ProcessGroup;

const ROOT: usize = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // What is to be scattered is looked at on the root alone; elsewhere it may be empty.
    let (mut work, mut more, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    if rank == ROOT {
        work = (0..3 * ranks as u64).collect();
        lengths = (1..=ranks).collect();
        more = (0..lengths.iter().sum::<usize>() as u64).collect();
    }

    let mut share = [0; 3];
    group.scatter((&work, &mut share), ROOT)?;
    let uneven = group.scatter_v(&more, &lengths, ROOT)?;

    println!("rank {rank} of {ranks}: an equal share is {share:?}, an unequal one {uneven:?}");
    let first = 3 * rank as u64;
    assert_eq!(share, [first, first + 1, first + 2]);
    let first = (rank * (rank + 1) / 2) as u64;
    assert_eq!(uneven, (first..=first + rank as u64).collect::<Vec<_>>());
    Ok(())
}
