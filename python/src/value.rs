//! Python's plain values as objects of the library.

use std::fmt;

use pyo3::{
    IntoPyObjectExt, intern,
    prelude::*,
    types::{
        PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet,
        PyString, PyTuple,
    },
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::Error as _,
};
use unisono::object::{DEPTH, Marked};

use crate::{errors::Error, marks::Mark};

/// Takes the place of a value that could not be made, so that all ranks of a call learn why.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Unsendable(String);

#[pymethods]
impl Unsendable {
    #[new]
    fn new(why: String) -> Self {
        Self(why)
    }
}

/// The bytes of a pickle, so that a rank that does not ask for one does not take them for the value.
#[pyclass(frozen, get_all, module = "unisono._native")]
pub(crate) struct Pickled {
    data: Py<PyBytes>,
}

#[pymethods]
impl Pickled {
    #[new]
    fn new(data: Py<PyBytes>) -> Self {
        Self { data }
    }
}

/// A value of Python. It is encoded as a Rust value of the same structure; some values have a mark.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Natural(u128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// A value of a type for which the format has no bytes.
    Marked(Mark, Box<Self>),
    /// The reason why there is no value; encoding it fails.
    Unsendable(String),
}

const PLAIN: &str = "None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict and numpy's scalars can be \
    sent as they are, arrays by the calls of tensors, others with pickle=True";

impl Value {
    /// The value of an object. What arrives is of the very same types: so objects of classes derived from them are not sent.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> Self {
        Self::within(object, 0).unwrap_or_else(Self::Unsendable)
    }

    /// The value of an object, or the reason why it cannot be sent.
    fn within(object: &Bound<'_, PyAny>, depth: usize) -> Result<Self, String> {
        if depth > DEPTH {
            return Err(format!("its values are nested more than {DEPTH} levels deep; flatten it"));
        }
        let list = |objects: &mut dyn Iterator<Item = Bound<'_, PyAny>>| {
            objects.map(|object| Self::within(&object, depth + 1)).collect::<Result<_, _>>().map(Self::List)
        };
        let marked = |mark: Mark, value: Self| Self::Marked(mark, Box::new(value));
        if object.is_none() {
            Ok(Self::None)
        } else if let Ok(truth) = object.cast_exact::<PyBool>() {
            Ok(Self::Bool(truth.is_true()))
        } else if let Ok(number) = object.cast_exact::<PyInt>() {
            integer(number)
        } else if let Ok(number) = object.cast_exact::<PyFloat>() {
            Ok(Self::Float(number.value()))
        } else if let Ok(text) = object.cast_exact::<PyString>() {
            let text = text.to_cow().map(|text| Self::Text(text.into_owned()));
            text.map_err(|_| "a text has surrogates, which are not Unicode".to_owned())
        } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            Ok(Self::Bytes(bytes.as_bytes().to_vec()))
        } else if let Ok(bytes) = object.cast_exact::<PyByteArray>() {
            Ok(marked(Mark::ByteArray, Self::Bytes(bytes.to_vec())))
        } else if let Ok(values) = object.cast_exact::<PyList>() {
            list(&mut values.iter())
        } else if let Ok(values) = object.cast_exact::<PyTuple>() {
            list(&mut values.iter()).map(|values| marked(Mark::Tuple, values))
        } else if let Ok(map) = object.cast_exact::<PyDict>() {
            // A copy is read, because reading values may run code that changes the original.
            let pairs = map.items().iter().map(|pair| {
                let pair: (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                    pair.extract().map_err(|error: PyErr| error.to_string())?;
                Ok((Self::within(&pair.0, depth + 1)?, Self::within(&pair.1, depth + 1)?))
            });
            pairs.collect::<Result<_, _>>().map(Self::Map)
        } else if let Some(mark) = set(object) {
            let values: Result<Vec<_>, _> = object.try_iter().and_then(Iterator::collect);
            let values = values.map_err(|error| format!("its elements cannot be read: {error}"))?;
            list(&mut values.into_iter()).map(|values| marked(mark, values))
        } else if let Ok(number) = object.cast_exact::<PyComplex>() {
            let parts = [number.real(), number.imag()].map(Self::Float);
            Ok(marked(Mark::Complex, Self::List(parts.into())))
        } else if let Some((mark, item)) = Mark::of_numpy(object) {
            Self::within(&item, depth + 1).map(|value| match value {
                // A mark has no other mark.
                Self::Marked(_, value) => marked(mark, *value),
                value => marked(mark, value),
            })
        } else if let Ok(pickled) = object.cast::<Pickled>() {
            Ok(marked(Mark::Pickle, Self::Bytes(pickled.get().data.as_bytes(object.py()).to_vec())))
        } else if let Ok(unsendable) = object.cast::<Unsendable>() {
            Err(unsendable.get().0.clone())
        } else {
            let name = object.get_type().fully_qualified_name();
            let name = name.map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
            Err(format!("it has a value of type {name}; {PLAIN}"))
        }
    }

    /// True if Python can have it in a set or as a key.
    pub(crate) fn is_hashable(&self) -> bool {
        match self {
            Self::List(_) | Self::Map(_) | Self::Marked(Mark::Set | Mark::ByteArray, _) => false,
            Self::Marked(Mark::Tuple, value) => match &**value {
                Self::List(values) => values.iter().all(Self::is_hashable),
                _ => false,
            },
            _ => true,
        }
    }

    /// This value as an object of Python.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::None | Self::Unsendable(_) => Ok(py.None()),
            Self::Bool(truth) => truth.into_py_any(py),
            Self::Int(number) => number.into_py_any(py),
            Self::Natural(number) => number.into_py_any(py),
            Self::Float(number) => number.into_py_any(py),
            Self::Text(text) => text.into_py_any(py),
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_py_any(py),
            Self::List(values) => PyList::new(py, objects(py, values)?)?.into_py_any(py),
            Self::Map(pairs) => {
                let map = PyDict::new(py);
                for (key, value) in pairs {
                    map.set_item(key.into_python(py)?, value.into_python(py)?)?;
                }
                map.into_py_any(py)
            }
            Self::Marked(mark, value) => marked(py, mark, *value).map_err(|error| {
                Error::new_err(format!("a {mark:?} of an object that has arrived cannot be made: {error}"))
            }),
        }
    }
}

