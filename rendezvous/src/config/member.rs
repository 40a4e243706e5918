//! The identity of a process: its rank, its job, and the token that proves that it belongs to the job.

use std::fmt;

use unisono_schedule::Rank;

/// A job's secret: any text, which must be the same on all ranks. It is empty if the job has none; then any process that reaches the store
/// can become a rank. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// True if there is no secret.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Token(none)" } else { "Token(not shown)" })
    }
}

/// A job: its id and its secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobIdentity {
    /// The launcher's id of the job. It tells the job from others at the same address. It proves nothing.
    pub id: String,
    /// The secret that proves that a process belongs to the job.
    pub token: Token,
}

/// A job without an id, with this token.
impl From<&str> for JobIdentity {
    fn from(token: &str) -> Self {
        Self { id: String::new(), token: token.into() }
    }
}

/// Rank, world size and job of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The rank.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// The job.
    pub job: JobIdentity,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let shown = format!("{:?}", JobIdentity::from("correct horse"));
        assert_eq!(shown, r#"JobIdentity { id: "", token: Token(not shown) }"#);
        assert_eq!(format!("{:?}", Token::default()), "Token(none)");
    }
}
