//! Stages of a pipeline, one on each rank: every stage gets a batch from the one before, turns its matrix and hands it
//! on. A batch is several tensors in one send, of types and shapes of which the receiver knows nothing beforehand.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/send_tensors
//! [0] rank 0 of 4 got f32 [2, 3] from rank 3: [[0.5, 1.5, 2.5], [10.5, 11.5, 12.5]]
//! [0] rank 0 of 4 got i64 [3] from rank 3: [101, -7, 102]
//! [0] rank 0 of 4 got bf16 [] from rank 3: 0.125
//! [0] rank 0 of 4 got u8 [0, 3] from rank 3: []
//! [1] rank 1 of 4 got f32 [3, 2] from rank 0: [[0.5, 10.5], [1.5, 11.5], [2.5, 12.5]]
//! [1] rank 1 of 4 got i64 [3] from rank 0: [101, -7, 102]
//! [1] rank 1 of 4 got bf16 [] from rank 0: 0.125
//! [1] rank 1 of 4 got u8 [0, 3] from rank 0: []
//! [2] rank 2 of 4 got f32 [2, 3] from rank 1: [[0.5, 1.5, 2.5], [10.5, 11.5, 12.5]]
//! [2] rank 2 of 4 got i64 [3] from rank 1: [101, -7, 102]
//! [2] rank 2 of 4 got bf16 [] from rank 1: 0.125
//! [2] rank 2 of 4 got u8 [0, 3] from rank 1: []
//! [3] rank 3 of 4 got f32 [3, 2] from rank 2: [[0.5, 10.5], [1.5, 11.5], [2.5, 12.5]]
//! [3] rank 3 of 4 got i64 [3] from rank 2: [101, -7, 102]
//! [3] rank 3 of 4 got bf16 [] from rank 2: 0.125
//! [3] rank 3 of 4 got u8 [0, 3] from rank 2: []
//! ```

use unisono::{ProcessGroup, Tensor, dtype::Dtype};

/// Messages with different tags do not get into each other's way.
const BATCH: u32 = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let (before, after) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);

    // The first stage has the batch, and gets back at the end what the last one sends.
    let mut batch = Vec::new();
    if rank == 0 {
        batch = vec![
            Tensor::from_vec(vec![0.5_f32, 1.5, 2.5, 10.5, 11.5, 12.5], &[2, 3])?,
            Tensor::from_vec(vec![101_i64, -7, 102], &[3])?,
            Tensor::from_vec(vec![half::bf16::from_f32(0.125)], &[])?,
            Tensor::zeros(Dtype::U8, &[0, 3])?,
        ];
        forward(&group, &batch, after)?;
    }
    let (received, from) = group.recv_tensors((before, BATCH))?;
    for tensor in &received {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        println!("rank {rank} of {ranks} got {dtype} {shape:?} from rank {from}: {tensor}");
    }
    if rank > 0 {
        forward(&group, &received, after)?;
    } else {
        // Every stage has turned the matrix once.
        assert_eq!(received[1..], batch[1..]);
        let back = if ranks % 2 == 0 { received[0].view() } else { received[0].view().transpose(0, 1)? };
        assert_eq!(back.pack()?, batch[0]);
    }
    Ok(())
}

/// Sends a batch with its matrix turned: that is another view of the same elements, and they are put in order on the
/// way.
fn forward(group: &ProcessGroup, batch: &[Tensor], to: usize) -> unisono::Result<()> {
    let mut views: Vec<_> = batch.iter().map(Tensor::view).collect();
    views[0] = views[0].transpose(0, 1)?;
    assert!(!views[0].is_contiguous());
    group.send_tensors(&views, (to, BATCH))
}
