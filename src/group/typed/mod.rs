//! Calls for objects and tensors, made of collectives and messages. A header or an encoding describes the data that follow, so that the
//! receiving ranks need not know types and shapes beforehand. `coalesced` and `buckets` reduce many tensors as one.

pub(crate) mod blobs;
pub(crate) mod buckets;
pub(crate) mod coalesced;
pub(crate) mod tensors;
