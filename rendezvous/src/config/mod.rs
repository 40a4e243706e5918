//! Settings: [`Config`], the environment variables that set its fields, and the checks of their values.

mod fields;
mod hash;
mod member;
mod parse;
mod store_address;
mod thread_cores;
mod validate;
mod variables;

pub use self::{
    fields::Config,
    member::{JobIdentity, Member, Token},
    parse::{parse_duration, parse_size},
    store_address::StoreAddress,
    thread_cores::ThreadCores,
    variables::{Lookup, Variable},
};
#[doc(hidden)]
pub use self::{
    hash::{fnv, fnv_of_words},
    parse::YEAR,
};
