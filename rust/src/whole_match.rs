//! Regular expressions that match whole texts, for the C interface. The caller passes handles that
//! lsr_regex_new made.

use regex::Regex;

use crate::{guard, Owned, UserError, View};

#[no_mangle]
pub unsafe extern "C" fn lsr_regex_new(
    pattern: View,
    made: *mut *mut Regex,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let compiled = |pattern: &str| {
            Regex::new(pattern).map_err(|error| UserError(error.to_string()))
        };
        let pattern = pattern.text();
        compiled(&pattern)?; // by itself, so that a parenthesis too many is an error
        let regex = compiled(&format!("\\A(?:{pattern})\\z"))?;
        made.write(Box::into_raw(Box::new(regex)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_regex_matches(
    regex: *const Regex,
    text: View,
    matches: *mut bool,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        matches.write((*regex).is_match(&text.text()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_regex_free(regex: *mut Regex) {
    drop(Box::from_raw(regex));
}
