//! Every rank gets what all ranks have, in the order of ranks: first equally much of each, then as much as each has,
//! which only that rank knows.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/all_gather
//! [0] rank 0 of 4: [0, 1] became [0, 1, 10, 11, 20, 21, 30, 31], and "0" became "0112223333"
//! [1] rank 1 of 4: [10, 11] became [0, 1, 10, 11, 20, 21, 30, 31], and "11" became "0112223333"
//! [2] rank 2 of 4: [20, 21] became [0, 1, 10, 11, 20, 21, 30, 31], and "222" became "0112223333"
//! [3] rank 3 of 4: [30, 31] became [0, 1, 10, 11, 20, 21, 30, 31], and "3333" became "0112223333"
//! ```

use unisono::ProcessGroup;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let mine = [10 * rank as u64, 10 * rank as u64 + 1];
    let word = |rank: usize| rank.to_string().repeat(rank + 1);

    let mut all = vec![0; 2 * ranks];
    group.all_gather((&mine, &mut all))?;
    let (words, lengths) = group.all_gather_v(word(rank).as_bytes())?;
    let words = String::from_utf8(words)?;

    println!("rank {rank} of {ranks}: {mine:?} became {all:?}, and {:?} became {words:?}", word(rank));
    assert_eq!(all, (0..ranks as u64).flat_map(|rank| [10 * rank, 10 * rank + 1]).collect::<Vec<_>>());
    assert_eq!(words, (0..ranks).map(word).collect::<String>());
    assert_eq!(lengths, (1..=ranks).collect::<Vec<_>>());
    Ok(())
}
