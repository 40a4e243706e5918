//! Every rank has found another number of things, one of them nothing at all. What all have found is gathered as one
//! tensor, as `torch.cat` makes it, and as a list; no rank need know how much the others have.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/uneven
//! [0] rank 0 of 4 found rows [[0, 1], [2, 3]] and columns [[0, 1], [2, 3]]
//! [0] rank 0 of 4: all rows are [[0, 1], [2, 3], [20, 21], [22, 23], [24, 25], [30, 31]]
//! [0] rank 0 of 4: all columns are [[0, 1, 20, 21, 22, 30], [2, 3, 23, 24, 25, 31]]
//! [0] rank 0 of 4: rank 0 found [2, 2]: [[0, 1], [2, 3]]
//! [0] rank 0 of 4: rank 1 found [0, 2]: []
//! [0] rank 0 of 4: rank 2 found [3, 2]: [[20, 21], [22, 23], [24, 25]]
//! [0] rank 0 of 4: rank 3 found [1, 2]: [[30, 31]]
//! [1] rank 1 of 4 found rows [] and columns [[], []]
//! [1] rank 1 of 4: all rows are [[0, 1], [2, 3], [20, 21], [22, 23], [24, 25], [30, 31]]
//! [2] rank 2 of 4 found rows [[20, 21], [22, 23], [24, 25]] and columns [[20, 21, 22], [23, 24, 25]]
//! [2] rank 2 of 4: all rows are [[0, 1], [2, 3], [20, 21], [22, 23], [24, 25], [30, 31]]
//! [3] rank 3 of 4 found rows [[30, 31]] and columns [[30], [31]]
//! [3] rank 3 of 4: all rows are [[0, 1], [2, 3], [20, 21], [22, 23], [24, 25], [30, 31]]
//! ```

use unisono::{ProcessGroup, Tensor, TensorView, tensor, tensor::Parts};

const ROOT: usize = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let (rows, columns) = found(rank)?;
    println!("rank {rank} of {ranks} found rows {rows} and columns {columns}");
    // Made again for the sake of the check.
    let each = (0..ranks).map(found).collect::<unisono::Result<Vec<_>>>()?;
    let (all_rows, all_columns): (Vec<_>, Vec<_>) = each.into_iter().unzip();

    // For every rank one tensor: the rows of all, one below the other.
    let all = group.all_gather_tensor(rows.view(), Parts::Split(0))?;
    println!("rank {rank} of {ranks}: all rows are {all}");
    assert_eq!(all, tensor::concat(&views(&all_rows), 0)?);

    // For the root one tensor: the columns of all, one beside the other.
    if let Some(all) = group.gather_tensor(columns.view(), Parts::Split(1), ROOT)? {
        println!("rank {rank} of {ranks}: all columns are {all}");
        assert_eq!(all, tensor::concat(&views(&all_columns), 1)?);
    }

    // For the root a list, which tells whose is what.
    if let Some(lists) = group.gather_tensors(&[rows.view()], ROOT)? {
        let each = lists.concat();
        for (from, rows) in each.iter().enumerate() {
            println!("rank {rank} of {ranks}: rank {from} found {:?}: {rows}", rows.shape());
        }
        assert_eq!(each, all_rows);
    }
    Ok(())
}

/// 2 rows on rank 0, none on rank 1, 3 on rank 2, 1 on rank 3, and as many columns.
fn found(rank: usize) -> unisono::Result<(Tensor, Tensor)> {
    let count = [2, 0, 3, 1][rank % 4];
    let numbers: Vec<_> = (0..2 * count as u64).map(|number| 10 * rank as u64 + number).collect();
    Ok((Tensor::from_vec(numbers.clone(), &[count, 2])?, Tensor::from_vec(numbers, &[2, count])?))
}

fn views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().map(Tensor::view).collect()
}
