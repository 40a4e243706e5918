//! Copies bytes past the caches, for a reader whose core shares none with this one.
#![allow(unsafe_code)]

/// Copies bytes by non-temporal stores where the processor has them (x86-64), so that the lines that another core has of `into` need not
/// come to this core first; elsewhere as usual. Stores that follow are seen after these.
///
/// # Panics
/// If the lengths differ.
pub fn copy_past_caches(from: &[u8], into: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if from.len() == into.len() {
        return stream(from, into);
    }
    into.copy_from_slice(from);
}

/// As [`copy_past_caches`], for equal lengths.
#[cfg(target_arch = "x86_64")]
fn stream(from: &[u8], into: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    // SAFETY: any bytes are a valid `__m128i`.
    let (first, middle, last) = unsafe { into.align_to_mut::<__m128i>() };
    let (head, rest) = from.split_at(first.len());
    let (body, tail) = rest.split_at(size_of_val(middle));
    first.copy_from_slice(head);
    last.copy_from_slice(tail);
    for (from, into) in body.chunks_exact(size_of::<__m128i>()).zip(middle) {
        // SAFETY: SSE2 is part of x86-64; the source has these 16 bytes, and the target is aligned and borrowed.
        unsafe { _mm_stream_si128(into, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    // SAFETY: SSE is part of x86-64. Non-temporal stores are not ordered with those that follow, by which others learn that they may read.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::copy_past_caches;

    #[test]
    fn all_bytes_are_copied_and_no_others() {
        let from: Vec<u8> = (0..400).map(|at: u32| at.to_le_bytes()[0] | 1).collect();
        for start in 0..34 {
            for shift in 0..18 {
                for len in (0..70).chain([127, 128, 129, 300]) {
                    let mut into = vec![0; 400];
                    copy_past_caches(&from[shift..shift + len], &mut into[start..start + len]);
                    let (before, after) = (&into[..start], &into[start + len..]);
                    assert_eq!(into[start..start + len], from[shift..shift + len], "{start} {shift} {len}");
                    assert!(before.iter().chain(after).all(|&it| it == 0), "{start} {shift} {len}");
                }
            }
        }
    }
}
