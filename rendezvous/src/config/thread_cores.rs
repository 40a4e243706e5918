//! The processors of the progress thread.

use std::fmt;

/// The highest number of a processor.
const MOST: usize = 1023;

/// The processors of progress threads, which advance asynchronous calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadCores {
    /// One core of those that this process may run on: the last core for the host's first rank, the core before it for the second, and so
    /// on; from the last again if there are fewer cores than ranks. So progress threads of ranks with the same affinity have separate
    /// cores, away from the first ones.
    Auto,
    /// One processor for each rank of the host, by the numbers of the system (and of `taskset`).
    Each(Vec<usize>),
}

impl ThreadCores {
    /// Reads `auto`, or numbers and ranges separated by commas: `3`, `2,3`, `0,4-7`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the text, and what is valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(number) if number <= MOST => Ok(number),
            Ok(_) => Err(format!("processors are counted from 0 to {MOST}")),
            Err(_) => Err("wanted auto, or processors such as 3 or 0,4-7".to_owned()),
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("{first}-{last} ends before it begins"));
            }
            all.extend(first..=last);
        }
        Ok(Self::Each(all))
    }
}

impl fmt::Display for ThreadCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => write!(f, "auto"),
            Self::Each(all) => {
                write!(f, "{}", all.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(ThreadCores::parse("auto"), Ok(ThreadCores::Auto));
        for (text, wanted) in [("3", "3"), ("2, 3", "2,3"), ("0,4-7,1", "0,4,5,6,7,1"), ("1023", "1023")] {
            assert_eq!(ThreadCores::parse(text).unwrap().to_string(), wanted);
        }
        for text in ["", "Auto", "1,", "-1", "1-", "3-2", "1024", "99999999999999999999", "0x3", "1-2-3"] {
            assert!(ThreadCores::parse(text).is_err(), "{text:?}");
        }
    }
}
