//! A matrix that only rank 0 has is cut by rows, by columns and into a grid of blocks; every rank gets its part, and
//! rank 0 puts the parts together again. Nothing divides evenly here.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/splits
//! [0] rank 0 of 4, rows: [[0, 1, 2, 3, 4, 5, 6], [10, 11, 12, 13, 14, 15, 16]]
//! [0] rank 0 of 4, columns: [[0, 1], [10, 11], [20, 21], [30, 31], [40, 41]]
//! [0] rank 0 of 4, block: [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]
//! [0] rank 0 of 4, put together: three times the matrix
//! [1] rank 1 of 4, rows: [[20, 21, 22, 23, 24, 25, 26], [30, 31, 32, 33, 34, 35, 36]]
//! [1] rank 1 of 4, columns: [[2, 3], [12, 13], [22, 23], [32, 33], [42, 43]]
//! [1] rank 1 of 4, block: [[4, 5, 6], [14, 15, 16], [24, 25, 26]]
//! [2] rank 2 of 4, rows: [[40, 41, 42, 43, 44, 45, 46]]
//! [2] rank 2 of 4, columns: [[4, 5], [14, 15], [24, 25], [34, 35], [44, 45]]
//! [2] rank 2 of 4, block: [[30, 31, 32, 33], [40, 41, 42, 43]]
//! [3] rank 3 of 4, rows: []
//! [3] rank 3 of 4, columns: [[6], [16], [26], [36], [46]]
//! [3] rank 3 of 4, block: [[34, 35, 36], [44, 45, 46]]
//! ```

use unisono::{ProcessGroup, Tensor, tensor::Parts};

const ROOT: usize = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // 5 rows of 7, each element of which tells its row and column; the others know nothing of it.
    let elements = (0..35).map(|at| 10 * (at / 7) + at % 7).collect();
    let matrix = (rank == ROOT).then(|| Tensor::from_vec::<i32>(elements, &[5, 7])).transpose()?;
    let whole = matrix.as_ref().map(Tensor::view);

    // A grid of blocks, as nearly square as the number of ranks allows.
    let rows = (1..=ranks).rev().find(|rows| ranks % rows == 0 && rows * rows <= ranks).unwrap_or(1);
    let ways = [
        // As torch.chunk: all parts alike but the last. 5 rows make 3 parts for 4 ranks, and the fourth gets none.
        ("rows", Parts::Chunk(0)),
        // As torch.tensor_split: as many parts as ranks, whose widths differ by 1 at most.
        ("columns", Parts::Split(1)),
        ("block", Parts::Blocks { rows, columns: ranks / rows }),
    ];
    for (name, parts) in ways {
        let part = group.scatter_tensor(whole.clone(), parts, ROOT)?;
        println!("rank {rank} of {ranks}, {name}: {part}");
        let back = group.gather_tensor(part.view(), parts, ROOT)?;
        assert_eq!(back, matrix);
    }
    if rank == ROOT {
        println!("rank 0 of {ranks}, put together: three times the matrix");
    }
    Ok(())
}