/// Each value as an object.
fn objects(py: Python<'_>, values: Vec<Value>) -> PyResult<Vec<Py<PyAny>>> {
    values.into_iter().map(|value| value.into_python(py)).collect()
}

/// True if a value may have this mark.
fn fits(mark: Mark, value: &Value) -> bool {
    match (mark, value) {
        (Mark::Tuple, Value::List(_)) => true,
        (Mark::ByteArray | Mark::Integer | Mark::Pickle, Value::Bytes(_)) => true,
        (Mark::Set | Mark::FrozenSet, Value::List(values)) => values.iter().all(Value::is_hashable),
        (mark, Value::List(parts)) => {
            mark.is_complex() && matches!(parts[..], [Value::Float(_), Value::Float(_)])
        }
        (Mark::Numpy(_), value) => !matches!(value, Value::Map(_)),
        _ => false,
    }
}

/// The object of a value that may have this mark.
fn marked(py: Python<'_>, mark: Mark, value: Value) -> PyResult<Py<PyAny>> {
    match (mark, value) {
        (Mark::Tuple, Value::List(values)) => PyTuple::new(py, objects(py, values)?)?.into_py_any(py),
        (Mark::Set, Value::List(values)) => PySet::new(py, objects(py, values)?)?.into_py_any(py),
        (Mark::FrozenSet, Value::List(values)) => PyFrozenSet::new(py, objects(py, values)?)?.into_py_any(py),
        (Mark::ByteArray, Value::Bytes(bytes)) => PyByteArray::new(py, &bytes).into_py_any(py),
        (Mark::Pickle, Value::Bytes(bytes)) => {
            Pickled { data: PyBytes::new(py, &bytes).unbind() }.into_py_any(py)
        }
        (Mark::Integer, Value::Bytes(bytes)) => {
            let signed = PyDict::new(py);
            signed.set_item("signed", true)?;
            let given = (PyBytes::new(py, &bytes), "little");
            py.get_type::<PyInt>().call_method("from_bytes", given, Some(&signed))?.into_py_any(py)
        }
        (Mark::Numpy(place), value) => {
            let item = match value {
                Value::List(_) => marked(py, Mark::Complex, value)?,
                value => value.into_python(py)?,
            };
            let kind = py.import(intern!(py, "numpy"))?.getattr(Mark::numpy_name(place))?;
            kind.call1((item,))?.into_py_any(py)
        }
        (Mark::Complex, Value::List(parts)) => {
            let part = |at: usize| match parts.get(at) {
                Some(Value::Float(part)) => *part,
                _ => 0.0,
            };
            PyComplex::from_doubles(py, part(0), part(1)).into_py_any(py)
        }
        // The mark does not fit the value.
        (_, value) => value.into_python(py),
    }
}

/// The mark of a set, if the object is one.
fn set(object: &Bound<'_, PyAny>) -> Option<Mark> {
    if object.is_exact_instance_of::<PySet>() {
        Some(Mark::Set)
    } else {
        object.is_exact_instance_of::<PyFrozenSet>().then_some(Mark::FrozenSet)
    }
}

fn integer(number: &Bound<'_, PyInt>) -> Result<Value, String> {
    let (small, large) = (number.extract().map(Value::Int), number.extract().map(Value::Natural));
    if let Ok(value) = small.or(large) {
        return Ok(value);
    }
    let bytes = || -> PyResult<Vec<u8>> {
        let bits: usize = number.call_method0("bit_length")?.extract()?;
        let signed = PyDict::new(number.py());
        signed.set_item("signed", true)?;
        number.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?.extract()
    };
    let bytes = bytes().map_err(|error| error.to_string())?;
    Ok(Value::Marked(Mark::Integer, Box::new(Value::Bytes(bytes))))
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
            Self::Marked(mark, value) => {
                Marked { mark: Some(mark.code()), value: &**value }.serialize(serializer)
            }
            Self::Unsendable(why) => Err(S::Error::custom(why)),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Marked { mark, value: Unmarked(value) } = Marked::deserialize(deserializer)?;
        let Some(code) = mark else { return Ok(value) };
        match Mark::of(code).filter(|mark| fits(*mark, &value)) {
            Some(mark) => Ok(Self::Marked(mark, Box::new(value))),
            None => Err(D::Error::custom(format!("such a value cannot have the mark {code}"))),
        }
    }
}

/// A value without its mark.
struct Unmarked(Value);

impl<'de> Deserialize<'de> for Unmarked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any).map(Unmarked)
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
        std::iter::from_fn(|| sequence.next_element().transpose()).collect::<Result<_, _>>().map(Value::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            if !Value::is_hashable(&key) {
                return Err(A::Error::custom("a map has a key that Python's dict cannot have"));
            }
            pairs.push((key, value));
        }
        Ok(Value::Map(pairs))
    }
}
