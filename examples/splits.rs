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

use unisono::{ProcessGroup, Result, Tensor, TensorView, dtype::Dtype, tensor};

const ROOT: usize = 0;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // All know the shape, 5 rows of 7; rank 0 also has the elements, each of which tells its row and column.
    let matrix = match rank {
        ROOT => Tensor::from_vec::<i32>((0..35).map(|at| 10 * (at / 7) + at % 7).collect(), &[5, 7])?,
        _ => Tensor::zeros(Dtype::I32, &[5, 7])?,
    };
    let whole = matrix.view();

    // As torch.chunk: all parts alike but the last. 5 rows make 3 parts for 4 ranks, and the fourth gets no row.
    let mut rows = whole.chunk(0, ranks)?;
    rows.resize(ranks, whole.narrow(0, 0, 0)?);
    let rows = there_and_back(&group, "rows", &rows)?;

    // As torch.tensor_split: exactly as many parts as ranks, whose widths differ by 1 at most.
    let columns = there_and_back(&group, "columns", &whole.tensor_split(1, ranks)?)?;

    // A grid of blocks, as nearly square as the number of ranks allows.
    let down = (1..=ranks).rev().find(|down| ranks % down == 0 && down * down <= ranks).unwrap_or(1);
    let across = ranks / down;
    let blocks = there_and_back(&group, "block", &whole.blocks(down, across)?)?;

    if rank == ROOT {
        assert_eq!(tensor::concat(&views(&rows), 0)?, matrix);
        assert_eq!(tensor::concat(&views(&columns), 1)?, matrix);
        assert_eq!(tensor::assemble(&views(&blocks), down, across)?, matrix);
        println!("rank 0 of {ranks}, put together: three times the matrix");
    }
    Ok(())
}

/// Gives every rank its part, which it prints, and brings all parts back to the root; the others get none.
fn there_and_back(group: &ProcessGroup, name: &str, parts: &[TensorView<'_>]) -> Result<Vec<Tensor>> {
    let (rank, lengths) = (group.rank(), parts.iter().map(TensorView::len).collect::<Vec<_>>());
    let mut packed: Vec<i32> = Vec::new();
    if rank == ROOT {
        for part in parts {
            packed.extend_from_slice(part.pack()?.as_slice()?);
        }
    }
    let part = group.scatter_v(&packed, &lengths, ROOT)?;

    let width = parts[rank].shape()[1];
    let lines: Vec<_> = part.chunks_exact(width.max(1)).collect();
    println!("rank {rank} of {}, {name}: {lines:?}", group.size());

    let (all, _) = group.gather_v(&part, ROOT)?;
    let mut rest = all.as_slice();
    let mut back = Vec::new();
    if rank == ROOT {
        for part in parts {
            let (elements, others) = rest.split_at(part.len());
            back.push(Tensor::from_vec(elements.to_vec(), part.shape())?);
            rest = others;
        }
    }
    Ok(back)
}

fn views(parts: &[Tensor]) -> Vec<TensorView<'_>> {
    parts.iter().map(Tensor::view).collect()
}
