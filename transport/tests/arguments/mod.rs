//! The arguments of tests that run themselves.

/// Options of tests that are followed by their value.
const VALUED: [&str; 6] = ["--color", "--format", "--logfile", "--skip", "--test-threads", "-Z"];

/// The first argument that is neither an option nor an option's value.
pub(crate) fn filter() -> String {
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if VALUED.contains(&argument.as_str()) {
            arguments.next();
        } else if !argument.starts_with('-') {
            return argument;
        }
    }
    String::new()
}
