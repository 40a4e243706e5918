//! Rank 0 has a checkpoint, a .safetensors file, and every rank gets it into its own directory: first the whole
//! file, then some of its tensors alone; and others of them the last rank, while the others do something else. It goes in
//! pieces, is checked, and takes its name when all ranks have it; `unisono broadcast` does the same as a command.
//!
//! ```text
//! $ cargo build -p unisono-files --examples --features safetensors && unisono run -n 4 target/debug/examples/checkpoint
//! [0] rank 0 of 4 has 5 tensors, as they were after 1000 steps
//! [0] rank 0 of 4 got layers.1.bias: [2, 2.5, 3]
//! [0] rank 0 of 4 got layers.1.weight: [[-1, -0.5, 0], [0.5, 1, 1.5]]
//! [1] rank 1 of 4 got 5 tensors, as they were after 1000 steps
//! [1] rank 1 of 4 got layers.1.bias: [2, 2.5, 3]
//! [1] rank 1 of 4 got layers.1.weight: [[-1, -0.5, 0], [0.5, 1, 1.5]]
//! [2] rank 2 of 4 got 5 tensors, as they were after 1000 steps
//! [2] rank 2 of 4 got layers.1.bias: [2, 2.5, 3]
//! [2] rank 2 of 4 got layers.1.weight: [[-1, -0.5, 0], [0.5, 1, 1.5]]
//! [3] rank 3 of 4 got 5 tensors, as they were after 1000 steps
//! [3] rank 3 of 4 got layers.1.bias: [2, 2.5, 3]
//! [3] rank 3 of 4 got layers.1.weight: [[-1, -0.5, 0], [0.5, 1, 1.5]]
//! [3] rank 3 of 4 got layers.0.bias: [3, 3.5, 4]
//! [3] rank 3 of 4 got layers.0.weight: [[0, 0.5, 1], [1.5, 2, 2.5]]
//! ```

use std::{collections::BTreeMap, error::Error, fs, path::Path};

use half::bf16;
use safetensors::SafeTensors;
use unisono::{ProcessGroup, Tensor, TensorView};
use unisono_files::{Options, broadcast, recv, send};

const ROOT: usize = 0;
const LAYERS: usize = 2;

/// Tensors by name.
type Model = BTreeMap<String, Tensor>;

fn main() -> Result<(), Box<dyn Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    // As if each rank were on a separate machine.
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("model.safetensors");
    if rank == ROOT {
        fs::write(&file, safetensors::serialize(&train()?, None)?)?;
    }

    // Only the root looks at `file`; its own directory has it already.
    let whole = broadcast(&group, &file, directory.path(), ROOT, Options::default())?;
    let model = load(&whole.file)?;
    let which = if whole.wrote { "got" } else { "has" };
    let (count, steps) = (model.len(), &model["steps"]);
    println!("rank {rank} of {ranks} {which} {count} tensors, as they were after {steps} steps");
    // Made again for the sake of the check.
    assert_eq!(model, train()?);

    // The last layer alone: of the others nothing is sent.
    let names = [format!("layers.{}.*", LAYERS - 1)];
    let options = Options { tensors: &names, ..Options::default() };
    let part = broadcast(&group, &file, &directory.path().join("last layer"), ROOT, options)?;
    show(rank, ranks, &load(&part.file)?, &model);

    // The first layer, for the last rank alone: only it and the root call anything.
    let names = ["layers.0.*".to_owned()];
    let options = Options { tensors: &names, ..Options::default() };
    let last = ranks - 1;
    if rank == ROOT && last != ROOT {
        send(&group, &file, last, 0, options)?;
    } else if rank == last && last != ROOT {
        let (part, _) = recv(&group, &directory.path().join("first layer"), ROOT, 0, options)?;
        show(rank, ranks, &load(&part.file)?, &model);
    }
    Ok(directory.close()?)
}

fn show(rank: usize, ranks: usize, layer: &Model, model: &Model) {
    assert_eq!(layer.len(), 2);
    for (name, tensor) in layer {
        println!("rank {rank} of {ranks} got {name}: {tensor}");
        assert_eq!(*tensor, model[name]);
    }
}

/// What a training would leave.
fn train() -> unisono::Result<Model> {
    let mut model = Model::from([("steps".to_owned(), Tensor::from_vec(vec![1000_i64], &[])?)]);
    for layer in 0..LAYERS {
        let numbers = |from: usize, to: usize| (from..to).map(move |at| at as f32 / 2.0 - layer as f32);
        let weight = numbers(0, 6).collect::<Vec<_>>();
        let bias = numbers(6, 9).map(bf16::from_f32).collect::<Vec<_>>();
        model.insert(format!("layers.{layer}.weight"), Tensor::from_vec(weight, &[2, 3])?);
        model.insert(format!("layers.{layer}.bias"), Tensor::from_vec(bias, &[3])?);
    }
    Ok(model)
}

fn load(file: &Path) -> Result<Model, Box<dyn Error>> {
    let bytes = fs::read(file)?;
    let mut model = Model::new();
    for (name, tensor) in SafeTensors::deserialize(&bytes)?.tensors() {
        model.insert(name, TensorView::try_from(tensor)?.pack()?);
    }
    Ok(model)
}
