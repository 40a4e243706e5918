//! Data-parallel training: a small network learns to read handwritten digits. Every rank has the whole network and
//! learns from its part of every batch; one all_reduce a batch sums the gradients, and all take the same step.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/train
//! [0] epoch 1: loss 1.3497
//! [0] epoch 4: loss 0.2043
//! [0] epoch 8: loss 0.1213
//! [0] epoch 12: loss 0.0823
//! [0] 96.1 % of 360 images that it has not seen are read correctly
//! [0] loss.svg shows how the loss fell, loss.txt has the numbers
//! ```
//!
//! With any number of ranks the losses are the same to the last bit: `network.rs` says at `exact` how.

mod chart;
mod digits;
mod network;

use network::{Network, PARAMETERS};
use unisono::{ProcessGroup, ReduceOp};
use unisono_schedule::partition;

const EPOCHS: usize = 12;
const BATCH: usize = 50;
const RATE: f64 = 0.5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());
    let (mut images, held_out) = digits::read()?;

    // Each draws other weights; all begin with those of rank 0.
    let mut network = Network::random(rank as u64);
    group.broadcast(&mut network.parameters, 0)?;

    let mut losses = Vec::new();
    for epoch in 1..=EPOCHS {
        digits::shuffle(&mut images, epoch as u64);
        let mut loss = 0.0;
        for batch in images.chunks(BATCH) {
            // The parts need not be equally long: what is summed are images' gradients, not ranks' averages.
            let mut sums = vec![0.0; PARAMETERS + 1];
            for image in &batch[partition::block(batch.len(), ranks, rank)] {
                network.learn(image, &mut sums);
            }
            group.all_reduce(&mut sums, ReduceOp::Sum)?;
            loss += sums[PARAMETERS];
            for (parameter, sum) in network.parameters.iter_mut().zip(&sums) {
                *parameter -= RATE * sum / batch.len() as f64;
            }
        }
        losses.push(loss / images.len() as f64);
        if rank == 0 && (epoch == 1 || epoch % 4 == 0) {
            println!("epoch {epoch}: loss {:.4}", losses[epoch - 1]);
        }
    }

    // The images held out are divided as the others are.
    let mine = &held_out[partition::block(held_out.len(), ranks, rank)];
    let mut right = [mine.iter().filter(|image| network.reads(image) == image.digit).count() as u64];
    group.all_reduce(&mut right, ReduceOp::Sum)?;

    if rank == 0 {
        let share = 100.0 * right[0] as f64 / held_out.len() as f64;
        println!("{share:.1} % of {} images that it has not seen are read correctly", held_out.len());
        chart::draw("loss.svg", &losses)?;
        let lines: String = losses.iter().map(|loss| format!("{loss}\n")).collect();
        std::fs::write("loss.txt", lines)?;
        println!("loss.svg shows how the loss fell, loss.txt has the numbers");
        assert!(losses[EPOCHS - 1] < losses[0] / 10.0 && share > 90.0);
    }
    Ok(())
}
