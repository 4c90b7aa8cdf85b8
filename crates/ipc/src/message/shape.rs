//! The shape of a message as text: every type that is encoded in it, in order.
//!
//! The shape comes from the decoder itself, so that it has everything that changes the encoding, in
//! whatever crate it is declared, and nothing else. A decoder asks for one value after the other.
//! [`Learner`] notes each question and answers it with the smallest value. An enumeration shows
//! one variant each time it is decoded, so the message is decoded until all have been seen.

use std::collections::BTreeMap;

use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    SeqAccess, VariantAccess, Visitor,
};

/// The names of fields or variants.
type Names = &'static [&'static str];

/// The shape of a type. Two types have the same one if the same is encoded under the same names.
pub(super) fn shape<T: DeserializeOwned>() -> String {
    let mut learner = Learner::default();
    loop {
        let before = learner.steps;
        T::deserialize(&mut learner).expect("a message needs a type that `Learner` does not know");
        learner.text.push('\n');
        if learner.steps == before {
            return learner.text;
        }
    }
}

/// A deserializer that writes down what it is asked for.
#[derive(Default)]
struct Learner {
    text: String,
    /// The variant that an enumeration shows next, by its name and its variants.
    next: BTreeMap<(&'static str, Names), u32>,
    /// How often an enumeration went on to another variant.
    steps: u64,
}

impl Learner {
    fn note(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push(' ');
    }

    /// Decodes so many values, one after the other.
    fn each<'de, V: Visitor<'de>>(
        &mut self,
        names: Option<Names>,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note("{");
        let value = visitor.visit_seq(Each { names, len, at: 0, learner: &mut *self })?;
        self.note("}");
        Ok(value)
    }
}

/// Values that follow each other: fields, members of a tuple, or the one item of a list.
struct Each<'a> {
    names: Option<Names>,
    len: usize,
    at: usize,
    learner: &'a mut Learner,
}

impl<'de> SeqAccess<'de> for Each<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        if self.at == self.len {
            return Ok(None);
        }
        if let Some(names) = self.names {
            self.learner.note(names[self.at]);
        }
        self.at += 1;
        seed.deserialize(&mut *self.learner).map(Some)
    }
}

/// A variant of an enumeration.
struct Variant<'a> {
    index: u32,
    learner: &'a mut Learner,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let index: U32Deserializer<Error> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.learner)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.learner.each(None, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, names: Names, visitor: V) -> Result<V::Value, Error> {
        self.learner.each(Some(names), names.len(), visitor)
    }
}

/// Answers questions for values without parts.
macro_rules! plain {
    ($($ask:ident: $name:literal, $visit:ident($($value:expr)?);)*) => {
        $(fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.note($name);
            visitor.$visit($($value)?)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Learner {
    type Error = Error;

    plain! {
        deserialize_bool: "bool", visit_bool(false);
        deserialize_i8: "i8", visit_i8(0);
        deserialize_i16: "i16", visit_i16(0);
        deserialize_i32: "i32", visit_i32(0);
        deserialize_i64: "i64", visit_i64(0);
        deserialize_u8: "u8", visit_u8(0);
        deserialize_u16: "u16", visit_u16(0);
        deserialize_u32: "u32", visit_u32(0);
        deserialize_u64: "u64", visit_u64(0);
        deserialize_f32: "f32", visit_f32(0.0);
        deserialize_f64: "f64", visit_f64(0.0);
        deserialize_char: "char", visit_char('x');
        deserialize_str: "text", visit_str("");
        deserialize_string: "text", visit_str("");
        deserialize_bytes: "bytes", visit_bytes(&[]);
        deserialize_byte_buf: "bytes", visit_bytes(&[]);
        deserialize_unit: "unit", visit_unit();
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("option");
        visitor.visit_some(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("list");
        self.each(None, 1, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.each(None, len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.each(None, len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: Names,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.each(Some(names), names.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: Names,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let index = *self.next.entry((name, variants)).or_default();
        let before = self.steps;
        self.note(&format!("{index} of {}: {}", variants.len(), variants[index as usize]));
        let value = visitor.visit_enum(Variant { index, learner: &mut *self })?;
        // It goes on when no enumeration inside of this variant has more to show.
        if self.steps == before && index as usize + 1 < variants.len() {
            self.next.insert((name, variants), index + 1);
            self.steps += 1;
        }
        Ok(value)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("the encoding does not describe itself, nor has it maps"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// The shape of a type that is declared here.
    macro_rules! shape_of {
        ($($declaration:tt)*) => {{
            #[derive(Deserialize)]
            #[allow(dead_code, reason = "it is only decoded")]
            $($declaration)*
            shape::<Message>()
        }};
    }

    #[test]
    fn whatever_changes_the_encoding_changes_the_shape() {
        let shapes = [
            shape_of!(
                struct Message {
                    a: u8,
                    b: u16,
                }
            ),
            shape_of!(
                struct Message {
                    b: u16,
                    a: u8,
                }
            ),
            shape_of!(
                struct Message {
                    a: u8,
                    b: u32,
                }
            ),
            shape_of!(
                struct Message {
                    a: u8,
                    b: Option<u16>,
                }
            ),
            shape_of!(
                struct Message {
                    a: u8,
                    b: Vec<u16>,
                }
            ),
            shape_of!(
                struct Message {
                    a: u8,
                    b: [u16; 2],
                }
            ),
            shape_of!(
                struct Message {
                    a: u8,
                    b: u16,
                    c: bool,
                }
            ),
            shape_of!(
                enum Message {
                    A,
                    B,
                }
            ),
            shape_of!(
                enum Message {
                    B,
                    A,
                }
            ),
            shape_of!(
                enum Message {
                    A,
                    B,
                    C,
                }
            ),
            shape_of!(
                enum Message {
                    A,
                    B { c: u8 },
                }
            ),
            shape_of!(
                enum Message {
                    A,
                    B(u8),
                }
            ),
            shape_of!(
                enum Message {
                    A,
                    B(Option<Result<u8, (u8, String)>>),
                }
            ),
            shape_of!(
                enum Message {
                    A,
                    B(Option<Result<u8, (u8, char)>>),
                }
            ),
        ];
        for (at, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..at].contains(shape), "{at}: {shape}");
        }
    }

    #[test]
    fn words_about_a_type_and_its_own_name_are_not_in_its_shape() {
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "it is only decoded")]
        struct Other {
            /// A field.
            a: Option<u8>,
        }
        assert_eq!(
            shape::<Other>(),
            shape_of!(
                struct Message {
                    a: Option<u8>,
                }
            )
        );
    }

    #[test]
    fn every_variant_within_variants_is_seen() {
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "it is only decoded")]
        enum Inner {
            P(u8),
            Q(u16),
            R(u32),
        }
        let shape = shape_of!(
            enum Message {
                A,
                B(Inner, Inner),
                C { inner: Vec<Inner>, other: Result<(), i8> },
                D(i64),
            }
        );
        for part in ["A", "P u8", "Q u16", "R u32", "C {", "Ok unit", "Err i8", "D i64"] {
            assert!(shape.contains(part), "{part}: {shape}");
        }
    }
}
