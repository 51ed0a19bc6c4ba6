//! JSON as `json.dumps` of Python writes it, for the filter `tojson` of chat templates.

use std::io::{self, Write};

use anyhow::Result;
use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The filter `tojson` of `transformers`. (That of the engine escapes HTML.)
pub fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let is_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let text = written(&value, indent);
    let text = text.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(match is_ascii {
        Some(true) => escaped(&text),
        _ => text,
    }))
}

fn written(value: &impl Serialize, indent: Option<usize>) -> Result<String> {
    let format = PythonFormat {
        indent,
        depth: 0,
        is_empty: true,
    };
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, format))?;
    Ok(String::from_utf8(bytes)?)
}

/// Escapes the characters outside of printable ASCII, which JSON has in strings only.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '\0'..='~' => c.to_string(),
        _ => {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            units.map(|unit| format!("\\u{unit:04x}")).collect()
        }
    };
    text.chars().map(escape).collect()
}

/// Returns a number as Python's `repr` writes it: with an exponent below 1e-4 and from 1e16 on.
pub fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..16 => match number.fract() == 0.0 {
            true => format!("{number:.1}"),
            false => number.to_string(),
        },
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", i32::abs(exponent))
        }
    }
}

/// A line for each value if there is an indent, otherwise one line with spaces.
struct PythonFormat {
    indent: Option<usize>,
    depth: usize,
    /// `true` if the current list or object has no value yet.
    is_empty: bool,
}

impl PythonFormat {
    fn open(&mut self, writer: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close(&mut self, writer: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.begin_line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn separate(&mut self, writer: &mut (impl Write + ?Sized), is_first: bool) -> io::Result<()> {
        self.is_empty = false;
        writer.write_all(match (is_first, self.indent) {
            (true, _) => b"",
            (false, Some(_)) => b",",
            (false, None) => b", ",
        })?;
        self.begin_line(writer)
    }

    fn begin_line(&self, writer: &mut (impl Write + ?Sized)) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{}", " ".repeat(indent * self.depth)),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonFormat {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_those_of_repr() {
        for (number, expected) in [
            (0.00001, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (-2.5, "-2.5"),
            (3.0, "3.0"),
            (0.0, "0.0"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn values_are_those_of_json_dumps() {
        let value = json!({"a": [1, 2.5, []], "b": {}, "c": "ä𝄞"});
        for (indent, expected) in [
            (None, r#"{"a": [1, 2.5, []], "b": {}, "c": "ä𝄞"}"#),
            (
                Some(2),
                "{\n  \"a\": [\n    1,\n    2.5,\n    []\n  ],\n  \"b\": {},\n  \"c\": \"ä𝄞\"\n}",
            ),
        ] {
            assert_eq!(written(&value, indent).unwrap(), expected);
        }
        let text = "{\"c\": \"ä𝄞\u{7f}\"}";
        assert_eq!(escaped(text), r#"{"c": "\u00e4\ud834\udd1e\u007f"}"#);
    }
}
