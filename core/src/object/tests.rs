//! Encoded values decode to the same values; any other bytes are an error, found in bounded time and memory.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned, ser::SerializeSeq};

use super::*;

/// A float that is equal if its bits are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Bits(f32, f64);

impl PartialEq for Bits {
    fn eq(&self, other: &Self) -> bool {
        (self.0.to_bits(), self.1.to_bits()) == (other.0.to_bits(), other.1.to_bits())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Unit,
    Newtype(Option<Option<i8>>),
    Tuple(u16, String),
    Struct { wide: i128, small: Option<()> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(i64),
    Text(String),
    Maybe { of: Option<Option<u8>> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "of")]
enum Tagged {
    One(Vec<u32>),
    Two { address: IpAddr },
}

/// Without 128-bit integers, which serde cannot flatten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct More {
    character: char,
    signed: (i8, i16, i32, i64),
    #[serde(skip_serializing_if = "Option::is_none", default)]
    absent: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rich {
    unit: (),
    truth: bool,
    unsigned: (u8, u16, u32, u64, u128),
    floats: Vec<Bits>,
    nested: Option<Option<Option<u32>>>,
    kinds: Vec<Kind>,
    either: Either,
    tagged: Tagged,
    keys: BTreeMap<(i16, Option<bool>), Vec<Kind>>,
    text: HashMap<String, char>,
    #[serde(with = "blob")]
    blob: Vec<u8>,
    array: [Option<i32>; 3],
    empty: [u8; 0],
    duration: Duration,
    deeper: Option<Box<Self>>,
    #[serde(flatten)]
    more: More,
}

/// Bytes that are encoded in one piece.
mod blob {
    use serde::{Deserializer, Serializer, de::Visitor};

    pub(super) fn serialize<S: Serializer>(blob: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(blob)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Blob;
        impl Visitor<'_> for Blob {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_byte_buf(Blob)
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Unit),
        any::<Option<Option<i8>>>().prop_map(Kind::Newtype),
        any::<(u16, String)>().prop_map(|(number, text)| Kind::Tuple(number, text)),
        any::<(i128, Option<()>)>().prop_map(|(wide, small)| Kind::Struct { wide, small }),
    ]
}

fn floats() -> impl Strategy<Value = Bits> {
    any::<(u32, u64)>().prop_map(|(single, double)| Bits(f32::from_bits(single), f64::from_bits(double)))
}

fn riches() -> impl Strategy<Value = Rich> {
    let either = prop_oneof![
        any::<i64>().prop_map(Either::Number),
        any::<String>().prop_map(Either::Text),
        any::<Option<Option<u8>>>().prop_map(|of| Either::Maybe { of }),
    ];
    let tagged = prop_oneof![
        vec(any::<u32>(), 0..4).prop_map(Tagged::One),
        any::<IpAddr>().prop_map(|address| Tagged::Two { address }),
    ];
    let more = any::<(char, (i8, i16, i32, i64), Option<u8>)>()
        .prop_map(|(character, signed, absent)| More { character, signed, absent });
    let keys = proptest::collection::btree_map(any::<(i16, Option<bool>)>(), vec(kinds(), 0..3), 0..3);
    let first = (any::<bool>(), any::<(u8, u16, u32, u64, u128)>(), vec(floats(), 0..4), vec(kinds(), 0..4));
    let second = (either, tagged, keys, any::<HashMap<String, char>>(), vec(any::<u8>(), 0..200), more);
    let third = any::<(Option<Option<Option<u32>>>, [Option<i32>; 3], u64)>();
    (first, second, third).prop_map(|(first, second, (nested, array, seconds))| {
        let (truth, unsigned, floats, kinds) = first;
        let (either, tagged, keys, text, blob, more) = second;
        let inner = Rich {
            unit: (),
            truth,
            unsigned,
            floats,
            nested,
            kinds,
            either,
            tagged,
            keys,
            text,
            blob,
            array,
            empty: [],
            duration: Duration::new(seconds, 999_999_999),
            deeper: None,
            more,
        };
        Rich { deeper: (!truth).then(|| Box::new(inner.clone())), ..inner }
    })
}

/// Random bytes, most of which begin a value.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        3 => any::<u8>(),
        4 => tag::NONE..=tag::MARK,
        2 => tag::SEQ..=tag::MARK,
        3 => 0_u8..6,
    ];
    vec(byte, 0..300)
}

