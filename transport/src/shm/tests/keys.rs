//! Regions whose keys another transport has given: several have one key, and a key is given again.
#![allow(unsafe_code)]

use super::*;

#[test]
fn regions_of_one_key_are_told_apart_by_their_addresses() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    meet(&mut here, &mut there);
    let register = registered_elsewhere(7);
    let len = 20_000;
    let memory = |len| Memory::map(len).unwrap();
    let source = here.register(memory(len)).unwrap();
    let empty = there.register_again(memory(0), &register).unwrap();
    let mut windows: Vec<_> = (0..4).map(|_| there.register_again(memory(len), &register).unwrap()).collect();
    windows.extend((0..3).map(|_| there.allocate_again(len, &register).unwrap()));
    assert_eq!(
        windows.iter().map(|window| window.remote().unwrap().mappable).collect::<Vec<_>>(),
        [false, false, false, false, true, true, true]
    );
    drop(empty);
    for round in 1..8 {
        for window in &windows {
            let bytes = vec![round; len];
            // SAFETY: no put reads it.
            unsafe { source.write(0, &bytes).unwrap() };
            assert_eq!(lands(&mut here, &mut there, &source, window), bytes);
        }
        let gone = windows.swap_remove(0);
        let remote = gone.remote().unwrap();
        drop(gone);
        assert!(windows.iter().all(|window| window.remote().unwrap() != remote));
    }
    assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
}

#[test]
fn regions_of_one_key_and_their_parts_are_mapped_each_by_itself() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    meet(&mut here, &mut there);
    let len = 20_000;
    let source = here.allocate(len).unwrap();
    let register = registered_elsewhere(7);
    let windows: Vec<_> = (0..3).map(|_| there.allocate_again(2 * len, &register).unwrap()).collect();
    let mapped = |here: &mut Endpoint| here.peers[0].state.open().map_or(0, |it| it.mappings());
    for round in 1..6 {
        for (number, window) in windows.iter().enumerate() {
            let whole = window.remote().unwrap();
            let part = RemoteRegion { base: whole.base + len as u64, len: len as u64, ..whole };
            let bytes = vec![round * 10 + u8::try_from(number).unwrap(); len];
            // SAFETY: no put reads it.
            unsafe { source.write(0, &bytes).unwrap() };
            arrives(&mut here, &mut there, &source, part);
            let mut landed = vec![0; len];
            // SAFETY: it has arrived, and no other put comes.
            unsafe { window.read(len, &mut landed).unwrap() };
            assert_eq!(landed, bytes);
        }
        // One of them is asked for at a time, and the answer comes.
        assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
    }
    assert_eq!(mapped(&mut here), windows.len());
    drop(windows);
    assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
    assert_eq!(mapped(&mut here), 0);
}

/// The writer has mapped the first, and has not been told that it is gone when it writes to the second.
#[test]
fn a_key_that_is_given_again_names_the_new_memory() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    meet(&mut here, &mut there);
    let len = 20_000;
    let source = here.allocate(len).unwrap();
    for round in 1..6 {
        let bytes = vec![round; len];
        // SAFETY: no put reads it.
        unsafe { source.write(0, &bytes).unwrap() };
        let window = there.allocate_again(len, registered_elsewhere(7)).unwrap();
        // Puts go through the ring until the region is mapped, and then directly.
        for _ in 0..2 * LOOK_IDLE[1] {
            assert_eq!(lands(&mut here, &mut there, &source, &window), bytes);
        }
        let mapped = here.peers[0].state.open().unwrap().mappings();
        assert_eq!(mapped, 1);
    }
}

#[test]
fn memory_has_one_second_registration() {
    let endpoint = Endpoint::open().unwrap();
    let memory = Memory::map(8).unwrap();
    let twice =
        endpoint.register_again(memory, |memory| endpoint.register_again(memory, registered_elsewhere(7)));
    assert!(matches!(twice, Err(Error::Unexpected { .. })), "{twice:?}");
}
