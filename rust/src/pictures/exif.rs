//! The orientation of a picture, where Pillow looks for it: tag 274 of EXIF, then XMP.

use super::bytes::{u16_be, u16_le, u32_be, u32_le};
use super::Read;

const ORIENTATION: u16 = 274;

/// Returns 1 to 8; 1 where nothing says otherwise. `exif`: the TIFF structure, with or without
/// "Exif\0\0" before it.
pub fn orientation(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> u8 {
    let mut tiff = exif.unwrap_or_default();
    for _ in 0..2 {
        tiff = tiff.strip_prefix(b"Exif\0\0").unwrap_or(tiff);
    }
    let found = in_tiff(tiff).or_else(|| xmp.and_then(in_xmp));
    match found {
        Some(value) if (1..=8).contains(&value) => value as u8,
        _ => 1,
    }
}

fn in_tiff(tiff: &[u8]) -> Option<u32> {
    let big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at| if big { u16_be(tiff, at) } else { u16_le(tiff, at) };
    let long = |at| if big { u32_be(tiff, at) } else { u32_le(tiff, at) };
    let read = || -> Read<Option<u32>> {
        let directory = long(4)? as usize;
        let mut found = None;
        for entry in 0..short(directory)? as usize {
            let at = directory + 2 + 12 * entry;
            let Ok(tag) = short(at) else { break };
            if tag != ORIENTATION {
                continue;
            }
            let kind = short(at + 2)?;
            // Two shorts or one long fit the entry; more are elsewhere.
            let values = long(at + 4)? as usize;
            let size = match kind {
                3 | 8 => 2,
                4 | 9 => 4,
                _ => continue,
            };
            let place = if values * size <= 4 { at + 8 } else { long(at + 8)? as usize };
            if values > 0 {
                found = Some(if size == 2 { short(place)? as u32 } else { long(place)? });
            }
        }
        Ok(found)
    };
    read().ok().flatten()
}

fn in_xmp(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    for (at, window) in xmp.windows(NAME.len()).enumerate() {
        if window != NAME {
            continue;
        }
        let rest = &xmp[at + NAME.len()..];
        let value = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"));
        if let Some([digit @ b'0'..=b'9', ..]) = value {
            return Some((digit - b'0') as u32);
        }
    }
    None
}
