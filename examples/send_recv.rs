//! Messages between two ranks: forwarded around a ring, collected from any rank that is ready, and many at once.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/send_recv
//! [0] rank 0 of 4: the token has been at [0, 1, 2, 3]
//! [0] rank 0 of 4: results of all others came, 60 together
//! [0] rank 0 of 4: my neighbours have 3 and 1
//! [1] rank 1 of 4: my neighbours have 0 and 2
//! [2] rank 2 of 4: my neighbours have 1 and 3
//! [3] rank 3 of 4: my neighbours have 2 and 0
//! ```

use unisono::{Message, ProcessGroup, Source};

/// Messages with different tags do not get into each other's way.
const TOKEN: u32 = 0;
const RESULT: u32 = 1;
const HALO: u32 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let (before, after) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);

    // A token goes around and grows; nobody knows beforehand how long it is.
    if rank == 0 {
        group.send(&[0_u64], (after, TOKEN))?;
        let (token, _) = group.recv_vec::<u64>((before, TOKEN))?;
        println!("rank 0 of {ranks}: the token has been at {token:?}");
        assert_eq!(token, (0..ranks as u64).collect::<Vec<_>>());
    } else {
        let (mut token, _) = group.recv_vec::<u64>((before, TOKEN))?;
        token.push(rank as u64);
        group.send(&token, (after, TOKEN))?;
    }

    // Rank 0 takes results in the order in which they come.
    if rank == 0 {
        let (mut sum, mut result) = (0, [0_u64]);
        for _ in 1..ranks {
            let from = group.recv(&mut result, (Source::Any, RESULT))?;
            assert_eq!(result, [10 * from as u64]);
            sum += result[0];
        }
        println!("rank 0 of {ranks}: results of all others came, {sum} together");
    } else {
        group.send(&[10 * rank as u64], (0, RESULT))?;
    }

    // Everyone exchanges with both neighbours, all at once: the order does not matter.
    let works = group.begin().batch([
        Message::recv(vec![0_u64], (Source::Rank(before), HALO)),
        Message::recv(vec![0_u64], (Source::Rank(after), HALO)),
        Message::send(vec![rank as u64], (before, HALO)),
        Message::send(vec![rank as u64], (after, HALO)),
    ])?;
    let mut got = Vec::new();
    for work in works {
        let (data, _) = work.wait()?;
        got.extend(data);
    }
    println!("rank {rank} of {ranks}: my neighbours have {} and {}", got[0], got[1]);
    assert_eq!(got[..2], [before as u64, after as u64]);
    Ok(())
}
