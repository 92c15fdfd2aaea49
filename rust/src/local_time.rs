//! Formats the time for templates. The caller passes the time; this code never reads a clock.

use std::fmt::Write;

use chrono::format::{Fixed, Item, Numeric, StrftimeItems};
use minijinja::Error;

use crate::budget::make;
use crate::python::error;

/// Maximum output bytes per byte of a format.
const APART: usize = 64;

/// Local date and time without a time zone.
pub type LocalTime = chrono::NaiveDateTime;

/// Python's datetime.now() has no time zone, and microseconds. Fields that only chrono has are
/// errors.
fn as_python<'a>(item: Item<'a>, microseconds: &Item<'a>) -> Item<'a> {
    use Fixed::*;
    match item {
        Item::Numeric(Numeric::Nanosecond, _) => microseconds.clone(),
        Item::Numeric(Numeric::Timestamp, _) => Item::Error,
        Item::Fixed(TimezoneName | TimezoneOffset | TimezoneOffsetColon) => Item::Literal(""),
        Item::Fixed(
            ShortMonthName | LongMonthName | ShortWeekdayName | LongWeekdayName | LowerAmPm
            | UpperAmPm,
        ) => item,
        Item::Fixed(_) => Item::Error,
        item => item,
    }
}

/// strftime_now of transformers at `time`, with the names of the C locale.
pub fn strftime(time: Option<&LocalTime>, format: &str) -> Result<String, Error> {
    make(format.len().saturating_mul(APART))?;
    let time = time.ok_or_else(|| error("strftime_now: no time is known"))?;
    let microseconds = StrftimeItems::new("%6f").next().unwrap_or(Item::Error);
    let items = StrftimeItems::new(format).map(|item| as_python(item, &microseconds));
    let mut text = String::new();
    write!(text, "{}", time.format_with_items(items))
        .map_err(|_| error(format!("strftime_now: no such format: {format}")))?;
    Ok(text)
}
