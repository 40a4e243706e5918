//! Texts of one rank that others print: they are short, and disturb neither a log nor a terminal.

use unisono::{
    Failure,
    rendezvous::{GroupPosition, MessagePosition, Position, Stage},
};

use super::{
    raw::{Raw, watch},
    world::{KINDS, One, SOON, member, part, server, soon, stores, world},
};

/// A text that clears the screen, forges a line of a log, turns the direction of writing, and is too long.
fn nasty() -> String {
    format!("\u{1b}[2J\u{1b}]0;mine\u{7}\nERROR all is lost\r\u{202e}{}", "long ".repeat(100_000))
}

fn is_clean(text: &str) -> bool {
    text.chars().count() < 10_000 && !text.contains(|c: char| c.is_control() || c == '\u{202e}')
}

#[test]
fn a_failure_is_one_line_of_text_by_whatever_way_it_comes() {
    let failures = [
        Failure::Aborted { rank: 1, why: nasty() },
        Failure::Mismatch {
            group: nasty().into(),
            op: 1,
            call: nasty(),
            left: (0, nasty()),
            right: (1, nasty()),
        },
        Failure::Transport { rank: 1, doing: nasty(), reason: nasty() },
        Failure::Deadlock { waits: vec![(0, nasty(), 1), (1, nasty(), 0)] },
        Failure::Left { rank: 0, waits: (1, nasty()) },
    ];
    for failure in failures {
        for kind in KINDS {
            let (_place, all) = world(kind, 2);
            let message = all[1].watch.report(&failure);
            for one in &all {
                let heard = one.latch.wait(SOON).unwrap();
                assert_eq!(heard, message, "{kind:?}");
                let (debug, text) = (format!("{heard:?}"), heard.to_string());
                assert!(
                    text.chars().count() < 30_000 && !text.contains(char::is_control),
                    "{kind:?}: {debug}"
                );
                assert!(text.contains("ERROR all is lost"), "{kind:?}: {debug}");
            }
            part(all);
        }
    }
}

#[test]
fn the_store_cleans_what_a_member_says_past_the_library() {
    let (server, address) = server(2);
    let zero = One::new(unisono::rendezvous::Store::open(&address, &member(0, 2), soon()).unwrap());
    let raw = Raw::enter(server.address(), 1, 2, "test").unwrap();
    let mut watch = Raw::proving(server.address(), &watch(1, 2, raw.session), "test");
    assert_eq!(watch.plain().unwrap(), [0]);
    assert_eq!(watch.receive()[0], 0, "welcome");
    // Tell::Failure.
    watch.send(&(0_u32, Failure::Aborted { rank: 1, why: nasty() }));
    let heard = zero.latch.wait(SOON).unwrap();
    assert!(is_clean(&heard.to_string()), "{heard:?}");
    zero.leave();
}

#[test]
fn a_call_is_described_in_one_short_line() {
    for kind in KINDS {
        let (_place, stores) = stores(kind, 2);
        let all: Vec<One> = stores.into_iter().map(One::new).collect();
        let message = MessagePosition { call: nasty(), receives: true, waits: vec![0] };
        let group = GroupPosition { label: nasty(), messages: vec![message], ..GroupPosition::default() };
        let position = Position { groups: vec![group], ..Position::of(Stage::Calls) };
        all[1].position.set(move || position.clone());
        let stands = all[0].watch.positions(SOON).unwrap();
        let group = &stands[1].as_ref().unwrap().groups[0];
        for report in [&group.label, &group.messages[0].call] {
            assert!(report.chars().count() < 1000 && is_clean(report), "{kind:?}: {report:?}");
        }
        part(all);
    }
}