fn returns<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: T) {
    let bytes = encode(&value).unwrap();
    assert_eq!(decode::<T>(&bytes).unwrap(), value, "{bytes:02x?}");
}

/// A value of any type.
fn nothing_panics(bytes: &[u8]) {
    let _ = decode::<Rich>(bytes);
    let _ = decode::<serde_json::Value>(bytes);
    let _ = decode::<serde::de::IgnoredAny>(bytes);
    let _ = decode::<Vec<()>>(bytes);
    let _ = decode::<Vec<Kind>>(bytes);
    let _ = decode::<HashMap<u64, [String; 2]>>(bytes);
    let _ = decode::<Vec<Either>>(bytes);
    let _ = decode::<Tree>(bytes);
    let _ = decode::<Vec<Marked<Either>>>(bytes);
}

thread_local! {
    /// The numbers of elements that sequences declared, and of those that they had.
    static ASKED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// A tree of sequences only, which counts elements.
#[derive(Debug)]
struct Tree;

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Branches;
        impl<'de> serde::de::Visitor<'de> for Branches {
            type Value = Tree;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("branches")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut all: A) -> Result<Tree, A::Error> {
                let promised = all.size_hint().unwrap();
                ASKED.set((ASKED.get().0 + promised, ASKED.get().1));
                while all.next_element::<Tree>()?.is_some() {
                    ASKED.set((ASKED.get().0, ASKED.get().1 + 1));
                }
                Ok(Tree)
            }
        }
        deserializer.deserialize_seq(Branches)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_come_back(rich in riches()) {
        let bytes = encode(&rich).unwrap();
        prop_assert_eq!(&decode::<Rich>(&bytes).unwrap(), &rich);
        // Any part of it is less than a value, and more is more.
        prop_assert!(decode::<Rich>(&bytes[..bytes.len() - 1]).is_err());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert_eq!(decode::<Rich>(&longer).unwrap_err(), ObjectError::Trailing { left: 1 });
    }

    #[test]
    fn whatever_was_changed_on_the_way_does_no_harm(
        rich in riches(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode(&rich).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        nothing_panics(&bytes);
        nothing_panics(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn arbitrary_bytes_ask_for_no_more_than_they_are(bytes in hostile()) {
        ASKED.set((0, 0));
        nothing_panics(&bytes);
        let (promised, came) = ASKED.get();
        prop_assert!(promised <= bytes.len() && came <= bytes.len(), "{promised} {came}");
        // What they are, if they are something, is something that can be written.
        if let Ok(value) = decode::<Vec<Kind>>(&bytes) {
            returns(value);
        }
    }
}

#[test]
fn what_other_formats_confuse_is_told_apart() {
    for value in [None, Some(None), Some(Some(None)), Some(Some(Some(())))] {
        returns::<Option<Option<Option<()>>>>(value);
    }
    returns(BTreeMap::from([(Some(1_u8), 'a'), (None, '\u{10ffff}')]));
    returns((u128::MAX, i128::MIN, u64::MAX, i64::MIN, -1_i8, 127_u8, 128_u8, i128::from(i64::MIN) - 1));
    returns(vec![(); 1000]);
    returns([0.0_f64, -0.0].map(|zero| Bits(-0.0, zero)));
    let json = serde_json::json!({"a": [1, -2, 3.5, null, true, "x"], "b": {"c": []}});
    returns(json);
    // Signalling NaN keep their bits.
    let nan = Bits(f32::from_bits(0x7fa0_0001), f64::from_bits(0xfff4_dead_0000_beef));
    returns(nan);
    // 128 bits that nobody wants are passed over.
    let bytes = encode(&(u128::MAX, i128::MIN)).unwrap();
    decode::<serde::de::IgnoredAny>(&bytes).unwrap();
}

#[test]
fn marks_are_seen_by_those_who_ask_for_them() {
    fn marked<T>(value: T) -> Marked<T> {
        Marked { mark: Some(200), value }
    }
    let bytes = encode(&marked((1_u8, "a"))).unwrap();
    assert_eq!(bytes, [tag::MARK, 200, tag::SEQ, 2, 1, tag::STR, 1, b'a']);
    assert_eq!(decode::<Marked<(u8, String)>>(&bytes).unwrap(), marked((1, "a".to_owned())));
    assert_eq!(decode::<(u8, String)>(&bytes).unwrap(), (1, "a".to_owned()));
    assert_eq!(decode::<serde_json::Value>(&bytes).unwrap(), serde_json::json!([1, "a"]));
    returns(Marked { mark: None, value: 5_u8 });
    assert_eq!(decode::<Marked<u8>>(&[5]).unwrap(), Marked { mark: None, value: 5 });
    // Whatever type the value has.
    let (kind, number) = (Kind::Tuple(3, "x".to_owned()), Some(1.5_f64));
    returns(BTreeMap::from([(5_u8, vec![marked_all(&kind), marked_all(&number)])]));
    assert_eq!(decode::<Kind>(&encode(&marked(&kind)).unwrap()).unwrap(), kind);
    assert_eq!(decode::<Option<f64>>(&encode(&marked(number)).unwrap()).unwrap(), number);
    assert_eq!(decode::<f64>(&encode(&marked(1.5_f32)).unwrap()).unwrap(), 1.5);
    // As deep as without marks, and no deeper.
    let deep =
        |levels: usize| [tag::MARK, 1, tag::SEQ, 1].repeat(levels).into_iter().chain([0]).collect::<Vec<_>>();
    decode::<serde::de::IgnoredAny>(&deep(DEPTH)).unwrap();
    assert_eq!(decode::<serde::de::IgnoredAny>(&deep(DEPTH + 1)).unwrap_err(), ObjectError::Deep);
    // A mark has no mark, and is none without a value.
    let twice = decode::<Marked<u8>>(&[tag::MARK, 1, tag::MARK, 1, 0]).unwrap_err();
    assert_eq!(twice, ObjectError::Tag { at: 2, byte: tag::MARK });
    for short in [&[tag::MARK][..], &[tag::MARK, 1]] {
        assert_eq!(decode::<Marked<u8>>(short).unwrap_err(), ObjectError::Ends { at: short.len() });
    }
}

/// Marked values of every mark.
fn marked_all<T: Serialize>(value: &T) -> Vec<Marked<Vec<u8>>> {
    let bytes = encode(value).unwrap();
    (0..=u8::MAX).map(|mark| Marked { mark: Some(mark), value: bytes.clone() }).collect()
}

#[test]
fn lists_cost_what_they_hold() {
    assert_eq!(encode(&vec![1_u64; 100]).unwrap().len(), 102);
    assert_eq!(encode(&vec![(); 100]).unwrap().len(), 102);
    assert_eq!(encode("abc").unwrap(), [tag::STR, 3, b'a', b'b', b'c']);
    assert_eq!(encode::<[u8]>(&[]).unwrap(), [tag::SEQ, 0]);
}

#[test]
fn numbers_go_between_types_if_nothing_is_lost() {
    let bytes = encode(&300_u64).unwrap();
    assert_eq!(decode::<i128>(&bytes), Ok(300));
    assert_eq!(decode::<u16>(&bytes), Ok(300));
    assert_eq!(decode::<f64>(&encode(&1.5_f32).unwrap()), Ok(1.5));
    assert_eq!(decode::<Option<u16>>(&bytes), Ok(Some(300)));
    let wrong = |error: ObjectError, words: &str| assert_eq!(error.to_string(), words);
    wrong(decode::<u8>(&bytes).unwrap_err(), "invalid value: integer `300`, expected u8");
    wrong(decode::<f64>(&bytes).unwrap_err(), "invalid type: a whole number, expected f64");
    wrong(decode::<f32>(&encode(&1.5).unwrap()).unwrap_err(), "invalid type: an f64, expected f32");
    wrong(decode::<Vec<u8>>(&bytes).unwrap_err(), "invalid type: integer `300`, expected a sequence");
    wrong(
        decode::<More>(&encode(&(1, 2)).unwrap()).unwrap_err(),
        "invalid type: a sequence, expected struct More",
    );
    wrong(decode::<Kind>(&bytes).unwrap_err(), "invalid type: a whole number, expected enum Kind");
    wrong(
        decode::<Kind>(&encode("Nobody").unwrap()).unwrap_err(),
        "unknown variant `Nobody`, expected one of `Unit`, `Newtype`, `Tuple`, `Struct`",
    );
    wrong(
        decode::<u8>(&encode(&Some(1_u8)).unwrap()).unwrap_err(),
        "invalid type: Option value, expected u8",
    );
    let words = "invalid length 3, expected a tuple of size 2";
    let error = decode::<(u8, u8)>(&encode(&(1, 2, 3)).unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("invalid length 3"), "{error}, not {words}");
}

#[test]
fn bytes_that_are_no_value_say_what_is_wrong() {
    let of = |bytes: &[u8]| decode::<serde_json::Value>(bytes).unwrap_err();
    assert_eq!(of(&[]), ObjectError::Ends { at: 0 });
    assert_eq!(of(&[tag::U32, 1, 2]), ObjectError::Ends { at: 3 });
    assert_eq!(of(&[0xff]), ObjectError::Tag { at: 0, byte: 0xff });
    assert_eq!(of(&[tag::CHAR, 0, 0xd8, 0, 0]), ObjectError::Text { at: 0 });
    assert_eq!(of(&[tag::STR, 2, 0xc0, 0xc0]), ObjectError::Text { at: 1 });
    assert_eq!(of(&[tag::STR, 3, b'a']), ObjectError::Length { said: 3, at: 2, room: 1 });
    // A length that is itself too long, and the longest there is.
    let endless = [&[tag::SEQ][..], &[0xff; 12]].concat();
    assert!(matches!(of(&endless), ObjectError::Length { said: u64::MAX, .. }));
    let longest = [&[tag::SEQ][..], &[0xff; 9], &[1]].concat();
    assert_eq!(of(&longest), ObjectError::Length { said: u64::MAX, at: 11, room: 0 });
    assert!(decode::<Vec<()>>(&longest).is_err());
    // Two that together announce more than there is.
    let twice = [tag::SEQ, 2, tag::SEQ, 2, 0, 0, tag::SEQ, 3, 0, 0];
    assert!(matches!(of(&twice), ObjectError::Length { said: 3, .. }));
    // What is said of it stays short.
    let text = encode(&"x".repeat(100_000)).unwrap();
    assert!(decode::<u8>(&text).unwrap_err().to_string().len() < 450);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Chain(Option<Box<Self>>);

#[test]
fn neither_values_nor_bytes_exhaust_the_stack() {
    let chain = |links: usize| (0..links).fold(Chain(None), |chain, _| Chain(Some(Box::new(chain))));
    returns(chain(DEPTH / 2 - 1));
    assert_eq!(encode(&chain(DEPTH / 2 + 1)), Err(ObjectError::Deep));
    assert_eq!(decode::<Chain>(&[tag::SOME; 100_000]).unwrap_err(), ObjectError::Deep);
    let nested: Vec<u8> = [tag::SEQ, 1].repeat(100_000);
    assert_eq!(decode::<serde_json::Value>(&nested).unwrap_err(), ObjectError::Deep);
    assert_eq!(decode::<serde::de::IgnoredAny>(&nested).unwrap_err(), ObjectError::Deep);
    // A type that nothing is a value of, and that reads no byte.
    #[derive(Debug, Deserialize)]
    struct Endless(#[expect(dead_code, reason = "there is none")] Box<Self>);
    assert_eq!(decode::<Endless>(&[0]).unwrap_err(), ObjectError::Deep);
}

/// A sequence that declares more elements than it has, or no number.
struct Says(Option<usize>);

impl Serialize for Says {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = serializer.serialize_seq(self.0)?;
        (0..300).try_for_each(|number| all.serialize_element(&number))?;
        all.end()
    }
}

#[test]
fn sequences_may_keep_their_length_to_themselves_but_not_lie() {
    let numbers: Vec<u32> = (0..300).collect();
    assert_eq!(decode(&encode(&Says(None)).unwrap()), Ok(numbers.clone()));
    assert_eq!(decode(&encode(&Says(Some(300))).unwrap()), Ok(numbers));
    assert_eq!(encode(&Says(Some(2))), Err(ObjectError::Count { said: 2, gave: 300 }));
}
