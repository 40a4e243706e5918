//! Rank 0 gets what every rank has found, in the order of ranks: first equally much of each, then as much as each
//! has, which only that rank knows.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/gather
//! [0] rank 0 of 4 gave [0, 1] and [0]
//! [0] rank 0 of 4 got [0, 1, 10, 11, 20, 21, 30, 31] and [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
//! [1] rank 1 of 4 gave [10, 11] and [1, 1]
//! [2] rank 2 of 4 gave [20, 21] and [2, 2, 2]
//! [3] rank 3 of 4 gave [30, 31] and [3, 3, 3, 3]
//! ```

use unisono::ProcessGroup;

const ROOT: usize = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let found = [10 * rank as u64, 10 * rank as u64 + 1];
    let more = vec![rank as u64; rank + 1];
    println!("rank {rank} of {ranks} gave {found:?} and {more:?}");

    // Only the root needs room for what comes.
    let mut all = vec![0; if rank == ROOT { 2 * ranks } else { 0 }];
    group.gather((&found, &mut all), ROOT)?;
    let (uneven, lengths) = group.gather_v(&more, ROOT)?;

    if rank == ROOT {
        println!("rank {rank} of {ranks} got {all:?} and {uneven:?}");
        assert_eq!(all, (0..ranks as u64).flat_map(|rank| [10 * rank, 10 * rank + 1]).collect::<Vec<_>>());
        assert_eq!(uneven, (0..ranks).flat_map(|rank| vec![rank as u64; rank + 1]).collect::<Vec<_>>());
    }
    assert_eq!(lengths, (1..=ranks).collect::<Vec<_>>());
    Ok(())
}
