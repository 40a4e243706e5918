//! Python's plain values as objects of the library: `None`, truth values, numbers, text, bytes, lists and dictionaries.

use std::fmt;

use pyo3::{
    IntoPyObjectExt,
    prelude::*,
    types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::Error as _,
};
use unisono::object::DEPTH;

/// What may stand for a value that could not be made: all ranks of a call are told why.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Unsendable(String);

#[pymethods]
impl Unsendable {
    #[new]
    fn new(why: String) -> Self {
        Self(why)
    }
}

/// A value of plain types. It travels as any Rust value of the same structure does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Natural(u128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// A list or a tuple.
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// Why there is no value: encoding it fails.
    Unsendable(String),
}

const PLAIN: &str = "None, bool, int, float, str, bytes, list, tuple and dict can be sent as they are, others with pickle=True";

impl Value {
    /// The value of an object.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> Self {
        Self::within(object, 0)
    }

    fn within(object: &Bound<'_, PyAny>, depth: usize) -> Self {
        if depth > DEPTH {
            return Self::Unsendable(format!(
                "its values are nested more than {DEPTH} levels deep; flatten it"
            ));
        }
        let inner = |object: Bound<'_, PyAny>| Self::within(&object, depth + 1);
        if object.is_none() {
            Self::None
        } else if let Ok(truth) = object.cast::<PyBool>() {
            Self::Bool(truth.is_true())
        } else if object.is_instance_of::<PyInt>() {
            let (small, large) = (object.extract().map(Self::Int), object.extract().map(Self::Natural));
            small
                .or(large)
                .unwrap_or_else(|_| Self::Unsendable("an integer has more than 128 bits".to_owned()))
        } else if let Ok(number) = object.cast::<PyFloat>() {
            Self::Float(number.value())
        } else if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_cow().map(|text| Self::Text(text.into_owned()));
            text.unwrap_or_else(|_| {
                Self::Unsendable("a text has surrogates, which are not Unicode".to_owned())
            })
        } else if let Ok(bytes) = object.cast::<PyBytes>() {
            Self::Bytes(bytes.as_bytes().to_vec())
        } else if let Ok(bytes) = object.cast::<PyByteArray>() {
            Self::Bytes(bytes.to_vec())
        } else if let Ok(list) = object.cast::<PyList>() {
            Self::List(list.iter().map(inner).collect())
        } else if let Ok(tuple) = object.cast::<PyTuple>() {
            Self::List(tuple.iter().map(inner).collect())
        } else if let Ok(map) = object.cast::<PyDict>() {
            let pairs = map.iter().map(|(key, value)| match inner(key) {
                Self::List(_) | Self::Map(_) => (
                    Self::Unsendable("a key of a dict is a tuple; use text or numbers".to_owned()),
                    Self::None,
                ),
                key => (key, inner(value)),
            });
            Self::Map(pairs.collect())
        } else if let Ok(unsendable) = object.cast::<Unsendable>() {
            Self::Unsendable(unsendable.get().0.clone())
        } else {
            let name =
                object.get_type().name().map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
            Self::Unsendable(format!("it has a value of type {name}; {PLAIN}"))
        }
    }

    /// The same as an object of Python.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::None | Self::Unsendable(_) => Ok(py.None()),
            Self::Bool(truth) => truth.into_py_any(py),
            Self::Int(number) => number.into_py_any(py),
            Self::Natural(number) => number.into_py_any(py),
            Self::Float(number) => number.into_py_any(py),
            Self::Text(text) => text.into_py_any(py),
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_py_any(py),
            Self::List(values) => {
                let values: Vec<_> =
                    values.into_iter().map(|it| it.into_python(py)).collect::<PyResult<_>>()?;
                PyList::new(py, values)?.into_py_any(py)
            }
            Self::Map(pairs) => {
                let map = PyDict::new(py);
                for (key, value) in pairs {
                    map.set_item(key.into_python(py)?, value.into_python(py)?)?;
                }
                map.into_py_any(py)
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            Self::Bool(truth) => serializer.serialize_bool(*truth),
            Self::Int(number) => serializer.serialize_i128(*number),
            Self::Natural(number) => serializer.serialize_u128(*number),
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::List(values) => serializer.collect_seq(values),
            Self::Map(pairs) => serializer.collect_map(pairs.iter().map(|(key, value)| (key, value))),
            Self::Unsendable(why) => Err(S::Error::custom(why)),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

/// Takes any value.
struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Natural(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(Value::Bytes(bytes.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = sequence.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            if matches!(key, Value::List(_) | Value::Map(_)) {
                return Err(A::Error::custom(
                    "a key of a map is a sequence or a map, which Python's dict cannot have",
                ));
            }
            pairs.push((key, value));
        }
        Ok(Value::Map(pairs))
    }
}
