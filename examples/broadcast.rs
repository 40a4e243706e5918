//! Rank 0 reads a configuration, of a length that only it knows, and every rank gets it.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/broadcast
//! [0] rank 0 of 4: 12 layers
//! [1] rank 1 of 4: 12 layers
//! [2] rank 2 of 4: 12 layers
//! [3] rank 3 of 4: 12 layers
//! ```

use unisono::ProcessGroup;

const ROOT: usize = 0;
/// As if the root had read it from a file.
const CONFIGURATION: &str = "learning_rate = 0.1\nlayers = 12\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let mut text = Vec::new();
    if group.rank() == ROOT {
        text = CONFIGURATION.as_bytes().to_vec();
    }

    // Ranks must agree on the length of what is broadcast, so the length goes first.
    let mut length = [text.len() as u64];
    group.broadcast(&mut length, ROOT)?;
    text.resize(usize::try_from(length[0])?, 0);
    group.broadcast(&mut text, ROOT)?;

    let text = String::from_utf8(text)?;
    let layers = text.lines().find_map(|line| line.strip_prefix("layers = ")).ok_or("no layers")?;
    println!("rank {} of {}: {layers} layers", group.rank(), group.size());
    assert_eq!(text, CONFIGURATION);
    Ok(())
}
