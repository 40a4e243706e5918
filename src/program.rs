//! The main function of a rank: it reports the error or panic that ends it to the other ranks.

use std::{
    any::Any,
    fmt::Display,
    io::{self, Write as _},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::ExitCode,
};

use crate::{group::ProcessGroup, runtime::late_failure};

/// Joins the world that the environment describes ([`ProcessGroup::from_env`]), runs a program in it, and leaves it. To be called as the
/// whole of `main`:
///
/// ```no_run
/// use std::{error::Error, process::ExitCode};
/// use unisono::{ProcessGroup, ReduceOp};
///
/// fn main() -> ExitCode {
///     unisono::main(train)
/// }
///
/// fn train(group: &ProcessGroup) -> Result<(), Box<dyn Error>> {
///     let steps: usize = std::fs::read_to_string("steps.txt")?.trim().parse()?;
///     for _ in 0..steps {
///         group.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum)?;
///     }
///     Ok(())
/// }
/// ```
///
/// If the program returns an error, or panics, the other ranks get its text at once, as [`Failure::Aborted`](crate::Failure::Aborted):
/// `rank 0 aborted the group: No such file or directory (os error 2)`. Without this function they learn that the rank has left or died, and not
/// why. The error is written to standard error, with its causes where its alternate format has them, as that of `anyhow` does; a panic goes on.
///
/// Returns success if the program returned `Ok` and all ranks have left in good order. A failure that is found only then is an error too.
#[must_use = "it is what `main` returns"]
pub fn main<E: Display>(program: impl FnOnce(&ProcessGroup) -> Result<(), E>) -> ExitCode {
    let group = match ProcessGroup::from_env() {
        Ok(group) => group,
        Err(error) => return failed(&error.to_string()),
    };
    // The program and this function share nothing but the group, which is made for threads that panic.
    match catch_unwind(AssertUnwindSafe(|| program(&group))) {
        Ok(Ok(())) => {
            let left = group.leave().err().map(|error| error.to_string());
            // Another world may have failed.
            let late = || late_failure().map(|failure| failure.to_string());
            left.or_else(late).map_or(ExitCode::SUCCESS, |text| failed(&text))
        }
        Ok(Err(error)) => {
            let text = format!("{error:#}");
            // First, because a launcher may end this process as soon as another rank has ended.
            let code = failed(&text);
            group.abort(&text);
            code
        }
        Err(panic) => {
            group.abort(&format!("its program panicked: {}", message(&*panic)));
            resume_unwind(panic)
        }
    }
}

/// Writes the text of an error.
fn failed(text: &str) -> ExitCode {
    // If standard error is closed, there is no reader.
    let _ = io::stderr().write_all(format!("Error: {text}\n").as_bytes());
    ExitCode::FAILURE
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
